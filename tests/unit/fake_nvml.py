"""Helper of the tests on fake GPUs: builds the library once, writes machines, runs real code.

Code under test runs in a process of its own, because the loader looks for
``libnvidia-ml.so.1`` along ``LD_LIBRARY_PATH`` of the process's start.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from command_server import run_command

from slurm_gpu_aware.store.report import parse_report

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "docker" / "fake_nvml"
TIMES = ROOT / "docker" / "fake_gpus"


def load_machines():
    spec = importlib.util.spec_from_file_location("fake_machines", SOURCE / "machines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


machines = load_machines()
sys.path.append(str(TIMES))


_BUILT = []


def build_library(folder):
    """The folder of the library, which is built once in this process."""
    if not _BUILT:
        make = ["make", "-s", "-C", SOURCE, f"OUT={folder}"]
        subprocess.run(make, check=True, capture_output=True, timeout=300)
        _BUILT.append(folder)
    return _BUILT[0]


class FakeNode:
    """One fake node: machine file, state folder, and processes that see its GPUs."""

    def __init__(self, library, folder, kind="two-socket-4", **options):
        self.folder = folder
        self.machine = folder / "machine.json"
        self.state = folder / "state"
        content = machines.build(kind, "n1", seed=3, **options)
        content["unprivileged_clocks"] = True
        machines.write_json(self.machine, content)
        self.env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": str(TIMES),
            "FAKE_NVML_MACHINE": str(self.machine),
            "FAKE_NVML_STATE": str(self.state),
        }

    def python(self, code, **env):
        """Run Python code that prints JSON; return what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(self, *argv, **env):
        """Run a module's command line, ``run("gpu_aware_profile.cli", "node")``."""
        module, *rest = argv
        # A server for modules of one test costs more than a process
        if module == "gpu_aware_profile.cli" and "PYTHONPATH" not in env:
            return run_command(["", "gpu-aware-profile", *rest], {**self.env, **env})
        return subprocess.run(
            [sys.executable, "-m", module, *rest],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def probe(self, *options, code=0):
        """What the probe of a node reports, which the store can read."""
        probe = ["gpu_aware_profile.cli", "node", "--json", "--node-name", "n1"]
        done = self.run(*probe, *options)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        report = json.loads(done.stdout)
        parse_report(report)
        return report

    def set_to(self, minor, name):
        """What a state file holds, or None."""
        file = self.state / f"gpu{minor}.{name}"
        return file.read_text().split() if file.exists() else None

    def history(self):
        """Changes without their times, oldest first."""
        file = self.state / "history"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split(" ", 1)[1] for line in lines]
