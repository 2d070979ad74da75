"""Merging reports, importing timings, scores, and what placement loads."""

import pytest
from store_samples import ingest, report
from test_interconnect import measured

from gpu_aware_profile.imports.import_rows import Given, read_timings
from gpu_aware_profile.imports.known_gpus import known_gpus
from gpu_aware_profile.store_writer import newest_timings, recompute_scores
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.profile import Fault, GpuRecord, Link
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import Run, put_timings
from slurm_gpu_aware.store.profiles import load_profile, newest_runs, score_rows
from slurm_gpu_aware.text_file import BadRow, read_table

LOST = {"index": 3, "call": "nvmlDeviceGetHandleByIndex", "error": "GPU is lost"}


def dump(store: Store) -> dict[str, list[tuple[object, ...]]]:
    tables = ("nodes", "gpus", "links", "timings", "probe_errors", "scores")
    tables += ("nics", "bandwidths", "collectives")
    return {t: [tuple(row) for row in store.query(f"SELECT * FROM {t}")] for t in tables}


def read_csv(store: Store, *rows: str, at: float = 1.0) -> tuple[list[Run], list[BadRow]]:
    table = read_table("rows", "\n".join(["gpu,node,class,value_ms", *rows]))
    return read_timings(table, Given(("A", "B"), at, at), known_gpus(store, new=False))


def test_a_report_comes_back_as_a_profile(store: Store) -> None:
    ingest(store, report("n1", times={0: 100.0, 1: 110.0}))
    recompute_scores(store, ("A", "B"))
    profile = load_profile(store)
    assert profile.gpus["n1", 1] == GpuRecord(
        uuid="GPU-n1-1",
        name="Tesla V100-SXM2-16GB",
        model="v100",
        pci="00000000:01:00.0",
        numa=0,
        cpus="0-3",
        memory_mb=16160,
        clocks_mhz=(1530, 1312, 135),
        max_clock_mhz=1530,
        default_clock_mhz=1312,
        power_limit_w=300.0,
        temperature_c=40.0,
    )
    assert profile.links == {"n1": (Link(0, 1, "NV2", 50.0),)}
    assert profile.taken_at == {"n1": 1000.0}
    assert profile.faults == {}
    expected = {("n1", 0): pytest.approx(100 / 105), ("n1", 1): pytest.approx(110 / 105)}
    assert profile.raw_scores == {"A": expected}
    assert profile.scores == {"A": expected}


def test_an_empty_store_gives_an_empty_profile(store: Store) -> None:
    recompute_scores(store, ("A",))
    profile = load_profile(store)
    assert (profile.scores, profile.gpus, profile.taken_at) == ({}, {}, {})


def test_merging_again_changes_nothing(store: Store) -> None:
    dumps = []
    for _ in range(2):
        ingest(store, measured(errors=[{"index": None, "call": "nvmlX", "error": "no"}]))
        recompute_scores(store)
        found = dump(store)
        found["probe_errors"] = [row[1:] for row in found["probe_errors"]]  # without their numbers
        dumps.append(found)
    assert dumps[0] == dumps[1]
    assert all(dumps[0].values())


def test_the_newest_sweep_counts_and_the_older_stays_as_history(store: Store) -> None:
    ingest(store, report(taken_at=1000.0, times={0: 100.0, 1: 100.0, 2: 100.0}))
    ingest(store, report(taken_at=2000.0, times={0: 100.0, 1: 100.0, 2: 250.0}))
    recompute_scores(store)
    assert load_profile(store).scores["A"]["n1", 2] == 2.5
    assert len(store.query("SELECT * FROM timings")) == 6


def test_an_older_report_that_arrives_late_changes_no_score(store: Store) -> None:
    ingest(store, report(taken_at=2000.0))
    ingest(store, report(taken_at=1000.0, times={0: 900.0}))
    recompute_scores(store)
    profile = load_profile(store)
    assert len(profile.gpus) == 4
    assert profile.taken_at == {"n1": 2000.0}
    assert set(profile.scores["A"].values()) == {1.0}


def test_a_lost_gpu_keeps_its_record_links_and_score(store: Store) -> None:
    ingest(store, report(taken_at=1000.0, times={0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0}))
    ingest(store, report(taken_at=2000.0, times={0: 1.0, 1: 1.0, 2: 1.0}, errors=[LOST]))
    recompute_scores(store)
    profile = load_profile(store)
    assert profile.scores["A"]["n1", 3] == 2.0
    assert len(profile.links["n1"]) == 6
    assert profile.faults == {"n1": (Fault(3, LOST["call"], "GPU is lost"),)}


def test_a_gpu_that_was_taken_out_is_forgotten(store: Store) -> None:
    ingest(store, report(taken_at=1000.0))
    recompute_scores(store)
    ingest(store, report(taken_at=2000.0, times={0: 100.0, 1: 100.0}))
    profile = load_profile(store)
    assert set(profile.gpus) == {("n1", 0), ("n1", 1)}
    assert profile.links == {"n1": (Link(0, 1, "NV2", 50.0),)}
    assert set(profile.scores["A"]) == {("n1", 0), ("n1", 1)}


def test_a_wrong_report_leaves_nothing_behind(store: Store) -> None:
    wrong = report()
    wrong["timings"][2]["value_ms"] = float("nan")
    with pytest.raises(SourceError, match=r"report of n1: timings\[2\]"):
        ingest(store, wrong)
    assert all(rows == [] for rows in dump(store).values())


def test_times_of_gpus_that_no_sweep_has_seen_move_no_other_score(store: Store) -> None:
    """They moved the cluster's median, though place and simulation leave these GPUs out."""
    ingest(store, report("n1", times={0: 100.0, 1: 100.0, 2: 120.0}))
    for reference in ("cluster", "model"):
        recompute_scores(store, reference=reference)
        before = load_profile(store).scores["A"]
        put_timings(store, [Run("n9", slot, "A", 2000.0, 50.0) for slot in range(4)])
        recompute_scores(store)
        after = load_profile(store)
        assert {gpu: after.scores["A"][gpu] for gpu in before} == before
        if reference == "cluster":
            assert after.raw_scores["A"]["n9", 0] == pytest.approx(0.5)
        store.execute("DELETE FROM nodes WHERE node = 'n9'")


def test_a_gpu_that_a_probe_failed_to_read_counts_as_seen(store: Store) -> None:
    """An import took its times, then setup left it out for want of a sweep."""
    ingest(store, report("n1", errors=[LOST | {"index": 7}]))
    assert [run.slot for run in read_csv(store, "7,n1,A,100", "8,n1,A,100")[0]] == [7]
    put_timings(store, [Run("n1", slot, "A", 2000.0, 100.0) for slot in (7, 8)])
    assert load_profile(store).unseen == {("n1", 8)}


def test_scores_of_classes_that_the_site_dropped_go_away(store: Store) -> None:
    put_timings(store, [Run("n1", 0, name, 1.0, 1.0) for name in ("A", "Z")])
    recompute_scores(store)
    assert set(load_profile(store).scores) == {"A", "Z"}
    recompute_scores(store, ("A", "B"))
    assert set(load_profile(store).scores) == {"A"}
    assert {t.app_class for t in newest_timings(store)} == {"A", "Z"}


def test_repeated_rows_are_runs_and_importing_again_replaces(store: Store) -> None:
    rows = [Run("n9", 1, "A", 50.0, ms) for ms in (100.0, 900.0, 101.0)]
    put_timings(store, rows)
    assert [t.value_ms for t in newest_timings(store)] == [101.0]
    put_timings(store, rows[:1])
    assert [t.value_ms for t in newest_timings(store)] == [100.0]
    assert load_profile(store).gpus["n9", 1] == GpuRecord()


def test_a_uuid_stands_for_the_gpu_that_was_probed(store: Store) -> None:
    ingest(store, report("n1"))
    good, bad = read_csv(store, "GPU-n1-2,n1,A,300", "GPU-n1-2,n7,A,1", "GPU-x,n1,A,1", at=5000.0)
    of_none = "is neither an index (0, 1, ...) nor UUID or PCI address of a GPU that was probed"
    assert bad == [
        BadRow(3, "gpu GPU-n1-2 was last seen on node n1, not n7"),
        BadRow(4, f"gpu 'GPU-x' {of_none}"),
    ]
    put_timings(store, good)
    recompute_scores(store)
    assert load_profile(store).scores["A"]["n1", 2] == 3.0


def test_score_rows_are_sorted_by_class_and_score(store: Store) -> None:
    ingest(store, report("n2", times={0: 130.0, 1: 100.0}))
    ingest(store, report("n1", times={0: 100.0, 5: 120.0}))
    recompute_scores(store)
    rows = score_rows(store)
    assert [(r.node, r.slot) for r in rows] == [("n1", 0), ("n2", 1), ("n1", 5), ("n2", 0)]
    assert [r.value_ms for r in rows] == [100.0, 100.0, 120.0, 130.0]
    assert rows[0].model == "v100"
    assert rows[0].uuid == "GPU-n1-0"
    assert rows == sorted(rows, key=lambda r: (r.app_class, r.raw, r.node, r.slot))
    assert sorted({r.bin for r in rows}) == list(range(len({r.binned for r in rows})))


def test_only_runs_as_jobs_find_the_gpu_count(store: Store) -> None:
    """Runs beside loaded neighbours and at locked clocks are kept, but give no score."""
    conditions = {
        "sm_mhz": 1400.5, "power_w": 287.0, "energy_j": 28.7, "temperature_c": 61.0,
        "throttle": "sw_power_cap hw_slowdown", "samples": 40, "spread": 0.002,
    }  # fmt: skip
    raw = report("n1", times={0: 100.0, 1: 100.0})
    raw["timings"] += [
        {"index": 0, "class": "A", "value_ms": 102.0, **conditions},
        {"index": 0, "class": "A", "value_ms": 160.0, "neighbours": "loaded"},
        {"index": 0, "class": "A", "value_ms": 190.0, "clock_mhz": 900},
    ]
    ingest(store, raw)
    assert [run.value_ms for run in newest_runs(store) if run.slot == 0] == [100.0, 102.0]
    rows = store.query("SELECT * FROM timings WHERE slot = 0 ORDER BY value_ms")
    found = [(row["neighbours"], row["clock_mhz"], row["run"]) for row in rows]
    assert found == [("idle", 0, 0), ("idle", 0, 1), ("loaded", 0, 0), ("idle", 900, 0)]
    assert {name: rows[1][name] for name in conditions} == conditions
