"""A job and a node as Slurm's select/cons_tres counts them, and the GPUs that the job gets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Links = tuple[tuple[int, ...], ...]
"""(W, W) links between the GPUs of a node, Slurm's ``links_cnt``; the diagonal is not read."""
_ALL = 0xFFFE  # NO_VAL16
_ANYWHERE = -1


@dataclass(frozen=True)
class Job:
    """The request of one job. A count of 0: not given."""

    per_node: int  # ``--gres=gpu:N``, ``--gpus-per-node``.
    per_task: int  # ``--gpus-per-task``.
    per_job: int
    """``--gpus``; with ``per_task`` the GPUs of all tasks, as ``gres_job_state_validate`` sets."""
    tasks: int  # ``-n``; Slurm then counts one task per node for the CPUs, and none elsewhere.
    tasks_per_node: int  # ``--ntasks-per-node``.
    cpus_per_task: int
    cpus_per_gpu: int
    min_nodes: int
    max_nodes: int  # 0: no limit.
    tried_nodes: int  # Nodes that Slurm tries to give, its ``req_nodes``.
    bound: bool = False  # ``--gres-flags=enforce-binding``.
    whole: bool = False  # ``--exclusive``.

    @property
    def one_socket(self) -> bool:
        """Whether it needs one socket of a node only (``_socks_per_node`` in job_test.c)."""
        if max(self.min_cpus, self.tasks * self.cpus_per_task) // max(self.min_nodes, 1) > 1:
            return False
        gpus = self.per_node or self.per_task * self.tasks or self.per_job // self.min_nodes
        return self.cpus_per_gpu * gpus <= 1

    @property
    def min_cpus(self) -> int:
        """Least CPUs of the job."""
        tasks = self.tasks or max(self.tasks_per_node, 1) * self.min_nodes
        return max(tasks * self.cpus_per_task, self.min_nodes)

    @property
    def min_gpu_cpus(self) -> int:
        """Least CPUs of a node by ``--cpus-per-gpu`` (``gres_select_util_job_min_cpu_node``)."""
        tasks = max(self.tasks_per_node, 0)
        return self.cpus_per_gpu * (self.per_node or self.per_task * tasks or 1)

    def min_job_gpu_cpus(self, nodes: int) -> int:
        """Least CPUs of the job by ``--cpus-per-gpu`` (``gres_select_util_job_min_cpus``)."""
        return self.cpus_per_gpu * (self.per_job or self.per_node * nodes)

    def all_tasks(self, nodes: int) -> int:
        """Tasks to spread over its nodes (``_get_task_count`` in dist_tasks.c)."""
        if self.tasks:
            return self.tasks
        if self.tasks_per_node:
            return self.tasks_per_node * nodes
        cpus = max(self.min_cpus, nodes * self.cpus_per_task, self.min_job_gpu_cpus(nodes))
        return max(cpus // self.cpus_per_task, 1)


@dataclass(frozen=True)
class Room:
    """What is free on a node, by S sockets."""

    cores: tuple[int, ...]  # (S,) free cores.
    threads: int  # CPUs of a core.
    anywhere: int  # Free GPUs that are bound to no socket, or to all.
    by_socket: tuple[int, ...]  # (S,) free GPUs bound to each socket.

    @property
    def cpus(self) -> int:
        """Free CPUs."""
        return sum(self.cores) * self.threads

    @property
    def gpus(self) -> int:
        """Free GPUs."""
        return self.anywhere + sum(self.by_socket)


@dataclass
class Share:
    """What a node can give a job; the evaluation of nodes narrows it down."""

    cpus: int
    tasks: int
    min_cpus: int  # CPUs that its GPUs need at least.
    cores: tuple[int, ...]  # (S,) cores that the job may get.
    gpus: int


@dataclass(frozen=True)
class Board:
    """The GPUs of a node, by slot."""

    free: frozenset[int]
    width: int
    socket: tuple[int, ...]  # (W,) socket of each GPU; -1: none, or all.
    links: Links | None
    """None: slurmctld knows of no links (``link_len`` is not the number of GPUs)."""

    @property
    def known(self) -> bool:
        """Whether slurmctld knows single GPUs: without ``Cores=`` and types it only counts them."""
        return self.links is not None or max(self.socket) >= 0


class Picker:
    """GPUs of one node for one job. ``exact``: releases from 25.11 on compute with doubles."""

    def __init__(self, board: Board, cores: Sequence[int], *, bound: bool, exact: bool) -> None:
        self.board, self.cores, self.bound, self.exact = board, cores, bound, exact
        self.chosen: set[int] = set()
        self.order = list(range(board.width))
        self.count = [0] * board.width

    def pick(self, number: int, socket: int, *, linked: bool = True) -> int:
        """``_pick_gres_topo``: take GPUs of a socket; return how many.

        With links known, GPUs are sorted ascending by their links to those taken, and the scan
        goes on at the second one: the GPU with the **fewest** links comes next.
        """
        board, taken, at = self.board, 0, 0
        linked = linked and board.links is not None
        while at < board.width and taken < number:
            gpu = self.order[at] if linked else at
            at += 1
            if board.socket[gpu] != socket or gpu in self.chosen or gpu not in board.free:
                continue
            self.chosen.add(gpu)
            taken += 1
            if linked:
                self.sort(gpu)
                at = 1
        return taken

    def sort(self, gpu: int) -> None:
        """``_update_and_sort_by_links``: glibc's qsort keeps the order of equal ones."""
        assert self.board.links is not None  # noqa: S101 - callers check
        for other in self.board.free - {gpu}:
            self.count[other] += self.board.links[gpu][other]
        self.order.sort(key=self.count.__getitem__)

    def used(self, *, used: bool = True) -> list[int]:
        """Sockets of which the job has cores, or of which it has none."""
        return [s for s, cores in enumerate(self.cores) if (cores > 0) is used]

    def share(self, number: int, socket: int, *, exact: bool) -> int:
        """GPUs in proportion to the cores of a socket, rounded down."""
        total = sum(self.cores)
        if exact:
            return min(number, int(self.cores[socket] * (number / total)))
        each = np.float32(number) / np.float32(total)
        return min(number, int(np.float32(self.cores[socket]) * each))

    def per_node(self, number: int) -> bool:
        """``_set_node_bits``: GPUs beside the job's cores first. Whether all were found."""
        left = number
        for s in self.used():
            left -= self.pick(min(left, self.share(number, s, exact=self.exact)), s)
        left -= self.pick(left, _ANYWHERE)
        for s in (*self.used(), *(() if self.bound else self.used(used=False))):
            left -= self.pick(left, s)
        return left == 0

    def per_task(self, each: int, tasks: Sequence[int], number: int) -> bool:
        """``_set_task_bits``: GPUs beside the tasks first, then any. Whether all were found.

        ``tasks``: (S,) tasks of each socket; ``number``: GPUs of the node.
        """
        left = number
        for s, here in enumerate(tasks):
            left -= self.pick(min(left, here * each), s)
        left -= self.pick(left, _ANYWHERE)
        if not self.bound:
            for s in range(len(tasks)):
                left -= self.pick(left, s)
        return left == 0

    def per_job(self, limit: int) -> int:
        """``_set_job_bits1``: GPUs beside the job's cores, at most ``limit``; return how many.

        With links known it takes all such GPUs, and then gives back those with the fewest links to
        the first GPU of the best pair.
        """
        number = max(limit, 1)
        if limit > 1 and self.board.links is not None:
            number = _ALL
        taken = 0
        for s in self.used():
            some = min(number - taken, self.share(number, s, exact=False))
            taken += self.pick(some, s, linked=False)
        taken += self.pick(number - taken, _ANYWHERE, linked=False)
        for s in self.used():
            taken += self.pick(number - taken, s, linked=False)
        if not taken and not self.bound:
            for s in self.used(used=False):
                taken += 0 if taken else self.pick(1, s, linked=False)
        if taken > limit and self.board.links is not None and len(self.chosen) > 1:
            self._give_back(self.board.links, max(limit, 1))
        return len(self.chosen)

    def _give_back(self, links: Links, limit: int) -> None:
        """Keep ``limit`` GPUs: the first of the best pair, and those with most links to it."""
        chosen = sorted(self.chosen)
        pairs = [(s, g) for i, s in enumerate(chosen) for g in chosen[i + 1 :]]
        best = max(pairs, key=lambda pair: links[pair[0]][pair[1]])[0]  # the first of equal ones
        while len(self.chosen) > limit:
            rest = [gpu for gpu in sorted(self.chosen) if gpu != best]
            self.chosen.remove(min(rest, key=lambda gpu: links[best][gpu]))

    def rest(self, number: int) -> int:
        """``_set_job_bits2``: more GPUs for a job by ``--gpus``, of any socket; return how many."""
        if self.board.links is not None:
            self.count = [0] * self.board.width
            self.order = list(range(self.board.width))
            for gpu in sorted(self.chosen):
                for other in self.board.free - {gpu}:
                    self.count[other] += self.board.links[gpu][other]
            self.order.sort(key=self.count.__getitem__)
        taken = 0
        for s in range(len(self.cores)):
            taken += self.pick(number - taken, s)
        return taken + self.pick(number - taken, _ANYWHERE)


@dataclass(frozen=True)
class OnNode:
    """What a job has on one of its nodes before its GPUs are chosen."""

    board: Board
    cores: tuple[int, ...]  # (S,) cores on each socket.
    cpus: int
    tasks: int
    threads: int
    gpus: int  # The most GPUs that the node gives.


def choose_gpus(
    job: Job, nodes: Sequence[OnNode], *, exact: bool
) -> tuple[tuple[int, ...], ...] | None:
    """GPUs of each node (``gres_select_filter_select_and_set``); None: Slurm finds too few.

    Releases up to 25.05 (not ``exact``) start a job with too few GPUs per node or task, and log an
    error: "Insufficient gres/gpu allocated".
    """
    pickers = [Picker(node.board, node.cores, bound=job.bound, exact=exact) for node in nodes]
    given = 0
    for n, (node, picker) in enumerate(zip(nodes, pickers, strict=True)):
        if job.per_node:
            done = picker.per_node(job.per_node)
        elif job.per_task:
            tasks = _tasks_by_socket(node, limited=not exact)
            number = job.per_task * min(sum(tasks), node.tasks)
            done = picker.per_task(job.per_task, tasks, number)
        else:
            limit = job.per_job - given - (len(nodes) - n - 1)
            limit = min(limit, node.gpus if node.board.known else len(node.board.free))
            if job.cpus_per_gpu:
                limit = min(limit, sum(node.cores) * node.threads // job.cpus_per_gpu)
            given += picker.per_job(limit)
            done = True
        if exact and not done:
            return None
    if not job.per_node and not job.per_task:
        for picker in pickers:
            given += picker.rest(job.per_job - given) if given < job.per_job else 0
        if given < job.per_job:
            return None
    return tuple(tuple(sorted(picker.chosen)) for picker in pickers)


def _tasks_by_socket(node: OnNode, *, limited: bool) -> list[int]:
    """(S,) tasks of each socket (``_build_tasks_per_node_sock``).

    ``limited``: up to 25.05 they are no more than the tasks of the node, first sockets first.
    """
    each = max(1, node.cpus // max(1, node.tasks))
    per_core = node.threads // each
    found, left = [], node.tasks
    for cores in node.cores:
        here = cores * per_core if per_core else -(-cores // max(1, each // node.threads))
        here = min(here, left) if limited else here
        left -= here
        found.append(here)
    return found
