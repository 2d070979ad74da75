"""``gpu-aware-profile drift``: exit codes, table, JSON."""

import json
import time
from pathlib import Path

import pytest
from click.testing import Result
from commands import gpu_aware_profile, refusal, succeeded
from store_samples import ingest, report

from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.measurements import Run, add_runs

DAY_S = 86_400.0


def measure(store: Store, age_days: float, slow: dict[int, list[float]] | None = None) -> None:
    """Three runs of each of 12 GPUs of n1; ``slow``: GPU -> times of its runs."""
    at = time.time() - age_days * DAY_S
    ingest(store, {**report("n1", at, dict.fromkeys(range(12), 1.0)), "timings": []})
    times = {slot: [100.0, 100.4, 99.7] for slot in range(12)} | (slow or {})
    runs = [Run("n1", slot, "A", at, ms) for slot, own in times.items() for ms in own]
    add_runs(store, runs, source="fake")


def measure_twice(path: Path, slow: dict[int, list[float]] | None = None) -> None:
    """40 days ago and one day ago; ``slow``: in the second measurement."""
    with open_store(path) as store:
        measure(store, 40)
        measure(store, 1, slow)


def called(path: Path, *options: str) -> Result:
    config = path.with_name("config.toml")
    config.touch()
    return gpu_aware_profile("drift", "--store", str(path), "--config", str(config), *options)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "store.db"


def test_a_slower_gpu_is_named_and_the_exit_code_says_so(path: Path) -> None:
    measure_twice(path, {5: [115.0] * 3, 7: [100.0, 400.0, 100.2]})
    done = called(path)
    assert done.exit_code == 3, done.output
    lines = done.stdout.splitlines()
    words = ["class", "node", "GPU", "model", "before", "now", "rise", "spread", "runs", "since"]
    assert lines[0].split() == words
    assert len(lines) == 3
    assert lines[2].split()[:7] == ["A", "n1", "5", "v100", "1.000", "1.150", "+15.0%"]
    answer = json.loads(called(path, "--json").stdout)
    assert [(g["node"], g["gpu"], g["class"]) for g in answer["slower"]] == [("n1", 5, "A")]
    assert answer["compared"] == 12
    assert answer["slower"][0]["rise"] == pytest.approx(0.15, abs=0.001)


def test_without_a_slower_gpu_the_exit_code_is_0(path: Path) -> None:
    measure_twice(path)
    done = succeeded(called(path))
    assert done.stdout == ""
    assert "no GPU became slower (12 pairs of GPU and class compared)" in done.stderr


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        (
            {slot: [108.0, 108.3, 107.8] for slot in range(12)},
            "class A: the median of all 12 GPUs v100 moved by +8.0%, which no score",
        ),
        ({5: [115.0]}, "slower in fewer than 3 runs, so not counted: n1:5"),
    ],
)
def test_what_is_no_drift_of_a_gpu_is_said(
    path: Path, slow: dict[int, list[float]], said: str
) -> None:
    measure_twice(path, slow)
    assert said in succeeded(called(path)).stderr


def test_what_is_older_is_no_drift_since_then(path: Path) -> None:
    with open_store(path) as store:
        measure(store, 40)
        measure(store, 20, {5: [115.0] * 3})
        measure(store, 1, {5: [115.0] * 3})
    assert called(path, "--since", "7d").exit_code == 0
    assert called(path, "--since", "30d").exit_code == 3


def test_one_measurement_is_nothing_to_compare(path: Path) -> None:
    with open_store(path) as store:
        measure(store, 1)
    assert "nothing to compare" in succeeded(called(path)).stderr


def test_the_site_sets_the_least_rise(path: Path) -> None:
    measure_twice(path, {5: [115.0] * 3})
    path.with_name("config.toml").write_text("[profiling]\nslower_percent = 20\n")
    assert called(path).exit_code == 0


@pytest.mark.parametrize("since", ["30", "d", "-1d", "1y", "999999d"])
def test_an_age_has_a_unit(path: Path, since: str) -> None:
    assert "is not an age such as 30d, 12h or 90m" in refusal(called(path, "--since", since), 2)


def test_a_store_that_is_named_is_read_whatever_the_site_publishes(path: Path) -> None:
    measure_twice(path, {5: [115.0] * 3})
    other = path.with_name("other.db")
    open_store(other).close()  # newer
    path.with_name("config.toml").write_text(f'[store]\npublished = "{other}"\n')
    assert called(path).exit_code == 3
