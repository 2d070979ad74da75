"""The command line as a whole: exit codes, streams, start-up."""

import os
import subprocess
import sys

import pytest
from command_server import run_command
from commands import succeeded

COMMANDS = [
    *("doctor", "explain", "place", "queue", "release"),
    *("report", "selectd", "setup", "simulate", "status"),
]


def program(*args: str) -> subprocess.CompletedProcess[str]:
    return run_command(["", "gpu-aware", *args], os.environ)


def test_help_lists_every_command():
    done = succeeded(program("--help"))
    assert [c for c in COMMANDS if f"\n  {c} " not in done.stdout] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(command: str):
    done = succeeded(program(command, "--help"))
    assert f"gpu-aware {command}" in done.stdout
    assert "Example" in done.stdout


def test_unknown_command_is_wrong_usage():
    done = program("selectde")
    assert done.returncode == 2
    assert "No such command" in done.stderr
    assert done.stdout == ""


def test_bad_config_is_one_line_and_exit_1(tmp_path):
    bad = tmp_path / "config.toml"
    bad.write_text("[gate]\nlease = 3\n")
    done = program("--config", str(bad), "status")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "gate.lease: unknown; known: guard_head, lease_s" in done.stderr


def test_version():
    done = succeeded(program("--version"))
    assert done.stdout.startswith("gpu-aware, version ")


def test_help_imports_no_heavy_library():
    code = (
        "import sys\n"
        "from slurm_gpu_aware.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "heavy = {'numpy', 'sklearn', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    succeeded(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))
