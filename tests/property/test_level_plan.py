"""Pairs of nodes per locality level, against all pairs."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_aware_profile.levels.level_runs import PlanNode, gpu_indices, level_plan

LEVELS = ("switch", "rack")


@st.composite
def leveled(draw: st.DrawFn) -> tuple[list[PlanNode], dict[str, dict[str, str]]]:
    count = draw(st.integers(1, 9))
    names = [f"n{i}" for i in range(count)]
    switch_of = {n: f"s{draw(st.integers(0, 3))}" for n in names if draw(st.integers(0, 5))}
    rack_of_switch = {f"s{i}": f"r{draw(st.integers(0, 1))}" for i in range(4)}
    racks = {node: rack_of_switch[switch] for node, switch in switch_of.items()}
    nodes = [
        PlanNode(
            name,
            draw(st.sampled_from([2, 4])),
            draw(st.sampled_from(["a100", "v100"])),
            draw(st.sampled_from(["gpu", "big"])),
        )
        for name in names
    ]
    levels = {"switch": switch_of, "rack": racks}
    return nodes, {name: levels[name] for name in LEVELS[: draw(st.integers(0, 2))]}


def tightest(a: str, b: str, groups: dict[str, dict[str, str]]) -> str:
    for level in LEVELS:
        group = groups.get(level, {}).get(a)
        if group is not None and group == groups[level].get(b):
            return level
    return "cluster"


@given(leveled(), st.integers(1, 4))
def test_each_pair_is_of_its_level_and_no_level_is_missed(
    site: tuple[list[PlanNode], dict[str, dict[str, str]]], most: int
) -> None:
    nodes, groups = site
    plan = level_plan(nodes, groups, most)
    possible: dict[tuple[str, str], int] = {}
    for a, b in combinations(nodes, 2):
        if (a.model, a.partition) == (b.model, b.partition):
            key = a.model, tightest(a.name, b.name, groups)
            possible[key] = possible.get(key, 0) + 1
    found: dict[tuple[str, str], int] = {}
    for run in plan:
        model = run.nodes[0].model
        assert run.gpus == min(node.gpus for node in nodes if node.model == model)
        if run.level == "node":
            assert len(run.nodes) == 1
            assert run.gpus_per_node == run.gpus
            continue
        a, b = run.nodes
        assert (a.model, a.partition) == (b.model, b.partition)
        assert tightest(a.name, b.name, groups) == run.level
        assert run.gpus_per_node * 2 == run.gpus
        found[model, run.level] = found.get((model, run.level), 0) + 1
    assert set(found) == set(possible)
    assert all(found[key] <= min(most, possible[key]) for key in found)
    for model in {model for model, _ in found}:
        levels = [run.level for run in plan if run.nodes[0].model == model]
        inside = levels.count("node")
        assert 1 <= inside <= 2 * most
        assert levels[:inside] == ["node"] * inside
        assert levels[inside:] == sorted(levels[inside:], key=["switch", "rack", "cluster"].index)


def test_nodes_of_a_pair_are_used_once() -> None:
    nodes = [PlanNode(f"n{i}", 8, "a100", "gpu") for i in range(6)]
    plan = level_plan(nodes, {}, 3)
    pairs = [run.nodes for run in plan if run.level == "cluster"]
    assert len({node for pair in pairs for node in pair}) == 6
    assert [run.nodes[0].name for run in plan if run.level == "node"] == [f"n{i}" for i in range(6)]


def test_jobs_do_not_leave_a_fabric() -> None:
    nodes = [PlanNode(f"n{i}", 4, "a100", "gpu", fabric=f"b{i % 2}") for i in range(3)]
    plan = level_plan(nodes, {}, 1)
    assert [node.name for node in plan[-1].nodes] == ["n0", "n2"]


@pytest.mark.parametrize(("gpus", "words"), [(3, "even number, not 3"), (8, "has 4 GPUs, fewer")])
def test_wrong_numbers_of_gpus(gpus: int, words: str) -> None:
    nodes = [PlanNode(f"n{i}", 4, "a100", "gpu") for i in range(2)]
    with pytest.raises(ValueError, match=words):
        level_plan(nodes, {}, 1, gpus)


def test_no_runs_without_a_pair_or_with_single_gpus() -> None:
    assert (
        level_plan([PlanNode("n1", 4, "a100", "gpu"), PlanNode("n2", 4, "v100", "gpu")], {}, 1)
        == []
    )
    assert level_plan([PlanNode(f"n{i}", 1, "a100", "gpu") for i in range(2)], {}, 1) == []
    (run, *_) = level_plan([PlanNode(f"n{i}", 5, "a100", "gpu") for i in range(2)], {}, 1)
    assert run.gpus == 4


def test_gpus_of_a_run_need_the_whole_node() -> None:
    assert gpu_indices(8, 8) == list(range(8))
    assert gpu_indices(8, 4) == [0, 2, 4, 6]
    assert gpu_indices(4, 2) == [0, 2]
