"""Performance models and their samples in the store."""

import pytest
from store_samples import ingest, report

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models import store as models
from slurm_gpu_aware.features.models.performance_model import NamedSample, PerformanceSample
from slurm_gpu_aware.model.profile import LOADED, LimitRange, RunConditions
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import Run, add_runs


def sample(name="bert", taken_at=100.0, time_s=1.0, power_w=None, **conditions) -> NamedSample:
    values = {"gpus": 1, "nodes": 1, "batch_size": 8.0, "clock_mhz": 1200.0, **conditions}
    return NamedSample(
        name, "v100", taken_at, PerformanceSample(**values, time_s=time_s, power_w=power_w), "A"
    )


def test_samples_in_and_out(store: Store):
    given = [sample(), sample(time_s=1.1, power_w=90.0), sample(gpus=4, nodes=2), sample("gpt2")]
    models.put_samples(store, given, source="import")
    assert models.application_samples(store) == given


def test_the_same_moment_and_conditions_are_replaced(store: Store):
    models.put_samples(store, [sample(), sample(time_s=1.1), sample(gpus=2)], source="import")
    models.put_samples(store, [sample(time_s=5.0), sample(taken_at=200.0)], source="job")
    found = [
        (s.taken_at, s.sample.gpus, s.sample.time_s) for s in models.application_samples(store)
    ]
    assert found == [(100.0, 1, 5.0), (100.0, 2, 1.0), (200.0, 1, 1.0)]


def test_the_oldest_samples_go(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "MAX_SAMPLES", 3)
    models.put_samples(store, [sample("gpt2", 1.0)], source="import")
    models.put_samples(store, [sample(taken_at=float(t)) for t in range(5)], source="import")
    found = [(s.name, s.taken_at) for s in models.application_samples(store)]
    assert found == [("bert", 2.0), ("bert", 3.0), ("bert", 4.0), ("gpt2", 1.0)]


def test_too_many_applications_store_nothing(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "MAX_APPLICATIONS", 2)
    models.put_samples(store, [sample("a"), sample("b")], source="import")
    with pytest.raises(SourceError, match="at most 2 may"):
        models.put_samples(store, [sample("b", time_s=9.0), sample("c")], source="import")
    assert [(s.name, s.sample.time_s) for s in models.application_samples(store)] == [
        ("a", 1.0),
        ("b", 1.0),
    ]


def test_one_user_does_not_take_all_applications(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "MAX_OF_USER", 2)
    models.put_samples(store, [sample("ada/a"), sample("ada/b")], source="job")
    with pytest.raises(SourceError, match="of ada would have samples, and at most 2 may"):
        models.put_samples(store, [sample("ada/c")], source="job")
    others = [sample("bob/a"), sample("a"), sample("b"), sample("c"), sample("ada/a", 2.0)]
    models.put_samples(store, others, source="job")
    assert len(models.application_pairs(store)) == 6


def test_applications_beyond_a_lower_bound_go_on(store: Store, monkeypatch: pytest.MonkeyPatch):
    models.put_samples(store, [sample("ada/a"), sample("ada/b"), sample("a")], source="job")
    monkeypatch.setattr(models, "MAX_OF_USER", 1)
    monkeypatch.setattr(models, "MAX_APPLICATIONS", 2)
    models.put_samples(store, [sample("ada/a", 200.0), sample("a", 200.0)], source="job")
    assert len(models.application_samples(store)) == 5
    with pytest.raises(SourceError, match="at most 1 may"):
        models.put_samples(store, [sample("ada/c")], source="job")


def run_of(slot: int, taken_at: float, value_ms: float, **conditions) -> Run:
    return Run("n1", slot, "A", taken_at, value_ms, RunConditions(**conditions))


def test_class_samples_are_the_newest_runs_at_locked_clocks(store: Store):
    ingest(store, report("n1"))
    runs = [
        run_of(0, 1.0, 200.0, clock_mhz=1000, power_w=80.0),
        run_of(0, 2.0, 100.0, clock_mhz=1000, power_w=90.0),
        run_of(0, 1.0, 70.0, clock_mhz=1400, energy_j=7.0),
        run_of(1, 1.0, 110.0, clock_mhz=1000),
        run_of(1, 1.0, 500.0, clock_mhz=1000, neighbours=LOADED),
        run_of(1, 3.0, 60.0),
        run_of(0, 1.0, 150.0, clock_mhz=1400, limit_w=80, power_w=79.0),
        run_of(0, 2.0, 140.0, clock_mhz=1400, limit_w=80, power_w=78.0),
    ]
    add_runs(store, runs, source="probe")
    found = [(s.name, s.gpu_model, *s.sample[3:]) for s in models.class_samples(store)]
    assert found == [
        ("A", "v100", 1000.0, 0.1, 90.0, 0.0),
        ("A", "v100", 1000.0, 0.11, None, 0.0),
        ("A", "v100", 1400.0, 0.07, pytest.approx(100.0), 0.0),
        ("A", "v100", 1400.0, 0.14, 78.0, 80.0),
    ]


def test_gpu_kinds_have_the_clocks_that_all_gpus_support(store: Store):
    ingest(store, report("n1"))
    other = report("n2", times={0: 100.0, 1: 100.0})
    other["gpus"][0]["clocks_mhz"] = [1530, 1400, 135]
    other["gpus"][1]["min_limit_w"] = 150.0
    ingest(store, other)
    assert models.gpu_kinds(store) == {
        "v100": models.GpuKind((135, 1530), 1530, 4, LimitRange(150.0, 300.0))
    }
    assert models.GpuKind() == models.GpuKind((), None, 8)


def test_a_lowest_limit_above_the_one_in_force_is_not_believed():
    cards = [(1e9, 300.0), (100.0, 400.0), (120.0, None), (None, None)]
    assert LimitRange.of(cards) == (120.0, 300.0)
    assert LimitRange.of([]) == LimitRange()


def test_models_are_replaced_as_a_whole(store: Store):
    old = models.ModelRow("class", "A", "v100", 1.0, "{}")
    models.put_models(store, [old])
    assert models.model_rows(store) == [old]
    new = [
        models.ModelRow("class", "B", "v100", 2.0, "{}"),
        models.ModelRow("application", "bert", "v100", 2.0, "{}"),
    ]
    models.put_models(store, new)
    assert models.model_rows(store) == new[::-1]
