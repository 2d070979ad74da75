"""What we read from Slurm: jobs, nodes, partitions, and what else matters to placing.

Sentinels die at this border: ``None`` is "not set", ``math.inf`` "unlimited", 0 is zero. Times are
Unix seconds, memory is MB. Node names are plain names, never host lists.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from slurm_gpu_aware.model.cluster import PreemptionOrder

__all__ = [
    "ENDED",
    "HOLDING",
    "HOLDING_CPUS",
    "GpuDefaults",
    "NodeCores",
    "NodeShare",
    "SlurmConfig",
    "SlurmJob",
    "SlurmNode",
    "SlurmPartition",
    "SlurmQos",
    "SlurmReservation",
    "SlurmSwitch",
    "array_tasks",
    "split_arrays",
    "update_ids",
]

ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""Job states in which Slurm is done with a job."""
HOLDING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "RESIZING"})
"""Job states in which resources are held."""
HOLDING_CPUS = HOLDING - {"SUSPENDED"}
"""A suspended job gives its CPUs to others, and nothing else."""
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z")


@dataclass(frozen=True)
class NodeShare:
    """What a running job holds on one node."""

    node: str
    cpus: int
    memory_mb: int
    gpus: tuple[int, ...]
    """Slurm's GPU indices (IDX), ascending."""
    types: Mapping[int, str] = field(default_factory=dict)
    """GRES type of each index, where the GPU has one."""
    cores: tuple[int, ...] | None = None
    """Its cores, counted over the node's sockets; None: not told."""


@dataclass(frozen=True)
class GpuDefaults:
    """What ``JobDefaults`` of a partition or of the cluster gives a job with each of its GPUs."""

    cpus: int | None = None
    """``DefCpuPerGPU``; None: not set here."""
    memory_mb: int | None = None
    """``DefMemPerGPU``; None: not set here."""


@dataclass(frozen=True)
class SlurmJob:
    """One job record: a job, an array task of its own, or the unsplit rest of an array."""

    id: str
    """As users type it: ``98``, or ``98_3`` for an array task."""
    raw_id: int
    """Slurm's own number of the record."""
    name: str
    user: str
    uid: int
    state: str
    """``PENDING``, ``RUNNING``, ``COMPLETING``, ``SUSPENDED``, ``COMPLETED``, ..."""
    reason: str
    """Why it is pending, Slurm's word: ``Licenses``, ``Priority``, ``None``, ..."""
    partitions: tuple[str, ...]
    priority: int
    submit_s: float
    eligible_s: float | None
    """Since when it may start, or its begin time; None: Slurm has not begun to count."""
    start_s: float | None
    """When it started; for a pending job Slurm's guess, if it has one."""
    end_s: float
    """By its time limit; inf: no limit or not started."""
    time_limit_s: float
    """inf: unlimited; the partition's limit still holds."""
    restarts: int
    batch: bool
    """Has a batch script; False: salloc or srun."""
    accrue_s: float | None = None
    """Since when its age counts for its priority; None: Slurm does not count."""
    looked_at_s: float | None = None
    """When a scheduler of Slurm last tried it (LastSchedEval), whole seconds; None: never."""
    time_min_s: float | None = None
    """``--time-min``: so short may Slurm's backfill make the limit; None: not given."""
    array_id: int | None = None
    array_tasks: str | None = None
    """Task expression of an unsplit array (``0-2,4-9``); None: a single job or task."""
    array_limit: int | None = None
    """``%N``: tasks that may run at a time."""
    het: bool = False
    """Component of a heterogeneous job."""
    dependency: str | None = None
    """What it still waits for (``--dependency``); None: nothing, or nothing any more."""
    account: str | None = None
    qos: str | None = None
    req_nodes: tuple[str, ...] = ()
    exc_nodes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """Nodes that it runs on."""
    min_nodes: int = 1
    max_nodes: int | None = None
    cpus: int = 1
    """CPUs that Slurm counts for it."""
    tasks: int = 1
    cpus_per_task: int | None = None
    ntasks_per_node: int | None = None
    min_cpus_node: int = 1
    threads_per_core: int | None = None
    """``--threads-per-core``, ``--hint=nomultithread``; None: not given."""
    tasks_per_core: int | None = None
    """``--ntasks-per-core``; None: not given."""
    unchecked: tuple[str, ...] = ()
    """Options that bound its nodes in ways that the planner does not check, as users type them."""
    enforce_binding: bool | None = None
    """``--gres-flags=enforce-binding`` or ``disable-binding``; None: neither."""
    memory_mb_per_node: int | None = None
    """``--mem``; None: given in another way. 0: all memory of the node."""
    memory_mb_per_cpu: int | None = None
    req_tres: Mapping[str, int] = field(default_factory=dict)
    """Requested TRES as Slurm counts it; ``mem`` in MB, ``gres/gpu`` if it is accounted."""
    features: str | None = None
    reservation: str | None = None
    """What its user named with ``--reservation``."""
    holding_pool: str | None = None
    """Our own reservation that it waits in (`gate.holding_pool`)."""
    exclusive: bool = False
    licenses: tuple[tuple[str, int], ...] = ()
    """(name, count)."""
    admin_comment: str | None = None
    comment: str | None = None
    extra: str | None = None
    tres_per_node: str | None = None
    tres_per_job: str | None = None
    tres_per_task: str | None = None
    tres_per_socket: str | None = None
    tres_bind: str | None = None
    tres_freq: str | None = None
    cpus_per_tres: str | None = None
    mem_per_tres: str | None = None
    shares: tuple[NodeShare, ...] = ()
    """What it holds; empty unless it runs. A job that ends or has ended names no GPUs here."""
    gpu_types: frozenset[str] = frozenset()
    """GRES types of the GPUs that it was given, also after its end."""

    def licence_count(self, name: str) -> int:
        """How many of licence ``name`` it asks for; 0: none."""
        return sum(count for licence, count in self.licenses if licence == name)


def array_tasks(expression: str) -> list[int]:
    """Task numbers of ``0-2,4-9:2``. Raises ValueError."""
    found: list[int] = []
    for item in expression.strip("[]").split(","):
        match = _TASKS.match(item)
        if match is None:
            raise ValueError(f"{expression[:80]!r} is not a list of array tasks")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step < 1 or last - first > 10_000_000:
            raise ValueError(f"{expression[:80]!r} is not a list of array tasks")
        found.extend(range(first, last + 1, step))
    return found


def split_arrays(jobs: Iterable[SlurmJob]) -> frozenset[int]:
    """Arrays of which there is more than one record: tasks that were split off, run or have run."""
    records = Counter(job.array_id for job in jobs if job.array_id is not None)
    return frozenset(array_id for array_id, count in records.items() if count > 1)


def update_ids(job: SlurmJob, split: Set[int], most: int | None = None) -> list[str]:
    """Ids by which to update one record, and no other.

    Slurm applies an update of an array's id to every record of the array, to running tasks too.
    So the unsplit rest of an array in ``split`` is updated task by task (a range of tasks is not
    taken), which gives each a record of its own; at most the first ``most``.

    Raises ValueError if the record's list of tasks cannot be read.
    """
    if job.array_tasks is None or job.array_id not in split:
        return [job.id]
    return [f"{job.array_id}_{task}" for task in array_tasks(job.array_tasks)[:most]]


@dataclass(frozen=True)
class NodeCores:
    """How a node's CPUs lie: CPU ids count threads of a core, cores of a socket, sockets."""

    sockets: int
    cores: int
    """Of each socket."""
    threads: int
    """CPU ids of a core."""
    cpus: int
    """CPUs that a core counts as: ``threads``, or 1 where slurm.conf counts cores."""
    special: frozenset[int] = frozenset()
    """CPU ids that are kept for the system (CPUSpecList)."""


@dataclass(frozen=True)
class SlurmNode:
    """One node."""

    name: str
    states: frozenset[str]
    """Base state and flags: ``IDLE``, ``MIXED``, ``DRAIN``, ``NOT_RESPONDING``, ..."""
    features: frozenset[str]
    gpus: tuple[tuple[str | None, int], ...]
    """Configured GPUs as (type, count) in Slurm's order; type None: untyped."""
    gpus_used: frozenset[int]
    """GPU indices that Slurm counts as allocated."""
    gpus_drained: frozenset[int] = frozenset()
    """GPU indices that Slurm has drained (GresDrain)."""
    cpus: int = 0
    """Schedulable CPUs."""
    threads: int = 1
    """Hardware threads of a core (ThreadsPerCore)."""
    cpus_used: int = 0
    memory_mb: int = 0
    memory_used_mb: int = 0
    shared_gres: bool = False
    """Has MPS, shards or MIG slices: its GPUs are left to Slurm."""
    cores: NodeCores | None = None
    """None: not told, or not such that free cores of a socket could be counted."""
    gpu_sockets: tuple[tuple[int, ...] | None, ...] = ()
    """Sockets of the GPUs of each entry of ``gpus``; None: not told."""
    reason: str = ""
    """Why it is drained or down; empty: none."""
    slurmd_start_s: float | None = None
    """When its slurmd began; None: it has not registered since slurmctld read its files."""


@dataclass(frozen=True)
class SlurmPartition:
    """One partition."""

    name: str
    nodes: frozenset[str]
    up: bool
    max_time_s: float = math.inf
    default_time_s: float | None = None
    max_nodes: int | None = None
    priority_tier: int = 1
    preempt_mode: frozenset[str] = frozenset({"OFF"})
    """What happens to its jobs when others preempt them: ``REQUEUE``, ``CANCEL``, ..."""
    exclusive: bool = False
    """Jobs get whole nodes (OverSubscribe=EXCLUSIVE)."""
    grace_s: float = 0.0
    """How long its jobs go on after they were told that they are preempted (GraceTime)."""
    per_gpu: GpuDefaults = GpuDefaults()
    topology: str = ""
    """Topology of topology.yaml that its jobs are placed by; empty: the default one."""


@dataclass(frozen=True)
class SlurmQos:
    """One quality of service, as far as preemption goes."""

    name: str
    preempts: frozenset[str] = frozenset()
    """QOS whose jobs its jobs may preempt."""
    preempt_mode: frozenset[str] = frozenset()
    """What happens to its jobs when others preempt them; empty: as the cluster says."""
    priority: int = 0
    exempt_s: float | None = None
    """Its jobs are spared for this long after their start; None: as the cluster says."""
    grace_s: float = 0.0
    """How long its jobs go on after they were told that they are preempted (GraceTime)."""


@dataclass(frozen=True)
class SlurmReservation:
    """One reservation."""

    name: str
    start_s: float
    end_s: float
    nodes: frozenset[str]
    licenses: tuple[tuple[str, int], ...] = ()
    flags: frozenset[str] = frozenset()
    active: bool = False
    cpus: int | None = None
    """CPUs that it holds; None: not said (it holds no nodes)."""
    gpus: int | None = None
    """GPUs that it holds, if it was made for a number of them."""


@dataclass(frozen=True)
class SlurmSwitch:
    """One switch of topology/tree, or one block of topology/block."""

    name: str
    level: int
    """0: a leaf switch or a block."""
    nodes: frozenset[str]
    """All nodes below it."""
    block_size: int | None = None
    """Nodes that Slurm counts with in a block of this level (BlockSize); None: a switch."""


@dataclass(frozen=True)
class SlurmConfig:
    """What of Slurm's own configuration matters to placing."""

    version: tuple[int, ...]
    cluster: str
    counts_memory: bool
    """Memory is a consumable resource."""
    counts_cpus: bool
    counts_cores: bool = False
    """CPUs are given out by cores or threads, not by whole sockets."""
    enforce_binding: bool = False
    """``enforce-binding`` is every job's default (ENFORCE_BINDING_GRES)."""
    preempt_type: str = ""
    """``partition_prio``, ``qos``; empty: no job may preempt another."""
    preempt_mode: frozenset[str] = frozenset({"OFF"})
    preempt_exempt_s: float = 0.0
    """A job is spared for this long after its start."""
    preemption: PreemptionOrder = PreemptionOrder()  # noqa: RUF009 - it is frozen
    spared_above: float = math.inf
    """Jobs of a higher priority are not preempted (min_exempt_priority)."""
    per_gpu: GpuDefaults = GpuDefaults()
    """Where a partition has no defaults of its own."""
    private_jobs: bool = False
    """Users do not see each other's jobs (PrivateData)."""
    private_reservations: bool = False
    """Users do not see reservations that are not for them (PrivateData)."""
    conf_file: str = ""
    """Path of the slurm.conf in use; empty: not told."""
    topology_optional: bool = False
    """Only jobs with --switches are placed by topology/tree (TopologyParam=TopoOptional)."""
    default_topology: str = "default"
    """Topology of the partitions that name none; without topology.yaml Slurm calls it so."""
