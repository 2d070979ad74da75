"""Times far from the median: refused once, named with the likely cause, taken if vouched for."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from statistics import median_high, median_low

import pytest
from click.testing import Result
from commands import gpu_aware_profile, refusal, succeeded
from hypothesis import given
from hypothesis import strategies as st
from store_samples import ingest, report

from gpu_aware_profile.store_writer import newest_timings, recompute_scores, stored_outliers
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import Run, put_timings
from slurm_gpu_aware.variability.drift import (
    Outlier,
    new_outliers,
    outlier_sentences,
    outliers,
)

Import = Callable[..., Result]


@pytest.fixture
def import_text(store_path: Path) -> Import:
    def call(rows: str, *options: str, header: str = "gpu,node,class,value_ms") -> object:
        text = f"{header}\n" + "\n".join(rows.split())
        return gpu_aware_profile("import", "-", *options, text=text)

    return call


def csv(**nodes: float) -> str:
    """Four GPUs per node, each of this time for class A."""
    return " ".join(f"{gpu},{node},A,{ms}" for node, ms in nodes.items() for gpu in range(4))


def times(path: Path) -> set[float]:
    with open_store(path) as store:
        return {row.value_ms for row in newest_timings(store)}


def test_a_node_in_seconds_is_refused_with_the_likely_cause(
    import_text: Import, store_path: Path
) -> None:
    assert refusal(import_text(csv(n1=100, n2=100, n3=0.1))) == (
        "Error: class A: n3:0, n3:1, n3:2, n3:3 take 0.001 times as long as the median GPU of their"
        " model (are milliseconds and seconds mixed up?). Nothing was imported; correct the file,"
        " or give --accept-outliers if it is as measured\n"
    )
    assert times(store_path) == set()


def test_a_genuine_slow_gpu_is_vouched_for_once(import_text: Import, store_path: Path) -> None:
    assert import_text(csv(n1=100, n2=100)).exit_code == 0
    slow = "1,n2,A,250"
    refused = refusal(import_text(slow))
    assert "class A: n2:1 takes 2.5 times as long as the median GPU of its model." in refused
    assert times(store_path) == {100.0}
    accepted = succeeded(import_text(slow, "--accept-outliers"))
    assert "accepted: class A: n2:1 takes 2.5 times" in accepted.stderr
    assert times(store_path) == {100.0, 250.0}
    assert import_text("1,n2,A,262").exit_code == 0  # as slow as it is known to be
    assert import_text(csv(n1=101)).exit_code == 0  # others are not asked about it again
    assert import_text("1,n2,A,800").exit_code == 1  # far slower than was vouched for


def test_stored_times_that_become_outliers_are_named_too(import_text: Import) -> None:
    assert import_text(csv(n1=100)).exit_code == 0
    assert "n1:0, n1:1, n1:2, n1:3 take 1e+03 times" in refusal(import_text(csv(n2=0.1, n3=0.1)))


@pytest.mark.parametrize("factor", [1e-3, 1e3, 60.0, 2.5])
def test_a_node_in_another_unit_is_found_though_it_has_half_of_the_gpus(
    import_text: Import, store_path: Path, factor: float
) -> None:
    """A median over all GPUs lies between both nodes, within twice of the slower one."""
    assert import_text(csv(n1=100)).exit_code == 0
    refused = refusal(import_text(csv(n2=100 * factor)))
    assert f"n2:0, n2:1, n2:2, n2:3 take {factor:.3g} times as long" in refused
    assert ("mixed up?" in refused) == (factor != 2.5)
    assert times(store_path) == {100.0}


def test_half_of_a_single_node_in_another_unit_is_found(import_text: Import) -> None:
    refused = refusal(import_text("0,n1,A,100 1,n1,A,100 2,n1,A,0.1 3,n1,A,0.1"))
    assert "n1:2, n1:3 take 0.001 times" in refused


def test_a_node_between_two_units_is_compared_with_the_nearer(import_text: Import) -> None:
    refused = refusal(import_text(csv(n1=100, n2=0.1, n3=105)))
    assert "n2:0, n2:1, n2:2, n2:3 take" in refused
    assert "n1:" not in refused
    assert "n3:" not in refused


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(1.0, 1e6)), min_size=1, max_size=12),
    st.integers(0, 12),
)
def test_ratios_are_those_of_a_median_without_the_own_node(
    gpus: list[tuple[int, float]], hidden: int
) -> None:
    rows = [GpuTiming(f"n{node}", i, "A", t, 1.0, "m") for i, (node, t) in enumerate(gpus)]
    unseen = {row[:2] for row in rows[:hidden]}
    counted = [row for row in rows if row[:2] not in unseen] or rows
    found = {outlier.slot: outlier.ratio for outlier in outliers(rows, unseen)}
    for row in rows:
        others = [other for other in counted if other.node != row.node]
        if not others and {other.node for other in counted} == {row.node}:
            others = [other for other in counted if other is not row]
        times = [other.value_ms for other in others] or [row.value_ms]
        both = row.value_ms / median_low(times), row.value_ms / median_high(times)
        ratio = min(both, key=lambda r: max(r, 1 / r))
        assert found.get(row.slot) == (None if 0.5 <= ratio <= 2 else pytest.approx(ratio))


def test_models_are_compared_with_their_own(store_path: Path, import_text: Import) -> None:
    with open_store(store_path) as store:
        ingest(store, report("n1", times={0: 100.0, 1: 100.0}))
        fast = report("n2", times={0: 20.0, 1: 20.0})
        for gpu in fast["gpus"]:
            gpu["model"] = "h100"
        ingest(store, fast)
        recompute_scores(store)
    assert import_text("0,n2,A,21").exit_code == 0
    refused = import_text("0,n2,A,100")
    assert "median GPU of its model h100" in refused.stderr


def test_times_and_scores_are_stored_together_or_not_at_all(
    import_text: Import, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no scores today")

    monkeypatch.setattr("gpu_aware_profile.imports.importing.recompute_scores", fail)
    assert import_text(csv(n1=100)).exit_code != 0
    assert times(store_path) == set()


def test_what_cannot_be_a_time_is_not_stored_at_all(store_path: Path) -> None:
    with open_store(store_path) as store:
        put_timings(store, [Run("n1", 0, "A", 1.0, 100.0)])
        for value in ("9e999", "0", "1e13"):
            with pytest.raises(sqlite3.IntegrityError):
                store.execute(f"UPDATE timings SET value_ms = {value}")


def test_level_times_in_two_units_are_refused(import_text: Import) -> None:
    rows, header = "A,node,100 A,cluster,0.15", "class,level,value_ms"
    assert (
        "class A takes 0.0015 times as long at level cluster as at node"
        " (are milliseconds and seconds mixed up?)"
    ) in refusal(import_text(rows, header=header))
    assert import_text(rows, "--accept-outliers", header=header).exit_code == 0


def test_a_gpu_that_no_sweep_has_seen_does_not_move_the_median(store_path: Path) -> None:
    with open_store(store_path) as store:
        ingest(store, report("n1", times={0: 100.0}))
        put_timings(store, [Run("n9", gpu, "A", 1.0, 300.0) for gpu in range(4)])
        assert [(o.node, o.ratio) for o in stored_outliers(store)] == []  # another model: unknown
        with store.write():
            store.execute("UPDATE gpus SET model = 'v100', name = NULL")
        assert [(o.node, o.ratio) for o in stored_outliers(store)] == [("n9", 3.0)] * 4


@pytest.mark.parametrize(
    ("ratio", "units"),
    [
        (0.0011, "milliseconds and seconds"),
        (970.0, "milliseconds and seconds"),
        (58.0, "seconds and minutes"),
        (1.7e-5, "milliseconds and minutes"),
        (3.5, None),
        (200.0, None),
    ],
)
def test_factors_of_units_are_recognised(ratio: float, units: str | None) -> None:
    (sentence,) = outlier_sentences([Outlier("A", "v100", "n1", 0, ratio)])
    assert sentence.startswith("class A: n1:0 takes ")
    assert f"model v100{f' (are {units} mixed up?)' if units else ''}" in sentence
    assert sentence.endswith("?)" if units else "v100")


def test_many_gpus_are_counted() -> None:
    many = [Outlier("A", "", "n1", slot, 2.5 + slot / 10) for slot in range(20)]
    (sentence,) = outlier_sentences(many)
    assert "n1:7 and 12 more take 2.5 to 4.4 times" in sentence
    assert new_outliers(many, many) == []
