"""Which nodes Slurm gives a job (``_eval_nodes_consec``, ``common_topo_choose_nodes``).

Both are in ``src/plugins/topology/common/``. A node with more GPUs beside free cores weighs less.
Slurm makes sets of consecutive nodes of equal weight. It takes the lightest set, of equal ones the
tightest that suffices, and in it the tightest node that suffices, or nodes in their order.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_gpu_aware.placement.cons_tres.job import Job, Share

_ANY_NUMBER = 500_000  # Slurm's limit for a job without one (``select_nodes`` in node_scheduler.c).
ASLEEP = 1 << 40  # Weight of a node that is powered down (``_set_sched_weight`` in job_test.c).


class Shares(ABC):
    """What nodes can give."""

    @abstractmethod
    def share(
        self, node: int, left: int, nodes: int, limit: int | None, *, first: bool
    ) -> Share | None:
        """What a node can give, as a new object; None: nothing.

        ``left``: GPUs still needed; ``nodes``: nodes still needed; ``limit``: of its CPUs;
        ``first``: whether it is a first pass.
        """


@dataclass
class _Set:
    """Consecutive nodes of equal weight."""

    weight: int
    required: int | None  # The first required node among them, which the job has already.
    nodes: list[int] = field(default_factory=list)
    cpus: int = 0
    gpus: int = 0


@dataclass(frozen=True)
class Nodes:
    """The nodes that a job may get."""

    weight: Mapping[int, int]  # Node index, ascending -> weight; nodes with room only.
    threads: Mapping[int, int]  # Node index -> CPUs of a core.
    cpus: Mapping[int, int]  # Node index -> its free CPUs.
    gpus: Mapping[int, int]  # Node index -> its free GPUs.
    required: tuple[int, ...]
    shares: Shares


def choose_nodes(
    job: Job, nodes: Nodes, *, by_product: bool, one_by_one: bool
) -> dict[int, Share] | None:
    """Node -> its share, ascending; None: the job fits not.

    ``by_product``: releases from 25.11 on leave out nodes one by one, by the product of their CPUs
    and GPUs; earlier ones leave out all nodes up to a sum of them. ``one_by_one``: 26.05 gives a
    job of one node the first node that fits.
    """
    if one_by_one and job.max_nodes == 1:
        return _first_node(job, nodes)
    most = job.max_nodes or _ANY_NUMBER
    narrow = most
    if job.tasks and not job.tasks_per_node and most > job.tasks:
        narrow = max(job.tasks, job.min_nodes)
    limits: dict[int, int] = {}
    found = _Evaluation(job, nodes, narrow, limits, first=True).choose()
    if found is None:
        found = _retry(job, nodes, most, limits, by_product=by_product)
    for n, share in (found or {}).items():
        share.cpus = min(share.cpus, sum(share.cores) * nodes.threads[n])
    return found if found and all(share.cpus for share in found.values()) else None


def _first_node(job: Job, nodes: Nodes) -> dict[int, Share] | None:
    """``_get_one_res`` in job_test.c: the first node that fits; nodes that sleep come last.

    GPUs that a node which fits not has been counted for stay counted.
    """
    order = [n for n in nodes.weight if not nodes.required or n in nodes.required]
    order.sort(key=lambda n: nodes.weight[n] >= ASLEEP)
    for first in (True, False):
        given = 0
        for n in order:
            one = _Evaluation(replace(job, min_nodes=1), nodes, 1, {}, first=first)
            one.given = given
            share = one.share(n)
            if share is not None and one.serves(n, share):
                return {n: share}
            given = one.given
    return None


def _retry(
    job: Job, nodes: Nodes, most: int, limits: dict[int, int], *, by_product: bool
) -> dict[int, Share] | None:
    """Evaluations with GPUs anywhere, from which the poorest nodes are left out in turn."""
    there = dict(nodes.weight)

    def again() -> dict[int, Share] | None:
        left = replace(nodes, weight=dict(there))
        return _Evaluation(job, left, most, limits, first=False).choose()

    def resources(n: int) -> int:
        if by_product:
            return nodes.cpus[n] * max(nodes.gpus[n], 1)
        return limits.get(n, nodes.cpus[n]) + nodes.gpus[n]

    found = again()
    able = sorted((n for n in there if n not in nodes.required), key=resources)
    bound = 0
    while found is None and len(there) > job.min_nodes and able:
        if not by_product:
            richest = max(map(resources, there))
            poorest = [n for n in able if resources(n) <= bound]
            while not poorest and bound + 1 < richest:
                bound += 1
                poorest = [n for n in able if resources(n) <= bound]
            poorest = sorted(poorest)[: len(there) - job.min_nodes]
        else:
            poorest = able[:1]
        if not poorest:
            return None
        for n in poorest:
            del there[n]
            able.remove(n)
        found = again()
    return found


class _Evaluation:
    """One call of ``_eval_nodes_consec``."""

    def __init__(
        self, job: Job, nodes: Nodes, most: int, limits: dict[int, int], *, first: bool
    ) -> None:
        self.job, self.nodes, self.first = job, nodes, first
        self.most = most
        self.limits = limits
        """Node -> CPUs to which an evaluation has cut it; they stay for the next one."""
        self.chosen: dict[int, Share] = {}
        few = min if job.per_job else max
        self.rest = few(job.min_nodes, job.tried_nodes)
        self.least = job.min_nodes
        self.cpus = job.min_cpus
        least = max(job.min_gpu_cpus * self.rest, job.min_job_gpu_cpus(job.min_nodes))
        self.most_cpus = max(job.min_cpus, least)
        self.tasks = self.most_cpus
        if job.cpus_per_task > 1:
            by_node = job.tasks_per_node * most
            self.tasks = by_node or self.most_cpus // job.cpus_per_task
        self.given = 0

    def choose(self) -> dict[int, Share] | None:
        for n in self.nodes.required:
            share = self.share(n) if n in self.nodes.weight and self.most > 0 else None
            if share is None:
                return None
            self._cut(n, share)
            if not share.cpus:
                return None
            self._take(n, share)
        if self.nodes.required and self._done():
            return self._result()
        sets = self._sets()
        while sets and self.most > 0:
            best = self._best(sets)
            sets.remove(best)
            self._from(best)
            if self._done():
                return self._result()
        if self.cpus <= 0 and self._all_gpus() and self._enough_nodes(0):
            return self._result()
        return None

    def serves(self, n: int, share: Share) -> bool:
        """``common_test_node``: whether the node alone suffices."""
        self._cut(n, share)
        return 0 < share.cpus >= self.job.min_cpus and self._all_gpus()

    def _result(self) -> dict[int, Share]:
        return dict(sorted(self.chosen.items()))

    def share(self, n: int) -> Share | None:
        left, nodes = self.job.per_job - self.given, max(self.least, 1)
        return self.nodes.shares.share(n, left, nodes, self.limits.get(n), first=self.first)

    def _sets(self) -> list[_Set]:
        """Sets of consecutive nodes, in order."""
        self.shares: dict[int, Share] = {}
        found: list[_Set] = []
        before, new, required = None, True, None
        for n, weight in self.nodes.weight.items():
            if n in self.chosen:
                if before != n - 1:
                    new, required = True, None
                if new and required is None:
                    required = n
                elif not new and found[-1].required is None:
                    found[-1].required = n
                before = n
                continue
            share = self.share(n)
            if share is None:
                continue
            if before != n - 1 or new or found[-1].weight != weight:
                found.append(_Set(weight, required if before == n - 1 and new else None))
            before, new, required = n, False, None
            self.shares[n] = share
            found[-1].nodes.append(n)
            found[-1].cpus += share.cpus
            found[-1].gpus += share.gpus
        return found

    def _all_gpus(self) -> bool:
        return self.given >= self.job.per_job

    def _enough_nodes(self, there: int) -> bool:
        """``eval_nodes_enough_nodes``."""
        fewer = max(self.job.tried_nodes - self.job.min_nodes, 0)
        return there >= self.rest - fewer

    def _done(self) -> bool:
        return self.rest <= 0 and self.cpus <= 0 and self._all_gpus()

    def _suffices(self, one: _Set) -> bool:
        gpus = self.given + one.gpus >= self.job.per_job
        return one.cpus >= self.cpus and self._enough_nodes(len(one.nodes)) and gpus

    def _best(self, sets: Sequence[_Set]) -> _Set:
        """The lightest set, then the tightest that suffices, else the largest."""
        best, enough = sets[0], self._suffices(sets[0])
        for one in sets[1:]:
            suffices = self._suffices(one)
            better = one.weight < best.weight
            better = better or (best.required is None and one.required is not None)
            if not better and one.weight == best.weight:
                better = suffices and (not enough or one.cpus < best.cpus)
                better = better or (not suffices and one.cpus > best.cpus)
            if better:
                best, enough = one, suffices
        return best

    def _from(self, one: _Set) -> None:
        """Take nodes of a set."""
        nodes = one.nodes
        if one.required is not None:  # up from the required node, then down
            up = [n for n in nodes if n > one.required]
            nodes = [*up, *(n for n in reversed(nodes) if n < one.required)]
        elif self.rest <= 1 and (single := self._single(one)) is not None:
            nodes = [single]
        for n in nodes:
            if self.most == 0 or self._done():
                return
            share = self.shares[n]
            if one.required is None and self.most == 1 and share.cpus < self.cpus:
                continue
            if self._cut(n, share):
                self._take(n, share)

    def _single(self, one: _Set) -> int | None:
        """The tightest node that suffices alone."""
        best = None
        for n in one.nodes:
            share = self.shares[n]
            if share.cpus < self.cpus or self.given + share.gpus < self.job.per_job:
                continue
            if best is None or share.cpus < self.shares[best].cpus:
                best = n
                if share.cpus == self.cpus:
                    break
        return best

    def _take(self, n: int, share: Share) -> None:
        self.chosen[n] = share
        self.cpus -= share.cpus
        self.most_cpus -= share.cpus
        self.rest -= 1
        self.least -= 1
        self.most -= 1

    def _cut(self, n: int, share: Share) -> bool:
        """``eval_nodes_cpus_to_use``: no more CPUs than the job needs. Whether the node serves."""
        job = self.job
        rest = self.most_cpus - max(self.least - 1, 0) * self.nodes.threads[n]
        if share.cpus > rest:
            least = share.min_cpus or job.min_gpu_cpus
            share.cpus = max(rest, job.cpus_per_task, least)
            self.limits[n] = share.cpus
        if not job.per_job or not share.cpus:
            return True
        counts = self._count(share)
        self.limits[n] = share.cpus
        return counts

    def _count(self, share: Share) -> bool:
        """``eval_nodes_gres``: count GPUs and tasks of a job by ``--gpus``."""
        job = self.job
        saved = max(self.least - 1, 0)
        tasks = self.tasks - saved
        used = min(tasks, share.cpus // job.cpus_per_task)
        if used < tasks:
            saved += tasks - used
            tasks = used
        tasks = max(tasks, 1)
        if tasks < share.tasks:
            if job.per_task:
                share.gpus = min(share.gpus, tasks * job.per_task)
            share.tasks = tasks
        used = min(tasks, share.tasks)
        if not used or share.cpus < max(job.cpus_per_task * used, job.cpus_per_task):
            share.cpus = 0
            self.tasks = tasks + saved
            return False
        self._add(share, job.cpus_per_task * used)
        self.tasks = tasks - used + saved
        return True

    def _add(self, share: Share, min_cpus: int) -> None:
        """``gres_sched_add``."""
        job, limit = self.job, share.gpus
        cpus = 0
        if job.cpus_per_gpu:
            limit = min(share.cpus // job.cpus_per_gpu, limit)
            cpus = limit * job.cpus_per_gpu
        least = limit if job.per_task else 1
        if job.per_job > self.given:
            limit = min(job.per_job - self.given, limit)
        share.gpus = max(limit, least)
        self.given += share.gpus
        if min_cpus < cpus < share.cpus:
            share.cpus = cpus
