"""Records of Slurm: jobs, nodes, partitions, QOS, reservations, switches, configuration.

``None`` is "not set", ``math.inf`` "unlimited", 0 is zero. Times are Unix seconds, memory is MB.
Node names are plain names, never host lists. Licences are (name, count).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property

from slurm_gpu_aware.model.cluster import PreemptionOrder
from slurm_gpu_aware.model.request import Sharing

ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States of a job that has ended."""
HOLDING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "RESIZING"})
"""States of a job that holds resources."""
HOLDING_CPUS = HOLDING - {"SUSPENDED"}
"""States of a job that holds CPUs; a suspended one gives up its CPUs only."""
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z")


@dataclass(frozen=True)
class NodeShare:
    """Resources of a running job on one node."""

    node: str
    cpus: int
    memory_mb: int
    gpus: tuple[int, ...]  # Slurm's GPU indices (IDX), ascending.
    types: Mapping[int, str] = field(default_factory=dict)
    """GPU index -> GRES type of the GPU, if it has one."""
    cores: tuple[int, ...] | None = None
    """Its cores, counted over the node's sockets; None: not known."""
    shards: Mapping[int, int] = field(default_factory=dict)  # GPU index -> shards of this GPU.

    @property
    def slots(self) -> list[int]:
        """Indices of the GPUs that it holds, or of which it has shards, ascending."""
        return sorted({*self.gpus, *self.shards})


@dataclass(frozen=True)
class GpuDefaults:
    """``JobDefaults`` for each GPU of a job: ``DefCpuPerGPU``, ``DefMemPerGPU``."""

    cpus: int | None = None
    memory_mb: int | None = None


@dataclass(frozen=True)
class SlurmJob:
    """One job record: a job, a split array task, or the unsplit rest of an array."""

    id: str  # Id as users type it: ``98``, or ``98_3`` for an array task.
    raw_id: int  # Slurm's number of the record.
    name: str
    user: str
    state: str  # ``PENDING``, ``RUNNING``, ``COMPLETING``, ``SUSPENDED``, ``COMPLETED``, ...
    reason: str  # Why it is pending, Slurm's word: ``Licenses``, ``Priority``, ``None``, ...
    partitions: tuple[str, ...]
    priority: int
    submit_s: float
    eligible_s: float | None  # Time from which it may start; None: not set yet.
    start_s: float | None  # Start; for a pending job Slurm's estimate, if any.
    end_s: float  # End by its time limit; inf: no limit or not started.
    time_limit_s: float | None  # None: that of its partition; inf: unlimited.
    restarts: int
    accrue_s: float | None = None
    """Time from which its age counts for its priority; None: it does not count."""
    tried_at_s: float | None = None
    """When Slurm's scheduler last tried it (LastSchedEval), whole seconds; None: never."""
    time_min_s: float | None = None
    """``--time-min``: shortest limit that Slurm's backfill may set; None: not given."""
    deadline_s: float | None = None
    """``--deadline``: Slurm cancels the job if it waits and its limit does not fit; None: none."""
    array_id: int | None = None
    array_tasks: str | None = None
    """Task expression of an unsplit array (``0-2,4-9``); None: a single job or task."""
    array_limit: int | None = None  # ``%N``: tasks that may run at a time.
    het_id: int | None = None
    """Number of the first component of its heterogeneous job; None: another job."""
    dependency: str | None = None  # Unfulfilled ``--dependency``; None: none.
    account: str | None = None
    qos: str | None = None
    req_nodes: tuple[str, ...] = ()
    exc_nodes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    min_nodes: int = 1
    max_nodes: int | None = None
    cpus: int = 1
    tasks: int = 1
    cpus_per_task: int | None = None
    ntasks_per_node: int | None = None
    min_cpus_node: int = 1
    threads_per_core: int | None = None
    """``--threads-per-core``, ``--hint=nomultithread``; None: not given."""
    tasks_per_core: int | None = None
    unsupported: tuple[str, ...] = ()  # Unsupported options that it has, as users type them.
    enforce_binding: bool | None = None
    """``--gres-flags=enforce-binding`` or ``disable-binding``; None: neither."""
    memory_mb_per_node: int | None = None
    """``--mem``; None: given in another way. 0: all memory of the node."""
    memory_mb_per_cpu: int | None = None
    req_tres: Mapping[str, int] = field(default_factory=dict)
    """Requested TRES as Slurm counts it; ``mem`` in MB, ``gres/gpu`` if it is accounted."""
    features: str | None = None
    reservation: str | None = None  # ``--reservation`` of its user.
    holding_pool: str | None = None  # Reservation of ours in which it waits (`gate.licence_gate`).
    exclusive: bool = False
    exclusive_user: bool = False
    """Slurm starts it on nodes without jobs of other users only (``--exclusive=user``)."""
    exclusive_by: str = ""  # ``mcs``, ``topo`` (``--exclusive=topo``); empty: neither.
    oversubscribe: bool = False
    """Jobs may share its CPUs where its partition lets them (``--oversubscribe``)."""
    licenses: tuple[tuple[str, int], ...] = ()
    admin_comment: str | None = None
    comment: str | None = None
    extra: str | None = None
    submitted_with: str | None = None
    """Program that submitted it: ``sbatch``, ``salloc``, ``srun``; None: Slurm before 25.11."""
    tres_per_node: str | None = None
    tres_per_job: str | None = None
    tres_per_task: str | None = None
    tres_per_socket: str | None = None
    tres_freq: str | None = None
    cpus_per_tres: str | None = None
    mem_per_tres: str | None = None
    shares: tuple[NodeShare, ...] = ()
    """Its resources; empty unless it runs. A job that is ending or has ended shows no GPUs here."""
    gpu_types: frozenset[str] = frozenset()  # GRES types of its GPUs or shards, also after its end.

    @property
    def longest_s(self) -> float:
        """Its own time limit; inf: unlimited, or not set."""
        return math.inf if self.time_limit_s is None else self.time_limit_s

    @property
    def least_cpus(self) -> int:
        """CPUs that it needs on one of its nodes at least."""
        return max(self.min_cpus_node, -(-self.cpus // (self.max_nodes or self.cpus or 1)))

    @property
    def het(self) -> bool:
        """Whether it is a component of a heterogeneous job."""
        return self.het_id is not None

    @property
    def follows(self) -> int | None:
        """Number of the first component, of a later one that is pending; None: it is no such one.

        The first one stands for all: an update of it changes them, too, their licences as well.
        """
        return None if self.state != "PENDING" or self.het_id == self.raw_id else self.het_id

    def licence_count(self, name: str) -> int:
        """Requested number of a licence."""
        return sum(count for licence, count in self.licenses if licence == name)


def array_tasks(expression: str) -> list[int]:
    """Task numbers of ``0-2,4-9:2``. Raises ValueError."""
    tasks: list[int] = []
    for item in expression.strip("[]").split(","):
        match = _TASKS.match(item)
        if match is None:
            raise ValueError(f"{expression[:80]!r} is not a list of array tasks")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step < 1 or last - first > 10_000_000:
            raise ValueError(f"{expression[:80]!r} is not a list of array tasks")
        tasks.extend(range(first, last + 1, step))
    return tasks


def components_of(jobs: Iterable[SlurmJob]) -> dict[int, list[SlurmJob]]:
    """First component of each pending heterogeneous job -> the other ones."""
    found: dict[int, list[SlurmJob]] = {}
    for job in jobs:
        if job.follows is not None:
            found.setdefault(job.follows, []).append(job)
    return found


def split_arrays(jobs: Iterable[SlurmJob]) -> frozenset[int]:
    """Arrays of more than one record, that is with split tasks."""
    records = Counter(job.array_id for job in jobs if job.array_id is not None)
    return frozenset(array_id for array_id, count in records.items() if count > 1)


def update_ids(job: SlurmJob, split: Set[int], most: int | None = None) -> list[str]:
    """Ids to update, so that only this record changes.

    Slurm applies an update of an array's id to every record of the array, also of running tasks. So
    the rest of an array in ``split`` is updated task by task, at most the first ``most``; each task
    then gets a record of its own. Raises ValueError if the list of tasks cannot be read.
    """
    if job.array_tasks is None or job.array_id not in split:
        return [job.id]
    return [f"{job.array_id}_{task}" for task in array_tasks(job.array_tasks)[:most]]


def record_id(job: SlurmJob, split: Set[int]) -> str:
    """Id to update, so that only this record changes, as a whole.

    Slurm updates the rest of an array without splitting tasks off if all of them are named.
    """
    if job.array_tasks is None or job.array_id not in split:
        return job.id
    return f"{job.array_id}_{job.array_tasks.strip('[]')}"


@dataclass(frozen=True)
class NodeCores:
    """Layout of a node's CPUs; CPU ids count threads of a core, then cores, then sockets."""

    sockets: int
    cores: int  # Cores of each socket.
    threads: int  # CPU ids of a core.
    cpus: int  # CPUs that a core counts as: ``threads``, or 1 if slurm.conf counts cores.
    special: frozenset[int] = frozenset()  # CPU ids reserved for the system (CPUSpecList).


@dataclass(frozen=True)
class SlurmNode:
    """One node."""

    name: str
    states: frozenset[str]
    """Base state and flags: ``IDLE``, ``MIXED``, ``DRAIN``, ``NOT_RESPONDING``, ..."""
    features: frozenset[str]
    gpus: tuple[tuple[str | None, int], ...]
    """Configured GPUs as (type, count) in Slurm's order; type None: untyped."""
    gpus_used: frozenset[int]  # GPU indices that Slurm counts as allocated as a whole.
    gpus_drained: frozenset[int] = frozenset()  # GPU indices that Slurm has drained (GresDrain).
    cpus: int = 0  # Schedulable CPUs.
    threads: int = 1  # Hardware threads of a core (ThreadsPerCore).
    cpus_used: int = 0
    memory_mb: int = 0
    memory_used_mb: int = 0
    shared_gres: bool = False
    """It has MPS, MIG, or shards of GPUs that Slurm does not tell; its GPUs are left to Slurm."""
    shards: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """GPU index -> (shards in use, all shards); empty: it has none."""
    untyped_shards: bool = False
    """slurm.conf gives its shards no type: ``srun`` in a job of shards of one GPU would fail."""
    cores: NodeCores | None = None  # None: not known, or free cores of a socket cannot be counted.
    gpu_sockets: tuple[tuple[int, ...] | None, ...] = ()
    """Sockets of the GPUs of each entry of ``gpus``; None: not known."""
    reason: str = ""  # Why it is drained or down; empty: no reason.
    slurmd_start_s: float | None = None
    """Start of its slurmd; None: it has not registered since slurmctld read its files."""

    @property
    def shared_gpus(self) -> frozenset[int]:
        """GPU indices of which jobs have shards."""
        return frozenset(slot for slot, (used, _) in self.shards.items() if used)

    @property
    def taken(self) -> frozenset[int]:
        """GPU indices that jobs hold, or of which they have shards."""
        return self.gpus_used | self.shared_gpus


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
    """Modes in which its jobs are preempted: ``REQUEUE``, ``CANCEL``, ..."""
    exclusive: bool = False  # Jobs get whole nodes (OverSubscribe=EXCLUSIVE).
    exclusive_user: bool = False
    """Its jobs share nodes with jobs of their own user only (ExclusiveUser)."""
    jobs_on_cpu: int = 1  # Jobs that can have a CPU at a time (OverSubscribe=FORCE:4, YES:4).
    oversubscribes: bool = False  # All its jobs share CPUs (FORCE).
    grace_s: float = 0.0  # Time that its preempted jobs may still run (GraceTime).
    per_gpu: GpuDefaults = GpuDefaults()
    topology: str = ""  # Topology of its jobs in topology.yaml; empty: the default one.

    def sharing(self, *, asked: bool) -> Sharing:
        """How the CPUs of its jobs are shared; ``asked``: of those with ``--oversubscribe``."""
        return self._sharing[asked]

    @cached_property
    def _sharing(self) -> tuple[Sharing, Sharing]:
        several = self.jobs_on_cpu > 1
        name = self.name if several else ""
        return Sharing(name, self.oversubscribes), Sharing(name, self.oversubscribes or several)


@dataclass(frozen=True)
class SlurmQos:
    """One quality of service: its rules of preemption."""

    name: str
    preempts: frozenset[str] = frozenset()  # QOS with jobs that its jobs may preempt.
    preempt_mode: frozenset[str] = frozenset()
    """Modes in which its jobs are preempted; empty: those of the cluster."""
    priority: int = 0
    exempt_s: float | None = None
    """Time after the start in which its jobs are not preempted; None: that of the cluster."""
    grace_s: float = 0.0  # Time that its preempted jobs may still run (GraceTime).


@dataclass(frozen=True)
class SlurmReservation:
    """One reservation."""

    name: str
    start_s: float
    end_s: float
    nodes: frozenset[str]
    licenses: tuple[tuple[str, int], ...] = ()
    flags: frozenset[str] = frozenset()
    cpus: int | None = None  # CPUs that it holds; None: not given, it holds no nodes.
    gpus: int | None = None  # GPUs that it holds if it was created with a number of them.
    comment: str = ""

    def active_at(self, now: float) -> bool:
        """Whether it has begun and not ended."""
        return self.start_s <= now <= self.end_s


@dataclass(frozen=True)
class SlurmLicense:
    """A licence, as Slurm counts it now.

    Parameters
    ----------
    free : neither held nor reserved.
    reserved : held by reservations.
    nodes : for which it is counted (resources.yaml, from 25.05); empty: for all.
    """

    name: str
    free: int
    reserved: int = 0
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SlurmSwitch:
    """One switch of topology/tree, or one block of topology/block."""

    name: str
    level: int  # 0: a leaf switch or a block.
    nodes: frozenset[str]  # All nodes below it.
    block_size: int | None = None  # BlockSize of its level; None: a switch.


@dataclass(frozen=True)
class SlurmConfig:
    """The part of Slurm's configuration that matters to placing."""

    version: tuple[int, ...]
    cluster: str
    counts_memory: bool  # Memory is a consumable resource.
    counts_cpus: bool
    counts_cores: bool = False  # CPUs are allocated by cores or threads, not by whole sockets.
    enforce_binding: bool = False
    """``enforce-binding`` is every job's default (ENFORCE_BINDING_GRES)."""
    preempt_type: str = ""  # ``partition_prio``, ``qos``; empty: no job may preempt another.
    preempt_mode: frozenset[str] = frozenset({"OFF"})
    preempt_exempt_s: float = 0.0  # Time after its start in which a job is not preempted.
    preemption: PreemptionOrder = PreemptionOrder()  # noqa: RUF009 - it is frozen
    spared_above: float = math.inf
    """Jobs of a higher priority are not preempted (min_exempt_priority)."""
    per_gpu: GpuDefaults = GpuDefaults()  # Defaults of partitions without their own.
    private_jobs: bool = False  # Users do not see each other's jobs (PrivateData).
    private_reservations: bool = False
    """Users do not see reservations that are not for them (PrivateData)."""
    conf_file: str = ""  # Path of the slurm.conf in use; empty: not known.
    exclusive_kinds: frozenset[str] = frozenset({"mcs", "topo"})
    """Of these, those by which jobs keep others off the rest of their nodes."""
    topology_optional: bool = False
    """Only jobs with --switches are placed by topology/tree (TopologyParam=TopoOptional)."""
    age_per_s: float | None = None
    """What a second of age adds to a job's priority; None: priorities say only the order of the
    jobs (``priority/basic``)."""
    hides_core_spec: bool = False
    """Users may ask for whole nodes by --core-spec, and a filter does not see it (before 26.05)."""
    default_topology: str = "default"
    """Topology of the partitions that name none; ``default`` without topology.yaml."""
