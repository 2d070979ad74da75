"""What the report of a cluster's GPUs shows: scores and drift of the store, racks and positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_aware_profile.tables import CHANGE, CHANGES, records
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.class_history import UNKNOWN_CLASS
from slurm_gpu_aware.model.profile import (
    LOADED,
    Gpu,
    GpuTiming,
    gpu_names,
    profile_sentences,
)
from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.slurm.topology import Place, places
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ledger import Decision, Ledger
from slurm_gpu_aware.store.profiles import judged_pairs, load_profile, newest_runs, score_rows
from slurm_gpu_aware.variability.drift import FEWEST_RUNS, Change, Drift, drift
from slurm_gpu_aware.variability.scores import JobRun, JobScore, job_scores, median_runs

_JOB_DAYS_S = 90 * 86_400.0
_MOST_JOBS = 50_000


def stored_drift(store: Store, config: Config, since: float) -> Drift:
    """Drift since a Unix time, of the site's classes and of GPUs that a probe has seen."""
    pairs = judged_pairs(store, since, config.site.classes)
    return drift(pairs, least=config.profiling.slower_percent / 100.0)


def drift_table(changes: Sequence[Change], now: float) -> str:
    """Table of changes in the given order."""
    return CHANGES.text(records(changes, CHANGE), now)


def drift_sentences(found: Drift) -> list[str]:
    """What the table of slower GPUs cannot say, one sentence without a full stop each."""
    said = [
        f"class {s.app_class}: the median of all {s.gpus} GPUs{f' {s.model}' if s.model else ''}"
        f" moved by {s.ratio - 1.0:+.1%}, which no score shows (a new driver? another benchmark?)"
        for s in found.shifts
    ]
    if found.unconfirmed:
        names = gpu_names(dict.fromkeys((c.node, c.slot) for c in found.unconfirmed))
        said.append(
            f"slower in fewer than {FEWEST_RUNS} runs, so not counted: {names}; measure again with"
            f" {FEWEST_RUNS} runs or more"
        )
    if found.unjudged:
        names = gpu_names(dict.fromkeys((c.node, c.slot) for c in found.unjudged))
        said.append(f"too few GPUs of the model, or too few runs, to judge: {names}")
    return said


@dataclass(frozen=True)
class GpuRow:
    """One GPU for one class. Scores are times over that of the median GPU of the model."""

    node: str
    slot: int
    app_class: str
    model: str
    value_ms: float
    score: float  # From the median of the runs.
    worst_run: float  # Score of the slowest run.
    runs: int
    loaded: float | None
    """Median time with loaded neighbours over that with idle ones; None: not measured."""
    job_score: JobScore | None
    taken_at: float


@dataclass(frozen=True)
class ClusterReport:
    """All of it."""

    rows: Sequence[GpuRow]  # By class, then best first.
    places: Mapping[str, Place]
    places_from: str
    drift: Drift
    since: float  # Unix time that ``drift`` compares with.
    profiles: Sequence[str]  # Sentences on GPUs that run under power profiles.

    def of_class(self, app_class: str) -> list[GpuRow]:
        """Rows of a class."""
        return [row for row in self.rows if row.app_class == app_class]

    @property
    def classes(self) -> list[str]:
        """Classes with scores."""
        return list(dict.fromkeys(row.app_class for row in self.rows))


def read_report(
    store: Store, config: Config, switches: Sequence[SlurmSwitch], since: float, now: float
) -> ClusterReport:
    """Read the store. ``switches``: Slurm's topology, if known. Times: Unix s."""
    scores = score_rows(store)
    runs: dict[tuple[str, int, str], list[float]] = {}
    for run in newest_runs(store):
        runs.setdefault(run[:3], []).append(run.value_ms)
    loaded = _by_gpu(median_runs(newest_runs(store, LOADED)))
    jobs = {score[:3]: score for score in stored_job_scores(store, now)}
    rows = []
    for score in scores:
        key = (score.node, score.slot, score.app_class)
        own = runs.get(key, [score.value_ms])
        row = GpuRow(
            *key,
            score.model or "",
            score.value_ms,
            score.raw,
            max(own) / score.value_ms * score.raw,
            len(own),
            loaded[key] / score.value_ms if key in loaded else None,
            jobs.get(key),
            score.taken_at,
        )
        rows.append(row)
    where, how = places((row.node for row in rows), switches)
    profiles = profile_sentences(load_profile(store).gpus)
    return ClusterReport(rows, where, how, stored_drift(store, config, since), since, profiles)


def stored_job_scores(store: Store, now: float) -> list[JobScore]:
    """Scores from the jobs of the ledger that ended in the last 90 days. ``now``: Unix s."""
    ledger = Ledger(store)
    models = {gpu: record.model or "" for gpu, record in load_profile(store).gpus.items()}
    moved = {event.job_id for event in ledger.events_since(("moved",), now - _JOB_DAYS_S)}
    ended = ledger.ended_decisions(now - _JOB_DAYS_S, _MOST_JOBS)
    runs = (_run(decision, models) for decision in ended if decision.job_id not in moved)
    return job_scores(run for run in runs if run is not None)


def _run(decision: Decision, models: Mapping[Gpu, str]) -> JobRun | None:
    """The run of a decision; None: it did not complete, or GPUs, class or kind are not known."""
    outcome, asked = decision.outcome, decision.asked
    start, end, name = outcome.get("start_s"), decision.outcome_at, asked.get("name")
    app_class = asked.get("class")
    if outcome.get("state") != "COMPLETED" or not isinstance(start, int | float) or end is None:
        return None
    if end <= start or not name or not app_class or not decision.exact:
        return None
    if asked.get("class_from") in UNKNOWN_CLASS:
        return None
    gpus = [
        (node, slot)
        for node, slots in zip(decision.nodes, decision.slots, strict=False)
        for slot in slots
    ]
    used = tuple(sorted({models.get(gpu, "") for gpu in gpus}))
    kind = (decision.user, str(name), len(gpus), len(decision.nodes), used)
    return JobRun(str(app_class), kind, gpus, float(end - start))


def _by_gpu(timings: Sequence[GpuTiming]) -> dict[tuple[str, int, str], float]:
    return {timing[:3]: timing.value_ms for timing in timings}
