"""Snapshot of the site: the planner's `Cluster` from nodes, running jobs, holds and profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_gpu_aware.admission.preemption import PreemptionRules
from slurm_gpu_aware.admission.profile_arrays import profile_arrays
from slurm_gpu_aware.gate.index_types import gpu_slots
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.penalties import LevelPenalties
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.slurm.records import HOLDING, HOLDING_CPUS, SlurmConfig, SlurmJob, SlurmNode
from slurm_gpu_aware.topology.locality import build_levels

__all__ = ["NODE_TAKEN", "Hold", "SiteProfile", "build_cluster", "is_usable"]

NODE_TAKEN = "ReqNodeNotAvail,_May_be_reserved_for_other_job"
"""Reason of a job if another one waits for the same node (-w); it does not concern the job."""

_BASE = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING"})
_BLOCKING = frozenset(
    {
        "BLOCKED",
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "ERROR",
        "FAIL",
        "FAILING",
        "FUTURE",
        "INVAL",
        "INVALID_REG",
        "NOT_RESPONDING",
        "NO_RESPOND",
        "PERFCTRS",
        "POWERING_DOWN",
        "POWER_DOWN",
        "REBOOT",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "UNKNOWN",
    }
)
# Without MAINTENANCE, which a reservation sets: it keeps out all jobs but its own.
_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_UP"})
_SILENT = frozenset({"NOT_RESPONDING", "NO_RESPOND"})
_PLENTY = 1 << 40
"""Amount of a resource that Slurm does not count."""


@dataclass(frozen=True)
class Hold:
    """Resources of a released job that Slurm has not started yet."""

    job_id: str
    nodes: tuple[str, ...]
    slots: tuple[int, ...]
    """The same on each node; empty if Slurm picks the GPUs."""
    gpus_per_node: int
    cpus_per_node: int
    memory_mb_per_node: int
    end_s: float
    app_class: str | None = None
    whole_node: bool = False
    """It gets all GPUs and CPUs of its nodes."""
    fills_sockets: bool = False
    """It gets all free CPUs beside its GPUs, each with ``memory_mb_per_cpu``."""
    memory_mb_per_cpu: int = 0
    victims: frozenset[str] = frozenset()
    """Jobs that Slurm preempts for it."""


def is_usable(node: SlurmNode) -> bool:
    """Whether Slurm starts jobs on a node, if need be after waking it up.

    A node that sleeps or wakes up does not respond, but is usable.
    """
    blocking = node.states & _BLOCKING
    if node.states & _ASLEEP:
        blocking -= _SILENT
    return bool(node.states & _BASE) and not blocking


@dataclass(frozen=True)
class SiteProfile:
    """Measurements and configuration of a site for its nodes and jobs."""

    classes: Sequence[str]
    penalties: Mapping[str, float] | LevelPenalties
    """Penalties of locality levels (`build_levels`)."""
    profile: Profile | None = None
    network: Mapping[str, Mapping[str, str]] | None = None
    """Level -> node -> group in Slurm's network."""
    class_of: Callable[[SlurmJob], str | None] = lambda job: None
    applications: Mapping[str, str] = field(default_factory=dict)
    """Class -> application of its jobs, if known."""


def build_cluster(
    nodes: Sequence[SlurmNode],
    jobs: Sequence[SlurmJob],
    slurm: SlurmConfig,
    site: SiteProfile,
    *,
    holds: Sequence[Hold] = (),
    busy_nodes: Set[str] = frozenset(),
    now: float = 0.0,
    rules: PreemptionRules = PreemptionRules(),  # noqa: B008 - it is frozen
) -> Cluster:
    """The planner's cluster: nodes with GPUs in Slurm's order, without MPS, shards and MIG.

    A GPU is free if its node is usable, Slurm has not drained it, and neither the node (GresUsed)
    nor one of ``holds`` uses it. No GPU of ``busy_nodes`` is free: Slurm starts no job on a node
    while an epilog runs there.
    """
    here = [node for node in nodes if node.gpus and not node.shared_gres]
    names = [node.name for node in here]
    places = {name: i for i, name in enumerate(names)}
    known = [gpu_slots(node) for node in here]
    widths = [max(slots, default=-1) + 1 for slots, _ in known]
    exists, free = _gpus(here, [slots for slots, _ in known], max(widths, default=0), busy_nodes)
    running = _running_jobs(jobs, here, site, rules, now)
    for job in running:
        _take(free, job)
    for hold in holds:
        # One by one, so that holds on a plain node get different GPUs.
        held = _held(hold, places, exists if hold.whole_node else free, now)
        _take(free, held)
        running = [*_without_victims(running, held, hold), held]
    of = site.applications.get
    running = [replace(job, application=of(job.app_class or "")) for job in running]
    cpus, free_cpus, free_memory_mb = _resources(here, slurm, holds, places)
    arrays = profile_arrays(site.profile, names, widths, site.classes)
    levels = build_levels(
        site.penalties,
        names,
        exists.shape[1],
        numa=arrays.numa,
        graphs=arrays.graphs,
        network=site.network,
    )
    return Cluster.build(
        names,
        exists,
        free=free,
        scores=arrays.scores,
        levels=levels,
        free_cpus=free_cpus,
        cpus=cpus,
        free_memory_mb=free_memory_mb,
        indexed=np.array([indexed for _, indexed in known], dtype=np.bool_),
        model=tuple(_model(node, arrays.models) for node in here),
        graphs=arrays.graphs,
        running=tuple(running),
        asleep=_asleep(here),
        preemption=slurm.preemption,
    )


def _asleep(nodes: Sequence[SlurmNode]) -> BoolArray | None:
    """(N,) nodes that are powered down; None: no node is."""
    asleep = np.array(["POWERED_DOWN" in node.states for node in nodes], dtype=np.bool_)
    return asleep if asleep.any() else None


def _gpus(
    nodes: Sequence[SlurmNode], known: Sequence[Sequence[int]], width: int, busy: Set[str]
) -> tuple[BoolArray, BoolArray]:
    """(N, W) usable GPUs, and those of them that no running job holds."""
    exists = np.zeros((len(nodes), width), dtype=np.bool_)
    free = exists.copy()
    for i, (node, all_slots) in enumerate(zip(nodes, known, strict=True)):
        slots = [s for s in all_slots if s not in node.gpus_drained]
        exists[i, slots] = is_usable(node)
        ready = is_usable(node) and node.name not in busy
        free[i, [s for s in slots if s not in node.gpus_used]] = ready
    return exists, free


def _resources(
    nodes: Sequence[SlurmNode],
    slurm: SlurmConfig,
    holds: Sequence[Hold],
    places: Mapping[str, int],
) -> tuple[IntArray, IntArray, IntArray]:
    """(N,) CPUs, free CPUs and free memory (MB) of each node, less the holds."""
    plenty = np.full(len(nodes), _PLENTY, dtype=np.int64)
    cpus = np.array([node.cpus for node in nodes], dtype=np.int64)
    used = np.array([node.cpus_used for node in nodes], dtype=np.int64)
    memory = np.array([n.memory_mb - n.memory_used_mb for n in nodes], dtype=np.int64)
    cpus, free = (cpus, cpus - used) if slurm.counts_cpus else (plenty, plenty.copy())
    memory = memory if slurm.counts_memory else plenty.copy()
    for hold in holds:
        for i in (places[name] for name in hold.nodes if name in places):
            free[i] -= cpus[i] if hold.whole_node else hold.cpus_per_node
            memory[i] -= hold.memory_mb_per_node
    return cpus, np.maximum(free, 0), np.maximum(memory, 0)


def _running_jobs(
    jobs: Sequence[SlurmJob],
    nodes: Sequence[SlurmNode],
    site: SiteProfile,
    rules: PreemptionRules,
    now: float,
) -> list[RunningJob]:
    """Jobs that hold GPUs of these nodes."""
    places = {node.name: i for i, node in enumerate(nodes)}
    return [
        _with_standing(running, job, rules, now)
        for job in jobs
        if job.state in HOLDING
        and (running := _running(job, places, nodes, site.class_of)) is not None
    ]


def _with_standing(
    running: RunningJob, job: SlurmJob, rules: PreemptionRules, now: float
) -> RunningJob:
    standing = rules.standing(job, now)
    if standing.preemptable_by is None:
        return running
    return replace(
        running,
        preemptable_by=standing.preemptable_by,
        preempt_group=standing.group,
        keeps_gpus=standing.keeps_gpus,
        priority=float(job.priority),
    )


def _without_victims(
    running: Sequence[RunningJob], held: RunningJob, hold: Hold
) -> list[RunningJob]:
    """Take from running jobs the GPUs of a hold.

    Its victims free nothing for other jobs, and cannot be victims again. If Slurm picks the GPUs
    and too few are free, any job of the node can be the victim.
    """
    promised = {(node, slot) for node, slots in held.gpus for slot in slots}
    short = {node for node, slots in held.gpus if len(slots) < hold.gpus_per_node}
    remaining = []
    for job in running:
        keeps = tuple(
            (node, rest)
            for node, slots in job.gpus
            if (rest := tuple(s for s in slots if (node, s) not in promised))
        )
        goes = job.job_id in hold.victims
        if goes or keeps != job.gpus or any(node in short for node, _ in job.gpus):
            job = replace(job, gpus=keeps, preemptable_by=None, preempt_group=None)
        remaining.append(job)
    return remaining


def _take(free: BoolArray, job: RunningJob) -> None:
    for i, slots in job.gpus:
        free[i, [s for s in slots if s < free.shape[1]]] = False


def _running(
    job: SlurmJob,
    places: Mapping[str, int],
    nodes: Sequence[SlurmNode],
    class_of: Callable[[SlurmJob], str | None],
) -> RunningJob | None:
    """A running job with those of its GPUs that its nodes count as used; None: not on ``nodes``."""
    shares = [share for share in job.shares if share.node in places]
    if not shares:
        return None
    return RunningJob(
        job_id=job.id,
        gpus=tuple(
            (places[share.node], held)
            for share in shares
            if (held := tuple(g for g in share.gpus if g in nodes[places[share.node]].gpus_used))
        ),
        end_s=job.end_s,
        cpus={places[s.node]: s.cpus if job.state in HOLDING_CPUS else 0 for s in shares},
        memory_mb={places[share.node]: share.memory_mb for share in shares},
        app_class=class_of(job),
        start_s=job.start_s or 0.0,
        node_count=len(job.shares),
    )


def _held(
    hold: Hold,
    places: Mapping[str, int],
    usable: BoolArray,
    now: float,
) -> RunningJob:
    """A hold as a running job; if Slurm picks the GPUs, any usable ones stand for them."""
    here = [places[name] for name in hold.nodes if name in places]
    gpus = []
    for i in here:
        slots = hold.slots
        if not slots:
            most = None if hold.whole_node else hold.gpus_per_node
            slots = tuple(int(s) for s in np.flatnonzero(usable[i])[:most])
        gpus.append((i, slots))
    return RunningJob(
        job_id=hold.job_id,
        gpus=tuple(gpus),
        end_s=hold.end_s if math.isinf(hold.end_s) else max(now, hold.end_s),
        cpus=dict.fromkeys(here, hold.cpus_per_node),
        memory_mb=dict.fromkeys(here, hold.memory_mb_per_node),
        app_class=hold.app_class,
    )


def _model(node: SlurmNode, models: Mapping[str, str]) -> str | None:
    """GPU model of a node, from its feature ``gpu_MODEL``, else from the probe."""
    for feature in sorted(node.features):
        if feature.startswith("gpu_"):
            return feature.removeprefix("gpu_")
    return models.get(node.name)
