"""The folder behind `MemorySlurm`, its client, and jobs as the filter leaves them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command_server import run_command
from memory_slurm import (
    START,
    MemorySlurm,
    job_record,
    node_record,
    opened,
    reservation_record,
)

from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Event, Ledger

__all__ = ["Interleaved", "SlurmFolder", "parked", "run_by_slurm"]


class SlurmFolder:
    """A `MemorySlurm`, and a selector's configuration and store beside it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "slurm"
        self.home.mkdir()
        self.store = folder / "store.db"
        self.config = folder / "config.toml"
        self.config.write_text(
            f'[store]\npath = "{self.store}"\n[events]\nsubmit_file = "{folder}/submitted"\n'
        )
        self.environment = {
            **os.environ,
            "GPU_AWARE_CLOCK_CONFIG": str(folder / "clock.conf"),
            "GPU_AWARE_CLOCK_SPOOL": str(folder / "clocks"),
        }
        self.write([], nodes=["n1", "n2"])
        self.reserve(reservation_record("gpuaware_gate", licenses="gpuaware:100000"))

    # -- Slurm -------------------------------------------------------------------------------------

    def client(self) -> MemorySlurm:
        """A client of this Slurm."""
        return MemorySlurm(self.home)

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever opens Slurm's client in this process gets one of this Slurm."""
        name = "slurm_gpu_aware.slurm.client.SlurmClient"
        monkeypatch.setattr(name, partial(MemorySlurm, self.home))

    @contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        """All of its state, by the keys of `START`."""
        with opened(self.home) as state:
            yield state

    def set(self, **values: Any) -> None:
        """New values of its state."""
        assert values.keys() <= START.keys()
        with self.state() as state:
            state.update(values)

    def get(self, key: str) -> Any:
        """One value of its state."""
        with self.state() as state:
            return state[key]

    def write(
        self,
        jobs: list[dict[str, Any]],
        nodes: list[str],
        drained: dict[str, list[int]] | None = None,
    ) -> None:
        """All jobs and nodes; ``drained``: GPUs that are."""
        drains = {
            name: ",".join(f"gpu:g{slot}:1(IDX:{slot})" for slot in slots)
            for name, slots in (drained or {}).items()
        }
        self.set(jobs=jobs, nodes=[node_record(n, gres_drain=drains.get(n, "N/A")) for n in nodes])

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Raw records by their numbers."""
        return {str(job["job_id"]): job for job in self.get("jobs")}

    def change(self, job_id: str, /, **fields: Any) -> None:
        """New values of a job's record."""
        with self.state() as state:
            for job in state["jobs"]:
                if job["job_id"] == int(job_id):
                    job |= job_record(**{**job, **fields})

    def add(self, *jobs: dict[str, Any]) -> None:
        """More jobs."""
        with self.state() as state:
            state["jobs"] += jobs

    def reserve(self, *reservations: dict[str, Any]) -> None:
        """All reservations that there are."""
        self.set(reservations=list(reservations))

    @property
    def calls(self) -> list[list[Any]]:
        """What was asked since the last `forget_calls`: the request's name and what was given."""
        found: list[list[Any]] = self.get("calls")
        return found

    def forget_calls(self) -> None:
        """Count anew."""
        self.set(calls=[])

    # -- the selector and the command line ---------------------------------------------------------

    def configure(self, text: str) -> None:
        """More lines of the configuration."""
        with self.config.open("a") as config:
            config.write(f"{text}\n")

    def run(self, *argv: str, environment: dict[str, str] | None = None) -> CompletedProcess[str]:
        """A command of `run_with_memory_slurm`, in a process of its own."""
        return run_command([str(self.home), *argv], self.environment | (environment or {}))

    def round(self, rounds: int = 1, *, kill_at: int = 0, before: bool = False) -> int:
        """Rounds of the selector in a process of its own; its exit code."""
        self.set(calls=[], kill_at=kill_at, kill_before=before)
        done = self.run("rounds", str(self.config), str(rounds))
        self.said = done.stderr
        return done.returncode

    def ledger(self, job_id: str) -> list[Any]:
        with open_store(self.store, readonly=True) as store:
            return Ledger(store).decisions(job_id)

    def events(self, *kinds: str, job_id: str = "7") -> list[Event]:
        """Events of a job, of these kinds (none given: of all)."""
        with open_store(self.store, readonly=True) as store:
            found = Ledger(store).events(job_id)
        return [event for event in found if not kinds or event.kind in kinds]

    def kinds(self, job_id: str = "7") -> list[str]:
        """Kinds of a job's events."""
        return [event.kind for event in self.events(job_id=job_id)]


class Interleaved(MemorySlurm):
    """A client; a selector works between its first reading of all jobs and what follows."""

    def __init__(self, slurm: SlurmFolder) -> None:
        super().__init__(slurm.home)
        self._slurm = slurm
        self.codes: list[int] = []
        """Exit codes of the selector's rounds."""

    def jobs(self) -> list[SlurmJob]:
        found = super().jobs()
        if not self.codes:
            self.codes.append(self._slurm.round())
        return found


def parked(job_id: str = "7", gpus: int = 2, record: str = "", **fields: Any) -> dict[str, Any]:
    """A job as the filter leaves it: ``--gres=gpu:GPUS``; ``record``: more of its AdminComment."""
    usual = {
        "job_id": int(job_id),
        "tres_req_str": f"cpu=1,mem=500M,node=1,billing=1,gres/gpu={gpus}",
        "licenses": "gpuaware:1",
        "admin_comment": f"gpuaware/1;tn=gres/gpu:{gpus};mc=1{record}",
        "tres_per_node": f"gres/gpu:{gpus}",
    }
    return job_record(**{**usual, **fields})


def run_by_slurm(
    job_id: str, node: str = "n1", slots: Sequence[int] = range(4), **fields: Any
) -> dict[str, Any]:
    """A job that Slurm runs on these GPUs, and that is none of ours."""
    usual = {"state": "RUNNING", "licenses": "", "admin_comment": ""}
    return parked(job_id, nodes=node, slots=list(slots), **{**usual, **fields})
