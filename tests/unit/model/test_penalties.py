"""Locality penalties, measured and configured; placement with them."""

from dataclasses import replace

import numpy as np
import pytest
from make import replayed
from pal_walk import traversal

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.penalties import (
    INSIDE_NODE,
    LEVELS,
    LevelTime,
    combine,
    level_ratios,
)
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import predicted_slowdown
from slurm_gpu_aware.placement.facts import Chosen
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.topology.locality import build_levels

EXAMPLE = {"A": {"node": 1.0, "switch": 1.2, "cluster": 1.6}}
SWITCHES = {"switch": {"n0": "s0", "n1": "s0", "n2": "s1", "n3": "s1"}}


def runs(app_class: str, model: str = "", **times: float | list[float]) -> list[LevelTime]:
    return [
        LevelTime(app_class, level, value, model)
        for level, values in times.items()
        for value in (values if isinstance(values, list) else [values])
    ]


def penalties_of(configured, measured, app_class, across=1.5):
    row = combine(configured, measured, across=across).of(app_class)
    return [(name, round(value, 6), source) for name, (value, source) in row.items()]


def test_the_worked_example():
    """Runs of 100, 104, 108 ms in a node; 129.4 behind a switch: the median's ratio is 1.2442."""
    times = runs("A", node=[108.0, 100.0, 104.0], switch=129.4, cluster=[166.4, 170.0, 160.0])
    assert level_ratios(times) == {
        "A": {"node": 1.0, "switch": 129.4 / 104.0, "cluster": 166.4 / 104.0}
    }


def test_the_reference_is_the_innermost_level_of_the_class():
    times = runs("A", cluster=30.0, nvlink=20.0, node=22.0) + runs("B", cluster=12.0, node=10.0)
    assert level_ratios(times) == {
        "A": {"nvlink": 1.0, "node": 1.1, "cluster": 1.5},
        "B": {"node": 1.0, "cluster": 1.2},
    }


def test_models_are_compared_with_themselves_only():
    """A V100 takes twice as long; its ratio of 1.4 and the A100's 1.6 make 1.5."""
    times = runs("A", "v100", node=200.0, cluster=280.0) + runs(
        "A", "a100", node=100.0, cluster=160.0
    )
    assert level_ratios(times) == {"A": {"node": 1.0, "cluster": 1.5}}


def test_a_class_without_a_time_inside_a_node_has_no_ratio():
    assert level_ratios(runs("A", switch=100.0, cluster=130.0)) == {}
    assert set(INSIDE_NODE) < set(LEVELS)


def test_configured_before_measured_before_default():
    assert penalties_of({}, EXAMPLE, "A") == [
        ("node", 1.0, "measured"),
        ("switch", 1.2, "measured"),
        ("cluster", 1.6, "measured"),
    ]
    assert penalties_of({"cluster": 1.5}, EXAMPLE, "A")[-1] == ("cluster", 1.5, "configured")
    assert penalties_of({}, {}, "A") == [("node", 1.0, ""), ("cluster", 1.5, "default")]
    assert penalties_of({}, {"A": {"node": 1.0, "switch": 1.2}}, "A")[-1] == (
        "cluster",
        1.5,
        "default",
    )


def test_a_class_that_was_not_measured_is_as_without_the_level():
    assert penalties_of({}, EXAMPLE, "B") == [
        ("node", 1.0, ""),
        ("switch", 1.5, "as cluster"),
        ("cluster", 1.5, "default"),
    ]
    nvlinks = {"A": {"nvlink": 1.0, "node": 1.2}}
    assert penalties_of({}, nvlinks, "B")[:2] == [("nvlink", 1.0, "as node"), ("node", 1.0, "")]


def test_ratios_are_relative_to_a_level_that_itself_has_a_penalty():
    """Sockets count here; the class was timed from the node on, which costs 1.1."""
    configured = {"socket": 1.0, "node": 1.1}
    assert penalties_of(configured, EXAMPLE, "A") == [
        ("socket", 1.0, "configured"),
        ("node", 1.1, "configured"),
        ("switch", 1.32, "measured"),
        ("cluster", 1.76, "measured"),
    ]


def test_what_lies_outside_its_bounds_is_moved_and_says_so():
    noisy = {"A": {"node": 1.0, "switch": 0.97, "rack": 1.3, "cluster": 1.25}}
    assert [one[1:] for one in penalties_of({}, noisy, "A")] == [
        (1.0, "measured"),
        (1.0, "measured, not below node"),
        (1.3, "measured"),
        (1.3, "measured, not below rack"),
    ]
    assert penalties_of({"cluster": 1.5}, {"A": {"node": 1.0, "rack": 1.7}}, "A")[1:] == [
        ("rack", 1.5, "measured, not above cluster"),
        ("cluster", 1.5, "configured"),
    ]
    assert penalties_of({}, {"A": {"node": 1.0, "rack": 1.7}}, "A")[-1] == (
        "cluster",
        1.7,
        "default, not below rack",
    )


def cluster_with(measured, configured=None, scores=None) -> Cluster:
    base = Cluster.uniform(4, 2, scores=scores)
    penalties = combine(configured or {}, measured, across=1.5)
    return replace(base, levels=build_levels(penalties, base.nodes, 2, network=SWITCHES))


def test_the_walk_of_a_class_goes_by_its_own_penalties():
    cluster = cluster_with(EXAMPLE, scores={c: np.array([[1.0, 1.3]] * 4) for c in "AB"})
    assert [(name, v, round(lv, 4)) for name, v, lv in traversal(cluster, "A")] == [
        ("node", 1.0, 1.0),
        ("switch", 1.0, 1.2),
        ("node", 1.3, 1.3),
        ("switch", 1.3, 1.56),
        ("cluster", 1.0, 1.6),
        ("cluster", 1.3, 2.08),
    ]
    assert [(name, v) for name, v, _ in traversal(cluster, "B")][:2] == [
        ("node", 1.0),
        ("node", 1.3),
    ]


@pytest.mark.parametrize("policy", ["pal", "pal+mapa"])
def test_a_measured_penalty_changes_what_a_job_gets(policy):
    """n0 has a slow GPU (1.3). Two GPUs behind a switch: 1.2 for A, 1.5 for B, and 1.3 on n0.

    So A goes to two nodes and B takes the slow GPU. All other nodes have one GPU free.
    """
    scores = {c: np.array([[1.0, 1.3], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]) for c in "AB"}
    cluster = cluster_with(EXAMPLE, scores=scores).copy()
    for node in (1, 2, 3):
        cluster.take(node, [1])
    chooser = make_policy(policy)
    a, b = (chooser.place(Request(c, 2, app_class=c), cluster) for c in "AB")
    assert (a.nodes, a.level, a.slowdown) == ((2, 3), "switch", pytest.approx(1.2))
    assert (b.nodes, b.level, b.slowdown) == ((0,), "node", pytest.approx(1.3))
    assert a.why.of(Chosen).penalty_from == "measured"
    assert predicted_slowdown(cluster, "B", [0, 1], [[0], [0]]) == (1.0, "switch", 1.5)
    fixed = cluster_with(EXAMPLE, {"switch": 1.4}, scores).copy()
    for node in (1, 2, 3):
        fixed.take(node, [1])
    assert chooser.place(Request("A", 2, app_class="A"), fixed).nodes == (0,)


def test_simulated_jobs_run_at_the_penalty_of_their_class():
    physics = Physics(cluster_with(EXAMPLE), SimSettings())
    for app_class, level, slowdown in (("A", 1, 1.2), ("A", 2, 1.6), ("B", 1, 1.5), ("B", 2, 1.5)):
        job = TraceJob("1", 0.0, 2, 100.0, app_class)
        assert physics.slowdown(job, [0, level], [(0,), (0,)]) == pytest.approx(slowdown)
        assert physics.expected(job, [0, level]) == pytest.approx(slowdown)


def test_a_recorded_round_keeps_them():
    cluster = cluster_with(EXAMPLE)
    queue = [Request("1", 4, app_class="A"), Request("2", 4, app_class="B")]
    again = replayed(Round(queue, cluster, PlanSettings(policy="pal"), 0.0)).asked.cluster
    for level, kept in zip(cluster.levels, again.levels, strict=True):
        assert (kept.of("A"), kept.of("B")) == (level.of("A"), level.of("B"))


def test_a_job_on_a_full_plain_node_counts_as_on_median_gpus():
    """Which GPUs it has is not known, and none is free: no slowdown of 0, by which times divide."""
    cluster = cluster_with(EXAMPLE).copy()
    cluster.indexed[0] = False
    cluster.free[0] = False
    assert predicted_slowdown(cluster, "B", [0], [[]])[::2] == (1.0, 1.0)
