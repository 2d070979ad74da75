"""Size tables of jobs: the performance models of the store, at the sizes and clocks of a job.

Power for explorations: what the limit leaves while jobs count with the limits of their GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from slurm_gpu_aware.bounds import MAX_GPU_W
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE
from slurm_gpu_aware.features.energy.stage import chosen_setting
from slurm_gpu_aware.features.models.declared import NoModel
from slurm_gpu_aware.features.models.performance_model import (
    MODEL,
    PerformanceModel,
    own_name,
    owner_of,
)
from slurm_gpu_aware.features.models.store import PerformanceModels
from slurm_gpu_aware.features.models.tables import size_table
from slurm_gpu_aware.features.power.clock_orders import Clock, higher
from slurm_gpu_aware.features.power.power_budget import (
    PowerBudget,
    PoweredJob,
    PowerState,
    least_w,
    present_w,
)
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.profile import LimitRange, Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES, SizeTable
from slurm_gpu_aware.placement.feasible import allowed_nodes
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.store.ledger import Decision

_MOST_KEPT = 10_000
_NEGLIGIBLE_W = 0.01
_ANY_W = LimitRange(), MAX_GPU_W


@dataclass(frozen=True)
class KnownJob:
    """What the ledger says of a job of ours that holds GPUs."""

    app_class: str
    performance_model: str | None
    freq: str | int | None
    user: str
    is_due: bool
    energy_mhz: int | None = None  # Clock that saves energy, which was chosen at its start.
    allowed: float = math.inf  # How much slower it may be.
    limit_w: int = 0  # Power limit that was chosen with that clock.

    @classmethod
    def of(cls, decision: Decision) -> Self:
        asked = decision.asked
        names = str(asked.get("class")), asked.get("model"), asked.get("freq")
        is_due = asked.get("due_s") is not None
        return cls(*names, decision.user, is_due, *chosen_setting(Facts.read(decision.why)))


class JobTables:
    """The tables of one round; jobs of one application, GPU model and choice of sizes share one."""

    def __init__(self) -> None:
        self._models: PerformanceModels | None = None
        self._profile: Profile | None = None
        self._cluster: Cluster | None = None
        self._clocks: dict[str, tuple[int, ...]] = {}
        self._limits_w: dict[str, tuple[LimitRange, float]] = {}
        self._gpu_models: dict[object, frozenset[str | None]] = {}
        self._widths: dict[str, int] = {}
        self._tables: dict[object, SizeTable] = {}
        self._kept: dict[int, PerformanceModel] = {}

    def renew(
        self, models: PerformanceModels | None, profile: Profile | None, cluster: Cluster
    ) -> None:
        """Take the models and the profile of a round, and its snapshot."""
        full = len(self._tables) > _MOST_KEPT
        if models is not self._models or profile is not self._profile or full:
            self._models, self._profile = models, profile
            self._clocks, self._tables, self._kept = {}, {}, {}
            self._limits_w = {} if profile is None else _limits_w(profile)
        self._cluster = cluster
        self._gpu_models = {}
        counts = cluster.exists.sum(axis=1).tolist()
        self._widths = {}
        for model, count in zip(cluster.model, counts, strict=True):
            self._widths[model or ""] = max(count, self._widths.get(model or "", 1))

    def tabled(self, request: Request) -> Request:
        """The request with its table, if a model is known for the GPUs that it may get."""
        gpu_models = self.gpu_models(request)
        names = sorted(name for name in gpu_models if name is not None)
        tables = {name: self._own_table(request, name) for name in names}
        known = {name: table for name, table in tables.items() if table is not None}
        if len(known) < len(gpu_models):
            return request
        if len(gpu_models) == 1:
            return request.put(TABLE, *known.values())
        alike = not any(self._why_missing(request, name) for name in known)
        due = request.get(DUE_DATE) is not None and request.sizes
        return request.put(TABLES, known) if due and alike else request

    def _own_table(self, request: Request, gpu_model: str) -> SizeTable | None:
        """The table of a request on GPUs of one model; None: no model is known there."""
        name, app_class = request.get(MODEL), request.app_class
        model = self.model(name, app_class, gpu_model, request.user)
        due = request.get(DUE_DATE)
        beside = () if due is None else due.known_gpus
        return self.table(model, app_class, gpu_model, request.sizes or (request.gpus,), beside)

    def _why_missing(self, request: Request, gpu_model: str | None) -> str | None:
        name = request.get(MODEL)
        if name is None:
            return None
        return self.why_missing(name, request.app_class, gpu_model, request.user)

    def why_none(self, request: Request) -> str | None:
        """Why a job that names a performance model has no table of it; None: it has, or names none.

        A class's model takes the place of a missing one.
        """
        return None if request.get(TABLES) else self._why_missing(request, self.gpu_model(request))

    def noted(self, plan: Plan, queue: Sequence[Request]) -> Plan:
        """The plan with a note on each job whose performance model is missing."""
        missing = {
            request.job_id: why
            for request in queue
            if request.get(MODEL) is not None and (why := self.why_none(request))
        }
        if not missing:
            return plan
        assignments = tuple(
            a.explained(NoModel(missing[a.job_id])) if a.job_id in missing else a
            for a in plan.assignments
        )
        return replace(plan, assignments=assignments)

    def why_missing(
        self, name: str, app_class: str, gpu_model: str | None, user: str
    ) -> str | None:
        """The same by the names of a job, and the one model of all GPUs that it has or may get."""
        if gpu_model is None:
            return f"model {name} is not used: the job may get GPUs of several models"
        found = self.model(name, app_class, gpu_model, user)
        if found is not None and found.name in (name, own_name(user, name)):
            return None
        instead = (
            "the limits of its GPUs count" if found is None else f"that of {found.name} counts"
        )
        models = self._models
        wrong = None if models is None else models.too_wrong(name, gpu_model, user)
        if wrong is not None:
            error = f"it is wrong by {100 * wrong.quality.worst:.0f}%, see 'models show'"
            return f"performance model {wrong.name} for {gpu_model} is not used: {error}; {instead}"
        return f"no performance model {name} for {gpu_model} is in the store; {instead}"

    def table(
        self,
        model: PerformanceModel | None,
        app_class: str,
        gpu_model: str,
        sizes: Sequence[int],
        beside: Sequence[int] = (),
    ) -> SizeTable | None:
        """The table of a performance model at some sizes; None: no model, or no clocks.

        ``beside``: as of `size_table`.

        Power that a user has measured is not taken below that of the job's class, so that a
        file that says 1 W takes no job past a power limit; without a model of the class it is
        unknown. No model's power is taken above the highest known power limit of such GPUs.
        """
        clocks = self.clocks_of(gpu_model)
        if model is None or not clocks:
            return None
        width = self._widths.get(gpu_model, 1)
        own = bool(owner_of(model.name))
        key = id(model), app_class if own else "", gpu_model, tuple(sizes), tuple(beside), width
        if key not in self._tables:
            self._kept[id(model)] = model
            range_w, highest_w = self._limits_w.get(gpu_model, _ANY_W)
            table = size_table(model, sizes, clocks, width, beside=beside, limits_w=range_w)
            if own:
                table = self._checked(table, app_class, gpu_model)
            most_w = table.gpus[:, None] * highest_w
            limited = table.limited and replace(
                table.limited, power_w=np.minimum(table.limited.power_w, most_w)
            )
            power_w = np.minimum(table.power_w, most_w)
            self._tables[key] = replace(table, power_w=power_w, limited=limited)
        return self._tables[key]

    def _checked(self, table: SizeTable, app_class: str, gpu_model: str) -> SizeTable:
        """The table with at least the power of the class, which one GPU draws, on each GPU.

        Under a limit below that power, with at least the limit.
        """
        known = self.model(None, app_class, gpu_model, "")
        least_w = np.full(table.clocks_mhz.shape, np.nan)
        if known is not None:
            least_w = size_table(known, (1,), self.clocks_of(gpu_model), 1).power_w[0]
        limited = table.limited
        if limited is not None:
            of_clock = least_w[np.searchsorted(table.clocks_mhz, limited.clocks_mhz)]
            under_w = np.outer(table.gpus, np.minimum(of_clock, limited.limits_w))
            limited = replace(limited, power_w=np.maximum(limited.power_w, under_w))
        power_w = np.maximum(table.power_w, np.outer(table.gpus, least_w))
        return replace(table, power_w=power_w, limited=limited)

    def gpu_model(self, request: Request) -> str | None:
        """The model of all GPUs that a request may get; None: several, or not known."""
        found = self.gpu_models(request)
        return next(iter(found)) if len(found) == 1 else None

    def gpu_models(self, request: Request) -> frozenset[str | None]:
        """The models of the GPUs that a request may get; None: one that is not known."""
        assert self._cluster is not None  # noqa: S101 - after `renew`
        key = request.nodes.gpu_model, id(request.nodes.eligible)
        if key not in self._gpu_models:
            allowed = allowed_nodes(request, self._cluster)
            usable = np.asarray(self._cluster.exists.any(axis=1))
            rows = np.flatnonzero(usable if allowed is None else usable & allowed).tolist()
            self._gpu_models[key] = frozenset(self._cluster.model[row] for row in rows)
        return self._gpu_models[key]

    def model(
        self, name: str | None, app_class: str, gpu_model: str, user: str
    ) -> PerformanceModel | None:
        """The model of an application, or else of its class; see `PerformanceModels.of`."""
        return None if self._models is None else self._models.of(name, app_class, gpu_model, user)

    def fitted_at(self, name: str | None, app_class: str, gpu_model: str, user: str) -> float:
        """When the model of `model` was fitted, Unix s; inf: there is none."""
        named = name, app_class, gpu_model, user
        return math.inf if self._models is None else self._models.fitted_at(*named)

    def limit_w(self, gpu_model: str) -> float:
        """The highest known power limit of GPUs of a model, else what no GPU exceeds."""
        return self._limits_w.get(gpu_model, _ANY_W)[1]

    def clocks_of(self, gpu_model: str) -> tuple[int, ...]:
        """Clocks that all GPUs of a model support, ascending; empty: not known."""
        if not self._clocks and self._profile is not None:
            common: dict[str, set[int]] = {}
            for record in self._profile.gpus.values():
                if record.clocks_mhz:
                    own = set(record.clocks_mhz)
                    common[record.model or ""] = common.get(record.model or "", own) & own
            self._clocks = {model: tuple(sorted(own)) for model, own in common.items()}
        return self._clocks.get(gpu_model, ())


def _limits_w(profile: Profile) -> dict[str, tuple[LimitRange, float]]:
    """GPU model -> power limits of jobs on its GPUs, and the highest one in force."""
    found: dict[str, list[tuple[float | None, float | None]]] = {}
    for gpu in profile.gpus.values():
        found.setdefault(gpu.model or "", []).append((gpu.min_limit_w, gpu.power_limit_w))
    return {
        model: (LimitRange.of(limits), max(own_w or 0.0 for _, own_w in limits) or MAX_GPU_W)
        for model, limits in found.items()
    }


def limits_w(cluster: Cluster, profile: Profile | None, default_w: float) -> FloatArray:
    """(N, W) power limits of the GPUs that are usable or that a job holds, W; of others 0.

    ``default_w``: that of GPUs that no sweep has read.
    """
    max_w = np.full(cluster.shape, default_w)
    for row, node in enumerate(cluster.nodes if profile is not None else ()):
        for slot in range(cluster.shape[1]):
            record = profile.gpus.get((node, slot)) if profile is not None else None
            known_w = None if record is None else record.power_limit_w
            if known_w is not None and known_w > 0:
                max_w[row, slot] = known_w
    there = cluster.exists.copy()
    for job in cluster.running:
        for node_row, slots in job.gpus:
            there[node_row, list(slots)] = True
    return np.where(there, max_w, 0.0)


def running_gpu_model(job: RunningJob, cluster: Cluster) -> str | None:
    """The model of all GPUs of a running job; None: several, or not known."""
    models = {cluster.model[node] for node, _ in job.gpus}
    return models.pop() if len(models) == 1 else None


class ExplorationPower:
    """The power of a round, to which explorations are added one by one."""

    def __init__(self, cluster: Cluster, settings: PlanSettings, power: PowerState | None) -> None:
        """``power``: with every job at its table; None: there is no limit."""
        self._given = cluster, settings, power
        self._power = power
        self._running = dict(power.running) if power is not None else {}

    @cached_property
    def _left(self) -> list[float]:
        """W that the limit leaves: with all jobs at their most efficient clocks, and as now."""
        budget = PowerBudget.of(*self._given)
        if budget is None or budget.cluster.power_w is None:
            return [math.inf, math.inf]
        ours = [job for job in budget.cluster.running if job.power_is_ours]
        now_w = sum(budget.present_w(job) for job in ours)
        return [float(budget.cluster.power_w[0]), budget.for_ours_w - now_w]

    @property
    def state(self) -> PowerState | None:
        """The power state with what was added."""
        return None if self._power is None else replace(self._power, running=self._running)

    @property
    def is_exceeded(self) -> bool:
        """Whether the limit cannot be met, with other jobs at their most efficient clocks."""
        return self._left[0] < -_NEGLIGIBLE_W

    @property
    def is_free(self) -> bool:
        """Whether the power is there now, at the clocks that other jobs have."""
        return self._left[1] >= -_NEGLIGIBLE_W

    def take(self, job_id: str) -> bool:
        """Count a running job with the limits of its GPUs; False: the limit does not leave them.

        It leaves them if all other jobs can go to their most efficient clocks.
        """
        job = self._running.get(job_id)
        if job is None:
            return True
        if job.max_w - least_w(job) > max(self._left[0], 0.0) + _NEGLIGIBLE_W:
            return False
        self._put(job_id, replace(job, table=None, adjustable=False))
        return True

    def add_at_least(self, job_id: str, clock: Clock) -> None:
        """Count a running job with this clock, if it is higher than its present one."""
        job = self._running.get(job_id)
        if job is not None:
            self._put(job_id, replace(job, clock_mhz=higher([job.clock_mhz, clock])))

    def _put(self, job_id: str, job: PoweredJob) -> None:
        before = self._running[job_id]
        self._left[0] -= least_w(job) - least_w(before)
        self._left[1] -= present_w(job) - present_w(before)
        self._running[job_id] = job
