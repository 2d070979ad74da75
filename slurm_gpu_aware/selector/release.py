"""Jobs that are left to Slurm: their gate is opened, unpinned, and the selector forgets them.

What is written down is what Slurm has taken. A job whose update is refused stays parked and is
tried again later, not in every round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.licence_gate import hand_over
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.ledger_writer import Books
from slurm_gpu_aware.selector.recovery import in_parts
from slurm_gpu_aware.slurm.client import JobUpdate, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, update_ids

__all__ = ["Leaver"]

log = logging.getLogger(__name__)

_MOST_TASKS = 500
"""Tasks of one array that one round leaves to Slurm one by one."""


class Leaver:
    """Leaves jobs to Slurm."""

    def __init__(self, client: SlurmClient, config: Config, books: Books, backoff: Backoff) -> None:
        self._client = client
        self._config = config
        self._books = books
        self._backoff = backoff

    def leave(
        self,
        jobs: Sequence[tuple[SlurmJob, str]],
        now: float,
        split: Set[int] = frozenset(),
        between: Callable[[], object] = lambda: None,
    ) -> tuple[set[str], dict[str, str]]:
        """Open the gate for jobs that we never can place, each with the reason why.

        ``split``: arrays of which tasks stand in records of their own; see `update_ids`.
        ``between``: called before each part of what is sent. Returns
        (ids of the jobs that Slurm was told about, why each job stays parked that does).
        """
        updates: dict[str, list[JobUpdate]] = {}
        stays: dict[str, str] = {}
        for job, _ in jobs:
            wait_s = self._backoff.wait_s(job.id, "Licenses")
            if wait_s is not None:
                stays[job.id] = f"cannot be left to Slurm; tried again in {wait_s:.0f} s"
                continue
            try:
                updates[job.id] = hand_over(job, update_ids(job, split, _MOST_TASKS), now)
            except ValueError as exc:
                log.error("release job %s by hand, its gate cannot be opened: %s", job.id, exc)
                self._backoff.punish(job.id)
                stays[job.id] = "its gate cannot be opened, it must be released by hand"
        stays |= self.send(updates, {job.id: reason for job, reason in jobs}, now, between)
        return set(updates), stays

    def send(
        self,
        updates: Mapping[str, Sequence[JobUpdate]],
        reasons: Mapping[str, str],
        now: float,
        between: Callable[[], object] = lambda: None,
    ) -> dict[str, str]:
        """Send updates, by the job that they are for; why each stays that Slurm refused.

        What a part has changed is written down before the next one is sent.
        """
        refused: dict[str, str] = {}
        stays: dict[str, str] = {}
        job_of = {u.job_id: job_id for job_id, sent in updates.items() for u in sent}
        last = {sent[-1].job_id for sent in updates.values() if sent}
        for part in in_parts([u for sent in updates.values() for u in sent]):
            between()
            refused |= self._client.update_jobs(part)
            for name in (update.job_id for update in part):
                job_id = job_of[name]
                if name not in refused:
                    self._write(name, reasons[job_id], now)
                if name not in last:
                    continue
                names = [update.job_id for update in updates[job_id]]
                complaints = [refused[n] for n in names if n in refused]
                if complaints:
                    wait_s = self._backoff.punish(job_id)
                    stays[job_id] = f"could not be left to Slurm: {complaints[0]}"
                    log.warning("job %s %s; tried again in %.0f s", job_id, stays[job_id], wait_s)
                    continue
                log.info("job %s is left to Slurm: %s", job_id, reasons[job_id])
                if job_id not in names:
                    self._write(job_id, reasons[job_id], now)
        return stays

    def _write(self, job_id: str, reason: str, now: float) -> None:
        self._books.event(job_id, "released", {"left_to_slurm": reason}, now)
