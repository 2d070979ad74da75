"""Slurm: the nodes and GPUs that stock Slurm gives."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facts import Fact, Facts
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.room import all_memory_free
from slurm_gpu_aware.placement.account import level_of, worst_score
from slurm_gpu_aware.placement.cons_tres.cores import (
    Filter,
    bound_to_one_socket,
    cyclic,
    tasks_of,
    usable,
)
from slurm_gpu_aware.placement.cons_tres.job import (
    Board,
    Job,
    Links,
    OnNode,
    Room,
    Share,
    choose_gpus,
)
from slurm_gpu_aware.placement.cons_tres.nodes import ASLEEP, Nodes, Shares, choose_nodes
from slurm_gpu_aware.placement.feasible import open_nodes
from slurm_gpu_aware.placement.level_views import by_identity
from slurm_gpu_aware.placement.policy import Policy, PolicyOptions, bad_option

RELEASES = ("24.11", "25.05", "25.11", "26.05")  # Releases of Slurm whose source the rules follow.
_NEAR = 0xFF


@dataclass(frozen=True)
class SlurmOptions(PolicyOptions):
    """Options of `Slurm`."""

    release: str = "24.11"  # Release of Slurm.
    links: bool = True
    """slurmctld knows the NVLinks (``AutoDetect=nvml``, or ``Links=`` in gres.conf)."""
    tasks: int = 0  # Tasks of the job (``-n``); 0: not given, so one per node.
    per_task: bool = False  # The job asks by ``--gpus-per-task``.
    gres: bool = False
    """A request without GPUs per node that can be spread evenly asks by ``--gres`` on the fewest
    nodes, not by ``--gpus``."""

    def __post_init__(self) -> None:
        if self.release not in RELEASES:
            raise bad_option("release", f"one of {', '.join(RELEASES)}", self.release)
        for name in ("links", "per_task", "gres"):
            if not isinstance(getattr(self, name), bool):
                raise bad_option(name, "true or false", getattr(self, name))
        if not isinstance(self.tasks, int) or isinstance(self.tasks, bool) or self.tasks < 0:
            raise bad_option("tasks", "a whole number >= 0", self.tasks)


class OfRelease(Fact, frozen=True):
    """The set that a release of Slurm gives."""

    key = "slurm"

    release: str

    def words(self) -> str:
        return f"as Slurm {self.release} gives it"


class Slurm(Policy):
    """Stock Slurm: ``select/cons_tres`` with ``CR_Core`` and topology/default.

    Nodes: those with the most GPUs beside free cores first, of these the tightest consecutive set
    and node (`cons_tres.nodes`). Cores: beside the GPUs, spread over their sockets
    (`cons_tres.cores`). GPUs: on the sockets of the cores; where slurmctld knows links, by them
    (`cons_tres.gpus`). ``gpus_per_node`` tells ``--gres`` and ``--gpus-per-node`` from ``--gpus``.

    Where the cores of the cluster are not known, every socket of a node has enough; the sockets of
    its GPUs are those of the graph.
    """

    name = "slurm"
    of_traces = MappingProxyType({"gres": True})
    options_type = SlurmOptions
    options: SlurmOptions

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        if self.options.gres and request.gpus_per_node is None and not self.options.per_task:
            request = _by_gres(request, cluster.shape[1])
        job = self._job(request)
        late = self.options.release >= "25.11"
        state = _State(request, cluster, job, capped=late)
        first = self.options.release >= "26.05"
        found = choose_nodes(job, state.nodes(), by_product=late, one_by_one=first)
        if found is None:
            return None
        if request.nodes.whole:
            slots = tuple(tuple(np.flatnonzero(cluster.exists[n]).tolist()) for n in found)
            return self._assignment(request, cluster, tuple(found), slots)
        shares, threads = list(found.values()), [state.threads(n) for n in found]
        spread = tasks_of(job, shares, threads)
        if spread is None:
            return None
        on_nodes = []
        for n, share, core, (cpus, tasks) in zip(found, shares, threads, spread, strict=True):
            cores = cyclic(job, share, cpus, core)
            if not cores or not any(cores):  # "No allocated cores found"
                return None
            board = state.board(n, self._links(n, cluster))
            on_nodes.append(OnNode(board, cores, sum(cores) * core, tasks, core, share.gpus))
        chosen = choose_gpus(job, on_nodes, exact=late)
        return None if chosen is None else self._assignment(request, cluster, tuple(found), chosen)

    def _job(self, request: Request) -> Job:
        """The request as Slurm's options."""
        nodes = request.fewest_nodes
        most = request.max_nodes or 0
        if request.gpus_per_node is not None:
            nodes = max(nodes, request.gpus // request.gpus_per_node)
            most = max(most, nodes) if most else 0
        tasks = self.options.tasks
        by_task = self.options.per_task
        if request.gpus_per_node is None and most:
            most = min(most, request.gpus)  # gres_job_state_validate
        tried = most or nodes
        if self.options.release >= "26.05" and tasks and not most:
            most = tasks  # JOB_IMPLICIT_MAX_NODES in job_mgr.c
        return Job(
            per_node=0 if by_task else request.gpus_per_node or 0,
            per_task=request.gpus // max(tasks, 1) if by_task else 0,
            per_job=request.gpus if by_task or request.gpus_per_node is None else 0,
            tasks=tasks,
            tasks_per_node=0,
            cpus_per_task=max(1, -(-request.cpus.total // (tasks or max(nodes, 1)))),
            cpus_per_gpu=request.cpus.per_gpu,
            min_nodes=nodes,
            max_nodes=most,
            tried_nodes=tried,
            bound=request.sockets.bound,
            whole=request.nodes.whole,
        )

    def _links(self, node: int, cluster: Cluster) -> Links | None:
        """Links as slurmctld knows them."""
        if not self.options.links or not cluster.graphs:
            return None
        graph = cluster.graphs[node]
        return None if graph is None or graph.n < 2 else slurm_links(graph, cluster.shape[1])

    def _assignment(
        self,
        request: Request,
        cluster: Cluster,
        nodes: tuple[int, ...],
        slots: tuple[tuple[int, ...], ...],
    ) -> Assignment:
        level = level_of(cluster, nodes, slots)
        score = worst_score(cluster, request.app_class, nodes, slots)
        return Assignment(
            job_id=request.job_id,
            nodes=nodes,
            slots=slots,
            policy=self.name,
            score=score,
            level=level.name,
            slowdown=level.of(request.app_class).value * score,
            exact=_nameable(request, cluster, nodes, slots),
            why=Facts((OfRelease(self.options.release),)),
        )


def _by_gres(request: Request, width: int) -> Request:
    """The request by ``--gres`` on the fewest nodes; unchanged where it cannot be spread evenly."""
    counts = request.node_counts(width)
    if not counts:
        return request
    most = counts[0] if counts[0] > 1 or request.max_nodes is not None else None
    each = request.gpus // counts[0]
    return replace(request, gpus_per_node=each, min_nodes=counts[0], max_nodes=most)


def _nameable(
    request: Request,
    cluster: Cluster,
    nodes: tuple[int, ...],
    slots: tuple[tuple[int, ...], ...],
) -> bool:
    """Whether a job can be told to take these GPUs; else only the nodes are chosen."""
    alike = len(set(slots)) == 1 or not cluster.same_indices
    return alike and not request.nodes.whole and all(map(cluster.indexed.item, nodes))


@by_identity
def slurm_links(graph: HardwareGraph, width: int) -> Links | None:
    """(W, W) NVLinks between GPUs, as slurmd's nvml plugin counts them; None: it fills in none.

    Its rsmi and oneAPI plugins fill in no links. Links to an NVSwitch do not count: where all pairs
    are equal, the count makes no difference.
    """
    if any(word.startswith("XGMI") for row in graph.classes for word in row):
        return None
    count = [[0] * width for _ in range(width)]
    for i, row in enumerate(graph.classes):
        for j, word in enumerate(row):
            if word.startswith("NV"):
                count[i][j] = int(word.removeprefix("NV"))
    return tuple(map(tuple, count))


class _State(Shares):
    """The free resources of the nodes for one request."""

    def __init__(self, request: Request, cluster: Cluster, job: Job, *, capped: bool) -> None:
        self.request, self.cluster, self.job, self.capped = request, cluster, job, capped
        self.free = cluster.exists if request.nodes.whole else cluster.free
        self.socket = self._gpu_sockets()
        one_socket = job.bound and job.per_job > 0 and job.one_socket
        self._one_socket = one_socket and not capped
        self._rooms: dict[tuple[int, ...], tuple[Room, tuple[int, int] | None]] = {}
        self._memo: dict[object, Share | None] = {}
        self.room: dict[int, Room] = {}
        self.most: dict[int, int] = {}

    def _gpu_sockets(self) -> IntArray:
        """(N, W) socket of each GPU; -1: none."""
        cluster = self.cluster
        if cluster.sockets is not None:
            return cluster.sockets.gpu
        return _graph_sockets(cluster.graphs, cluster.shape)

    def nodes(self) -> Nodes:
        """The nodes that have room."""
        cluster, weight = self.cluster, {}
        able = np.flatnonzero(self._able())
        asleep = np.zeros(len(able)) if cluster.asleep is None else cluster.asleep[able]
        rooms = self._free(able).tolist()
        for n, free, sleeps in zip(able.tolist(), rooms, asleep.tolist(), strict=True):
            room, found = self._room(tuple(free))
            if found is None:
                continue
            near, self.most[n] = found
            self.room[n] = room
            weight[n] = _NEAR - min(near, _NEAR) + (ASLEEP if sleeps else 0)
        return Nodes(
            weight=weight,
            threads={n: self.threads(n) for n in weight},
            cpus={n: self.room[n].cpus for n in weight},
            gpus={n: self.room[n].gpus for n in weight},
            required=self.request.nodes.required,
            shares=self,
        )

    def _able(self) -> BoolArray:
        """(N,) nodes that the request may use, with memory."""
        request, cluster = self.request, self.cluster
        able = np.asarray(self.free.any(axis=1))
        if (allowed := open_nodes(request, cluster)) is not None:
            able &= allowed
        if request.memory.whole:
            able &= all_memory_free(cluster)
        if request.nodes.whole:
            able &= (cluster.free == cluster.exists).all(axis=1)
            if cluster.cpus is not None:
                able &= cluster.free_cpus >= cluster.cpus
        nodes = max(self.job.min_nodes, 1)
        able &= cluster.free_memory_mb >= request.memory.needed_mb(
            request.cpus_on_node(nodes), self.job.per_node or 1
        )
        return able

    def threads(self, node: int) -> int:
        """CPUs of a core of a node."""
        sockets = self.cluster.sockets
        return 1 if sockets is None else max(1, int(sockets.per_core[node]))

    def _free(self, nodes: IntArray) -> IntArray:
        """(n, 2 + 2 S) CPUs of a core, unbound GPUs, cores and GPUs of each socket, all free."""
        row, free, sockets = self.socket[nodes], self.free[nodes], self.cluster.sockets
        threads = np.ones(len(nodes), dtype=np.int64)
        many = max(0, int(self.socket.max(initial=0))) + 1
        if sockets is None:
            most = self.request.total_cpus + self.job.min_job_gpu_cpus(1) + self.job.tasks
            each = np.minimum(np.maximum(self.cluster.free_cpus[nodes], 0), most)
            there = np.maximum(row.max(axis=1), 0)
            cores = np.where(np.arange(many) <= there[:, None], each[:, None], 0)
        else:
            many = max(many, sockets.free_cpus.shape[1])
            threads = np.maximum(sockets.per_core[nodes], 1)
            cores = np.zeros((len(nodes), many), dtype=np.int64)
            free_cpus = np.maximum(sockets.free_cpus[nodes], 0)
            cores[:, : free_cpus.shape[1]] = free_cpus // threads[:, None]
        bound = [(free & (row == s)).sum(axis=1) for s in range(many)]
        anywhere = (free & (row < 0)).sum(axis=1)
        return np.column_stack([threads, anywhere, cores, *bound])

    def _room(self, free: tuple[int, ...]) -> tuple[Room, tuple[int, int] | None]:
        """The room of a row of `_free`, and whether it is `usable`."""
        known = self._rooms.get(free)
        if known is None:
            threads, anywhere, *rest = free
            many = len(rest) // 2
            room = Room(tuple(rest[:many]), threads, anywhere, tuple(rest[many:]))
            room = bound_to_one_socket(room) if self._one_socket else room
            known = self._rooms[free] = room, usable(self.job, room)
        return known

    def share(
        self, node: int, left: int, nodes: int, limit: int | None, *, first: bool
    ) -> Share | None:
        room, most = self.room[node], self.most[node]
        key = (id(room), most, left, nodes, limit, first)  # equal rooms are one object
        if key not in self._memo:
            one = Filter(self.job, room, first=first, capped=self.capped, limit=limit)
            self._memo[key] = one.share(most, left, nodes)
        share = self._memo[key]
        return None if share is None else Share(**vars(share))  # the evaluation narrows it down

    def board(self, node: int, links: Links | None) -> Board:
        """The GPUs of a node."""
        slots = frozenset(np.flatnonzero(self.free[node]).tolist())
        there = np.flatnonzero(_installed(self.cluster)[node])
        width = int(there[-1]) + 1
        return Board(slots, width, tuple(self.socket[node].tolist()), links)


def _installed(cluster: Cluster) -> BoolArray:
    """(N, W): the GPU is there, so that Slurm counts it."""
    return cluster.exists if cluster.installed is None else cluster.installed


@by_identity
def _graph_sockets(graphs: tuple[HardwareGraph | None, ...], shape: tuple[int, int]) -> IntArray:
    """(N, W) socket of each GPU by the graphs of the nodes; -1: not known."""
    found = np.full(shape, -1, dtype=np.int64)
    for n, graph in enumerate(graphs):
        if graph is not None:
            found[n, : graph.n] = graph.groups
    return found
