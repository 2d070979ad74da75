"""Promised starts of the jobs that are next in line, and what broke a promise.

A round that reserves GPUs for a job says by when it starts at the latest. If a later round says a
later time, its text names the cause, so that no date moves in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.planning.plan import Waiting

_SLACK_S = 30.0
"""Slurm ends jobs up to half a minute after their limit; less is no other time."""


@dataclass(frozen=True)
class _Promise:
    """A time by which a job starts, and what it rests on."""

    latest_s: float
    ends: Mapping[str, float]
    """Job on the reserved nodes -> its latest end."""
    usable: frozenset[str]
    """Usable ones of the reserved nodes."""
    broken: str = ""
    """What broke an earlier one; one sentence."""


@dataclass
class Promises:
    """The last promise to each job that waits, until it starts."""

    _known: dict[str, _Promise] = field(default_factory=dict)

    def told(self, waiting: Sequence[Waiting], cluster: Cluster) -> dict[str, str]:
        """Job -> what broke its promise; only jobs whose promise is broken."""
        first = next((one for one in waiting if one.reserved), None)
        found: dict[str, str] = {}
        here = {one.job_id for one in waiting}
        self._known = {job_id: p for job_id, p in self._known.items() if job_id in here}
        for one in waiting:
            before = self._known.get(one.job_id)
            if one.reserved and math.isfinite(one.shadow_start_s or math.inf):
                self._known[one.job_id] = self._renewed(one, before, cluster)
            elif before is not None and first is not None and not before.broken:
                why = f"job {first.job_id}, which comes first, waits now"
                self._known[one.job_id] = _broken(before, why)
            promise = self._known.get(one.job_id)
            if promise is not None and promise.broken:
                found[one.job_id] = promise.broken
        return found

    def _renewed(self, one: Waiting, before: _Promise | None, cluster: Cluster) -> _Promise:
        assert one.shadow_start_s is not None  # noqa: S101 - the caller has checked
        nodes = frozenset(node for node, _ in one.reserved)
        ends = {job.job_id: job.end_s for job in _on(cluster.running, nodes)}
        usable = frozenset(cluster.nodes[n] for n in nodes if cluster.exists[n].any())
        made = _Promise(one.shadow_start_s, ends, usable)
        if before is None:
            return made
        if one.shadow_start_s <= before.latest_s + _SLACK_S:
            return replace(made, broken=before.broken)
        return replace(made, broken=_broken(before, _cause(before, cluster)).broken)


def _broken(before: _Promise, why: str) -> _Promise:
    time = datetime.fromtimestamp(before.latest_s).strftime("%H:%M:%S")
    return replace(before, broken=f"it was to start by {time}, but {why}")


def _on(running: Iterable[RunningJob], nodes: frozenset[int]) -> list[RunningJob]:
    return [job for job in running if nodes & job.on_nodes]


def _cause(before: _Promise, cluster: Cluster) -> str:
    """What has changed on the nodes that were reserved."""
    number = {name: i for i, name in enumerate(cluster.nodes)}
    gone = sorted(
        n for n in before.usable if n not in number or not cluster.exists[number[n]].any()
    )
    if gone:
        return f"node {gone[0]} can no longer be used"
    nodes = frozenset(number[name] for name in before.usable)
    late = ""  # others of its nodes may not have ended before their limit, as was expected
    for job in _on(cluster.running, nodes):
        if job.job_id not in before.ends:
            return f"job {job.job_id} started on its nodes"
        if job.end_s > before.ends[job.job_id] + _SLACK_S:
            return f"job {job.job_id} got more time"
        if job.end_s <= before.latest_s:
            late = late or f"job {job.job_id} has not ended by its time limit"
    if late:
        return late
    return "the GPUs that it waited for are not free"
