"""Cluster: nodes, GPUs, sockets and free resources, as arrays.

GPUs stand in (N, W) arrays: a row is a node, a column is a *slot*. The slot is Slurm's index of the
GPU on its node (IDX in ``scontrol show job -d``, the ``K`` of GRES type ``gK``). A node with fewer
than W GPUs has ``exists`` False in the other columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.facets import changed
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.node_users import NodeUsers
from slurm_gpu_aware.model.penalties import Penalty
from slurm_gpu_aware.model.request import Sharing

Gpu = tuple[int, int]  # (node index, slot).
Gpus = tuple[tuple[int, tuple[int, ...]], ...]  # (node index, slots) pairs.
PLENTY_CPUS, PLENTY_MB = 1 << 20, 1 << 40
"""CPUs and memory (MB) of a node where they are not counted."""
_COPIED = ("free", "free_cpus", "free_memory_mb", "sockets", "asleep",
           "by_slurm", "starting", "power_w", "users")  # fmt: skip
POWER_W = 1e-6  # Rounding of sums of power.


def each_gpu(gpus: Gpus) -> tuple[Gpu, ...]:
    """Each GPU of (node, slots) pairs."""
    return tuple((node, slot) for node, slots in gpus for slot in slots)


@dataclass(frozen=True, eq=False)
class Sockets:
    """The S sockets of N nodes with W slots; a socket that a node lacks has no CPUs."""

    gpu: IntArray  # (N, W) socket of each GPU; -1: not known, or several.
    cpus: IntArray  # (N, S) CPUs of the schedulable cores, held or not.
    free_cpus: IntArray  # (N, S) CPUs of the cores that no job holds.
    per_core: IntArray  # (N,) CPUs per core.
    quiet: BoolArray
    """(N,) Slurm has started all jobs that were placed here, so Slurm may choose GPUs."""

    def copy(self) -> Sockets:
        """The same sockets with their own ``free_cpus`` and ``quiet``."""
        return replace(self, free_cpus=self.free_cpus.copy(), quiet=self.quiet.copy())

    def idle(self) -> Sockets:
        """The same sockets without any job."""
        return replace(self, free_cpus=self.cpus, quiet=np.ones_like(self.quiet))

    def share(
        self, node: int, slots: Sequence[int], cpus: int, *, all_free: bool = False
    ) -> tuple[int, ...]:
        """CPUs that Slurm takes on each socket for GPUs of a node: whole cores, near ones first;
        with ``all_free`` every free core beside the GPUs, and no other."""
        free = np.maximum(self.free_cpus[node], 0)
        near = np.zeros(len(free), dtype=np.bool_)
        near[[s for s in self.gpu[node, list(slots)].tolist() if s >= 0]] = True
        if all_free:
            return tuple(np.where(near, free, 0).tolist())
        core = max(1, int(self.per_core[node]))
        left = -(-cpus // core) * core
        taken = np.zeros_like(free)
        for socket in np.lexsort((-free, ~near)):
            taken[socket] = min(left, int(free[socket]))
            left -= int(taken[socket])
        return tuple(taken.tolist())


@dataclass(frozen=True, eq=False)
class LocalityLevel:
    """One level of locality and its penalty; the last level of a cluster holds all nodes."""

    name: str  # ``nvlink``, ``socket``, ``node``, ``switch``, ``rack``, ``row`` or ``cluster``.
    penalty: float
    """L >= 1.0: factor on the iteration time of a job that needs this level (PAL, eq. 1)."""
    group: IntArray
    """(N,) group number of each node; for a level below the node (N, W), of each GPU."""
    source: str = ""  # Origin of ``penalty``, as in `Penalty`.
    by_class: Mapping[str, Penalty] = field(default_factory=dict)
    """Class -> L, for classes with an L of their own."""

    def of(self, app_class: str) -> Penalty:
        """L for jobs of a class."""
        return self.by_class.get(app_class) or Penalty(self.penalty, self.source)


@dataclass(frozen=True)
class RunningJob:
    """A job that holds GPUs now, whether or not the planner placed it."""

    job_id: str
    gpus: Gpus
    end_s: float
    """Latest end by the time limit, on the clock of the round's ``now``; inf: no limit."""
    cpus: Mapping[int, int] = field(default_factory=dict)  # CPUs held, per node index.
    memory_mb: Mapping[int, int] = field(default_factory=dict)
    """Memory held, per node index. Units: MB."""
    app_class: str | None = None  # Application class; None: not known.
    preemptable_by: float | None = None
    """Jobs of a higher preemption tier may preempt this job; None: no tier may."""
    preempt_group: str | None = None
    """Jobs that name this group may preempt this job; ``preemptable_by`` is then only its cost."""
    priority: float = 0.0
    """Slurm's priority; it decides which jobs of the same group may preempt this job."""
    application: str | None = None
    """Name in an interference profile (``topo-aware``); None: not known."""
    socket_cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """CPUs held on each socket, per node index; empty if the sockets are not known."""
    start_s: float = 0.0  # Start on the same clock; of two equal jobs the newer one is preempted.
    node_count: int = 1
    """Nodes of the job, also those outside the cluster; a wider job is preempted later."""
    keeps_gpus: bool = False  # Preemption only suspends the job.
    expected_end_s: float | None = None
    """Expected end on the same clock, at most ``end_s``; None: ``end_s``."""
    power_w: float = 0.0
    """Power above that of idle GPUs, which its end frees; it counts under a power limit only."""
    power_is_ours: bool = True  # That power is of a job that the planner started.
    user: str = ""  # The job's owner; empty: not known.
    alone: bool = False  # No job of another user starts on its nodes (`NodeUsers`).
    lone: bool = False  # And none of its own user.
    sharing: Sharing | None = None  # None: not known.
    standing: float = math.inf
    """Its place by tier and Slurm's priority, as `Request.priority`; inf: not known."""

    @cached_property
    def each_gpu(self) -> tuple[Gpu, ...]:
        """Each of its GPUs."""
        return each_gpu(self.gpus)

    @cached_property
    def rows(self) -> tuple[IntArray, IntArray]:
        """(n,) node of each of ``gpus``, and its slots as a mask."""
        masks = np.array([sum(1 << slot for slot in slots) for _, slots in self.gpus], np.uint64)
        return np.array([node for node, _ in self.gpus], np.int64), masks.view(np.int64)

    @cached_property
    def until_s(self) -> float:
        """Expected end, at most the latest one; before ``now`` for a job that has outrun it."""
        return self.end_s if self.expected_end_s is None else min(self.expected_end_s, self.end_s)

    @property
    def beside_gpus(self) -> bool:
        """Whether the job holds CPUs or memory, as far as is known."""
        return bool(self.cpus or self.memory_mb)

    @cached_property
    def on_nodes(self) -> frozenset[int]:
        """Node indices on which the job holds GPUs or CPUs."""
        return frozenset(node for node, _ in self.gpus).union(self.cpus)


@dataclass(frozen=True, eq=False)
class Shards:
    """Shards of the GPUs of N nodes with W slots; 0 where exact ones cannot be chosen."""

    total: IntArray  # (N, W) shards of each GPU.
    free: IntArray  # (N, W) free shards of the GPUs of which some are in use; 0 for the other GPUs.


@dataclass(frozen=True)
class PreemptionOrder:
    """The order in which the site's Slurm preempts jobs (PreemptParameters)."""

    youngest_first: bool = False  # The newest job first, whatever its tier.
    strict: bool = False  # On a repeated attempt all jobs but the last one taken keep their order.
    reorder_count: int = 1  # Slurm repeats the attempt this many times plus one.


@dataclass(frozen=True, eq=False)
class Cluster:
    """A snapshot of the cluster. Scores: lower is better; bandwidths: GB/s; memory: MB."""

    nodes: tuple[str, ...]  # N node names; other fields refer to nodes by position.
    exists: BoolArray  # (N, W): the GPU exists and its node is usable.
    free: BoolArray  # (N, W): the GPU exists and no job holds it.
    scores: Mapping[str, FloatArray]
    """Class -> (N, W) binned PM scores (bin centroids); 1.0 for GPUs without a measurement."""
    levels: tuple[LocalityLevel, ...]
    """From the tightest (penalty 1.0) to the loosest; contains ``node``."""
    free_cpus: IntArray  # (N,) schedulable CPUs that no job holds.
    free_memory_mb: IntArray  # (N,) memory that no job holds.
    indexed: BoolArray
    """(N,): exact GPUs can be chosen; on the other (plain) nodes Slurm chooses them."""
    model: tuple[str | None, ...]
    """GPU model per node in the users' word (``a100``); None: not known."""
    graphs: tuple[HardwareGraph | None, ...] = ()
    """Link graph per node (equal nodes share one object); empty: no link was measured."""
    running: tuple[RunningJob, ...] = ()  # The jobs that hold the GPUs that are not free.
    same_indices: bool = True
    """Slurm gives a job on several nodes the same slots on each (one GRES line)."""
    cpus: IntArray | None = None
    """(N,) schedulable CPUs, held or not; a whole-node job needs all free. None: not known."""
    sockets: Sockets | None = None  # Free cores beside each GPU; None: no job needs them.
    asleep: BoolArray | None = None
    """(N,): powered down until a job is placed there; None: no node sleeps."""
    preemption: PreemptionOrder = PreemptionOrder()  # Slurm's order of preemption.
    shards: Shards | None = None
    """Shards of its GPUs; None: no GPU has some. A GPU of which some are in use is not free."""
    by_slurm: BoolArray | None = None
    """(N, W): no job holds the GPU, but Slurm may give it to a released job whose GPUs it chooses,
    so that only more such jobs can get it; such a GPU is not ``free``. None: no such GPU."""
    starting: BoolArray | None = None
    """(N,): a job placed on exact GPUs of the node has not started; None: on no node."""
    power_w: FloatArray | None = None
    """(2,) power that the site's limit leaves for more jobs, and power that jobs of ours draw above
    that of idle GPUs; None: there is no limit."""
    memory_mb: IntArray | None = None
    """(N,) schedulable memory, held or not; ``--mem=0`` needs all free. None: not known."""
    installed: BoolArray | None = None
    """(N, W): the GPU is there, also if it or its node is down or drained; None: ``exists``."""
    users: NodeUsers | None = None
    """Jobs on each node by user and sharing; None: no job closes its nodes to others."""

    @property
    def shape(self) -> tuple[int, int]:
        """(number of nodes N, slots per node W)."""
        n, w = self.exists.shape
        return int(n), int(w)

    def score(self, app_class: str) -> FloatArray:
        """(N, W) scores of a class; 1.0 for a class without measurements."""
        known = self.scores.get(app_class)
        return known if known is not None else np.ones(self.exists.shape)

    def copy(self) -> Cluster:
        """The same cluster with its own arrays of free resources and sleeping nodes."""
        own = {name: getattr(self, name) for name in _COPIED}
        return changed(self, **{k: None if v is None else v.copy() for k, v in own.items()})

    @property
    def not_held(self) -> BoolArray:
        """(N, W): no job holds the GPU, whether or not exact ones can be chosen."""
        return self.free if self.by_slurm is None else self.free | self.by_slurm

    def leave_to_slurm(self, nodes: BoolArray) -> None:
        """Mark the free GPUs of (N,) nodes as ones that Slurm may give to a released job."""
        assert self.by_slurm is not None  # noqa: S101 - a round with such jobs has it
        self.by_slurm[nodes] |= self.free[nodes]
        self.free[nodes] = False

    def choose(self, node: int, slots: Sequence[int]) -> None:
        """Mark GPUs that Slurm may give away as free, so that a job can take them, in place."""
        assert self.by_slurm is not None  # noqa: S101 - a round with such jobs has it
        self.free[node, list(slots)] |= self.by_slurm[node, list(slots)]
        self.by_slurm[node, list(slots)] = False

    def empty(self, *, repaired: bool = False) -> Cluster:
        """The same nodes without any job, by what they have: on it a job is possible or not.

        CPUs and memory of which the total is not known are plenty. ``repaired``: with all nodes and
        GPUs that are down or drained now.
        """
        exists = self.exists if self.installed is None or not repaired else self.installed
        n, shards = len(self.nodes), self.shards
        cpus = np.full(n, PLENTY_CPUS) if self.cpus is None else self.cpus
        memory_mb = np.full(n, PLENTY_MB) if self.memory_mb is None else self.memory_mb
        return replace(
            self,
            exists=exists,
            free=exists.copy(),
            free_cpus=cpus.astype(np.int64),
            free_memory_mb=memory_mb.astype(np.int64),
            running=(),
            sockets=None if self.sockets is None else self.sockets.idle(),
            shards=None if shards is None else replace(shards, free=np.zeros_like(shards.free)),
            power_w=None,
            by_slurm=None if self.by_slurm is None else np.zeros_like(self.by_slurm),
            starting=None,
            users=None,
        )

    def has_power(self, power_w: float) -> bool:
        """Say whether a job with this power may start: so it does if no other job of ours runs."""
        alone = self.power_w is not None and bool(self.power_w[1] <= POWER_W)
        return alone or self.leaves(power_w)

    def leaves(self, power_w: float) -> bool:
        """Say whether the limit leaves this power."""
        return self.power_w is None or bool(self.power_w[0] >= power_w - POWER_W)

    def draw(self, power_w: float) -> None:
        """Mark power as used, in place."""
        if self.power_w is not None:
            self.power_w[:] += (-power_w, power_w)

    def take(
        self,
        node: int,
        slots: Sequence[int],
        cpus: int = 0,
        memory_mb: int = 0,
        socket_cpus: Sequence[int] = (),
    ) -> None:
        """Mark resources of a node as held, in place. Raises ValueError if a GPU is not free."""
        chosen = list(slots)
        if len(set(chosen)) != len(chosen) or not bool(self.free[node, chosen].all()):
            raise ValueError(f"node {self.nodes[node]}: GPUs {chosen} are not all free")
        self.free[node, chosen] = False
        self.free_cpus[node] -= cpus
        self.free_memory_mb[node] -= memory_mb
        if self.asleep is not None:
            self.asleep[node] = False  # the job wakes it
        if self.sockets is not None and socket_cpus:
            self.sockets.free_cpus[node] -= np.asarray(socket_cpus)
            self.sockets.quiet[node] = False

    def give_back(self, node: int, slots: Sequence[int]) -> None:
        """Mark existing GPUs of a node as free, in place."""
        chosen = list(slots)
        self.free[node, chosen] = self.exists[node, chosen]

    @classmethod
    def build(cls, nodes: Sequence[str], exists: BoolArray, **fields: Any) -> Cluster:
        """The cluster of these nodes and (N, W) GPUs, with defaults for the other fields.

        If a field is None or absent, every GPU is free and indexed and has score 1.0, nodes have
        unlimited CPUs and memory and no known model, and the levels are ``node`` (1.0) and
        ``cluster`` (1.5).
        """
        n = len(nodes)
        defaults: dict[str, Any] = {
            "free": exists.copy(),
            "scores": {},
            "levels": _node_levels(n),
            "free_cpus": np.full(n, PLENTY_CPUS, dtype=np.int64),
            "free_memory_mb": np.full(n, PLENTY_MB, dtype=np.int64),
            "indexed": np.ones(n, dtype=np.bool_),
            "model": (None,) * n,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return cls(nodes=tuple(nodes), exists=exists, **{**defaults, **given})

    @classmethod
    def uniform(
        cls,
        nodes: int | Sequence[str],
        gpus_per_node: int,
        *,
        locality_penalty: float = 1.5,
        graph: HardwareGraph | None = None,
        cpus_per_node: int = PLENTY_CPUS,
        memory_mb_per_node: int = PLENTY_MB,
        **fields: Any,
    ) -> Cluster:
        """An idle cluster of equal nodes: a count (``n0``, ``n1``, ...) or their names.

        ``locality_penalty``: PAL's L_across. ``fields``: as in :meth:`build`.
        """
        names = tuple(f"n{i}" for i in range(nodes)) if isinstance(nodes, int) else tuple(nodes)
        n = len(names)
        return cls.build(
            names,
            np.ones((n, gpus_per_node), dtype=np.bool_),
            levels=_node_levels(n, locality_penalty),
            graphs=() if graph is None else (graph,) * n,
            free_cpus=np.full(n, cpus_per_node, dtype=np.int64),
            free_memory_mb=np.full(n, memory_mb_per_node, dtype=np.int64),
            **fields,
        )


def _node_levels(nodes: int, penalty: float = 1.5) -> tuple[LocalityLevel, ...]:
    """The two levels of a cluster without other known levels: ``node`` and ``cluster``."""
    return (
        LocalityLevel("node", 1.0, np.arange(nodes, dtype=np.int64)),
        LocalityLevel("cluster", penalty, np.zeros(nodes, dtype=np.int64)),
    )
