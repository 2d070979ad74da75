"""Commands of Slurm's that are run: their environment, their time limit, their complaints."""

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import run_bounded, run_command


def test_slurm_commands_get_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SLURM_CONF", "/x"),
        ("SLURM_CLUSTERS", "other"),
        ("SQUEUE_FORMAT", "%i"),
        ("LC_ALL", "de_DE.UTF-8"),
    ):
        monkeypatch.setenv(name, value)
    said, _ = run_command(["env"], 60.0)
    environment = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert environment["SLURM_CONF"] == "/x"
    assert environment["SLURM_TIME_FORMAT"] == "%s"
    assert environment["LC_ALL"] == "C"
    assert not {"SLURM_CLUSTERS", "SQUEUE_FORMAT"} & set(environment)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["sleep", "600"], "no answer within 0.1 s"),
        (["no-such-command-here"], "cannot be run: No such file or directory"),
        (["sh", "-c", "echo one; echo two >&2; exit 3"], "two"),
        (["sh", "-c", "exit 3"], "exit 3"),
    ],
)
def test_what_a_command_that_fails_says(command: list[str], told: str) -> None:
    limit_s = 0.1 if command[0] == "sleep" else 60.0
    with pytest.raises(SourceError, match=told):
        run_command(command, limit_s)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sleep 600", "no answer within 0.3 s"),
        ("echo one; sleep 600", "no answer within 0.3 s"),
        ("echo one; exit 3", "exit 3"),
        ("echo one; echo off >&2; exit 3", "off"),
    ],
)
def test_a_bounded_command_fails_as_a_whole(command: str, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        run_bounded(["sh", "-c", command], 60.0 if "exit" in command else 0.3, 1000)
    with pytest.raises(SourceError, match="cannot be run"):
        run_bounded(["no-such-command-here"], 1.0, 1000)


def test_of_a_long_output_whole_lines_count() -> None:
    assert run_bounded(["printf", "one\\ntwo\\n"], 60.0, 8) == "one\ntwo\n"
    assert run_bounded(["sh", "-c", "while echo line; do :; done"], 60.0, 12) == "line\nline\n"
    assert run_bounded(["sh", "-c", "while printf x; do :; done"], 60.0, 12) == ""
