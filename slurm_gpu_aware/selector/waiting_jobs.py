"""Why jobs wait, as a round records it: jobs that wait alike share an entry.

``job_id`` of an entry lists its jobs: ``45,46,44_[0-332]``. An array of hundreds of tasks, or a
queue of thousands of jobs behind one, is a line, so every waiting job has a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slurm_gpu_aware.slurm.records import array_tasks
from slurm_gpu_aware.slurm.words import hostlist

EARLIER_TASK = "an earlier task of its array goes first"
_MOST_ENTRIES = 5000
_TOO_MANY = f"more jobs wait than reasons are kept; those of the first {_MOST_ENTRIES} kinds are"
_JOBS = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10})|_\[([0-9,-]{1,100000})\])?(?:,|\Z)")


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
