"""Slurm's side of the clock hooks: the real scripts and program, on fake GPUs."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

from fake_nvml import ROOT
from idle_clock import Stopwatch

HOOKS = {kind: ROOT / "etc" / f"{kind}.d" / "50-gpu-aware" for kind in ("prolog", "epilog")}
UNHURRIED = (
    "from slurm_gpu_aware.clocks import hooks\n"
    "hooks.DRIVER_LIMIT_S = hooks.MAKE_UP_LIMIT_S = hooks.METER_LIMIT_S = hooks.LATE_S = 20.0\n"
    "hooks.ALONE_S = hooks.TOGETHER_S = 20.0\n"
)
UNHURRIED_AGENT = (
    f"{UNHURRIED}from slurm_gpu_aware.clocks import agent\nagent.DRIVER_LIMIT_S = 20.0\n"
)
"""Limits that a busy machine does not exceed."""
CLOCKD = [
    *(sys.executable, "-c", f"{UNHURRIED_AGENT}from slurm_gpu_aware.cli.main import main\nmain()"),
    *("clockd", "--node", "n1"),
]


def until(condition):
    """Wait until it holds."""
    watch = Stopwatch()
    while not condition():
        assert watch.idle_s < 60
        time.sleep(0.02)


class Hooks:
    """Slurm's side: runs the hook scripts as slurmd would, with its variables."""

    def __init__(self, node, folder, accounts=False):
        self.node = node
        self.spool = folder / "spool"
        self.locks = folder / "locks"
        self.accounts = folder / "accounts"
        self.calls = folder / "calls"
        self.hooks = dict(HOOKS)
        unhurried = folder / "unhurried_clock.py"
        unhurried.write_text(
            f"{UNHURRIED}from slurm_gpu_aware.clocks.program import main\nexit(main())\n"
        )
        self.program = self.script("gpu-aware-clock", str(unhurried))
        self.conf = folder / "clock.conf"
        self.conf.write_text(
            f"# paths of this test\nspool = {self.spool}\n\nlocks={self.locks}\n"
            f"command = {self.program}\n" + (f"accounts = {self.accounts}\n" if accounts else "")
        )

    def wait_longer(self):
        """The scripts wait half a minute for an agent to begin, not three seconds."""
        for kind, script in HOOKS.items():
            self.hooks[kind] = self.node.folder / kind
            text = script.read_text()
            assert text.count(" -lt 150 ") == 1
            self.hooks[kind].write_text(text.replace(" -lt 150 ", " -lt 1500 "))
            self.hooks[kind].chmod(0o755)

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
            [self.hooks[kind]],
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
            timeout=300,
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

    def said(self, event):
        """Records of one kind."""
        return [record for record in self.records() if record["event"] == event]

    def opened(self):
        """The accounts that are open."""
        return sorted(file.name for file in self.accounts.glob("gpu*"))

    def left(self):
        """What hooks have left and no agent has taken."""
        return sorted(file.name for file in (self.accounts / "inbox").iterdir())

    @contextmanager
    def agent(self):
        """An agent runs on this node, and ends with the block."""
        env = {**self.node.env, "GPU_AWARE_CLOCK_CONFIG": str(self.conf)}
        self.wait_longer()
        with subprocess.Popen(CLOCKD, env=env, stderr=subprocess.DEVNULL) as agent:
            until((self.accounts / "agent").exists)
            yield agent
            agent.kill()

    def events(self):
        return [(r["event"], r["job_id"], r["gpus"]) for r in self.records()]

    def started(self):
        """By which script the hooks started Python, each time."""
        return self.calls.read_text().split() if self.calls.exists() else []

    def notes(self):
        """The notes' files, without the lock and what a killed process was writing."""
        return sorted(file.name for file in self.locks.iterdir() if file.name[0] != ".")

    def locked(self):
        return {
            k: int(self.node.set_to(k, "locked_clocks")[1])
            for k in range(4)
            if self.node.set_to(k, "locked_clocks")
        }


def gres_conf(folder, *lines):
    (folder / "gres.conf").write_text("# of the site\n" + "\n".join(lines) + "\n")
    return str(folder / "slurm.conf")
