"""Metrics of jobs, GPUs in use, gate, rounds and calls to Slurm."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from slurm_gpu_aware.admission.snapshot import is_usable
from slurm_gpu_aware.metric import (
    GPU_LABELS,
    MOST_GPU_SERIES,
    Buckets,
    Fact,
    Metric,
    Sample,
    bucketed,
    by_label,
    one,
)
from slurm_gpu_aware.model.job_phase import OPEN_DECISION, JobPhase
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.selector.live_jobs import GateView, SlurmView
from slurm_gpu_aware.selector.round_state import ROUND_BOUNDS_S, Counters
from slurm_gpu_aware.slurm.records import ENDED, HOLDING, SlurmJob, SlurmNode
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ledger import Ledger, OpenJob
from slurm_gpu_aware.store.metrics import GpuLabels, gpu_labels, unmeasured

_WAITS_S = (60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
_BEFORE = (JobPhase.PLANNED, JobPhase.PREPARED)
"""Phases in which Slurm still shows the job as parked."""
GPU_STATES = ("free", "in_use", "drained", "down")
NODE_STATES = ("idle", "in_use", "drained", "down")
_WAITING = (JobPhase.WAITING, JobPhase.HELD, JobPhase.LEFT)


class Queue(NamedTuple):
    """Jobs by phase, and how long those that are parked have waited."""

    phases: Mapping[str, int]
    waits_s: Sequence[float]


class UsedGpu(NamedTuple):
    """A GPU that a job holds."""

    labels: GpuLabels
    job: SlurmJob
    ours: OpenJob | None  # None: Slurm placed the job.


class Nodes(NamedTuple):
    """Nodes with GPUs."""

    nodes: Mapping[str, int]  # State -> nodes.
    gpus: Mapping[str, int]  # State -> GPUs.
    out: Sequence[tuple[str, str]]  # (node, state) of those that take no jobs.


def _open_jobs(store: Store) -> tuple[OpenJob, ...]:
    return tuple(Ledger(store).open_jobs())


def _queue(store: Store, slurm: SlurmView) -> Queue:
    """As ``gpu-aware status`` counts, by phase; each record of Slurm counts once."""
    away = slurm.gate is not None and slurm.gate.silent
    states = {live.job.id: live.job.state for live in slurm.jobs}
    phases: Counter[str] = Counter(dict.fromkeys((*OPEN_DECISION, *_WAITING), 0))
    placed: dict[str, str] = {}
    for job in _open_jobs(store):
        state = states.get(job.job_id)
        if (state is None and away) or state in ENDED:
            continue
        placed[job.job_id] = JobPhase.STARTED if away and state == "RUNNING" else job.state
    parked = []
    for live in slurm.jobs:
        phase = placed.get(live.job.id)
        if live.parked and (away or phase not in _BEFORE):
            placed.pop(live.job.id, None)
            phases[JobPhase.WAITING if live.job.holding_pool is None else JobPhase.HELD] += 1
            parked.append(live.job)
        elif live.job.state == "PENDING" and live.by_hand and phase is None:
            phases[JobPhase.LEFT] += 1
    phases.update(placed.values())
    waits = [max(0.0, slurm.at - (job.eligible_s or job.submit_s)) for job in parked]
    return Queue(phases, waits)


def _used_gpus(store: Store, slurm: SlurmView) -> list[UsedGpu]:
    ours = {job.job_id: job for job in _open_jobs(store)}
    labels = gpu_labels(store)
    return [
        UsedGpu(labels.get(gpu) or unmeasured(gpu), job, ours.get(job.id))
        for job in (live.job for live in slurm.jobs)
        for gpu in _gpus_of(job)
    ]


def _gpus_of(job: SlurmJob) -> Iterator[Gpu]:
    if job.state in HOLDING:
        for share in job.shares:
            for slot in share.slots:
                yield share.node, slot


def _nodes(slurm: SlurmView) -> Nodes:
    nodes: Counter[str] = Counter(dict.fromkeys(NODE_STATES, 0))
    gpus: Counter[str] = Counter(dict.fromkeys(GPU_STATES, 0))
    out = []
    for node in slurm.nodes:
        count = sum(number for _, number in node.gpus)
        if not count:
            continue
        used = len(node.taken)
        state = _state(node, used)
        nodes[state] += 1
        if state in ("drained", "down"):
            out.append((node.name, state))
            gpus[state] += count
            continue
        drained = len(node.gpus_drained - node.gpus_used)
        gpus["drained"] += drained
        gpus["in_use"] += used
        gpus["free"] += max(0, count - used - drained)
    return Nodes(nodes, gpus, out)


def _state(node: SlurmNode, used: int) -> str:
    if not is_usable(node):
        return "drained" if "DRAIN" in node.states else "down"
    return "in_use" if used or node.cpus_used or node.gpus_drained else "idle"


def _gate(slurm: SlurmView) -> GateView | None:
    return slurm.gate


def _job_info(used: Sequence[UsedGpu]) -> list[Sample]:
    return [
        Sample(
            (
                str(gpu.job.raw_id),
                gpu.job.id,
                *gpu.labels,
                gpu.job.partitions[0] if gpu.job.partitions else "",
                gpu.ours.app_class if gpu.ours else "",
                gpu.ours.policy if gpu.ours else "",
            ),
            1.0,
        )
        for gpu in used
    ]


def _slowdowns(used: Sequence[UsedGpu]) -> list[Sample]:
    found = {(str(g.job.raw_id), g.job.id): g.ours.slowdown for g in used if g.ours}
    return [Sample(job, slowdown) for job, slowdown in found.items()]


def _rounds(counters: Counters) -> list[Buckets]:
    bounds = (*ROUND_BOUNDS_S, float("inf"))
    counted = accumulate(counters.round_buckets)
    return [Buckets((), list(zip(bounds, counted, strict=True)), counters.rounds_s)]


def _known(at: float) -> list[Sample]:
    """A Unix time; none if it is 0."""
    return one(at or None)


QUEUE = Fact("queue", ("store", "slurm"), _queue)
USED = Fact("GPUs in use", ("store", "slurm"), _used_gpus)
NODES = Fact("nodes", ("slurm",), _nodes)
GATE = Fact("gate", ("slurm",), _gate)
COUNTERS: Fact[Counters] = Fact("counters", ("counters",), lambda counters: counters)

_OF_JOBS: tuple[Metric[Any], ...] = (
    Metric(
        "gpu_aware_jobs",
        "Jobs by phase (docs/architecture.md); an array that is one record of Slurm counts once.",
        "gauge",
        QUEUE,
        lambda queue: by_label(queue.phases),
        ("phase",),
    ),
    Metric(
        "gpu_aware_parked_wait_seconds",
        "Time since the jobs that are parked now became eligible.",
        "gaugehistogram",
        QUEUE,
        lambda queue: [bucketed(queue.waits_s, _WAITS_S)],
    ),
    Metric(
        "gpu_aware_parked_wait_max_seconds",
        "Longest of these times; 0 if no job is parked.",
        "gauge",
        QUEUE,
        lambda queue: one(max(queue.waits_s, default=0.0)),
    ),
    Metric(
        "gpu_aware_job_info",
        "1 for each GPU of a running job; hpc_job: Slurm's number, as in dcgm-exporter's job map;"
        " slurm_job: as squeue shows it (12_3: a task of an array).",
        "gauge",
        USED,
        _job_info,
        ("hpc_job", "slurm_job", *GPU_LABELS, "partition", "class", "policy"),
        MOST_GPU_SERIES,
    ),
    Metric(
        "gpu_aware_job_predicted_slowdown_ratio",
        "Predicted slowdown (L x V) of a running job that the selector placed.",
        "gauge",
        USED,
        _slowdowns,
        ("hpc_job", "slurm_job"),
        MOST_GPU_SERIES,
    ),
    Metric(
        "gpu_aware_nodes",
        "Nodes with GPUs by state; idle: no GPU and no CPU of it is in use.",
        "gauge",
        NODES,
        lambda found: by_label(found.nodes),
        ("state",),
    ),
    Metric(
        "gpu_aware_gpus",
        "GPUs of Slurm by state; drained and down: by their node, or (drained) by themselves.",
        "gauge",
        NODES,
        lambda found: by_label(found.gpus),
        ("state",),
    ),
    Metric(
        "gpu_aware_node_out_of_service",
        "1 for each node with GPUs that takes no jobs; state: drained or down.",
        "gauge",
        NODES,
        lambda found: [Sample(node, 1.0) for node in found.out],
        ("Hostname", "state"),
    ),
)
_OF_GATE: tuple[Metric[Any], ...] = (
    Metric(
        "gpu_aware_gate_closed",
        "1 if the gate's reservation holds parked jobs, 0 if the gate is open. Absent: there is no"
        " reservation, and no selector has worked on this host.",
        "gauge",
        GATE,
        lambda gate: one(float(gate.exists) if gate is not None and gate.used else None),
    ),
    Metric(
        "gpu_aware_gate_start_timestamp_seconds",
        "Unix time since which the gate's reservation is there.",
        "gauge",
        GATE,
        lambda gate: one(None if gate is None else gate.start_s),
    ),
    Metric(
        "gpu_aware_gate_end_timestamp_seconds",
        "Unix time at which the gate opens unless a heartbeat comes before.",
        "gauge",
        GATE,
        lambda gate: one(None if gate is None else gate.end_s),
    ),
    Metric(
        "gpu_aware_heartbeat_timestamp_seconds",
        "Unix time of the selector's last heartbeat, by the gate's reservation.",
        "gauge",
        GATE,
        lambda gate: one(None if gate is None else gate.heartbeat_s),
    ),
)
_OF_ROUNDS: tuple[Metric[Any], ...] = (
    Metric(
        "gpu_aware_selector_start_timestamp_seconds",
        "Unix time of the start of the selector.",
        "gauge",
        COUNTERS,
        lambda counters: _known(counters.started_at),
    ),
    Metric(
        "gpu_aware_counters_timestamp_seconds",
        "Unix time at which the selector wrote its counters; it does after rounds.",
        "gauge",
        COUNTERS,
        lambda counters: _known(counters.at),
    ),
    Metric(
        "gpu_aware_round_timestamp_seconds",
        "Unix time of the end of the last round that succeeded.",
        "gauge",
        COUNTERS,
        lambda counters: _known(counters.round_at),
    ),
    Metric(
        "gpu_aware_rounds_total",
        "Rounds since the start of the selector, by whether they succeeded.",
        "counter",
        COUNTERS,
        lambda c: by_label({"succeeded": c.rounds, "failed": c.failed_rounds}),
        ("result",),
    ),
    Metric(
        "gpu_aware_round_duration_seconds",
        "Duration of the rounds that succeeded.",
        "histogram",
        COUNTERS,
        _rounds,
    ),
    Metric(
        "gpu_aware_placements_total",
        "Jobs that rounds have placed.",
        "counter",
        COUNTERS,
        lambda counters: one(counters.placed),
    ),
    Metric(
        "gpu_aware_slurm_calls_total",
        "Calls of the selector to slurmctld by outcome: answered, refused, failed, timeout.",
        "counter",
        COUNTERS,
        lambda counters: by_label(counters.calls),
        ("outcome",),
    ),
    Metric(
        "gpu_aware_slurm_updates_total",
        "Updates of jobs by outcome: done, refused, unknown (no answer).",
        "counter",
        COUNTERS,
        lambda counters: by_label(counters.updates),
        ("outcome",),
    ),
)
METRICS: tuple[Metric[Any], ...] = (*_OF_JOBS, *_OF_GATE, *_OF_ROUNDS)
