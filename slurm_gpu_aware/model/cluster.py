"""Cluster: nodes, GPUs and what is free of them, in arrays because policies loop over them.

GPUs live in an (N, W) rectangle: row = node, column = *slot*, the index by which Slurm knows the
GPU on its node (IDX in ``scontrol show job -d``, the ``K`` of GRES type ``gK``). Nodes with fewer
GPUs than W have ``exists`` False in the columns that they lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.penalties import Penalty
from slurm_gpu_aware.model.sockets import Sockets

__all__ = [
    "Cluster",
    "LocalityLevel",
    "PreemptionOrder",
    "RunningJob",
    "node_levels",
]

PLENTY_CPUS = 1 << 20
PLENTY_MB = 1 << 40
"""CPUs and memory (MB) of a node on which they are not counted."""


@dataclass(frozen=True, eq=False)
class LocalityLevel:
    """One level of locality and what it costs to be no closer than it.

    Levels of a cluster stand from the tightest to the loosest; the last one holds all nodes.
    """

    name: str
    """``node``, ``switch``, ``rack``, ``row``, ``cluster``; below it ``nvlink``, ``socket``."""
    penalty: float
    """L >= 1.0: factor on the iteration time of a job that needs this level (PAL, eq. 1)."""
    group: IntArray
    """Group number of each node, shape (N,); for a level below the node of each GPU, (N, W)."""
    source: str = ""
    """Where ``penalty`` comes from, as in `Penalty`."""
    by_class: Mapping[str, Penalty] = field(default_factory=dict)
    """L for classes that have their own."""

    def of(self, app_class: str) -> Penalty:
        """L for jobs of a class."""
        return self.by_class.get(app_class) or Penalty(self.penalty, self.source)


@dataclass(frozen=True)
class RunningJob:
    """A job that holds GPUs now, placed by the planner or not."""

    job_id: str
    gpus: tuple[tuple[int, tuple[int, ...]], ...]
    """(node index, slots) pairs."""
    end_s: float
    """Latest end by its time limit, same clock as the round's ``now``; inf = no limit."""
    cpus: Mapping[int, int] = field(default_factory=dict)
    """CPUs held per node index; given back at the end."""
    memory_mb: Mapping[int, int] = field(default_factory=dict)
    """Memory held per node index, MB."""
    app_class: str | None = None
    """Application class if it is known (interference, preemption)."""
    preemptable_by: float | None = None
    """Jobs of a higher preemption tier than this may preempt it; None: no tier may."""
    preempt_group: str | None = None
    """Jobs that name this group may preempt it; then ``preemptable_by`` is only what it costs."""
    priority: float = 0.0
    """Slurm's priority: within one group it decides which jobs may preempt it."""
    application: str | None = None
    """Application by its name in an interference profile (``topo-aware``); None: not known."""
    socket_cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """CPUs held on each socket per node index, where the cluster's sockets are known."""
    start_s: float = 0.0
    """When it started, same clock; of two jobs alike the newer one is preempted."""
    node_count: int = 1
    """Nodes that it runs on, those outside the cluster included; the wider goes later."""
    keeps_gpus: bool = False
    """A job that preempts it only suspends it."""

    @property
    def on_nodes(self) -> frozenset[int]:
        """Node indices on which it holds anything."""
        return frozenset(node for node, _ in self.gpus).union(self.cpus)


@dataclass(frozen=True)
class PreemptionOrder:
    """In which order the site's Slurm takes jobs that may be preempted (PreemptParameters)."""

    youngest_first: bool = False
    """The newest first, whatever their tier."""
    strict: bool = False
    """Trying again, all but the last that it took keep their order."""
    reorder_count: int = 1
    """Slurm tries again once more often than this."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """A snapshot of the cluster. Scores: lower is better; bandwidths: GB/s; memory: MB."""

    nodes: tuple[str, ...]
    """Node names, length N; everything else refers to nodes by position."""
    exists: BoolArray
    """(N, W): the GPU is there and its node can be used."""
    free: BoolArray
    """(N, W): no job holds it now; a subset of ``exists``."""
    scores: Mapping[str, FloatArray]
    """Class -> (N, W) binned PM scores (bin centroids); 1.0 where nothing was measured."""
    levels: tuple[LocalityLevel, ...]
    """From the tightest, whose penalty is 1.0, to the loosest; contains ``node``."""
    free_cpus: IntArray
    """(N,) schedulable CPUs that no job holds."""
    free_memory_mb: IntArray
    """(N,) memory that no job holds."""
    indexed: BoolArray
    """(N,): True where exact GPUs can be chosen; on other nodes Slurm picks the GPU."""
    model: tuple[str | None, ...]
    """GPU model per node, as users name it (``a100``); None if unknown."""
    graphs: tuple[HardwareGraph | None, ...] = ()
    """Link graph per node (equal machines share one object); empty: no link was measured."""
    running: tuple[RunningJob, ...] = ()
    """The jobs that hold the GPUs that are not free."""
    same_indices: bool = True
    """Slurm's constraint: a job on several nodes gets the same slots on each (one GRES line)."""
    cpus: IntArray | None = None
    """(N,) schedulable CPUs, held or not; a job that wants whole nodes needs all of them free.
    None: not known, its GPUs alone count."""
    sockets: Sockets | None = None
    """Free cores beside each GPU; None: no job asks for them."""
    asleep: BoolArray | None = None
    """(N,): powered down until a job is placed there; None: no node is."""
    preemption: PreemptionOrder = PreemptionOrder()
    """Slurm's constraint: which jobs it preempts beside those that hold what a job needs."""

    @property
    def shape(self) -> tuple[int, int]:
        """(number of nodes N, slots per node W)."""
        n, w = self.exists.shape
        return int(n), int(w)

    def score(self, app_class: str) -> FloatArray:
        """Scores (N, W) of a class; all 1.0 for a class that was never measured."""
        known = self.scores.get(app_class)
        return known if known is not None else np.ones(self.exists.shape)

    def copy(self) -> Cluster:
        """Same cluster with its own arrays of what is free and which nodes sleep.

        A round works on such a copy and marks what it gives away with :meth:`take`.
        """
        return replace(
            self,
            free=self.free.copy(),
            free_cpus=self.free_cpus.copy(),
            free_memory_mb=self.free_memory_mb.copy(),
            sockets=None if self.sockets is None else self.sockets.copy(),
            asleep=None if self.asleep is None else self.asleep.copy(),
        )

    def take(
        self,
        node: int,
        slots: Sequence[int],
        cpus: int = 0,
        memory_mb: int = 0,
        socket_cpus: Sequence[int] = (),
    ) -> None:
        """Mark GPUs, CPUs and memory of a node as held, in place.

        Raises ValueError if a GPU is not free: a policy that gives one GPU to two jobs is a bug.
        """
        chosen = list(slots)
        if len(set(chosen)) != len(chosen) or not bool(self.free[node, chosen].all()):
            raise ValueError(f"node {self.nodes[node]}: GPUs {chosen} are not all free")
        self.free[node, chosen] = False
        self.free_cpus[node] -= cpus
        self.free_memory_mb[node] -= memory_mb
        if self.asleep is not None:
            self.asleep[node] = False  # it is woken anyway
        if self.sockets is not None and socket_cpus:
            self.sockets.free_cpus[node] -= np.asarray(socket_cpus)
            self.sockets.quiet[node] = False

    def give_back(self, node: int, slots: Sequence[int], cpus: int = 0, memory_mb: int = 0) -> None:
        """Mark GPUs (those that exist), CPUs and memory of a node as free, in place."""
        chosen = list(slots)
        self.free[node, chosen] = self.exists[node, chosen]
        self.free_cpus[node] += cpus
        self.free_memory_mb[node] += memory_mb

    @classmethod
    def build(cls, nodes: Sequence[str], exists: BoolArray, **fields: Any) -> Cluster:
        """The cluster of these nodes and GPUs: the one place that fills in what is not given.

        Parameters
        ----------
        nodes : names of the N nodes.
        exists : (N, W) GPUs that are there and can be used.
        fields : other fields of the class. Where one is None or not given, every GPU is free, of
            score 1.0 and indexed, nodes have CPUs and memory without bound and no known model, and
            the levels are ``node`` (1.0) and ``cluster`` (1.5).
        """
        n = len(nodes)
        defaults: dict[str, Any] = {
            "free": exists.copy(),
            "scores": {},
            "levels": node_levels(n),
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
        """An idle cluster of equal nodes, as tests, examples and the simulator want it.

        ``nodes`` is a count (names ``n0``, ``n1``, ...) or the names. ``locality_penalty`` is
        PAL's L_across; within a node it is 1.0. ``fields``: as in :meth:`build`.
        """
        names = tuple(f"n{i}" for i in range(nodes)) if isinstance(nodes, int) else tuple(nodes)
        n = len(names)
        return cls.build(
            names,
            np.ones((n, gpus_per_node), dtype=np.bool_),
            levels=node_levels(n, locality_penalty),
            graphs=() if graph is None else (graph,) * n,
            free_cpus=np.full(n, cpus_per_node, dtype=np.int64),
            free_memory_mb=np.full(n, memory_mb_per_node, dtype=np.int64),
            **fields,
        )


def node_levels(nodes: int, penalty: float = 1.5) -> tuple[LocalityLevel, ...]:
    """The two levels of a cluster of which no other is known: ``node`` and ``cluster``."""
    return (
        LocalityLevel("node", 1.0, np.arange(nodes, dtype=np.int64)),
        LocalityLevel("cluster", penalty, np.zeros(nodes, dtype=np.int64)),
    )
