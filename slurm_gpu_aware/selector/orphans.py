"""Jobs of ours whose AdminComment somebody overwrote, so that Slurm no longer tells what they are.

They cannot be placed any more: Slurm handles them alone from then on, with what their users asked
for. That they are ours, and what that was, the ledger knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence, Set

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.holding_pool import left_fields
from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.orphan_binding import pinned_stray
from slurm_gpu_aware.gate.release import Pinned, reopen
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import Watch
from slurm_gpu_aware.selector.ledger_writer import Books
from slurm_gpu_aware.selector.release import Leaver
from slurm_gpu_aware.slurm.client import JobUpdate, SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, update_ids

__all__ = ["Strays"]

log = logging.getLogger(__name__)

_WHY = "its AdminComment was overwritten"
_MOST_TASKS = 500
"""Tasks of one array that one round leaves to Slurm one by one."""


class Strays:
    """Finds them and opens their gate."""

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        books: Books,
        watch: Watch,
        backoff: Backoff,
        leaver: Leaver,
    ) -> None:
        self._client = client
        self._gate = config.gate
        self._books = books
        self._watch = watch
        self._backoff = backoff
        self._leaver = leaver

    def open(
        self, jobs: Iterable[SlurmJob], now: float, split: Set[int], *, gate_held: bool
    ) -> None:
        """Give them to Slurm; those that are pinned only while the gate is held.

        A job that the ledger does not know is left alone: its owner may ask for our licence, an
        operator for GPUs by their index.
        """
        plain: dict[str, list[JobUpdate]] = {}
        pinned: list[Pinned] = []
        for job in jobs:
            if not self.looks_ours(job) or self._backoff.wait_s(job.id, "Licenses") is not None:
                continue
            bound = pinned_stray(job, self._books.decisions)
            if bound is not None:
                pinned.append(bound)
            elif job.licence_count(self._gate.licence) and self._known(job):
                plain |= self._opened(job, split)
        self._leaver.send(plain, dict.fromkeys(plain, _WHY), now)
        if gate_held and pinned:
            self._reopen(pinned, now)

    def looks_ours(self, job: SlurmJob) -> bool:
        """Pending without a record of ours, but with our licence or pins, or placed by us."""
        return (
            job.state == "PENDING"
            and parse(job.admin_comment) is None
            and (
                job.licence_count(self._gate.licence) > 0
                or job.id in self._watch.placed
                or placed_slots(job.tres_per_node) is not None
                or placed_slots(job.tres_per_job) is not None
            )
        )

    def _known(self, job: SlurmJob) -> bool:
        """Whether it was seen at the gate, itself or before it was split off its array."""
        names = dict.fromkeys([job.id, str(job.array_id or job.id)])
        return any(self._books.has_event(name, "parked") for name in names)

    def _opened(self, job: SlurmJob, split: Set[int]) -> dict[str, list[JobUpdate]]:
        own = ",".join(f"{name}:{n}" for name, n in job.licenses if name != self._gate.licence)
        try:
            ids = update_ids(job, split, _MOST_TASKS)
            fields = (("Licenses", own), *left_fields(job))
            return {job.id: [JobUpdate(job_id, fields) for job_id in ids]}
        except ValueError as exc:
            log.error("release job %s by hand, its gate cannot be opened: %s", job.id, exc)
            self._backoff.punish(job.id)
            return {}

    def _reopen(self, pinned: Sequence[Pinned], now: float) -> None:
        wrong = reopen(self._client, self._gate, pinned, now)
        for entry in pinned:
            job_id = entry.job.id
            if job_id in wrong:
                wait_s = self._backoff.punish(job_id)
                log.warning(
                    "job %s: %s, and it could not be given back its request: %s; tried again in"
                    " %.0f s",
                    job_id,
                    _WHY,
                    wrong[job_id],
                    wait_s,
                )
                continue
            log.info("job %s is left to Slurm with its original request: %s", job_id, _WHY)
            tracked = self._watch.placed.pop(job_id, None)
            if tracked is not None:
                self._books.outcome(tracked.decision, "reparked", now, {"why": _WHY})
            self._books.event(job_id, "released", {"left_to_slurm": _WHY}, now)
