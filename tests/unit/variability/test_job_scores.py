"""Scores of GPUs from finished jobs."""

import pytest

from slurm_gpu_aware.variability.scores import JobRun, JobScore, job_scores


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
