"""Binding of a job whose AdminComment was overwritten, by the decision that placed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from slurm_gpu_aware.gate.index_types import placed_slots
from slurm_gpu_aware.gate.release import Pinned
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["RECORD", "PastDecision", "pinned_stray"]

RECORD = "record"
"""Key in a decision's outcome of the AdminComment that the job was parked with."""


class PastDecision(Protocol):
    """What is needed of a decision in the ledger (`store.ledger.Decision`)."""

    @property
    def user(self) -> str: ...
    @property
    def nodes(self) -> Sequence[str]: ...
    @property
    def slots(self) -> Sequence[Sequence[int]]: ...
    @property
    def exact(self) -> bool: ...
    @property
    def outcome(self) -> Mapping[str, Any]: ...


def pinned_stray(
    job: SlurmJob, decisions: Callable[[str], Sequence[PastDecision]]
) -> Pinned | None:
    """A job that is bound to what the ledger's last decision about it says; None: it is not.

    Slurm may give a job number again, so the user and the binding must be those of the decision.
    """
    found = decisions(job.id)
    if not found or found[-1].user != job.user:
        return None
    last = found[-1]
    slots = placed_slots(job.tres_per_node) or placed_slots(job.tres_per_job)
    decided = tuple(sorted(last.slots[0])) if last.exact and last.slots else None
    there = bool(job.req_nodes) and set(job.req_nodes) == set(last.nodes)
    if slots != decided if slots is not None else not there:
        return None
    record = last.outcome.get(RECORD)
    return Pinned.of(job, record) if isinstance(record, str) else None
