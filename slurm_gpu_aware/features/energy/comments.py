"""Energy in Slurm's accounting: the SystemComment of ended jobs, written from a thread of its own.

slurmctld takes a SystemComment from no client, and no change of a job that has ended; slurmdbd
takes one from SlurmUser, by ``sacctmgr``. That may take as long as slurmdbd likes, so no round
waits for it, and what cannot be written is left out: the ledger has it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import Empty, Full, Queue

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.accounts import JobEnergy, job_energy
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.store.ledger import Event

log = logging.getLogger(__name__)

_SETTLE_S = 10.0
"""Slurm's accounting knows of a job's end by then, and the other nodes have recorded."""
_MOST = 10_000
"""Jobs that wait; more are left out."""
_TIMEOUT_S = 20.0
_PAUSE_S = 2.0
"""Before the ready jobs are written, so that many ends cost slurmdbd and us two commands."""
_AT_ONCE = 200
_COMPLAINT_S = 3600.0
_OURS = "gpu_energy"


def comment_of(energy: JobEnergy) -> str:
    """``gpu_energy=0.532kWh``; ``>=`` if some of it is not known."""
    known = "=" if not energy.unknown else ">="
    return f"{_OURS}{known}{energy.energy_j / 3.6e6:.3f}kWh"


class EnergyComments:
    """Jobs whose energy was recorded, until it stands in the accounting."""

    def __init__(
        self,
        events: Callable[[str], Iterable[Event]],
        run: Callable[..., tuple[str, str]] = run_command,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = _PAUSE_S,
    ) -> None:
        """``events``: those of a job, in the ledger; asked in the caller's thread."""
        self._events, self._run, self._clock, self._pause_s = events, run, clock, pause_s
        self._due: dict[str, float] = {}
        self._ready: Queue[tuple[str, str]] = Queue(_MOST)
        self._complained = -_COMPLAINT_S
        self._thread: threading.Thread | None = None

    def heard(self, job_id: str) -> None:
        """A node has recorded energy of a job."""
        if len(self._due) < _MOST:
            self._due[job_id] = self._clock() + _SETTLE_S

    def hand_over(self) -> None:
        """Give the thread the jobs whose records have settled; it starts with the first one."""
        now = self._clock()
        for job_id in [job_id for job_id, due in self._due.items() if due <= now]:
            del self._due[job_id]
            energy = job_energy(self._events(job_id))
            if energy is None:
                continue
            try:
                self._ready.put_nowait((job_id, comment_of(energy)))
            except Full:
                continue
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="energy", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            jobs = [self._ready.get()]
            time.sleep(self._pause_s)
            with suppress(Empty):
                while len(jobs) < _AT_ONCE:
                    jobs.append(self._ready.get_nowait())
            self._write(dict(jobs))

    def _write(self, texts: Mapping[str, str]) -> None:
        """A text of another program (burst buffers have one) stays."""
        fields = "JobID,JobIDRaw,SystemComment"
        changes = []
        try:
            asked = ["sacct", "-n", "-X", "-P", "-j", ",".join(texts), "-o", fields]
            for line in self._run(asked, _TIMEOUT_S)[0].split("\n"):
                job_id, _, rest = line.partition("|")
                number, _, kept = rest.partition("|")
                free = not kept or kept.startswith(_OURS)
                # sacctmgr knows an array's task by Slurm's number only.
                if job_id in texts and free and number.isascii() and number.isdecimal():
                    change = f"set SystemComment={texts[job_id]}"
                    changes.append(f"modify job where jobid={number} {change}\n")
            if changes:
                self._run(["sacctmgr", "-i", "-Q"], _TIMEOUT_S, stdin="".join(changes))
        except SourceError as exc:
            if self._clock() - self._complained >= _COMPLAINT_S:
                self._complained = self._clock()
                some = ", ".join(list(texts)[:3]) + (" and others" if len(texts) > 3 else "")
                log.warning("energy of jobs %s is not in Slurm's accounting: %s", some, exc)
