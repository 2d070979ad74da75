"""PM scores, the combination of repeated runs, and scores from finished jobs."""

import csv

import numpy as np
import pytest
from needs import shared_data

from slurm_gpu_aware.variability.scores import JobRun, JobScore, job_scores, pm_scores, run_medians


def test_median_gpu_has_score_one() -> None:
    assert pm_scores([103.0, 100.0, 150.0]).tolist() == pytest.approx([1.0, 100 / 103, 150 / 103])


def test_even_count_takes_the_middle() -> None:
    assert pm_scores([90.0, 110.0]).tolist() == pytest.approx([0.9, 1.1])


def test_each_model_has_its_own_median() -> None:
    times = [100.0, 120.0, 140.0, 50.0, 60.0, 70.0]
    models = ["v100"] * 3 + ["a100"] * 3
    own = pm_scores(times, models)
    assert own[:3].tolist() == pytest.approx([100 / 120, 1.0, 140 / 120])
    assert own[3:].tolist() == pytest.approx([50 / 60, 1.0, 70 / 60])
    together = pm_scores(times)
    assert together[:3] / own[:3] == pytest.approx([120 / 85] * 3)  # one factor per model


def test_nothing_measured_gives_no_scores() -> None:
    assert pm_scores([]).shape == (0,)
    assert pm_scores([], []).shape == (0,)
    assert pm_scores([], None, []).shape == (0,)


def test_the_median_is_that_of_the_gpus_that_count():
    counted = [True, True, False, False]
    assert pm_scores([100.0, 100.0, 50.0, 70.0], None, counted).tolist() == [1.0, 1.0, 0.5, 0.7]
    own = pm_scores([100.0, 100.0, 50.0, 70.0], ["a", "a", "b", "b"], counted)
    assert own.tolist() == pytest.approx([1.0, 1.0, 5 / 6, 7 / 6])  # of b none counts


def test_runs_are_combined_by_their_median() -> None:
    assert run_medians([7, 3, 7, 7, 3], [100.0, 10.0, 400.0, 102.0, 20.0]) == {7: 102.0, 3: 15.0}
    assert run_medians([], []) == {}


def test_combining_equals_numpy_median() -> None:
    rng = np.random.default_rng(0)
    gpu, times = rng.integers(0, 30, 400), rng.uniform(1, 9, 400)
    combined = run_medians(gpu.tolist(), times)
    assert combined == {i: np.median(times[gpu == i]) for i in combined}


@pytest.mark.shared
def test_a_transient_of_a_node_does_not_make_its_gpus_slow() -> None:
    """The slowest run on Longhorn is 3.57 x the median; no GPU is slower than 1.12."""
    with shared_data("variability/runs/longhorn_resnet_runs.csv").open() as stream:
        rows = [(row["gpu"], float(row["value_ms"])) for row in csv.DictReader(stream)]
    times = list(run_medians([gpu for gpu, _ in rows], [value for _, value in rows]).values())
    scores = pm_scores(times)
    assert max(value for _, value in rows) / np.median(times) == pytest.approx(3.57, abs=0.02)
    assert scores.max() == pytest.approx(1.12, abs=0.005)


def run_of(slot: int, run_s: float, kind: str = "train", app_class: str = "A") -> JobRun:
    return JobRun(app_class, kind, [("n1", slot)], run_s)


def test_a_gpu_on_which_jobs_take_longer_has_a_higher_score() -> None:
    runs = [run_of(slot, 100.0) for slot in (0, 1) for _ in range(4)]
    runs += [run_of(2, seconds) for seconds in (118.0, 120.0, 122.0)]
    assert job_scores(runs) == [
        JobScore("n1", 0, "A", 1.0, 4),
        JobScore("n1", 1, "A", 1.0, 4),
        JobScore("n1", 2, "A", 1.2, 3),
    ]


def test_kinds_and_classes_are_compared_apart() -> None:
    runs = [run_of(0, 100.0), run_of(0, 100.0), run_of(0, 100.0)]
    runs += [run_of(1, 5000.0, kind="other")] * 3 + [run_of(1, 7.0, app_class="B")] * 3
    assert [score.score for score in job_scores(runs)] == [1.0, 1.0, 1.0]


def test_too_few_jobs_tell_nothing() -> None:
    few_of_a_kind = [run_of(0, 100.0, kind=str(number)) for number in range(5)]
    assert job_scores(few_of_a_kind) == []
    assert job_scores([run_of(0, 100.0), run_of(0, 100.0), run_of(1, 100.0)]) == []


def test_a_job_counts_for_each_of_its_gpus() -> None:
    runs = [JobRun("A", "x", [("n1", 0), ("n2", 3)], seconds) for seconds in (90.0, 100.0, 130.0)]
    found = job_scores(runs)
    assert [(s.node, s.slot, s.jobs) for s in found] == [("n1", 0, 3), ("n2", 3, 3)]
    assert found[0].score == pytest.approx(1.0)
