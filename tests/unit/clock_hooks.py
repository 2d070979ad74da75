"""Slurm's side of the clock hooks: the real scripts and program, on fake GPUs."""

import json
import subprocess
import sys
import time

from fake_nvml import ROOT
from idle_clock import Stopwatch

HOOKS = {kind: ROOT / "etc" / f"{kind}.d" / "50-gpu-aware" for kind in ("prolog", "epilog")}


def until(condition):
    """Wait until it holds."""
    watch = Stopwatch()
    while not condition():
        assert watch.idle_s < 10
        time.sleep(0.02)


class Hooks:
    """Slurm's side: runs the hook scripts as slurmd would, with its variables."""

    def __init__(self, node, folder, accounts=False):
        self.node = node
        self.spool = folder / "spool"
        self.locks = folder / "locks"
        self.accounts = folder / "accounts"
        self.calls = folder / "calls"
        self.program = self.script("gpu-aware-clock", "-m slurm_gpu_aware.clocks")
        self.conf = folder / "clock.conf"
        self.conf.write_text(
            f"# paths of this test\nspool = {self.spool}\n\nlocks={self.locks}\n"
            f"command = {self.program}\n" + (f"accounts = {self.accounts}\n" if accounts else "")
        )

    def script(self, name, options):
        """A script in bin/ that counts its calls and starts Python."""
        file = self.node.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            f'#!/bin/sh\necho {name} >> {self.calls}\nexec {sys.executable} {options} "$@"\n'
        )
        file.chmod(0o755)
        return file

    def run(self, kind, job, gpus="", extra="", **env):
        done = subprocess.run(
            [HOOKS[kind]],
            env={
                **self.node.env,
                "GPU_AWARE_CLOCK_CONFIG": str(self.conf),
                "SLURMD_NODENAME": "n1",
                "SLURM_JOB_ID": str(job),
                "SLURM_JOB_GPUS": gpus,
                "SLURM_JOB_EXTRA": extra,
                **env,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, "")

    def command(self, *words, **env):
        return self.node.run(
            "slurm_gpu_aware.clocks",
            *words,
            GPU_AWARE_CLOCK_CONFIG=str(self.conf),
            SLURMD_NODENAME="n1",
            **env,
        )

    def records(self):
        file = self.spool / "n1.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def events(self):
        return [(r["event"], r["job_id"], r["gpus"]) for r in self.records()]

    def started(self):
        """By which script the hooks started Python, each time."""
        return self.calls.read_text().split() if self.calls.exists() else []

    def notes(self):
        """The notes' files, without the lock."""
        return sorted(file.name for file in self.locks.iterdir() if file.name != ".lock")

    def locked(self):
        return {
            k: int(self.node.set_to(k, "locked_clocks")[1])
            for k in range(4)
            if self.node.set_to(k, "locked_clocks")
        }


def gres_conf(folder, *lines):
    (folder / "gres.conf").write_text("# of the site\n" + "\n".join(lines) + "\n")
    return str(folder / "slurm.conf")
