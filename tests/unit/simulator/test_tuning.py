"""What a seed of tune draws, and how candidates are compared."""

import math
import re
from collections import Counter

import numpy as np
import pytest

from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.simulator.tuning import (
    compare,
    covered_days,
    drawn_days,
    drawn_runs,
    verdict,
)

DAY_S = 86_400.0


def trace_of(days: int, per_day: int) -> Trace:
    """Jobs at noon of each day, named after it; two that wait when the trace begins."""
    waiting = [TraceJob(f"w{n}", 0.0, 1, 60.0) for n in range(2)]
    jobs = [
        TraceJob(f"{day}", (day + 0.5) * DAY_S + n, 1, 60.0 + day)
        for day in range(days)
        for n in range(per_day)
    ]
    return Trace.of("t", [*waiting, *jobs])


def test_days_are_drawn_from_those_of_their_weekday() -> None:
    trace = trace_of(28, 3)
    sources = set()
    for seed in range(1, 9):
        drawn = drawn_days(trace, range(28), seed)
        assert [job.submit_s for job in drawn.jobs] == sorted(job.submit_s for job in drawn.jobs)
        assert len(drawn.jobs) == len(trace.jobs)
        assert len({job.job_id for job in drawn.jobs}) == len(drawn.jobs)
        assert [job.submit_s for job in drawn.jobs[:2]] == [0.0, 0.0]
        for job in drawn.jobs[2:]:
            day, source = int(job.submit_s // DAY_S), int(job.duration_s - 60.0)
            assert (day - source) % 7 == 0
            sources.add((day, source))
    assert len(sources) > 60
    same = [drawn_days(trace, range(28), 5).jobs for _ in range(2)]
    assert same[0] == same[1]


def test_days_before_the_history_are_not_drawn() -> None:
    jobs = [TraceJob(str(n), (10 + n / 10) * DAY_S, 1, 60.0) for n in range(200)]
    trace = Trace.of("t", jobs)
    days = covered_days(trace, 30)
    assert days == range(10, 30)
    drawn = drawn_days(trace, days, 3)
    assert len(drawn.jobs) == 200
    assert {int(job.submit_s // DAY_S) for job in drawn.jobs} == set(days)


@pytest.mark.parametrize(("days", "per_day"), [(13, 100), (28, 5)])
def test_too_little_history_is_said(days: int, per_day: int) -> None:
    jobs = [job for job in trace_of(days, per_day).jobs if job.submit_s]
    with pytest.raises(RequestError, match=r"too little history: \d+ jobs with GPUs in \d+ days"):
        covered_days(Trace.of("t", jobs), days)
    with pytest.raises(RequestError, match="0 jobs with GPUs in 0 days"):
        covered_days(Trace.of("t", []), 30)


def test_a_gpu_runs_as_in_one_of_its_runs() -> None:
    truth = {"A": np.array([[1.0, 1.5]]), "B": np.array([[1.0, 1.0]])}
    values = {0: (90.0, 100.0, 110.0), 1: (150.0,)}
    runs = [
        GpuTiming("n1", slot, "A", value, 0.0, "")
        for slot, found in values.items()
        for value in found
    ]
    runs += [GpuTiming("gone", 0, "A", 7.0, 0.0, ""), GpuTiming("n1", 9, "A", 7.0, 0.0, "")]
    seen: Counter[float] = Counter()
    for seed in range(1, 61):
        drawn = drawn_runs(truth, ["n1"], runs, seed)
        assert drawn["A"][0, 1] == 1.5  # its only run
        assert (drawn["B"] == 1.0).all()
        seen[round(float(drawn["A"][0, 0]), 9)] += 1
    assert set(seen) == {0.9, 1.0, 1.1}
    assert min(seen.values()) > 8
    assert truth["A"][0, 0] == 1.0


def seeds(*jct: float, **others: float) -> list[dict[str, float]]:
    """Measures of a candidate: completion times per seed, and other measures."""
    usual = {"gpu_s": 100.0, "p99_jct_s": 900.0, "longest_wait_s": 600.0, "multi_jct_s": 300.0}
    return [{"jct_s": value, "lost": 0.0, **usual, **others} for value in jct]


def test_the_interval_holds_another_sample_as_often_as_it_says() -> None:
    """Of 8 seeds: the gain of a ninth lies in the interval in 95% of 2,000 cases."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        ratios = np.exp(rng.normal(-0.05, 0.03, 9))
        found = compare(seeds(*ratios[:8]), seeds(*[1.0] * 8))
        inside += found.low <= 1 - ratios[8] <= found.high
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)


def test_a_gain_is_paired_and_geometric() -> None:
    packed = seeds(100.0, 400.0, 50.0, 10.0)
    found = compare(seeds(90.0, 360.0, 45.0, 9.0), packed)
    assert found.gain == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))
    found = compare(seeds(50.0, 800.0, 50.0, 10.0), packed)
    assert found.gain == pytest.approx(0.0)
    assert found.low < 0 < found.high


@pytest.mark.parametrize(
    ("others", "harm"),
    [
        ({"p99_jct_s": 917.0}, None),
        ({"p99_jct_s": 920.0}, "the 99th percentile of completion times would be 2.2% longer"),
        ({"longest_wait_s": 660.0}, "the longest wait would be 10.0% longer"),
        ({"longest_wait_s": 1860.0}, "the longest wait would be 3 times as long"),
        ({"multi_jct_s": 310.0}, "jobs with several GPUs would be 3.3% longer"),
        ({"multi_jct_s": math.nan}, None),
        ({"gpu_s": 200.0}, None),
        ({"lost": 0.02}, "2.0% more jobs would reach their limits"),
    ],
)
def test_harms(others: dict[str, float], harm: str | None) -> None:
    found = compare(seeds(80.0, 81.0, 79.0, 80.0, **others), seeds(100.0, 100.0, 100.0, 100.0))
    assert found.sure is (harm is None)
    assert harm is None or harm in found.harms[0]


def test_a_wait_of_seconds_is_no_harm() -> None:
    quiet = seeds(100.0, 100.0, longest_wait_s=0.0)
    assert compare(seeds(90.0, 91.0, longest_wait_s=55.0), quiet).harms == []
    assert compare(seeds(90.0, 91.0, longest_wait_s=65.0), quiet).harms != []


PACKED = seeds(100.0, 100.0, 100.0, 100.0)
BETTER = seeds(90.0, 91.0, 89.0, 90.0)
BEST = seeds(85.0, 86.0, 84.0, 85.0)
NOISE = seeds(80.0, 120.0, 90.0, 105.0)


def test_the_best_replaces_the_present_one() -> None:
    found = {"packed": PACKED, "a": BETTER, "b": BEST, "noise": NOISE}
    best = verdict(found, "packed", "a")
    assert (best.best, best.pays, best.changes) == ("b", True, True)
    assert "b is the best" in best.text
    assert "b is ahead of the present setting, a: it gains 5.6%" in best.text
    best = verdict(found, "packed", "b")
    assert (best.best, best.changes) == ("b", False)
    assert best.text.endswith("It is the present setting.")


def test_a_larger_gain_within_the_uncertainty_does_not_win() -> None:
    noise = seeds(60.0, 120.0, 70.0, 75.0)
    best = verdict({"packed": PACKED, "a": BETTER, "noise": noise}, "packed", "packed")
    assert (best.best, best.changes) == ("a", True)
    best = verdict({"packed": PACKED, "a": BETTER, "noise": noise}, "packed", "noise")
    assert (best.best, best.changes) == ("a", False)
    assert "a does not replace the present setting, noise" in best.text


def test_where_nothing_pays_it_is_said_and_packed_replaces_what_is_worse() -> None:
    worse = seeds(110.0, 111.0, 109.0, 110.0)
    best = verdict({"packed": PACKED, "noise": NOISE}, "packed", "packed")
    assert (best.best, best.pays, best.changes) == ("packed", False, False)
    assert best.text.startswith("Placement does not pay here: no candidate is ahead of packed")
    best = verdict({"packed": PACKED, "noise": NOISE, "worse": worse}, "packed", "worse")
    assert (best.best, best.pays, best.changes) == ("packed", False, True)


def test_a_gain_at_the_cost_of_the_longest_wait_is_none() -> None:
    greedy = seeds(80.0, 81.0, 79.0, 80.0, longest_wait_s=900.0)
    best = verdict({"packed": PACKED, "greedy": greedy}, "packed", "packed")
    assert (best.best, best.changes) == ("packed", False)
    assert "but the longest wait would be 50.0% longer" in best.text
    assert "no candidate is ahead of packed without harm; the nearest, greedy, gains" in best.text


def test_what_decided_against_a_candidate_that_gains_as_much_is_said() -> None:
    greedy = seeds(*[value * 0.9999 for value in (90.0, 91.0, 89.0, 90.0)], longest_wait_s=660.0)
    said = "greedy gains 10.0% (95%: 7.1 to 12.9%), but the longest wait would be 10.0% longer. It"
    best = verdict({"packed": PACKED, "a": BETTER, "greedy": greedy}, "packed", "a")
    assert best.best == "a"
    assert said in best.text
    noise = seeds(60.0, 120.0, 70.0, 75.0)
    best = verdict({"packed": PACKED, "a": BETTER, "noise": noise}, "packed", "a")
    assert re.search(r" noise gains 2\d\.\d% \(95%: .*\), within the uncertainty\. ", best.text)
    worse = seeds(92.0, 93.0, 91.0, 92.0, longest_wait_s=660.0)
    best = verdict({"packed": PACKED, "a": BETTER, "worse": worse}, "packed", "a")
    assert "worse" not in best.text
