"""Snapshot of the site: the planner's `Cluster` from nodes, running jobs, holds and profile."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_gpu_aware.admission.context import PreemptionRules
from slurm_gpu_aware.admission.hints import class_of
from slurm_gpu_aware.admission.holds import Hold, as_running
from slurm_gpu_aware.admission.node_use import is_alone, sharing_of
from slurm_gpu_aware.admission.profile_arrays import profile_arrays
from slurm_gpu_aware.admission.shards import last_holders, shards_of_nodes
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.admin_comment import is_ours, parse
from slurm_gpu_aware.model.arrays import BoolArray, IntArray
from slurm_gpu_aware.model.class_history import ClassHistory
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob
from slurm_gpu_aware.model.node_users import NodeUsers
from slurm_gpu_aware.model.penalties import LevelPenalties
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import in_tier
from slurm_gpu_aware.slurm.gres import gpu_slots
from slurm_gpu_aware.slurm.records import (
    HOLDING,
    HOLDING_CPUS,
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
)

NODE_TAKEN = "ReqNodeNotAvail,_May_be_reserved_for_other_job"
"""Reason of a job if another one waits for the same node (-w); it does not concern the job."""

NODES_TAKEN = (
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
)
"""Reason of a job if in one pass of Slurm all nodes went to those before it (its jobs of a
reservation, say). Nodes that are down are known from their states."""

_BASE = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING"})
_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_UP"})
_SILENT = frozenset({"NOT_RESPONDING", "NO_RESPOND"})
_BROKEN = {"DOWN", "ERROR", "FAIL", "FAILING", "INVAL", "INVALID_REG", "PERFCTRS"}
_KEPT_BACK = {"BLOCKED", "DRAIN", "DRAINED", "DRAINING", "FUTURE", "UNKNOWN"}
_RESTARTING = {"POWERING_DOWN", "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED"}
_BLOCKING = _SILENT | _BROKEN | _KEPT_BACK | _RESTARTING
"""Without MAINTENANCE, which a reservation sets: it keeps out all jobs but its own."""
_PLENTY = 1 << 40  # Amount of a resource that Slurm does not count.
_NEVER_BACK = {"FUTURE"}  # States of nodes that are not there and may never be.


def is_usable(node: SlurmNode) -> bool:
    """Whether Slurm starts jobs on a node, if need be after waking it up.

    A node that sleeps or wakes up does not respond, but is usable.
    """
    blocking = _BLOCKING - _SILENT if node.states & _ASLEEP else _BLOCKING
    return bool(node.states & _BASE) and not node.states & blocking


@dataclass(frozen=True)
class SiteProfile:
    """Configuration and measurements of a site."""

    config: Config
    penalties: Mapping[str, float] | LevelPenalties
    """Penalties of locality levels (`build_levels`)."""
    profile: Profile | None = None
    network: Mapping[str, Mapping[str, str]] | None = None
    """Level -> node -> group in Slurm's network."""
    classes: ClassHistory = field(default_factory=ClassHistory)
    """What is known of the classes of jobs with ``class=auto``."""


def build_cluster(
    nodes: Sequence[SlurmNode],
    jobs: Sequence[SlurmJob],
    slurm: SlurmConfig,
    site: SiteProfile,
    *,
    holds: Sequence[Hold] = (),
    busy_nodes: Set[str] = frozenset(),
    now: float = 0.0,
    rules: PreemptionRules | None = None,
) -> Cluster:
    """The planner's cluster: nodes with GPUs in Slurm's order, without MPS and MIG.

    A GPU is free if its node is usable, Slurm has not drained it, and neither the node (GresUsed)
    nor one of ``holds`` uses it or a shard of it. No GPU of ``busy_nodes`` is free: Slurm starts no
    job on a node while an epilog runs there. ``rules`` None: Slurm preempts no job.
    """
    here = [node for node in nodes if node.gpus and not node.shared_gres]
    names = tuple(node.name for node in here)
    places = {name: i for i, name in enumerate(names)}
    known = [gpu_slots(node) for node in here]
    widths = [max(slots, default=-1) + 1 for slots, _ in known]
    installed, exists, free = _gpus(here, known, max(widths, default=0), busy_nodes)
    rules = rules or PreemptionRules(slurm)
    running = _running_jobs(jobs, here, site, rules, now, slurm)
    running = [_on_known_gpus(job, free.shape[1]) for job in running]
    _take(free, *running)
    holds = _on_open_nodes(holds, places, _users(jobs, running, rules.partitions, len(names)))
    shards_held: list[tuple[Gpu, int]] = []
    for hold in holds:
        # One by one, so that holds on a plain node get different GPUs.
        held = as_running(hold, places, exists if hold.whole_node else free, now)
        held = _on_known_gpus(held, free.shape[1])
        _take(free, held)
        if hold.shards and not hold.gpus:
            shards_held += [(gpu, hold.shards) for gpu in held.each_gpu]
        else:
            running = _without_victims(running, held, hold)
        running = [*running, held]
    shared = frozenset((i, slot) for i, node in enumerate(here) for slot in node.shared_gpus)
    running = last_holders(running, shared.union(gpu for gpu, _ in shards_held))
    running += _epilogs(here, exists & ~free, running, busy_nodes, now)
    indexed = np.array([e and site.config.placement.gpus == "exact" for _, e in known], np.bool_)
    cpus, memory_mb, free_cpus, free_memory_mb = _resources(here, slurm, holds, places)
    free, not_started = _not_started(free, holds, places)
    arrays = profile_arrays(site.profile, names, tuple(widths), tuple(site.config.site.classes))
    return arrays.cluster(
        names,
        exists,
        site.penalties,
        site.network,
        free=free,
        free_cpus=free_cpus,
        cpus=cpus,
        free_memory_mb=free_memory_mb,
        memory_mb=memory_mb,
        installed=installed,
        indexed=indexed,
        shards=shards_of_nodes(here, installed, exists, indexed, busy_nodes, shards_held),
        model=tuple(_model(node, arrays.models) for node in here),
        running=_with_applications(running, site.config.applications),
        users=_users(jobs, running, rules.partitions, len(names)),
        asleep=_asleep(here),
        **not_started,
        preemption=slurm.preemption,
    )


def _with_applications(
    running: Iterable[RunningJob], names: Mapping[str, str]
) -> tuple[RunningJob, ...]:
    """The jobs with the applications of their classes, by class."""
    return tuple(replace(job, application=names.get(job.app_class or "")) for job in running)


def _users(
    jobs: Iterable[SlurmJob],
    running: Iterable[RunningJob],
    partitions: Mapping[str, SlurmPartition],
    nodes: int,
) -> NodeUsers | None:
    """Jobs on each node; None: none of these, nor one to come, closes its nodes to others."""
    to_come = (job for job in jobs if job.state == "PENDING")
    asks = [
        job
        for job in to_come
        if job.het or is_ours(job.admin_comment) or job.req_tres.get("gres/gpu")
    ]
    names = {job.user for job in asks if is_alone(job, partitions)}
    alone = [job for job in running if job.alone]
    names.update(job.user for job in alone if not job.lone)
    kinds = {one.sharing(asked=asked) for one in partitions.values() for asked in (False, True)}
    if any(one.shares for one in kinds):
        there = [job.sharing for job in running]
        there += [sharing_of(job, partitions) for job in asks]
        kinds = kinds if any(one is not None and one.shares for one in there) else set()
    else:
        kinds = set()
    return NodeUsers.of(running, names, nodes, kinds) if names or alone or kinds else None


def _asleep(nodes: Sequence[SlurmNode]) -> BoolArray | None:
    """(N,) nodes that Slurm has powered down; None: there is none."""
    asleep = np.array(["POWERED_DOWN" in node.states for node in nodes], dtype=np.bool_)
    return asleep if asleep.any() else None


def _epilogs(
    nodes: Sequence[SlurmNode],
    used: BoolArray,
    running: Sequence[RunningJob],
    busy: Set[str],
    now: float,
) -> Iterator[RunningJob]:
    """Holders of the GPUs that only an epilog keeps: without one the next in line would have no
    reservation. They end now, so a job behind it must end at once, or use others."""
    rows = [i for i, node in enumerate(nodes) if node.name in busy] if busy else []
    held = {gpu for job in running for gpu in job.each_gpu} if rows else set()
    for i in rows:
        slots = tuple(s for s in np.flatnonzero(used[i]).tolist() if (i, s) not in held)
        if slots:
            yield RunningJob(f"epilog on {nodes[i].name}", ((i, slots),), now)


def _on_open_nodes(
    holds: Sequence[Hold], places: Mapping[str, int], users: NodeUsers | None
) -> Sequence[Hold]:
    """The holds; those of which Slurm chooses the nodes without nodes that other users close.

    There their GPUs would be kept from jobs that may use them, and they start on others.
    """
    if users is None:
        return holds
    found = []
    for hold in holds:
        is_open = users.open_for(hold.user, alone=hold.alone, sharing=hold.sharing)
        nodes = tuple(n for n in hold.nodes if n not in places or is_open[places[n]])
        found.append(replace(hold, nodes=nodes) if hold.gpus and nodes else hold)
    return found


def _not_started(
    free: BoolArray, holds: Sequence[Hold], places: Mapping[str, int]
) -> tuple[BoolArray, dict[str, BoolArray | None]]:
    """(``free`` without GPUs that Slurm may give to a released job; `Cluster.by_slurm`, which has
    these, and `Cluster.starting`)."""
    chosen = np.zeros(len(free), dtype=np.bool_)
    starting = chosen.copy()
    for hold in holds:
        rows = [places[name] for name in hold.nodes if name in places]
        (chosen if hold.gpus else starting)[rows] = True
    by_slurm = free & chosen[:, None] if chosen.any() else None
    free = free & ~chosen[:, None]
    return free, {"by_slurm": by_slurm, "starting": starting if starting.any() else None}


def _gpus(
    nodes: Sequence[SlurmNode],
    known: Sequence[tuple[Sequence[int], bool]],
    width: int,
    busy: Set[str],
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """(N, W) installed GPUs, usable ones, and those of them that no running job holds."""
    installed = np.zeros((len(nodes), width), dtype=np.bool_)
    exists, free = installed.copy(), installed.copy()
    for i, (node, (all_slots, _)) in enumerate(zip(nodes, known, strict=True)):
        installed[i, list(all_slots)] = not node.states & _NEVER_BACK
        if is_usable(node):
            slots = [s for s in all_slots if s not in node.gpus_drained]
            exists[i, slots] = True
            taken = node.taken
            free[i, [s for s in slots if s not in taken]] = node.name not in busy
    return installed, exists, free


def _resources(
    nodes: Sequence[SlurmNode], slurm: SlurmConfig, holds: Sequence[Hold], places: Mapping[str, int]
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(N,) CPUs and memory (MB) of each node, and those that neither jobs nor holds have."""
    plenty = np.full(len(nodes), _PLENTY, dtype=np.int64)
    cpus = np.array([node.cpus for node in nodes], dtype=np.int64)
    used = np.array([node.cpus_used for node in nodes], dtype=np.int64)
    total_mb = np.array([node.memory_mb for node in nodes], dtype=np.int64)
    used_mb = np.array([node.memory_used_mb for node in nodes], dtype=np.int64)
    cpus, free = (cpus, cpus - used) if slurm.counts_cpus else (plenty, plenty.copy())
    total_mb, memory = (
        (total_mb, total_mb - used_mb) if slurm.counts_memory else (plenty, plenty.copy())
    )
    for hold in holds:
        for i in (places[name] for name in hold.nodes if name in places):
            free[i] -= cpus[i] if hold.whole_node else hold.cpus_per_node
            memory[i] -= hold.memory_mb_per_node
    return cpus, total_mb, np.maximum(free, 0), np.maximum(memory, 0)


def _running_jobs(
    jobs: Sequence[SlurmJob],
    nodes: Sequence[SlurmNode],
    site: SiteProfile,
    rules: PreemptionRules,
    now: float,
    slurm: SlurmConfig,
) -> list[RunningJob]:
    """Jobs on these nodes, with those of their GPUs that the nodes count as used."""
    places = {node.name: i for i, node in enumerate(nodes)}
    running = []
    for job in (job for job in jobs if job.state in HOLDING):
        shares = [(places[share.node], share) for share in job.shares if share.node in places]
        if not shares:
            continue
        used = (
            (i, [g for g in share.gpus if g in nodes[i].gpus_used] + sorted(share.shards))
            for i, share in shares
        )
        # With --exclusive=topo and mcs Slurm shows the other GPUs as free, and gives them to no job
        # What it closed is open when its epilog is done, as is what it held
        ends = job.state == "COMPLETING"
        lone = job.exclusive and job.state in HOLDING_CPUS and not ends
        lone = lone and (not job.exclusive_by or job.exclusive_by in slurm.exclusive_kinds)
        lone = lone and any(_working(nodes[i]) - {*share.gpus} for i, share in shares)
        holds_cpus = job.state in HOLDING_CPUS
        one = RunningJob(
            job_id=job.id,
            gpus=tuple((i, tuple(slots)) for i, slots in used if slots),
            end_s=job.end_s,
            cpus={i: share.cpus if holds_cpus else 0 for i, share in shares},
            memory_mb={i: share.memory_mb for i, share in shares},
            app_class=_class_of_running(job, site),
            start_s=job.start_s or 0.0,
            node_count=len(job.shares),
            user="" if ends else job.user,
            alone=lone or (not ends and is_alone(job, rules.partitions)),
            lone=lone,
            sharing=None if ends else sharing_of(job, rules.partitions),
            standing=standing_of(job, rules.partitions),
        )
        if any(share.shards for _, share in shares):
            running.append(one)  # its end alone frees no GPU, so it is no victim
        else:
            running.append(rules.with_standing(one, job, now))
    return running


def standing_of(job: SlurmJob, partitions: Mapping[str, SlurmPartition]) -> float:
    """Its priority, as of `Request`, in the highest of its partitions."""
    tiers = (partitions[p].priority_tier for p in job.partitions if p in partitions)
    return in_tier(max(tiers, default=1), job.priority)


def _working(node: SlurmNode) -> set[int]:
    """Indices of the GPUs that are not drained."""
    return {*gpu_slots(node)[0]} - node.gpus_drained


def _class_of_running(job: SlurmJob, site: SiteProfile) -> str | None:
    original = parse(job.admin_comment)
    if original is None:
        return None
    return class_of(job, original, site.config, site.classes).app_class


def _without_victims(
    running: Sequence[RunningJob], held: RunningJob, hold: Hold
) -> list[RunningJob]:
    """Take the GPUs of a hold from running jobs; its victims free nothing for other jobs."""
    promised = set(held.each_gpu)
    # If Slurm chooses the GPUs and too few are free, any job of the node can be the victim.
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


def _on_known_gpus(job: RunningJob, width: int) -> RunningJob:
    """The job without GPUs of indices that no node has any more."""
    if all(slot < width for _, slot in job.each_gpu):
        return job
    known = ((i, tuple(slot for slot in slots if slot < width)) for i, slots in job.gpus)
    return replace(job, gpus=tuple((i, slots) for i, slots in known if slots))


def _take(free: BoolArray, *jobs: RunningJob) -> None:
    for i, slots in (gpus for job in jobs for gpus in job.gpus):
        free[i, list(slots)] = False


def _model(node: SlurmNode, models: Mapping[str, str]) -> str | None:
    """GPU model of a node, from its feature ``gpu_MODEL``, else from the probe."""
    named = [feature for feature in node.features if feature.startswith("gpu_")]
    return min(named).removeprefix("gpu_") if named else models.get(node.name)
