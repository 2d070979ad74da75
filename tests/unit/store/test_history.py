"""Newest measurements, pairs of them, what is kept, and reported slow GPUs."""

import pytest
from store_samples import ingest, report

from slurm_gpu_aware.model.hardware_graph import Collective, PairBandwidth
from slurm_gpu_aware.model.profile import LOADED, Alarm, Pair, RunConditions
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import (
    Run,
    add_runs,
    forget_gpus,
    put_bandwidths,
    put_collectives,
    put_timings,
)
from slurm_gpu_aware.store.profiles import (
    alarms,
    measured_pairs,
    newest_runs,
    probed_at,
    prune,
    put_alarms,
)


@pytest.fixture(autouse=True)
def two_reports(store: Store) -> None:
    """The store knows two reports of n1, and none of their times."""
    ingest(store, report("n1", taken_at=1.0, times={}))
    ingest(store, report("n1", taken_at=2.0, times={0: 90.0, 1: 90.0}))
    store.execute("DELETE FROM timings")


def put(store: Store, at: float, *values: float, slot: int = 0, source: str = "fake") -> None:
    runs = [Run("n1", slot, "A", at, value) for value in values]
    add_runs(store, runs, source=source)


def moments(store: Store) -> list[tuple[int, float]]:
    rows = store.query("SELECT DISTINCT slot, taken_at_unix FROM timings ORDER BY 1, 2")
    return [(row[0], row[1]) for row in rows]


def test_the_newest_runs_are_those_that_jobs_would_see(store: Store) -> None:
    put(store, 10.0, 100.0, 101.0, 102.0)
    put(store, 20.0, 110.0, 111.0)
    conditions = (RunConditions(neighbours=LOADED), RunConditions(clock_mhz=900))
    add_runs(store, [Run("n1", 0, "A", 30.0, 5.0, c) for c in conditions], source="fake")
    add_runs(store, [Run("n1", 1, "B", 30.0, 5.0, conditions[0])], source="fake")
    assert [(r.slot, r.value_ms, r.taken_at) for r in newest_runs(store)] == [
        (0, 110.0, 20.0),
        (0, 111.0, 20.0),
    ]


@pytest.mark.parametrize(
    ("since", "before_at"), [(5.0, 10.0), (10.0, 10.0), (15.0, 10.0), (25.0, 20.0), (29.0, 20.0)]
)
def test_the_newest_is_compared_with_the_last_one_before(
    store: Store, since: float, before_at: float
) -> None:
    for at in (10.0, 20.0, 30.0):
        put(store, at, at, at + 1.0)
    (pair,) = measured_pairs(store, since)
    before_ms = [before_at, before_at + 1.0]
    assert pair == Pair("n1", 0, "A", "v100", before_ms, [30.0, 31.0], before_at, 30.0)


def test_gpus_that_were_not_measured_since_or_only_once_are_left_out(store: Store) -> None:
    put(store, 10.0, 1.0)
    put(store, 20.0, 1.0)
    put(store, 30.0, 1.0, slot=1)
    assert measured_pairs(store, 20.0) == []


def test_two_benchmarks_are_not_compared(store: Store) -> None:
    put(store, 10.0, 1.0)
    put(store, 20.0, 500.0, source="import")
    assert measured_pairs(store, 0.0) == []
    put(store, 30.0, 1.1)
    (pair,) = measured_pairs(store, 0.0)
    assert (pair.before_at, pair.now_at) == (10.0, 30.0)


def test_a_history_is_bounded_per_gpu_and_class(store: Store) -> None:
    for at in range(10, 20):
        put(store, float(at), 1.0, 2.0)
    put(store, 5.0, 1.0, slot=1)
    for _ in range(2):
        prune(store, 3)
        assert moments(store) == [(0, 17.0), (0, 18.0), (0, 19.0), (1, 5.0)]


def test_histories_of_links_are_bounded(store: Store) -> None:
    for at in range(10, 20):
        put_bandwidths(store, [PairBandwidth("n1", 0, 1, float(at), 10.0)], source="fake")
        put_collectives(
            store, [Collective("n1", (0, 1), "all_reduce", float(at), 10.0)], source="fake"
        )
    prune(store, 2)
    for name in ("bandwidths", "collectives"):
        rows = store.query(f"SELECT taken_at_unix FROM {name} ORDER BY 1")
        assert [row[0] for row in rows] == [18.0, 19.0]


def test_an_import_is_no_probe(store: Store) -> None:
    put_timings(store, [Run("n9", 0, "A", 50.0, 1.0), Run("n1", 0, "A", 60.0, 1.0)])
    assert probed_at(store) == {"n1": 2.0}


def test_alarms_are_remembered_and_leave_with_their_gpu(store: Store) -> None:
    known = [Alarm("n1", 0, "A", 1.0, 1.2), Alarm("n1", 1, "A", 1.0, 1.3)]
    put_alarms(store, [*known, Alarm("n8", 0, "A", 1.0, 1.3)])
    assert alarms(store) == known
    ingest(store, report("n1", taken_at=9.0, times={0: 1.0, 1: 1.0}, uuid="NEW-{node}-{slot}"))
    assert alarms(store) == []
    put_alarms(store, known)
    forget_gpus(store, "n1", 1)
    assert alarms(store) == known[:1]
