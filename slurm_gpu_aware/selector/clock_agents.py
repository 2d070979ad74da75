"""Clock agents of the nodes: which of them obey orders, and what power they measure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_gpu_aware.selector.clock_spool import AgentReport

_HEARD_S = 150.0
"""Age at which a report says nothing any more; agents report once a minute."""


class ClockAgents:
    """The newest report of each agent. ``now``: Unix s; clocks of nodes may differ from ours."""

    def __init__(self) -> None:
        self._reports: Mapping[str, AgentReport] = {}

    def take(self, reports: Mapping[str, AgentReport]) -> None:
        """Take the newest report of every node."""
        self._reports = reports

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

    def troubles(
        self, nodes: Collection[str], asked: Collection[str], now: float
    ) -> dict[str, str]:
        """Node -> why its agent obeys no orders: of ``nodes`` those that say so themselves, of
        ``asked``, for which there are orders, the silent ones, too."""
        told = {n: one.trouble for n, one in self._reports.items() if one.trouble and n in nodes}
        return told | {n: why for n in asked if n not in told and (why := self.why_not(n, now))}
