"""Refusals: free GPUs that a job leaves to others because it waits by choice for better ones.

Its wait rests on the expected ends of running jobs, and so on what their users say and did before:
limits, names, short runs. A user could let another one's job wait for GPUs that do not come, and
start on what it leaves. So behind a job of another user and a higher priority that waits for GPUs
of theirs, jobs of a user leave it a set on which it could start, or end before it is expected to.
"""

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.placed import Started
from slurm_gpu_aware.planning.plan import waits_behind
from slurm_gpu_aware.planning.timeline import take


@dataclass
class _Refusal:
    request: Request
    start_s: float  # Its expected start.
    users: Collection[str]  # Those for whose jobs it waits.
    left: Cluster  # What is free then for sure, after the jobs that the round has started.
    seen: int  # Number of these.


class Refusals:
    """The refusals of one round, in the order of its queue."""

    def __init__(self, dispatcher: Dispatcher, started: Sequence[Started]) -> None:
        """``started``: the list of those that the round starts."""
        self._dispatcher, self._started = dispatcher, started
        self._known: list[_Refusal] = []

    def add(self, request: Request, wait: Postponement, gpus: Set[Gpu], cluster: Cluster) -> None:
        """Note the wait of a job for some GPUs; ``cluster``: with what it leaves free."""
        ends = self._dispatcher.ends
        jobs = (job for _, job in ends.until(wait.start_s))
        holders = [job for job in jobs if not gpus.isdisjoint(job.each_gpu)]
        nodes = {node for node, _ in gpus}  # whose cores and memory it may wait for, too
        holders += ends.beside_gpus(nodes, wait.start_s)
        # An end by its time limit comes for sure.
        users = {job.user for job in holders if job.user and wait.start_s < job.end_s}
        if users := users - {request.user}:
            seen = len(self._started)
            self._known.append(_Refusal(request, wait.start_s, users, cluster.copy(), seen))

    def why_not(self, request: Request, answer: object) -> str | None:
        """Why a job does not start with its assignment; None: it may."""
        if not isinstance(answer, Assignment):
            return None
        mine = [
            one
            for one in self._known
            if request.user in one.users
            and request.is_behind(one.request)
            and not self._ends_by(one.start_s, request)
        ]
        if not mine:
            return None
        last = mine[-1]
        for job in self._started[last.seen :]:
            if not self._ends_by(last.start_s, job.request):
                take(last.left, job.request, job.assignment)
        last.seen = len(self._started)
        after = last.left.copy()
        take(after, request, answer)
        lost = self._starting(mine, last.left) - self._starting(mine, after)
        if not lost:
            return None
        first = next(one.request.job_id for one in mine if one.request.job_id in lost)
        return waits_behind(f"{first}, which waits for GPUs of another job of the same user")

    def beside(self, cluster: Cluster) -> Cluster:
        """The cluster without a set for each job, on which it could start now."""
        after = cluster.copy() if self._known else cluster
        for one in self._known:
            if (found := self._dispatcher.could_place(one.request, after)) is not None:
                take(after, one.request, found)
        return after

    def _ends_by(self, time_s: float, request: Request) -> bool:
        return self._dispatcher.now + request.time_limit_s <= time_s

    def _starting(self, refusals: Iterable[_Refusal], cluster: Cluster) -> set[str]:
        """Those that could start now beside each other, in their order."""
        after, found = cluster.copy(), set()
        for one in refusals:
            place = self._dispatcher.could_place(one.request, after)
            if place is not None:
                take(after, one.request, place)
                found.add(one.request.job_id)
        return found
