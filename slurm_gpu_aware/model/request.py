"""Request: the resources that a job asks for, in the planner's terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.facets import Faceted

TIER = 2.0**32  # Weight of a partition's tier in a priority; Slurm's own priorities have 32 bits.


def in_tier(tier: int, priority: float) -> float:
    """The priority of a `Request`, by its partition's tier and Slurm's own priority."""
    return TIER * tier + priority


@dataclass(frozen=True, eq=False)
class NodeGroups:
    """Groups of nodes; a job gets nodes of one group only. Compared by identity."""

    of: IntArray  # (N,) group number of each node; -1: in no group, so not used.
    name: str = "group"  # Word for one group in sentences.


@dataclass(frozen=True, order=True)
class Sharing:
    """How Slurm shares a job's CPUs (OverSubscribe)."""

    partition: str = ""  # Its partition, if several jobs can have one CPU there; else empty.
    shares: bool = False
    """It may get CPUs of other jobs, and they its own: with FORCE, or YES and --oversubscribe."""

    def closes(self, other: Sharing) -> bool:
        """Whether Slurm starts the other job on no node on which this one runs.

        As `_verify_node_state` of select/cons_tres: a job that shares CPUs goes to no node of one
        that does not. The other way round it may, if the nodes are shared in its own partition.
        """
        if other.shares:
            return not self.shares
        return self.shares and self.partition not in ("", other.partition)

    @property
    def planned(self) -> Sharing:
        """That of a job that is to start: if it shares CPUs, none that does not may come first."""
        return Sharing("*", shares=True) if self.shares else self


@dataclass(frozen=True, eq=False)
class NodeRules:
    """Which nodes a job may get; any if left empty. Compared by identity."""

    eligible: BoolArray | None = None
    """(N,) nodes that partition, features, reservations, -w and -x allow; None: all."""
    allowed: BoolArray | None = None
    """(N,) the same and those that reservations, which end, keep from it; None: ``eligible``."""
    required: tuple[int, ...] = ()  # Node indices that the allocation must contain (``-w``).
    groups: NodeGroups | None = None
    """All nodes must belong to one of these groups; None: any nodes."""
    gpu_model: str | None = None  # Only nodes with this GPU model; None: any.
    whole: bool = False
    """``--exclusive``: the job gets every GPU of its nodes; only the nodes are chosen."""
    alone: bool = False  # It shares its nodes with jobs of its own user only.
    sharing: Sharing = Sharing()


@dataclass(frozen=True)
class SocketRules:
    """Which sockets of a node may give a job GPUs and CPUs; any if left empty."""

    bound: bool = False
    """``--gres-flags=enforce-binding``: on each node GPUs and CPUs lie on one socket."""
    several: int | None = None
    """CPUs per node from which Slurm may give a bound job GPUs of several sockets; None: never."""
    gpus_each: int | None = None
    """``--gpus-per-socket``: GPUs on each socket that gives some; None: on any sockets."""
    fills: bool = False  # Slurm gives a bound job every free core of the socket.

    @property
    def given(self) -> bool:
        """Whether the sockets of GPUs decide where the job fits."""
        return self.bound or self.gpus_each is not None

    @property
    def takes_all(self) -> bool:
        """Whether the job holds the sockets of its GPUs with all their cores."""
        return self.bound and self.fills


@dataclass(frozen=True)
class Cpus:
    """CPUs of a job, spread evenly over its nodes."""

    total: int = 1  # As Slurm counts them for the job.
    per_gpu: int = 0  # CPUs per GPU, if these are more than ``total``.
    task_per_gpu: bool = False
    """A moldable job has one task, or a fixed number of them, for each GPU; else its tasks, and so
    its CPUs, are the same for all sizes."""

    def resized(self, gpus: int, before: int) -> Cpus:
        """Those of the job with another number of GPUs than ``before``."""
        return replace(self, total=-(-self.total * gpus // before)) if self.task_per_gpu else self


@dataclass(frozen=True)
class Postponement:
    """A wait by choice: GPUs that free up later end the job sooner. Times on a round's clock."""

    since_s: float  # The first round that let the job wait.
    start_s: float = -math.inf  # Expected start on these GPUs.
    end_s: float = -math.inf  # Expected end of the job there.
    gpus: tuple[tuple[str, tuple[int, ...]], ...] = ()  # (node, slots) of these GPUs.
    reason: str = ""  # What was weighed; one sentence for the user.


@dataclass(frozen=True)
class Wait:
    """How a job has waited until this round."""

    refused: bool = False  # It could not start where it was placed lately.
    waited_s: float = 0.0  # Waiting time; a round sets it for policies that may postpone.
    postponed: Postponement | None = None
    """Its wait for a better set, as the last round that let it wait saw it; None: none has."""
    relaxed: bool = False
    """A question of capacity: a policy that may postpone accepts any set that fits."""
    first_submit_s: float | None = None
    """When a job that was requeued began to wait; its requeue is a later submission for Slurm."""
    ineligible_s: float = 0.0
    """Time from its submission until no begin time, dependency or hold kept it any more."""

    def since(self, now: float) -> float:
        """When the job was first postponed; ``now`` if it was not."""
        return now if self.postponed is None else min(self.postponed.since_s, now)


@dataclass(frozen=True)
class PolicyChoice:
    """The policy of a job."""

    name: str | None = None  # The one that the user names; None: the round's default.
    options: Mapping[str, Any] = field(default_factory=dict)  # Its options; the policy checks them.


@dataclass(frozen=True)
class Part:
    """Equal nodes of a job whose GPUs Slurm chooses, by counts."""

    gpus: int
    """GPUs of all its nodes together; shards of a GPU count as the GPU. 0: none are asked for, so
    its tasks decide."""
    per_node: int | None = None  # GPUs of each node; None: they may be spread unevenly.
    min_nodes: int = 1
    max_nodes: int | None = None
    cpus: int = 0  # CPUs of all its nodes together.
    memory_mb: int = 0  # Memory of all its nodes together.
    node_memory_mb: int = 0  # Memory of each node (``--mem``); 0: as its GPUs or tasks are spread.
    shards: int = 0  # Shards of one GPU of each node; 0: whole GPUs.
    tasks: int = 1  # Without GPUs: tasks of all its nodes, each with as many CPUs.
    whole: bool = False  # It gets whole nodes, which are free of other jobs.
    elsewhere: bool = False
    """It asks for no GPUs, and nodes that no round knows may have room for it."""


@dataclass(frozen=True)
class LeftToSlurm:
    """A job of which Slurm chooses nodes and GPUs; a round decides when it starts."""

    reason: str  # Why it is left to Slurm; completes a sentence.
    parts: tuple[Part, ...]  # Several for a heterogeneous job.
    fixed: bool = False  # Its nodes cannot be narrowed: it may get any of the eligible ones.
    again: bool = False  # It did not start on the nodes to which a round narrowed it.


@dataclass(frozen=True)
class Memory:
    """Memory of a job, given in at most one way. Units: MB; 0: not given so."""

    per_node_mb: int = 0
    per_cpu_mb: int = 0
    per_gpu_mb: int = 0
    whole: bool = False
    """``--mem=0``: it gets all memory of its nodes, of which no other job may hold any."""

    def needed_mb(self, cpus: int, gpus: int) -> int:
        """What it needs on a node with so many of its CPUs and GPUs."""
        if self.per_gpu_mb:
            return self.per_gpu_mb * gpus
        return self.per_cpu_mb * cpus if self.per_cpu_mb else self.per_node_mb


@dataclass(frozen=True)
class PreemptionRights:
    """What a waiting job may preempt, by the site's rules for Slurm; nothing if left empty."""

    tier: float | None = None  # Running jobs with a lower ``preemptable_by``; None: no tier.
    groups: frozenset[str] = frozenset()
    """Running jobs with these ``preempt_group`` values, whatever the tier."""
    lower_groups: frozenset[str] = frozenset()
    """The same, if their ``priority`` is below the job's own."""
    priority: float = 0.0
    """Slurm's own priority of the job, without the additions in `Request.priority`."""
    own_group: str | None = None  # Its QOS, if Slurm preempts by QOS.


@dataclass(frozen=True, eq=False)
class Request(Faceted):
    """One job (or array task) that waits for GPUs. Each of its nodes gives equally many.

    What only a feature reads of it is a facet of the feature.
    """

    job_id: str  # Slurm's job ID: ``98``, or ``98_3`` for an array task.
    gpus: int  # Total GPUs, 1 to ``MAX_GPUS``.
    min_nodes: int = 1
    max_nodes: int | None = None  # None: no limit.
    gpus_per_node: int | None = None
    """Fixed by the request (``--gres``, ``--gpus-per-node``); None: any even split."""
    app_class: str = "B"
    bandwidth_sensitive: bool = False
    """The job gains from links (MAPA); otherwise placement preserves links for other jobs."""
    pattern: str = "ring"  # Communication pattern: ring, tree, ring+tree, all-to-all, none.
    policy: PolicyChoice = PolicyChoice()
    clock: str | int | None = None  # ``auto``, ``max``, MHz, or None (class default).
    user: str = ""  # The job's owner; empty: not known.
    sizes: tuple[int, ...] = ()
    """GPU counts that a moldable job may get, ascending, ``gpus`` among them; empty: only it."""
    power_w: float = 0.0
    """Power above that of idle GPUs that the job needs at least; a round under a limit sets it."""
    application: str | None = None
    """Name in an interference profile (``topo-aware``); None: not known."""
    nodes: NodeRules = NodeRules()
    sockets: SocketRules = SocketRules()
    cpus: Cpus = Cpus()
    memory: Memory = Memory()
    time_limit_s: float = math.inf
    estimate_s: float | None = None
    """Expected run time on median GPUs without any slowdown; None: the time limit."""
    priority: float = 0.0  # As of `in_tier`; larger first.
    turn: int = 0
    """Place in an order that the site has chosen; jobs of one turn stand in Slurm's order."""
    submit_s: float = 0.0
    preemption: PreemptionRights = PreemptionRights()
    wait: Wait = Wait()
    left: LeftToSlurm | None = None  # Slurm chooses its nodes and GPUs; None: a policy does.

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MAX_GPUS:
            raise ValueError(f"job {self.job_id}: gpus must be 1 to {MAX_GPUS}, not {self.gpus}")
        if self.min_nodes < 1:
            raise ValueError(f"job {self.job_id}: min_nodes must be at least 1")

    @property
    def tier(self) -> float:
        """The tier of its partition."""
        return self.priority // TIER

    def is_behind(self, other: Request) -> bool:
        """Whether it stands behind a job of another user, by tier and Slurm's priority.

        Nothing that users say of their jobs may take anything from the other one then. Of users
        that are not known no two are the same.
        """
        return self.priority < other.priority and not (self.user and self.user == other.user)

    @property
    def least_gpus(self) -> int:
        """The least of its numbers of GPUs."""
        return min((self.gpus, *self.sizes))

    def resized(self, gpus: int) -> Request:
        """The request with another of its ``sizes``.

        Where the request fixes the GPUs of each node, the nodes stay and their GPUs change. CPUs
        and memory per GPU follow, and with `Cpus.task_per_gpu` the CPUs of the tasks. Estimate and
        time limit stay. Raises ValueError for a count that is not one of its sizes.
        """
        if gpus == self.gpus:
            return self
        if gpus not in self.sizes:
            raise ValueError(f"job {self.job_id}: {gpus} GPUs, not one of its sizes {self.sizes}")
        per_node = self.gpus_per_node
        return replace(
            self,
            gpus=gpus,
            gpus_per_node=None if per_node is None else gpus * per_node // self.gpus,
            cpus=self.cpus.resized(gpus, self.gpus),
        )

    def from_size(self, least: int) -> Request:
        """The request without its ``sizes`` below this one; unchanged if that leaves none."""
        sizes = tuple(size for size in self.sizes if size >= least)
        if sizes in ((), self.sizes):
            return self
        return replace(self.resized(max(self.gpus, sizes[0])), sizes=sizes)

    def node_counts(self, slots_per_node: int) -> tuple[int, ...]:
        """Node counts of even splits that this request allows, fewest first.

        ``slots_per_node``: GPUs of the largest node. Splits are even because a job has one GRES
        line for all its nodes.
        """
        # Loop over GPUs per node, not over nodes: a user may ask for millions of GPUs.
        most_each = min(slots_per_node, self.gpus)
        each = range(most_each, 0, -1) if self.gpus_per_node is None else (self.gpus_per_node,)
        counts = [self.gpus // k for k in each if k <= most_each and self.gpus % k == 0]
        least = self.fewest_nodes
        most = self.max_nodes if self.max_nodes is not None else self.gpus
        return tuple(n for n in counts if least <= n <= most)

    @property
    def unreserved(self) -> Request:
        """The request when no reservation keeps nodes from it any more."""
        if self.nodes.allowed is None:
            return self
        nodes = replace(self.nodes, eligible=self.nodes.allowed, allowed=None)
        return replace(self, nodes=nodes)

    @property
    def on_any_sockets(self) -> Request:
        """The request without its rules for sockets."""
        return replace(self, sockets=SocketRules()) if self.sockets.given else self

    def postponed(self, by: Postponement) -> Request:
        """The request with its wait for a better set."""
        return replace(self, wait=replace(self.wait, postponed=by))

    def on_nodes(self, eligible: BoolArray | None) -> Request:
        """The request with other eligible nodes."""
        return replace(self, nodes=replace(self.nodes, eligible=eligible))

    @property
    def expected_s(self) -> float:
        """Expected run time on median GPUs: the estimate, never above the time limit."""
        known = self.time_limit_s if self.estimate_s is None else self.estimate_s
        return min(known, self.time_limit_s)

    @property
    def waits_since_s(self) -> float:
        """Since when the job waits or runs, on the clock of ``submit_s``: its first submission, and
        the time in which it was not eligible."""
        first_s = self.wait.first_submit_s
        first_s = self.submit_s if first_s is None else min(first_s, self.submit_s)
        return first_s + self.wait.ineligible_s

    @property
    def fewest_nodes(self) -> int:
        """Least number of nodes by ``min_nodes`` and ``nodes.required``."""
        return max(self.min_nodes, len(self.nodes.required))

    @property
    def total_cpus(self) -> int:
        """CPUs of the whole job."""
        return max(self.cpus.total, self.cpus.per_gpu * self.gpus)

    def cpus_on_node(self, nodes: int) -> int:
        """CPUs needed on each of ``nodes`` nodes."""
        return -(-self.total_cpus // nodes)

    def memory_on_node(self, nodes: int) -> int:
        """Memory needed on each of ``nodes`` nodes. Units: MB."""
        return self.memory.needed_mb(self.cpus_on_node(nodes), self.gpus // nodes)
