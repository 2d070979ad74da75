"""Values that tests of several packages make: jobs, nodes, what is known of a site, and plans."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError, PreemptionRules
from slurm_gpu_aware.admission.holds import Hold, with_sockets
from slurm_gpu_aware.admission.snapshot import SiteProfile, build_cluster
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.models.performance_model import MODEL
from slurm_gpu_aware.features.moves import moved
from slurm_gpu_aware.features.moves import stage as moves_stage
from slurm_gpu_aware.features.moves.declared import HAD_GPUS, MoveSettings
from slurm_gpu_aware.features.moves.movable import RETURNING, Movable, Move, Moving
from slurm_gpu_aware.features.power.power_budget import POWER, PowerState
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.features.shards.declared import SHARDS
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_job
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.record import RecordedRound, read_round, record_round, replay
from slurm_gpu_aware.planning.stages import plan_stages
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.live import Site
from slurm_gpu_aware.slurm.records import (
    NodeCores,
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmReservation,
)

NOW = 1000.0
SLURM = SlurmConfig((24, 11), "c", counts_memory=True, counts_cpus=True)
SLURM_WITH_CORES = replace(SLURM, counts_cores=True)
PROFILE = SiteProfile(Config(), {"node": 1.0, "cluster": 1.5})
_FACETS = {
    "due": DUE_DATE,
    "table": TABLE,
    "tables": TABLES,
    "had_gpus": HAD_GPUS,
    "shards": SHARDS,
    "performance_model": MODEL,
}
_RECORDS = {
    "nodes": (
        *("eligible", "allowed", "required", "groups", "gpu_model"),
        *("whole", "alone", "sharing"),
    ),
    "sockets": ("bound", "several", "gpus_each", "fills"),
    "wait": ("refused", "waited_s", "postponed", "relaxed"),
}
_INSIDE = {name: (record, name) for record, names in _RECORDS.items() for name in names} | {
    "cpus": ("cpus", "total"),
    "cpus_per_gpu": ("cpus", "per_gpu"),
    "task_per_gpu": ("cpus", "task_per_gpu"),
    "policy": ("policy", "name"),
    "options": ("policy", "options"),
}
"""Name of a field for `job_request` -> record of a request, and field in it."""


def job_request(job_id: str, gpus: int, *counts: int, **fields: Any) -> Request:
    """The request of a job; fields of its records, and facets, by names of their own."""
    return with_fields(Request(job_id, gpus, *counts), **fields)  # type: ignore[arg-type]


def with_fields(request: Request, **fields: Any) -> Request:
    """The request with other fields, named as for `job_request`."""
    records: dict[str, Any] = {}
    for name in fields.keys() & _INSIDE.keys():
        record, field = _INSIDE[name]
        known = records.get(record, getattr(request, record))
        records[record] = replace(known, **{field: fields.pop(name)})
    facets = {_FACETS[name].name: fields.pop(name) for name in fields.keys() & _FACETS.keys()}
    return replace(request, **records, **fields, facets={**request.facets, **facets})


def slurm_job(number: int = 7, **fields: Any) -> SlurmJob:
    """A pending job of alice's that waits at the gate, but for ``fields``."""
    usual: dict[str, Any] = {
        "name": "job",
        "user": "alice",
        "state": "PENDING",
        "reason": "Licenses",
        "partitions": ("gpu",),
        "priority": 1,
        "submit_s": 1.0,
        "eligible_s": 1.0,
        "start_s": None,
        "end_s": math.inf,
        "time_limit_s": 600.0,
        "restarts": 0,
        "cpus": 1,
        "memory_mb_per_cpu": None if "memory_mb_per_node" in fields else 500,
    }
    return SlurmJob(id=str(number), raw_id=number, **{**usual, **fields})


def as_gated(job: SlurmJob, **gate: Any) -> GatedJob:
    """The gated job of a record that the filter has marked."""
    found = gated_job(job, GateConfig(**gate))
    assert found is not None
    return found


def asked(text: str = "gpu:1", **fields: Any) -> OriginalRequest:
    """What a user asked for: ``--gres``, and ``fields``."""
    return OriginalRequest(**{"tres_per_node": f"gres/{text}", **fields})


def request_of(job: SlurmJob, original: OriginalRequest, context: AdmissionContext) -> Request:
    """The planner's request of a waiting job whose user asked for ``original``."""
    return to_request(GatedJob(job, original, None, JobPhase.WAITING), context)


def why_left(job: SlurmJob, original: OriginalRequest, context: AdmissionContext) -> str:
    """Why such a job is left to Slurm."""
    with pytest.raises(CannotPlanError) as caught:
        request_of(job, original, context)
    assert caught.value.leave
    return caught.value.reason


def slurm_node(name: str, used: Sequence[int] = (), **fields: Any) -> SlurmNode:
    """An idle node of 16 CPUs and four indexed GPUs, of which these are used."""
    usual: dict[str, Any] = {
        "states": frozenset({"IDLE"}),
        "features": frozenset(),
        "gpus": tuple((f"g{i}", 1) for i in range(4)),
        "gpus_used": frozenset(used),
        "cpus": 16,
        "memory_mb": 64000,
    }
    return SlurmNode(name=name, **{**usual, **fields})


def two_sockets(name: str, used: Sequence[int] = (), **fields: Any) -> SlurmNode:
    """Such a node that has 8 cores and two GPUs on each of two sockets."""
    sockets = {"gpu_sockets": ((0,), (0,), (1,), (1,)), "cores": NodeCores(2, 8, 1, 1)}
    return slurm_node(name, used, **{**sockets, **fields})


def eligible(request: Request, context: AdmissionContext) -> set[str]:
    """Names of the nodes that a job may use."""
    assert request.nodes.eligible is not None
    return {context.cluster.nodes[i] for i in np.flatnonzero(request.nodes.eligible)}


def nodes_for(
    context: AdmissionContext, original: OriginalRequest | None = None, **fields: Any
) -> set[str]:
    """Names of the nodes that a waiting job may use; ``fields``: of its record."""
    return eligible(request_of(slurm_job(**fields), original or asked(), context), context)


def context_of(
    nodes: Sequence[SlurmNode],
    partitions: Mapping[str, Sequence[str]] | None = None,
    reservations: Sequence[SlurmReservation] = (),
    *,
    jobs: Sequence[SlurmJob] = (),
    holds: Sequence[Hold] = (),
    slurm: SlurmConfig = SLURM,
    told: Mapping[str, Mapping[str, Any]] | None = None,
) -> AdmissionContext:
    """What the selector knows of a site; ``partitions``: their nodes (None: all are in ``gpu``).

    ``told``: partition -> other fields.
    """
    by_name = {node.name: node for node in nodes}
    known = {
        name: SlurmPartition(name, frozenset(names), up=True, **(told or {}).get(name, {}))
        for name, names in (partitions or {"gpu": tuple(by_name)}).items()
    }
    rules = PreemptionRules(slurm, known)
    cluster = build_cluster(nodes, jobs, slurm, PROFILE, holds=holds, now=NOW, rules=rules)
    if slurm.counts_cores:
        cluster = with_sockets(cluster, by_name, jobs, holds, NOW)
    return AdmissionContext(
        Config(),
        slurm,
        by_name,
        known,
        reservations,
        cluster,
        NOW,
        rules,
    )


def live_site(
    ledger: LedgerWriter | None = None, client: Any = None, backoff: Backoff | None = None
) -> Site:
    """What a selector offers to features."""
    ledger = ledger or LedgerWriter(Path("/nonexistent/store.db"))
    return Site(client, Config(), ledger, JobTracker(ledger), backoff or Backoff(60.0))


def with_running(cluster: Cluster, *running: RunningJob) -> Cluster:
    """The cluster with more jobs, which hold their GPUs and CPUs."""
    for job in running:
        for node, slots in job.gpus:
            cluster.take(node, slots, job.cpus.get(node, 0))
    return replace(cluster, running=(*cluster.running, *running))


def with_held(cluster: Cluster, *jobs: tuple[Any, ...]) -> Cluster:
    """The cluster with more jobs of a CPU each: (id, node, slots, end[, tier that preempts])."""
    return with_running(
        cluster,
        *(
            RunningJob(
                name, ((node, tuple(slots)),), end, cpus={node: 1}, preemptable_by=(*tier, None)[0]
            )
            for name, node, slots, end, *tier in jobs
        ),
    )


def placements(plan: Plan) -> dict[str, tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    """Nodes and GPUs of the jobs that a plan starts."""
    return {a.job_id: (a.nodes, a.slots) for a in plan.assignments}


def sizes(plan: Plan) -> dict[str, int]:
    """Number of GPUs of the jobs that a plan starts."""
    return {a.job_id: sum(map(len, a.slots)) for a in plan.assignments}


def reasons(plan: Plan) -> dict[str, str]:
    """Why the other jobs of a plan wait."""
    return {waiting.job_id: waiting.reason for waiting in plan.waiting}


def plan_moves(
    movable: Sequence[Movable],
    queue: Sequence[Request],
    cluster: Cluster,
    settings: PlanSettings,
    moves: MoveSettings,
    now: float,
    *,
    power: PowerState | None = None,
    **more: Any,
) -> tuple[Move, ...]:
    """Moves of a round; ``more``: other fields of `Moving`."""
    one = Round(queue, cluster, settings, now).put(POWER, power)
    return moves_stage.plan_moves(one, Moving(moves, movable, **more))


def begun(
    cluster: Cluster,
    moves: Iterable[Move],
    settings: PlanSettings,
    now: float,
    power: PowerState | None = None,
) -> tuple[Cluster, PowerState | None]:
    """Cluster and power of a round in which moves begin."""
    one = moved.begun(Round((), cluster, settings, now).put(POWER, power), moves)
    return one.cluster, one.get(POWER)


def place_moved(
    targets: Mapping[str, Assignment],
    queue: Sequence[Request],
    cluster: Cluster,
    settings: PlanSettings,
    now: float,
    power: PowerState | None = None,
) -> tuple[tuple[Assignment, ...], Sequence[Request], Cluster, PowerState | None]:
    """Starts of jobs that are back from a move, the rest of the queue, cluster and power for it."""
    one = Round(queue, cluster, settings, now).put(POWER, power).put(RETURNING, targets)
    one = moved.place_moved(one)
    return one.first, one.queue, one.cluster, one.get(POWER)


def plan_round(
    queue: Sequence[Request],
    cluster: Cluster,
    settings: PlanSettings,
    now: float,
    *,
    policy_options: Mapping[str, Mapping[str, Any]] | None = None,
    explain: bool = True,
    power: PowerState | None = None,
) -> Plan:
    """The plan of a round in which no job shares a GPU; ``power``: its limit."""
    one = Round(queue, cluster, settings, now, policy_options or {}, explain).put(POWER, power)
    return plan_stages(one, [stage for stage in FEATURES if stage.name != "shards"])


def stored_round(asked: Round, plan: Plan | None = None) -> dict[str, Any]:
    """The record of a round as the ledger gives it back; without ``plan``, that of all stages."""
    plan = plan or plan_stages(asked, FEATURES)
    stored: dict[str, Any] = json.loads(json.dumps(record_round(asked, plan, FEATURES)))
    return stored


def replayed(asked: Round, plan: Plan | None = None) -> RecordedRound:
    """A round that was recorded; planned again, it gives the same places."""
    found = read_round(stored_round(asked, plan), FEATURES)
    assert replay(found, FEATURES) == []
    return found
