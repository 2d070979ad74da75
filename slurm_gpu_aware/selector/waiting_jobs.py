"""Why jobs wait, as a round records it: jobs that wait alike share an entry.

``job_id`` of an entry lists its jobs: ``45,46,44_[0-332]``. An array of hundreds of tasks, or a
queue of thousands of jobs behind one, is a line, so every waiting job has a reason.

Promised starts of the jobs that are next in line, and what broke a promise.

A round that reserves GPUs for a job says by when it starts at the latest. If a later round says a
later time, its text names the cause, so that no date moves in silence.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.planning.plan import Waiting
from slurm_gpu_aware.slurm.records import array_tasks
from slurm_gpu_aware.slurm.words import hostlist

EARLIER_TASK = "an earlier task of its array goes first"
_MOST_ENTRIES = 5000
_TOO_MANY = f"more jobs wait than reasons are kept; those of the first {_MOST_ENTRIES} kinds are"
_JOBS = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10})|_\[([0-9,-]{1,100000})\])?(?:,|\Z)")
_SLACK_S = 30.0  # Slurm ends jobs up to half a minute after their limit; less is no other time.


def folded(waiting: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Entries of single jobs as entries of all jobs that wait alike, in the order of the first."""
    alike: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for entry in waiting:
        account = {**entry, "job_id": None}
        key = repr(account)
        if key not in alike and len(alike) >= _MOST_ENTRIES:
            account, key = {"reason": _TOO_MANY}, ""
        alike.setdefault(key, (account, []))[1].append(str(entry["job_id"]))
    return [{**account, "job_id": _listed(ids)} for account, ids in alike.values()]


def _listed(job_ids: Iterable[str]) -> str:
    """``45,46,44_[0-332]``."""
    arrays: dict[str, list[str]] = {}
    for job_id in job_ids:
        array, _, task = job_id.partition("_")
        arrays.setdefault(array if task else "", []).append(job_id)
    single = arrays.pop("", [])
    return ",".join([*single, *(hostlist(tasks) for tasks in arrays.values())])


class WaitingJobs:
    """The entries of one recorded round, by job."""

    def __init__(self, entries: object = ()) -> None:
        """``entries``: of `folded`, or of single jobs; what has another form says nothing."""
        self._own: dict[str, Mapping[str, Any]] = {}
        self._first: dict[str, Mapping[str, Any]] = {}
        """Array -> entry of its first task that waits."""
        self.lines: list[tuple[str, Mapping[str, Any]]] = []
        """(job, or tasks of one array that wait alike: ``44_[0-332]``, their entry)."""
        for entry in entries if isinstance(entries, list | tuple) else ():
            if isinstance(entry, Mapping):
                self._add(entry)

    def _add(self, entry: Mapping[str, Any]) -> None:
        for match in _JOBS.finditer(str(entry.get("job_id", ""))):
            array, task, tasks = match.groups()
            self.lines.append((match[0].removesuffix(","), entry))
            numbers = [task] if task else []
            if tasks:
                numbers = list(map(str, array_tasks(tasks)))
            if not numbers:
                self._own[array] = entry
                continue
            self._first.setdefault(array, entry)
            for number in numbers:
                self._own[f"{array}_{number}"] = entry

    def each(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(job, its entry)."""
        return iter(self._own.items())

    def of(self, job_id: str) -> dict[str, Any] | None:
        """The entry of a job; of an array that of its first waiting task; None: there is none.

        A task without one comes after those of its array that a round looks at.
        """
        array, _, task = job_id.partition("_")
        entry = self._own.get(job_id) or self._first.get(job_id)
        if entry is None and task:
            entry = self._own.get(array)
            if entry is None and array in self._first:
                entry = {"reason": EARLIER_TASK}
        return None if entry is None else {**entry, "job_id": job_id}


@dataclass(frozen=True)
class _Promise:
    """A time by which a job starts, and what it rests on."""

    latest_s: float
    ends: Mapping[str, float]  # Job on the reserved nodes -> its latest end.
    usable: frozenset[str]  # Usable ones of the reserved nodes.
    broken: str = ""  # What broke an earlier one; one sentence.


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
