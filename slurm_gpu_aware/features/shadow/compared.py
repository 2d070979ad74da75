"""A start compared: the GPUs that Slurm gave a job beside those that a round gives it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, CannotPlanError
from slurm_gpu_aware.admission.fitting import needs_sockets
from slurm_gpu_aware.admission.hints import class_of
from slurm_gpu_aware.features.energy.declared import EnergyConfig
from slurm_gpu_aware.features.energy.stage import SETTINGS, setting_for
from slurm_gpu_aware.features.models.store import PerformanceModels
from slurm_gpu_aware.features.power.job_tables import JobTables
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.features.shadow.losses import GpuSet, Sets
from slurm_gpu_aware.features.shadow.moments import on_only, request_of
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.hardware_graph import direct_links
from slurm_gpu_aware.model.profile import Gpu, Profile
from slurm_gpu_aware.model.request import PreemptionRights, Request
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.placement.policy import SLURM, with_slurms_gpus
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.stages import Stage, plan_stages
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.time_text import counted
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT


def gpu_set(
    gpus: Sequence[tuple[int, Sequence[int]]],
    request: Request,
    cluster: Cluster,
    measured: Mapping[str, Collection[Gpu]],
) -> GpuSet:
    """What a set of GPUs costs a job on the cluster before its start.

    ``gpus``: (node index, slots). ``measured``: class -> GPUs that have a score of their own.
    """
    chosen = sorted((node, tuple(sorted(slots))) for node, slots in gpus if slots)
    nodes, slots = [node for node, _ in chosen], [each for _, each in chosen]
    score, level, slowdown = predicted_slowdown(cluster, request.app_class, nodes, slots)
    known = measured.get(request.app_class, ())
    scored = all((cluster.nodes[n], slot) in known for n, each in chosen for slot in each)
    gbps, direct = _links(chosen, request, cluster)
    return GpuSet(
        gpus=tuple((cluster.nodes[node], each) for node, each in chosen),
        level=level,
        score=score if scored else None,
        slowdown=slowdown if scored else None,
        gbps=gbps,
        direct=direct,
        broken=tuple(cluster.nodes[n] for n, each in chosen if _breaks(cluster, n, each)),
    )


def _breaks(cluster: Cluster, node: int, slots: Sequence[int]) -> bool:
    """Whether GPUs are a part of a node that is whole: all its GPUs are free."""
    there = cluster.exists[node]
    whole = bool(np.array_equal(cluster.free[node] & there, there))
    return whole and len(slots) < int(there.sum())


def _links(
    chosen: Sequence[tuple[int, tuple[int, ...]]], request: Request, cluster: Cluster
) -> tuple[float | None, bool | None]:
    """(EffBW of the slowest node, whether all pairs that communicate there have direct links)."""
    pattern = parse_pattern(request.pattern)
    slowest, direct = float("inf"), True
    for node, slots in chosen:
        if len(slots) < 2:
            continue
        graph = cluster.graphs[node] if cluster.graphs else None
        if graph is None or graph.n > MAX_EXACT or slots[-1] >= graph.n:
            return None, None
        best = match(graph, slots, pattern, BOTTLENECK)
        if not best.links_gbps:
            return None, None
        slowest = min(slowest, best.eff_gbps)
        pairs = best.pairs(request.pattern)
        direct &= all(direct_links(graph.classes[a][b]) for a, b in pairs)
    return (None, None) if slowest == float("inf") else (slowest, direct)


_LONGEST = 200  # Characters of a reason.


@dataclass(frozen=True)
class Compared:
    """Both sets of a start, or why there is only one."""

    sets: Sets
    reason: str = ""
    power_w: float | None = None
    saves: float | None = None


@dataclass
class Comparer:
    """Compares starts by the site's policy."""

    settings: PlanSettings
    options: Mapping[str, Mapping[str, Any]]
    profile: Profile | None = None
    models: PerformanceModels | None = None
    exact: bool = True
    """All GPUs can be chosen, as with a GRES type each; False: only nodes, Slurm chooses the GPUs
    there."""
    features: Sequence[Stage] = FEATURES
    _tables: JobTables = field(default_factory=JobTables)

    def compare(self, job: SlurmJob, gated: GatedJob, context: AdmissionContext) -> Compared:
        """Compare a start. ``context``: the site just before it, as `indexed` makes it."""
        cluster = context.cluster
        places = {name: i for i, name in enumerate(cluster.nodes)}
        gpus = [(places.get(share.node), share.gpus) for share in job.shares if share.gpus]
        given = [(node, slots) for node, slots in gpus if node is not None]
        measured = {} if self.profile is None else self.profile.scores
        if len(given) < len(gpus) or not all(
            cluster.exists[node, list(slots)].all() for node, slots in given
        ):
            return Compared(Sets(), "its node was not usable, or its GPUs are cut in parts")
        shown = Request("", sum(len(s) for _, s in given), app_class=self._class(gated, context))
        try:
            if needs_sockets(gated, context.slurm):
                raise CannotPlanError("jobs that are bound to sockets are not compared")
            request = replace(request_of(gated, context), preemption=PreemptionRights())
        except CannotPlanError as exc:
            return Compared(Sets(gpu_set(given, shown, cluster, measured)), exc.reason[:_LONGEST])
        theirs = gpu_set(given, request, cluster, measured)
        request, why = _alike(request, given, cluster)
        if why:
            return Compared(Sets(theirs), why)
        ours, why = self._placed(request, context)
        if ours is None:
            return Compared(Sets(theirs), why)
        found = Sets(theirs, gpu_set(ours, request, cluster, measured))
        return Compared(found, "", *self._energy(request, context))

    def _class(self, gated: GatedJob, context: AdmissionContext) -> str:
        return class_of(gated.job, gated.original, context.config, context.known.classes).app_class

    def _placed(
        self, request: Request, context: AdmissionContext
    ) -> tuple[Sequence[tuple[int, Sequence[int]]] | None, str]:
        """(GPUs that a round gives the job now, or None; why none)."""
        cluster = context.cluster
        if not self.exact:
            cluster = replace(cluster, indexed=np.zeros_like(cluster.indexed))
        one = Round((request,), cluster, self.settings, context.now, self.options)
        plan = plan_stages(one, self.features)
        if plan.assignments and request.nodes.whole:  # it gets all GPUs of its nodes
            exists, nodes = cluster.exists, plan.assignments[0].nodes
            return [(node, np.flatnonzero(exists[node]).tolist()) for node in nodes], ""
        if plan.assignments:
            options = self.options.get(SLURM, {})
            return with_slurms_gpus(plan.assignments[0], request, cluster, options).gpus, ""
        reason = plan.waiting[0].reason if plan.waiting else "no round places it"
        return None, f"we would not start it then: {reason}"[:_LONGEST]

    def _energy(
        self, request: Request, context: AdmissionContext
    ) -> tuple[float | None, float | None]:
        """`ShadowJob.power_w` and ``saves``, by its performance model."""
        self._tables.renew(self.models, self.profile, context.cluster)
        request = self._tables.tabled(request)
        table = request.get(TABLE)
        row = None if table is None else table.row(request.gpus)
        if table is None or row is None:
            return None, None
        watts = float(table.power_w[row, table.column(None)])
        energy = context.config.of(EnergyConfig)
        one = Round((request,), context.cluster, self.settings, context.now).put(SETTINGS, energy)
        chosen = setting_for(request, one)
        saves = chosen.choice.saves if chosen else 0.0
        if not np.isfinite(watts):
            return None, None
        return watts, saves if energy.slowdown is not None or energy.classes else None


def indexed(context: AdmissionContext) -> AdmissionContext:
    """The site as if each GPU had a GRES type of its own, and no end of a running job were known.

    Without ends no policy lets the job wait for better GPUs: Slurm has started it now.
    """
    cluster = context.cluster
    running = tuple(
        replace(job, end_s=float("inf"), expected_end_s=None) for job in cluster.running
    )
    every = np.ones(len(cluster.nodes), dtype=np.bool_)
    return replace(context, cluster=replace(cluster, indexed=every, running=running))


def _alike(
    request: Request, given: Sequence[tuple[int, Sequence[int]]], cluster: Cluster
) -> tuple[Request, str]:
    """(The request on nodes of the GPU model that Slurm gave; why the two cannot be compared)."""
    count = sum(len(slots) for _, slots in given)
    if request.gpus != count and not request.nodes.whole:
        return request, f"Slurm gave it {counted(count, 'GPU')}, and it asks for {request.gpus}"
    models = {cluster.model[node] for node, _ in given}
    if len(models) > 1:
        return request, "Slurm gave it GPUs of several models"
    same = np.array([model in models for model in cluster.model], dtype=np.bool_)
    return on_only(request, same), ""
