"""Request: what a job asks for, in the planner's terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.model.arrays import BoolArray, IntArray

__all__ = ["NodeGroups", "Request"]


@dataclass(frozen=True, eq=False)
class NodeGroups:
    """Groups of nodes; a job that has them gets nodes of one group only. Compared by identity."""

    of: IntArray
    """(N,) number of each node's group; -1: in none, such a node is not used."""
    name: str = "group"
    """What one group is called in sentences."""


@dataclass(frozen=True, eq=False)
class Request:
    """One job (or array task) that waits for GPUs.

    The GPU count is ``gpus`` in total. ``min_nodes``/``max_nodes`` bound the number of nodes; all
    nodes of a job give the same number of GPUs, so a node count must divide ``gpus``.
    """

    job_id: str
    """Slurm's id as users type it: ``98``, or ``98_3`` for an array task."""
    gpus: int
    """Total GPUs, 1 to ``MAX_GPUS``."""
    min_nodes: int = 1
    max_nodes: int | None = None
    """None: as many as it takes."""
    gpus_per_node: int | None = None
    """Fixed by the request (``--gres``, ``--gpus-per-node``); None: any even split."""
    app_class: str = "B"
    bandwidth_sensitive: bool = False
    """The job gains from links (MAPA); otherwise placement preserves links for others."""
    pattern: str = "ring"
    """Communication pattern: ring, tree, ring+tree, all-to-all, none."""
    policy: str | None = None
    """Policy that the user asked for; None: the round's default."""
    clock: str | int | None = None
    """``auto``, ``max``, MHz, or None (class default)."""
    performance_model: str | None = None
    application: str | None = None
    """Its name in an interference profile (``topo-aware``); None: not known."""
    gpu_model: str | None = None
    """Only nodes with this GPU model; None: any."""
    eligible: BoolArray | None = None
    """(N,) nodes that partition, features, reservations, -w and -x leave; None: all."""
    required: tuple[int, ...] = ()
    """Node indices that must be part of the allocation (``-w``)."""
    node_groups: NodeGroups | None = None
    """All its nodes must be of one of these groups; None: any nodes will do."""
    whole_node: bool = False
    """``--exclusive``: the job gets every GPU of its nodes; only the node is chosen."""
    bound: bool = False
    """``--gres-flags=enforce-binding``: on each node its GPUs lie on one socket with its CPUs."""
    several_sockets: int | None = None
    """Bound, but where no socket has enough, Slurm may choose GPUs of several (`sockets`) for a job
    with at least so many CPUs on each node; None: it never does."""
    fills_sockets: bool = False
    """Bound, and Slurm gives it every free core of the socket."""
    cpus: int = 1
    """Total CPUs that Slurm will count for the job, spread evenly over its nodes."""
    cpus_per_gpu: int = 0
    """Each GPU brings this many CPUs, if that makes more than ``cpus``."""
    memory_mb_per_node: int = 0
    memory_mb_per_cpu: int = 0
    memory_mb_per_gpu: int = 0
    time_limit_s: float = math.inf
    priority: float = 0.0
    """Slurm's priority; larger first."""
    submit_s: float = 0.0
    preemption_tier: float | None = None
    """May preempt running jobs whose ``preemptable_by`` is lower; None: no tier of its own."""
    preempts: frozenset[str] = frozenset()
    """May preempt running jobs of these ``preempt_group`` values, whatever the tier."""
    preempts_lower: frozenset[str] = frozenset()
    """May preempt running jobs of these ``preempt_group`` values whose ``priority`` is lower than
    ``preempting_priority``."""
    preempting_priority: float = 0.0
    """Slurm's own priority, without what ``priority`` has beside it."""
    waited_s: float = 0.0
    """How long the job has waited; a round fills it in for policies that may postpone."""
    relaxed: bool = False
    """A question of capacity: a policy that may postpone takes any set that fits."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the policy, checked by it."""

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MAX_GPUS:
            raise ValueError(f"job {self.job_id}: gpus must be 1 to {MAX_GPUS}, not {self.gpus}")
        if self.min_nodes < 1:
            raise ValueError(f"job {self.job_id}: min_nodes must be at least 1")

    def node_counts(self, slots_per_node: int) -> tuple[int, ...]:
        """Node counts that this request allows, fewest first.

        ``slots_per_node`` is the GPU count of the largest node. Only even splits: a job has one
        GRES line for all its nodes.
        """
        if self.gpus_per_node is not None:
            if self.gpus % self.gpus_per_node:
                return ()
            counts = [self.gpus // self.gpus_per_node]
        else:
            # By what a node gives, never by nodes: a user may ask for millions of GPUs.
            each = range(min(slots_per_node, self.gpus), 0, -1)
            counts = [self.gpus // k for k in each if self.gpus % k == 0]
        most = self.max_nodes if self.max_nodes is not None else self.gpus
        return tuple(
            n
            for n in counts
            if max(self.min_nodes, len(self.required)) <= n <= most
            and self.gpus // n <= slots_per_node
        )

    @property
    def total_cpus(self) -> int:
        """CPUs of the whole job."""
        return max(self.cpus, self.cpus_per_gpu * self.gpus)

    def cpus_on_node(self, nodes: int) -> int:
        """CPUs needed on each of ``nodes`` nodes."""
        return -(-self.total_cpus // nodes)

    def memory_on_node(self, nodes: int) -> int:
        """Memory needed on each of ``nodes`` nodes. Units: MB."""
        if self.memory_mb_per_gpu:
            return self.memory_mb_per_gpu * (self.gpus // nodes)
        if self.memory_mb_per_cpu:
            return self.memory_mb_per_cpu * self.cpus_on_node(nodes)
        return self.memory_mb_per_node
