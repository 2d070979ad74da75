"""Users with jobs on each node, where Slurm keeps the jobs of different users apart.

An *alone* job (``--exclusive=user``, partitions with ExclusiveUser) keeps jobs of other users off
its nodes, and starts only where none of theirs runs (`filter_by_node_owner` of slurmctld).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.request import Request

if TYPE_CHECKING:
    from slurm_gpu_aware.model.cluster import RunningJob

Counts = npt.NDArray[np.int16]  # Few bits, as each look ahead copies them.


def left_open(nodes: BoolArray, users: NodeUsers | None, request: Request) -> BoolArray:
    """(N,) those of some nodes that jobs of other users leave to a request."""
    return nodes if users is None else nodes & users.open_to(request)


@dataclass(frozen=True, eq=False)
class NodeUsers:
    """Numbers of jobs on N nodes by U + 1 rows: of each user of alone jobs, and of all others."""

    names: tuple[str, ...]  # The U users.
    jobs: Counts  # (U + 1, N).
    alone: Counts  # (U + 1, N) alone jobs of them.

    @classmethod
    def of(cls, running: Iterable[RunningJob], names: Iterable[str], nodes: int) -> Self:
        """Those of running jobs; ``names``: users that have alone jobs, or will have some."""
        users = tuple(sorted(names))
        none = np.zeros((len(users) + 1, nodes), dtype=np.int16)
        found = cls(users, none, none.copy())
        rows = [row for job in running for row in found.rows(job)]
        found.count(np.array(rows, dtype=np.int64).reshape(-1, 3).T, 1)
        return found

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    def row(self, user: str) -> int:
        """The row of a user; users of one row are alike to all nodes."""
        return self._row.get(user, len(self.names))

    def copy(self) -> NodeUsers:
        """The same with its own arrays."""
        return replace(self, jobs=self.jobs.copy(), alone=self.alone.copy())

    def add(self, user: str, nodes: Sequence[int], *, alone: bool) -> None:
        """Count a job on nodes, in place, unless its user is not known (empty)."""
        if user:
            row = self.row(user)
            self.jobs[row, nodes] += 1
            self.alone[row, nodes] += alone

    def rows(self, job: RunningJob) -> list[tuple[int, int, int]]:
        """(row, node, whether it is alone) of each node of a job, for :meth:`count`."""
        others = len(self.names)
        row = others if job.lone else self.row(job.user)
        return [(row, node, int(job.alone)) for node in job.on_nodes if job.user or job.lone]

    def count(self, rows: IntArray, by: int) -> None:
        """Count jobs, or with ``by`` -1 no more, in place; ``rows``: (3, n) of :meth:`rows`."""
        row, node, alone = rows
        np.add.at(self.jobs, (row, node), by)
        np.add.at(self.alone, (row, node), by * alone)

    def keep_most(self, one: NodeUsers, other: NodeUsers, rows: list[int] | slice) -> None:
        """Count on some nodes each job that runs there in one or the other, in place."""
        self.jobs[:, rows] = np.maximum(one.jobs[:, rows], other.jobs[:, rows])
        self.alone[:, rows] = np.maximum(one.alone[:, rows], other.alone[:, rows])

    def open_to(self, request: Request) -> BoolArray:
        """(N,) nodes that jobs of other users leave to a request."""
        return self.open_for(request.user, alone=request.nodes.alone)

    def open_for(self, user: str, *, alone: bool) -> BoolArray:
        """(N,) nodes that jobs of other users leave to a job, alone or not."""
        counts = self.jobs if alone else self.alone
        others = counts.sum(axis=0)
        if user in self._row:
            others = others - counts[self._row[user]]
        return np.asarray(others == 0)
