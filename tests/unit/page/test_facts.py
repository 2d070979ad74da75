"""Facts and drawings of the pages: use and groups of GPUs, scores over time, places of lines."""

import random
from itertools import pairwise

import pytest
from make import slurm_job, slurm_node

from slurm_gpu_aware.model.profile import Fault, GpuRecord, Link, Profile
from slurm_gpu_aware.page.blocks import BUSY, DRAINED, FREE, UNKNOWN, Mark, Shares
from slurm_gpu_aware.page.drawing import HEIGHT, SIDE, WIDTH, Curve, chart, node_drawings
from slurm_gpu_aware.page.drift import scores_over_time
from slurm_gpu_aware.page.fleet_facts import (
    MOST_NODES,
    MOST_RACKS,
    NodeFacts,
    fleet_nodes,
    grouped,
)
from slurm_gpu_aware.slurm.records import NodeShare
from slurm_gpu_aware.topology.machines import machine

EMPTY = Profile({}, {}, {}, {}, {}, {})


def uses(node: NodeFacts) -> list[str]:
    return [gpu.mark.use for gpu in node.gpus]


def test_a_gpu_is_busy_drained_or_free_and_unknown_without_slurm() -> None:
    nodes = [
        slurm_node("n1", used=(0,), gpus_drained=frozenset({0, 1})),
        slurm_node("n2", used=(3,), states=frozenset({"IDLE", "DRAIN"})),
        slurm_node("n3", shards={2: (1, 4), 3: (0, 4)}),
    ]
    profile = Profile({}, {}, {("n4", 0): GpuRecord()}, {}, {}, {})
    found = {node.name: uses(node) for node in fleet_nodes(nodes, [], profile, [], {})}
    assert found == {
        "n1": [BUSY, DRAINED, FREE, FREE],
        "n2": [DRAINED, DRAINED, DRAINED, BUSY],
        "n3": [FREE, FREE, BUSY, FREE],
        "n4": [UNKNOWN],
    }


def test_a_gpu_names_its_jobs_and_what_is_wrong_with_it() -> None:
    share = NodeShare("n1", 1, 1, (2,), shards={3: 1})
    jobs = [slurm_job(7, state="RUNNING", shares=(share,)), slurm_job(8, shares=(share,))]
    faults = {"n1": (Fault(1, "nvmlCall", "lost"), Fault(None, "time", "over"))}
    record = GpuRecord(ecc_uncorrected=2)
    profile = Profile({}, {}, {("n1", 0): record}, {}, {}, faults)
    (node,) = fleet_nodes([slurm_node("n1", (2,))], jobs, profile, [], {("n1", 3): ["slow"]})
    assert [list(gpu.jobs) for gpu in node.gpus] == [[], [], ["7"], ["7"]]
    assert [gpu.mark.health for gpu in node.gpus] == ["ill", "ill", "", "slow"]
    assert list(node.gpus[0].ill) == ["2 uncorrected memory errors"]
    assert list(node.gpus[1].ill) == ["nvmlCall: lost"]
    assert list(node.faults) == ["time: over"]


def test_a_node_whose_name_no_node_has_is_left_out() -> None:
    nodes = [slurm_node(name) for name in ("../etc", "<b>", "n1", "n1/x", "")]
    assert [node.name for node in fleet_nodes(nodes, [], EMPTY, [], {})] == ["n1"]


def test_damaged_links_are_no_links() -> None:
    gpus = {("n1", slot): GpuRecord() for slot in (0, 1)}
    profile = Profile({}, {}, gpus, {"n1": (Link(0, 9, "NV2", 50.0),)}, {}, {})
    (node,) = fleet_nodes([], [], profile, [], {})
    assert node.graph is None


@pytest.mark.parametrize("names", [
    [f"n{i}" for i in range(2000)],
    [f"r{i}-n1" for i in range(2000)],
    [f"r1-n{i}" for i in range(1, 2001)],
])  # fmt: skip
def test_pages_of_racks_are_bounded_and_hold_each_node_once(names: list[str]) -> None:
    racks, _ = grouped([NodeFacts(name, "", ()) for name in names], ())
    assert len(racks) <= MOST_RACKS
    assert max(len(rack.nodes) for rack in racks) <= MOST_NODES
    assert sorted(node.name for rack in racks for node in rack.nodes) == sorted(names)
    assert len({rack.path for rack in racks}) == len({rack.name for rack in racks}) == len(racks)


def runs_of(factor, days=60, gpus=40):
    """Runs every tenth day; ``factor(gpu, day)``."""
    rng = random.Random(1)
    return {
        ("n1", gpu): [
            ("A", day * 86_400.0 + gpu, 100.0 * factor(gpu, day) * rng.gauss(1.0, 0.002))
            for day in range(0, days, 10)
            for _ in range(3)
        ]
        for gpu in range(gpus)
    }


def test_a_gpu_that_becomes_slower_rises_and_the_others_do_not() -> None:
    runs = runs_of(lambda gpu, day: 1.1 if gpu == 3 and day >= 30 else 1.0)
    models = dict.fromkeys(runs, "v100")
    history = scores_over_time("A", [("n1", 3), ("n1", 4)], models, runs)
    slow = [value for _, value in history.curves["n1", 3]]
    assert slow == pytest.approx([1.0] * 3 + [1.1] * 3, abs=0.01)
    assert [v for _, v in history.curves["n1", 4]] == pytest.approx([1.0] * 6, abs=0.01)
    assert all(0.99 < low <= high < 1.01 for _, low, high in history.band)


def test_a_change_of_all_gpus_is_no_drift_and_models_are_not_compared() -> None:
    runs = runs_of(lambda gpu, day: (1.3 if day >= 30 else 1.0) * (2.0 if gpu % 2 else 1.0))
    models = {gpu: "h100" if gpu[1] % 2 else "v100" for gpu in runs}
    history = scores_over_time("A", list(runs)[:2], models, runs)
    ends = [value for points in history.curves.values() for value in (points[0][1], points[-1][1])]
    assert ends == pytest.approx([1.0] * 4, abs=0.01)


def test_a_class_without_runs_has_no_curve() -> None:
    history = scores_over_time("B", [("n1", 3)], {("n1", 3): ""}, {("n1", 3): [("A", 1.0, 2.0)]})
    assert (history.curves, list(history.band)) == ({}, [])


@pytest.mark.parametrize(("name", "kinds", "hub"), [
    ("dgx-1-v100", 2, ""), ("dgx-a100", 1, "switch"), ("h100-nvl-8", 1, ""), ("dgx-2", 1, "switch"),
    ("rtx-pro-8", 1, ""), ("pcie-gen4-4", 0, ""),
])  # fmt: skip
def test_a_node_is_drawn_inside_its_square_with_links_by_kind(name, kinds, hub) -> None:
    graph = machine(name)
    marks = [(Mark(slot, FREE, False, False), "1.000") for slot in range(graph.n)]
    first, again = node_drawings(["A", "B"], [marks, marks], graph)
    assert (len(first.wires), first.hub) == (kinds, hub)
    assert (first.again, again.again) == (False, True)
    for circle in first.circles:
        assert first.radius <= min(circle.x, circle.y)
        assert max(circle.x, circle.y) <= SIDE - first.radius
    for one, other in pairwise(first.circles):
        apart = ((one.x - other.x) ** 2 + (one.y - other.y) ** 2) ** 0.5
        assert apart > 1.9 * first.radius or graph.n == 1


def test_wider_links_are_wider_lines() -> None:
    marks = [(Mark(slot, FREE, False, False), "-") for slot in range(8)]
    (drawing,) = node_drawings(["A"], [marks], machine("dgx-1-v100"))
    assert [(one.words, one.path.count("M")) for one in drawing.wires] == [
        ("NV2, 50 GB/s: 8 pairs", 8), ("NV1, 25 GB/s: 8 pairs", 8),
    ]  # fmt: skip
    assert drawing.wires[0].width == pytest.approx(2 * drawing.wires[1].width)


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [5e6, 1.0], [1.0, 1.001, 0.9995], [-3, 4]])
def test_a_chart_keeps_its_points_letters_and_ticks_inside(values: list[float]) -> None:
    points = [(100.0 * i, value) for i, value in enumerate(values)]
    curves = [Curve(f"n{i}", points, steps=bool(i % 2)) for i in range(6)]
    drawn = chart("t", "about", curves, [(at, v, v) for at, v in points])
    assert drawn is not None
    for series in drawn.series:
        for pair in series.points.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
        assert 0 <= series.end[1] <= HEIGHT
    letters = sorted(series.end[1] for series in drawn.series)
    assert all(b - a > 10 for a, b in pairwise(letters))
    assert 2 <= len(drawn.y_ticks) <= 8


def test_no_value_is_no_chart() -> None:
    assert chart("t", "about", []) is None


def test_shares_fill_the_bar() -> None:
    bars = Shares([(FREE, 3), (BUSY, 0), (DRAINED, 1)]).bars
    assert bars == [(FREE, 0.0, 75.0), (DRAINED, 75.0, 25.0)]
    assert Shares([(FREE, 0)]).bars == []
