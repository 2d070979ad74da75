"""Means and ranges over seeds, gains, and each job against itself."""

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.result import as_good, over_seeds
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

ONE = Cluster.uniform(1, 2)
TRACE = Trace.of("t", [TraceJob("a", 0, 2, 100), TraceJob("b", 0, 1, 100)])


def result(score, policy="packed"):
    truth = {"B": np.full((1, 2), float(score))}
    return simulate(TRACE, ONE, SimSettings(policy=policy), truth=truth)


def test_numbers_are_means_with_their_range():
    packed, pal = over_seeds([[result(1.0), result(0.8)], [result(2.0), result(1.0)]])
    assert packed["avg_jct_s"] == pytest.approx((150 + 300) / 2)
    assert packed["range"]["avg_jct_s"] == pytest.approx([150, 300])
    assert packed["jobs"] == 2
    assert packed["gain"] is packed["each_job"] is None
    gain = pal["gain"]
    assert gain["mean"] == pytest.approx(1 - (0.8 * 0.5) ** 0.5)
    # two values, each as far from their mean: the standard error is that distance
    assert gain["error"] == pytest.approx((0.8 * 0.5) ** 0.5 * np.log(0.8 / 0.5) / 2)
    assert (gain["low"], gain["high"]) == (pytest.approx(0.2), pytest.approx(0.5))
    assert pal["ratio_to_first"]["avg_jct_s"] == pytest.approx((0.8 * 0.5) ** 0.5)
    assert pal["each_job"]["median"] == pytest.approx(0.65)
    assert pal["each_job"]["slower"] == 0.0


def test_a_single_seed_has_no_range_but_its_pairs():
    _, slow = over_seeds([[result(1.0), result(1.5)]])
    assert slow["range"]["avg_jct_s"] == pytest.approx([225, 225])
    assert slow["gain"] == pytest.approx({"mean": -0.5, "error": 0.0, "low": -0.5, "high": -0.5})
    assert slow["each_job"] == pytest.approx({"median": 1.5, "p5": 1.5, "p95": 1.5, "slower": 1.0})


def test_a_killed_job_is_in_no_pair():
    trace = Trace.of("t", [TRACE.jobs[0], TraceJob("b", 0, 1, 100, time_limit_s=90)])
    runs = [simulate(trace, ONE, SimSettings(overrun=rule)) for rule in ("extend", "kill")]
    _, killed = over_seeds([runs])
    assert killed["killed"] == 1
    assert killed["each_job"]["median"] == 1.0


@pytest.mark.parametrize(
    ("low", "mean", "high", "error", "same"),
    [
        (-0.012, 0.004, 0.02, 0.001, True),
        (0.001, 0.004, 0.02, 0.001, False),
        (-0.01, 0.03, 0.07, 0.014, False),
        (-0.05, 0.03, 0.07, 0.016, True),
        (-0.07, -0.03, 0.05, 0.016, True),
        (0.0, 0.0, 0.0, 0.0, True),
    ],
)
def test_a_policy_is_as_good_if_the_seeds_disagree_on_its_gain(low, mean, high, error, same):
    assert as_good({"low": low, "mean": mean, "high": high, "error": error}) is same
