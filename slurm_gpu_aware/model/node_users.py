"""Jobs on each node, where Slurm keeps some jobs off the nodes of others.

An *alone* job (``--exclusive=user``, partitions with ExclusiveUser) keeps jobs of other users off
its nodes, and starts only where none of theirs runs (`filter_by_node_owner` of slurmctld). Jobs
that share CPUs (OverSubscribe) and others keep each other off by `Sharing.closes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.request import Request, Sharing

if TYPE_CHECKING:
    from slurm_gpu_aware.model.cluster import RunningJob

Counts = npt.NDArray[np.int16]  # Few bits, as each look ahead copies them.


def left_open(nodes: BoolArray, users: NodeUsers | None, request: Request) -> BoolArray:
    """(N,) those of some nodes that other jobs leave to a request."""
    return nodes if users is None else nodes & users.open_to(request)


@dataclass(frozen=True, eq=False)
class NodeUsers:
    """Numbers of jobs on N nodes, each job in two rows: by its user, and by how it shares CPUs.

    Rows: U + 1 of the users' jobs that are not alone, U + 1 of those that are (the last one of
    each of all other users), and one for each of ``sharing``.
    """

    names: tuple[str, ...]  # U users: those of alone jobs.
    sharing: tuple[Sharing, ...]
    jobs: Counts  # (2 U + 2 + len(sharing), N).

    @classmethod
    def of(
        cls,
        running: Iterable[RunningJob],
        names: Iterable[str],
        nodes: int,
        sharing: Iterable[Sharing] = (),
    ) -> Self:
        """Those of running jobs.

        ``names``: users that have alone jobs, or will have some. ``sharing``: the ways in which
        jobs share CPUs, or will; none: no job does.
        """
        users = tuple(sorted(names))
        kinds = tuple(sorted({kind for one in sharing for kind in (one, one.planned)}))
        rows = 2 * len(users) + 2 + len(kinds)
        found = cls(users, kinds, np.zeros((rows, nodes), dtype=np.int16))
        each = [row for job in running for row in found.rows(job)]
        found.count(np.array(each, dtype=np.int64).reshape(-1, 3).T, 1)
        return found

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def _kind(self) -> dict[Sharing, int]:
        return {one: row for row, one in enumerate(self.sharing, 2 * len(self.names) + 2)}

    def row(self, user: str) -> int:
        """The row of a user; users of one row are alike to all nodes."""
        return self._row.get(user, len(self.names))

    def copy(self) -> NodeUsers:
        """The same with its own array."""
        return replace(self, jobs=self.jobs.copy())

    def add(self, user: str, nodes: Iterable[int], *, alone: bool, sharing: Sharing | None) -> None:
        """Count a job on nodes, in place; not what is not known of it."""
        on = [*nodes]
        for row in self._rows(user, alone, sharing):
            self.jobs[row, on] += 1

    def _rows(self, user: str, alone: bool, sharing: Sharing | None) -> list[int]:
        """Its two rows; none for a user (empty) or a sharing (None) that is not known."""
        own = [self.row(user) + alone * (len(self.names) + 1)] if user else []
        return own if sharing not in self._kind else [*own, self._kind[sharing]]

    def rows(self, job: RunningJob) -> list[tuple[int, int, int]]:
        """(row, node, 1) of each node of a job, for :meth:`count`."""
        rows = self._rows("" if job.lone else job.user, job.alone, job.sharing)
        if job.lone:
            rows.append(2 * len(self.names) + 1)
        return [(row, node, 1) for node in job.on_nodes for row in rows]

    def count(self, rows: IntArray, by: int) -> None:
        """Count jobs, or with ``by`` -1 no more, in place; ``rows``: (3, n) of :meth:`rows`."""
        row, node, jobs = rows
        np.add.at(self.jobs, (row, node), by * jobs)

    def keep_most(self, one: NodeUsers, other: NodeUsers, rows: list[int] | slice) -> None:
        """Count on some nodes each job that runs there in one or the other, in place."""
        self.jobs[:, rows] = np.maximum(one.jobs[:, rows], other.jobs[:, rows])

    def open_to(self, request: Request) -> BoolArray:
        """(N,) nodes that other jobs leave to a request."""
        own = request.nodes
        return self.open_for(request.user, alone=own.alone, sharing=own.sharing)

    def open_for(self, user: str, *, alone: bool, sharing: Sharing) -> BoolArray:
        """(N,) nodes that other jobs leave to a job, alone or not."""
        many = len(self.names) + 1
        closing = np.zeros(len(self.jobs), dtype=np.bool_)
        closing[0 if alone else many : 2 * many] = True
        if user in self._row:
            closing[[self._row[user], self._row[user] + many]] = False
        closing[2 * many :] = [kind.closes(sharing) for kind in self.sharing]
        return np.asarray(~self.jobs[closing].any(axis=0))
