"""Ordered clocks: orders for the clock agents, what they answered, and which of them obey."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu_aware.agent_reports import AgentReport
from slurm_gpu_aware.features.power.clock_orders import ClockOrders
from slurm_gpu_aware.features.power.job_clocks import Clock, JobClocks
from slurm_gpu_aware.node_orders import Order

_HEARD_S = 150.0
"""Age at which a report says nothing any more; agents report once a minute."""


@dataclass(frozen=True)
class WantedClock:
    """The clock that a running job should have."""

    job_id: str
    number: int
    """Slurm's number of the job."""
    clock: Clock
    gpus: Mapping[str, tuple[int, ...]]
    """Node -> Slurm's indices, ascending."""


class OrderedClocks:
    """Clocks of the running jobs of ours, and the way to change them.

    ``now``: Unix s; the clocks of nodes may differ from ours.
    """

    def __init__(self, folder: Path | None) -> None:
        """``folder``: that of the orders for clock agents; None: clocks of running jobs stay."""
        self.jobs = JobClocks()
        self._reports: Mapping[str, AgentReport] = {}
        """Node -> the newest report of its agent."""
        self._orders = None if folder is None else ClockOrders(folder)
        self._loaded = False

    @property
    def change(self) -> bool:
        """Whether clocks of running jobs can be changed."""
        return self._orders is not None

    def load(self, names: Mapping[int | None, str], now: float) -> None:
        """Take up once what a previous selector has ordered. ``names``: Slurm's number -> job."""
        if self._orders is None or self._loaded:
            return
        self._loaded = True
        self._orders.load()
        for node, (seq, orders) in self._orders.ordered().items():
            for order in orders:
                if (job_id := names.get(order.job)) is not None:
                    self.jobs.order(job_id, node, order.mhz or None, seq, now)

    def heard(self, job_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        """Take a record of a node: a clock that was set or refused."""
        if self._was_ordered(detail.get("node"), detail.get("seq")):
            self.jobs.heard(job_id, kind, detail)

    def reported(self, agents: Mapping[str, AgentReport]) -> None:
        """Take the newest reports of the clock agents."""
        self._reports = agents
        for node, report in agents.items():
            if self._was_ordered(node, report.seq):
                self.jobs.carried_out(node, report.seq)

    def _was_ordered(self, node: object, seq: object) -> bool:
        """Whether orders of this number were written; a node that names others says nothing."""
        newest = 0 if self._orders is None else self._orders.newest(node)
        return not isinstance(seq, int) or seq <= newest

    def can_change(self, job_id: str, now: float) -> bool:
        """Whether the agents of all nodes of a job obey orders, and none has refused one."""
        return (
            self._orders is not None
            and not self.jobs.refused(job_id)
            and self._orders.failed.keys().isdisjoint(nodes := self.jobs.nodes(job_id))
            and not any(self.why_not(node, now) for node in nodes)
        )

    def why_not(self, node: str, now: float) -> str:
        """Why the agent of a node does not obey orders now; empty: it does."""
        report = self._reports.get(node)
        if report is None or abs(now - report.at) > _HEARD_S:
            return f"its clock agent has said nothing for {_HEARD_S:.0f} s"
        return report.trouble

    def measured_w(self, nodes: Collection[str], width: int, now: float) -> list[float]:
        """Power of each GPU that the reports name, W. ``width``: most GPUs of a node."""
        return [
            power_w
            for node, report in self._reports.items()
            if node in nodes and abs(now - report.at) <= _HEARD_S
            for gpu, power_w in report.power_w.items()
            if gpu < width
        ]

    def order(self, wanted: Iterable[WantedClock], now: float) -> None:
        """Write the orders for all jobs whose clock may be chosen."""
        if self._orders is None:
            return
        orders: dict[str, list[Order]] = {}
        clocks: list[tuple[str, str, Clock]] = []
        for one in wanted:
            for node, slots in one.gpus.items():
                orders.setdefault(node, []).append(Order(one.number, one.clock or 0, slots))
                clocks.append((one.job_id, node, one.clock))
        written = self._orders.write(orders, now)
        for job_id, node, clock in clocks:
            if node in written:
                self.jobs.order(job_id, node, clock, written[node], now)

    def troubles(self, nodes: Collection[str], now: float) -> dict[str, str]:
        """Node -> why its agent obeys no orders, or has none: of ``nodes`` those that say so
        themselves, of those for which there are orders the silent ones, too."""
        told = {n: one.trouble for n, one in self._reports.items() if one.trouble and n in nodes}
        if self._orders is None:
            return told
        asked = [node for node, (_, some) in self._orders.ordered().items() if some]
        silent = {n: why for n in asked if n not in told and (why := self.why_not(n, now))}
        return told | silent | self._orders.failed
