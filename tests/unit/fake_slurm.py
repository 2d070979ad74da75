"""The folder behind the fake ``scontrol``, and jobs as the filter leaves them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

__all__ = ["FAKE", "FakeSlurm", "parked"]

FAKE = Path(__file__).with_name("fake_scontrol.py")


class FakeSlurm:
    """The folder behind the fake ``scontrol``, and the selector that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "slurm"
        self.home.mkdir()
        binaries = folder / "bin"
        binaries.mkdir()
        scontrol = binaries / "scontrol"
        scontrol.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
        scontrol.chmod(0o755)
        self.scontrol = str(scontrol)
        self.store = folder / "store.db"
        config = folder / "config.toml"
        config.write_text(
            f'[store]\npath = "{self.store}"\n[events]\nsubmit_file = "{folder}/submitted"\n'
        )
        self.config = config
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "FAKE_SLURM": str(self.home),
            "GPU_AWARE_CLOCK_CONFIG": str(folder / "clock.conf"),
            "GPU_AWARE_CLOCK_SPOOL": str(folder / "clocks"),
        }
        self.write([], nodes=["n1", "n2"])

    def write(
        self,
        jobs: list[dict[str, Any]],
        nodes: list[str],
        drained: dict[str, list[int]] | None = None,
    ) -> None:
        state = {"jobs": jobs, "nodes": dict.fromkeys(nodes, "IDLE"), "drained": drained or {}}
        (self.home / "state.json").write_text(json.dumps(state))

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        jobs = json.loads((self.home / "state.json").read_text())["jobs"]
        return {job["JobId"]: job for job in jobs}

    def change(self, job_id: str, **fields: Any) -> None:
        state = json.loads((self.home / "state.json").read_text())
        for job in state["jobs"]:
            if job["JobId"] == job_id:
                job.update(fields)
        (self.home / "state.json").write_text(json.dumps(state))

    def update(self, *commands: str) -> str:
        """Give ``scontrol`` commands on its standard input; what it said on stderr."""
        done = subprocess.run(
            [self.scontrol],
            input="\n".join(commands).encode(),
            env=self.environment,
            capture_output=True,
            timeout=60,
            check=True,
        )
        return done.stderr.decode()

    def round(self, rounds: int = 1, *, kill_at: int | None = None, before: bool = False) -> int:
        """Rounds of the selector in a process of its own; its exit code."""
        (self.home / "log").unlink(missing_ok=True)
        for name in ("kill-at", "kill-before"):
            (self.home / name).unlink(missing_ok=True)
        if kill_at is not None:
            (self.home / "kill-at").write_text(str(kill_at))
        if before:
            (self.home / "kill-before").touch()
        code = (
            "import sys; from slurm_gpu_aware.service.selectd import run;"
            f" sys.exit(max(run({str(self.config)!r}, once=True) for _ in range({rounds})))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        self.said = done.stderr.decode()
        return done.returncode

    @property
    def commands(self) -> int:
        return len((self.home / "log").read_text().splitlines())

    def ledger(self, job_id: str) -> list[Any]:
        with open_store(self.store, readonly=True) as store:
            return Ledger(store).decisions(job_id)


def parked(job_id: str = "7", **fields: str) -> dict[str, Any]:
    """A job as the filter leaves it: ``--gres=gpu:2``."""
    return {
        "JobId": job_id,
        "JobName": "job",
        "UserId": "alice(2001)",
        "GroupId": "alice(2001)",
        "MCS_label": "N/A",
        "Priority": "100",
        "Nice": "0",
        "JobState": "PENDING",
        "Reason": "Licenses",
        "Restarts": "0",
        "BatchFlag": "1",
        "TimeLimit": "01:00:00",
        "SubmitTime": "900",
        "Partition": "gpu",
        "ReqNodeList": "(null)",
        "ExcNodeList": "(null)",
        "NodeList": "",
        "NumNodes": "1",
        "NumCPUs": "1",
        "NumTasks": "1",
        "CPUs/Task": "1",
        "ReqTRES": "cpu=1,mem=500M,node=1,billing=1,gres/gpu=2",
        "CoreSpec": "*",
        "MinCPUsNode": "1",
        "MinMemoryCPU": "500M",
        "Features": "(null)",
        "OverSubscribe": "OK",
        "Licenses": "gpuaware:1",
        "Network": "(null)",
        "Command": "/home/alice/job.sh",
        "WorkDir": "/home/alice",
        "AdminComment": "gpuaware/1;tn=gres/gpu:2;mc=1",
        "TresPerNode": "gres/gpu:2",
    } | fields
