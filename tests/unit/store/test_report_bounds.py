"""Nothing unbounded enters the store, whatever a node reports."""

from typing import Any

import pytest
from store_samples import ingest, report

from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.profiles import classes_of_gpu
from slurm_gpu_aware.store.report import MAX_CLASSES, MAX_FAULTS, MAX_RUNS, parse_report


def timed(*classes: str, at: float = 1000.0) -> dict[str, Any]:
    """A report of one GPU with a run of each of these classes."""
    raw = report(taken_at=at, times={0: 1.0})
    raw["timings"] = [{"index": 0, "class": name, "value_ms": 1.0} for name in classes]
    return raw


def test_runs_of_a_report_are_bounded() -> None:
    parse_report(timed(*["A"] * MAX_RUNS))
    with pytest.raises(SourceError, match=f"at most {MAX_RUNS} entries, .* {MAX_RUNS + 1}$"):
        parse_report(timed(*["A"] * (MAX_RUNS + 1)))


def test_classes_of_a_report_are_bounded() -> None:
    names = [f"c{i}" for i in range(MAX_CLASSES + 1)]
    parse_report(timed(*names[:-1]))
    with pytest.raises(SourceError, match=f"{MAX_CLASSES + 1} classes"):
        parse_report(timed(*names))


def test_clocks_of_a_gpu_are_bounded() -> None:
    raw = timed("A")
    raw["gpus"][0]["clocks_mhz"] = list(range(1, 1026))
    with pytest.raises(SourceError, match="clocks_mhz"):
        parse_report(raw)


def test_of_many_faults_the_first_ones_are_kept() -> None:
    errors = [{"index": None, "call": f"call{i}", "error": "no"} for i in range(2 * MAX_FAULTS)]
    faults = parse_report(report(errors=errors)).faults
    assert [fault.call for fault in faults] == [f"call{i}" for i in range(MAX_FAULTS)]


def test_reports_with_ever_new_classes_are_refused_by_name(store: Store) -> None:
    ingest(store, timed(*[f"c{i}" for i in range(MAX_CLASSES)], at=1.0))
    ingest(store, timed("c0", "c1", at=2.0))
    with pytest.raises(StoreError, match=f"GPU 0 of node n1 has times of {MAX_CLASSES} classes"):
        ingest(store, timed("new", at=3.0))
    assert len(classes_of_gpu(store, "n1", 0)) == MAX_CLASSES
    rows = store.query("SELECT max(taken_at_unix) FROM timings")
    assert rows[0][0] == 2.0


@pytest.mark.parametrize("model", ["$\\frac{", "a b", "\x1b[2J", "", "x" * 256, "<b>"])
def test_a_model_is_a_name(model: str) -> None:
    """Pictures, sentences and node features contain it."""
    raw = timed("A")
    raw["gpus"][0]["model"] = model
    with pytest.raises(SourceError, match=r"gpus\[0\]\.model: expected a name of letters"):
        parse_report(raw)
