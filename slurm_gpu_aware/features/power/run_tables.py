"""Power of ``gpu-aware simulate``: that of the GPUs, and size tables from the store's models."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.models.store import PerformanceModels, read_models
from slurm_gpu_aware.features.models.tables import size_table
from slurm_gpu_aware.features.power.declared import PowerConfig
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.profile import LimitRange, Profile
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.time_text import counted


def simulated_power(
    config: Config, trace: Trace, cluster: Cluster, gpu_model: str | None
) -> tuple[RunPower, Trace]:
    """Power without a limit, and the trace with the size tables of its jobs.

    ``gpu_model``: of all GPUs of the cluster; None: that of the cluster itself. Raises RequestError
    if it is not known, or has no clocks in the store.
    """
    with open_for_reading(config.store) as store:
        models = read_models(store, config.of(PowerConfig).model_error)
        profile = load_profile(store)
    for sentence in models.unreadable:
        say(sentence)
    model = gpu_model or _only_model(cluster)
    clocks, limits_w, most_w = _of_gpus(profile, model)
    width = int(cluster.exists.sum(axis=1).max())
    found = _Tables(models, model, clocks, limits_w, width, trace.jobs)
    jobs = tuple(found.tabled(job) for job in trace.jobs)
    for name, count in sorted(found.lacking.items()):
        them = counted(count, "job counts with its", "jobs count with their")
        say(f"{trace.name}: no performance model of {name} for {model}: {them} GPUs' limits")
    power = RunPower(idle_w=min(config.of(PowerConfig).idle_watts, most_w), max_w=most_w)
    return power, replace(trace, jobs=jobs)


def _only_model(cluster: Cluster) -> str:
    there = np.flatnonzero(cluster.exists.any(axis=1)).tolist()
    models = {name for row in there if (name := cluster.model[row])}
    if len(models) != 1:
        known = ", ".join(sorted(models)) or "none is known"
        raise RequestError(
            f"power needs one GPU model for all GPUs ({known}): give it with --gpu-model"
        )
    return models.pop()


def _of_gpus(profile: Profile, model: str) -> tuple[tuple[int, ...], LimitRange, float]:
    """Clocks that all swept GPUs of a model support, ascending, and power limits in W.

    These are of jobs, and the highest one in force.
    """
    records = [r for r in profile.gpus.values() if r.model == model and r.clocks_mhz]
    if not records:
        raise RequestError(
            f"the store has no GPU of model {model!r} with its clocks: sweep one with"
            " 'gpu-aware-profile sweep'"
        )
    common = set(records[0].clocks_mhz).intersection(*(r.clocks_mhz for r in records[1:]))
    limits = [r.power_limit_w for r in records if r.power_limit_w is not None]
    if not common or not limits:
        raise RequestError(f"GPUs of model {model!r} in the store: no common clock, or no limit")
    of_jobs = LimitRange.of((r.min_limit_w, r.power_limit_w) for r in records)
    return tuple(sorted(common)), of_jobs, max(limits)


class _Tables:
    """Size tables of the jobs of a trace, one for each application and choice of sizes."""

    def __init__(
        self,
        models: PerformanceModels,
        gpu_model: str,
        clocks: tuple[int, ...],
        limits_w: LimitRange,
        width: int,
        jobs: Iterable[TraceJob],
    ) -> None:
        self.models, self.gpu_model, self.clocks, self.width = models, gpu_model, clocks, width
        self.limits_w = limits_w
        self.lacking: Counter[str] = Counter()
        """Application or class without a model -> number of jobs."""
        self._asked: dict[object, set[int]] = defaultdict(set)
        """User and name -> GPU counts of their jobs, on whose runs due dates rest."""
        for job in jobs:
            self._asked[job.user, job.name or job.model].add(job.gpus)
        self._known: dict[object, SizeTable | None] = {}

    def tabled(self, job: TraceJob) -> TraceJob:
        """The job with its table, and with those of its sizes that the table knows."""
        table = self._table(job)
        if table is None or table.row(job.gpus) is None:
            self.lacking[job.model or f"class {job.app_class}"] += 1
            return job
        sizes = tuple(n for n in job.sizes if table.row(n) is not None)
        return replace(job, table=table, sizes=sizes)

    def _table(self, job: TraceJob) -> SizeTable | None:
        sizes = tuple(sorted({job.gpus, *job.sizes}))
        beside = tuple(sorted(self._asked[job.user, job.name or job.model])) if job.sizes else ()
        key = job.model, job.app_class, sizes, beside
        if key not in self._known:
            model = self.models.of(job.model, job.app_class, self.gpu_model)
            known = (sizes, self.clocks, self.width)
            if model is not None:
                table = size_table(model, *known, beside=beside, limits_w=self.limits_w)
            self._known[key] = None if model is None else _complete(table)
        return self._known[key]


def _complete(table: SizeTable) -> SizeTable | None:
    """The sizes and clocks of a table of which time and power are known; None: there are none."""
    known = np.isfinite(table.time_s) & np.isfinite(table.power_w)
    rows = np.flatnonzero(known.any(axis=1))
    columns = np.flatnonzero(known[rows].all(axis=0))
    if not len(rows) or not len(columns):
        return None
    part = np.ix_(rows, columns)
    return replace(
        table,
        gpus=table.gpus[rows],
        clocks_mhz=table.clocks_mhz[columns],
        time_s=table.time_s[part],
        power_w=table.power_w[part],
        time_error=table.time_error[columns],
        limited=table.limited and table.limited.known(rows),
    )
