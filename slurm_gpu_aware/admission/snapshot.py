"""Nodes, running jobs and profile into the planner's `Cluster`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from slurm_gpu_aware.admission.preemption import PreemptionRules
from slurm_gpu_aware.admission.profile_arrays import measured
from slurm_gpu_aware.gate.index_types import gpu_slots
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.penalties import LevelPenalties
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.slurm.records import HOLDING, HOLDING_CPUS, SlurmConfig, SlurmJob, SlurmNode
from slurm_gpu_aware.topology.locality import build_levels

__all__ = ["NODE_TAKEN", "Hold", "build_cluster", "is_usable"]

NODE_TAKEN = "ReqNodeNotAvail,_May_be_reserved_for_other_job"
"""Reason of a job for whose node (-w) another one waits, too: it says nothing about the job."""

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
# Not MAINTENANCE: a reservation sets it, which keeps out all jobs but its own.
_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_UP"})
_SILENT = frozenset({"NOT_RESPONDING", "NO_RESPOND"})
_PLENTY = 1 << 40
"""Stands for what Slurm does not count."""


@dataclass(frozen=True)
class Hold:
    """Resources given to a job that Slurm has not started yet."""

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
    """It gets all GPUs and CPUs of its nodes, whatever it asked for."""
    fills_sockets: bool = False
    """It gets all free CPUs beside its GPUs, each with ``memory_mb_per_cpu``."""
    memory_mb_per_cpu: int = 0
    victims: frozenset[str] = frozenset()
    """Jobs that Slurm preempts for it."""


def is_usable(node: SlurmNode) -> bool:
    """Whether Slurm would start a job on it now (or could wake it up for one).

    A node that sleeps or wakes up does not respond and can be used all the same.
    """
    blocking = node.states & _BLOCKING
    if node.states & _ASLEEP:
        blocking -= _SILENT
    return bool(node.states & _BASE) and not blocking


def build_cluster(
    nodes: Sequence[SlurmNode],
    jobs: Sequence[SlurmJob],
    profile: Profile | None,
    slurm: SlurmConfig,
    *,
    classes: Sequence[str],
    penalties: Mapping[str, float] | LevelPenalties,
    network: Mapping[str, Mapping[str, str]] | None = None,
    holds: Sequence[Hold] = (),
    busy_nodes: Set[str] = frozenset(),
    now: float = 0.0,
    class_of: Callable[[SlurmJob], str | None] = lambda job: None,
    applications: Mapping[str, str] | None = None,
    rules: PreemptionRules = PreemptionRules(),  # noqa: B008 - it is frozen
) -> Cluster:
    """The cluster as the planner sees it: nodes that have GPUs of their own, in Slurm's order.

    Nodes whose GPUs are shared or cut in parts (MPS, shards, MIG) are not in it.

    A GPU is free if the node can be used, Slurm has not drained it, and neither the node
    (GresUsed) nor one of ``holds`` says that it is taken. On ``busy_nodes`` nothing is free
    for now (Slurm starts no job on a node while an epilog runs there). ``penalties`` and
    ``network`` give the locality levels (`build_levels`). ``applications``: class -> application
    of its jobs, where one is known.
    """
    here = [node for node in nodes if node.gpus and not node.shared_gres]
    places = {node.name: i for i, node in enumerate(here)}
    known = [gpu_slots(node) for node in here]
    width = max((max(slots, default=-1) + 1 for slots, _ in known), default=0)
    exists = np.zeros((len(here), width), dtype=np.bool_)
    free = exists.copy()
    for i, node in enumerate(here):
        slots = [s for s in known[i][0] if s not in node.gpus_drained]
        exists[i, slots] = is_usable(node)
        ready = is_usable(node) and node.name not in busy_nodes
        free[i, [s for s in slots if s not in node.gpus_used]] = ready
    running = [
        _with_standing(running_job, job, rules, now)
        for job in jobs
        if job.state in HOLDING
        and (running_job := _running(job, places, here, class_of)) is not None
    ]
    nodes_cpus = np.array([_cpus(node, slurm) for node in here], dtype=np.int64)
    free_cpus = np.array([_free_cpus(node, slurm) for node in here], dtype=np.int64)
    free_memory = np.array([_free_memory(node, slurm) for node in here], dtype=np.int64)
    for hold in holds:
        for name in hold.nodes:
            if name in places:
                free_cpus[places[name]] -= (
                    nodes_cpus[places[name]] if hold.whole_node else hold.cpus_per_node
                )
                free_memory[places[name]] -= hold.memory_mb_per_node
    for job in running:
        _take(free, job)
    for hold in holds:
        # One after the other: on a plain node the next one is given other GPUs.
        held = _held(hold, places, exists if hold.whole_node else free, now)
        _take(free, held)
        running = _without_victims(running, held, hold)
        running.append(held)
    if applications:
        running = [
            replace(job, application=applications.get(job.app_class or "")) for job in running
        ]
    slots_of = [max(slots, default=-1) + 1 for slots, _ in known]
    told = measured(profile, [node.name for node in here], slots_of, classes)
    asleep = np.array(["POWERED_DOWN" in node.states for node in here], dtype=np.bool_)
    return Cluster.build(
        [node.name for node in here],
        exists,
        free=free,
        scores=told.scores,
        levels=build_levels(
            penalties,
            [node.name for node in here],
            width,
            numa=told.numa,
            graphs=told.graphs,
            network=network,
        ),
        free_cpus=np.maximum(free_cpus, 0),
        cpus=nodes_cpus,
        free_memory_mb=np.maximum(free_memory, 0),
        indexed=np.array([indexed for _, indexed in known], dtype=np.bool_),
        model=tuple(_model(node, told.models) for node in here),
        graphs=told.graphs,
        running=tuple(running),
        asleep=asleep if asleep.any() else None,
        preemption=slurm.preemption,
    )


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
    """Take from running jobs the GPUs that are promised to a placed one.

    Its victims are on their way out: they free nothing for others, and are nobody else's victims.
    Where Slurm picks the GPUs and too few are free, any job of the node may be the victim.
    """
    promised = {(node, slot) for node, slots in held.gpus for slot in slots}
    short = {node for node, slots in held.gpus if len(slots) < hold.gpus_per_node}
    left = []
    for job in running:
        keeps = tuple(
            (node, rest)
            for node, slots in job.gpus
            if (rest := tuple(s for s in slots if (node, s) not in promised))
        )
        goes = job.job_id in hold.victims
        if goes or keeps != job.gpus or any(node in short for node, _ in job.gpus):
            job = replace(job, gpus=keeps, preemptable_by=None, preempt_group=None)
        left.append(job)
    return left


def _take(free: BoolArray, job: RunningJob) -> None:
    for i, slots in job.gpus:
        free[i, [s for s in slots if s < free.shape[1]]] = False


def _cpus(node: SlurmNode, slurm: SlurmConfig) -> int:
    return node.cpus if slurm.counts_cpus else _PLENTY


def _free_cpus(node: SlurmNode, slurm: SlurmConfig) -> int:
    return node.cpus - node.cpus_used if slurm.counts_cpus else _PLENTY


def _free_memory(node: SlurmNode, slurm: SlurmConfig) -> int:
    return node.memory_mb - node.memory_used_mb if slurm.counts_memory else _PLENTY


def _running(
    job: SlurmJob,
    places: Mapping[str, int],
    nodes: Sequence[SlurmNode],
    class_of: Callable[[SlurmJob], str | None],
) -> RunningJob | None:
    """A running job; of its GPUs those that its nodes confirm, so that no job can claim others."""
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
    """A hold as a running job; where Slurm picks the GPUs, any usable ones stand for them."""
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
    """The feature ``gpu_a100``, else what the probe read."""
    for feature in sorted(node.features):
        if feature.startswith("gpu_"):
            return feature.removeprefix("gpu_")
    return models.get(node.name)
