"""Clocks of running jobs: what was set, what is ordered, and what a job may draw until it is set.

An order counts as carried out when a record or report of the agent names its number. Until then
a job may run at the old clock or at the new one, and counts with the higher of both. A clock that a
GPU refuses, and an agent that does not answer, end the changes of that job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ANSWER_S = 60.0
"""Time in which an agent has to answer an order."""
Clock = int | None
"""SM clock, MHz; None: the default clock, which is the highest."""


def higher(clocks: Iterable[Clock]) -> Clock:
    """The highest of some clocks."""
    found = list(clocks)
    return None if not found or None in found else max(mhz for mhz in found if mhz is not None)


@dataclass
class _Ordered:
    clock: Clock
    seq: int
    at: float


@dataclass
class _Job:
    on: dict[str, Clock]
    """Node -> highest clock that it may have there, but for the order without an answer."""
    ordered: dict[str, _Ordered] = field(default_factory=dict)
    """Node -> order without an answer."""
    refused: str = ""
    """Why its clock is not changed any more."""


class JobClocks:
    """Clocks of the running jobs of ours."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def start(self, job_id: str, clock: Clock, nodes: Iterable[str]) -> None:
        """Add a job whose prologs set this clock, in place of what was known of it."""
        self._jobs[job_id] = _Job(dict.fromkeys(nodes, clock))

    def keep(self, job_ids: Collection[str]) -> None:
        """Forget all other jobs."""
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in job_ids}

    def heard(self, job_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        """Take a record of a node; only ``clock_set`` and ``clock_failed`` say something here."""
        job, node = self._jobs.get(job_id), detail.get("node")
        if job is None or not isinstance(node, str) or node not in job.on:
            return  # a node says nothing of jobs of other nodes
        seq, mhz = detail.get("seq"), detail.get("mhz")
        order = job.ordered.get(node)
        answers = order is not None and isinstance(seq, int) and seq >= order.seq
        if kind == "clock_set":
            job.on[node] = mhz if isinstance(mhz, int) and mhz > 0 else None
            if answers:
                del job.ordered[node]
        elif kind == "clock_failed" and detail.get("during") != "reset":
            why = str(detail.get("error") or detail.get("call") or "no reason was recorded")
            job.refused = job.refused or why  # the first one is the cause of the others
            if seq is None:
                job.on[node] = None  # the prolog could not lock it
            job.ordered.pop(node, None)

    def carried_out(self, node: str, seq: int) -> None:
        """Take a report of an agent: it has carried out the orders up to this number."""
        for job in self._jobs.values():
            order = job.ordered.get(node)
            if order is not None and order.seq <= seq:
                job.on[node] = order.clock
                del job.ordered[node]

    def order(self, job_id: str, node: str, clock: Clock, seq: int, at: float) -> None:
        """Note an order that was written for a node; the same one again changes nothing."""
        job = self._jobs[job_id]
        known = job.ordered.get(node)
        if known is not None and known.clock != clock:  # it may have been carried out
            job.on[node] = higher([job.on.get(node), known.clock])
        elif known is not None or job.on.get(node) == clock:
            return
        job.ordered[node] = _Ordered(clock, seq, at)

    def silent(self, now: float) -> dict[str, str]:
        """Job -> node whose agent has not answered in time; these jobs keep their clocks."""
        found = {}
        for job_id, job in self._jobs.items():
            late = [n for n, order in job.ordered.items() if now - order.at > ANSWER_S]
            if late and not job.refused:
                job.refused = f"the clock agent of {late[0]} does not answer"
                found[job_id] = late[0]
        return found

    def present(self, job_id: str) -> Clock:
        """The highest clock that a job may have on one of its nodes now."""
        job = self._jobs[job_id]
        orders = [order.clock for order in job.ordered.values()]
        return higher([*job.on.values(), *orders])

    def wanted(self, job_id: str) -> Clock:
        """The clock that is ordered, or else the present one."""
        orders = list(self._jobs[job_id].ordered.values())
        return orders[-1].clock if orders else self.present(job_id)

    def nodes(self, job_id: str) -> Collection[str]:
        """Nodes of a job."""
        return self._jobs[job_id].on.keys()

    def refused(self, job_id: str) -> str:
        """Why the clock of a job is not changed any more; empty: it may be."""
        return self._jobs[job_id].refused

    @property
    def awaited(self) -> bool:
        """Whether some order has no answer yet."""
        return any(job.ordered and not job.refused for job in self._jobs.values())
