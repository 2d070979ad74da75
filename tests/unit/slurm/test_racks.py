"""Racks and positions of nodes."""

import pytest

from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.slurm.topology import Place, places


def switch(name: str, *nodes: str, level: int = 0) -> SlurmSwitch:
    return SlurmSwitch(name, level, frozenset(nodes))


def test_leaf_switches_are_racks() -> None:
    switches = [switch("s0", "n1", "n2"), switch("s1", "n10"), switch("top", "n1", level=1)]
    found, how = places(["n10", "n2", "n1", "x1"], switches)
    assert found == {
        "n1": Place("s0", 1),
        "n2": Place("s0", 2),
        "n10": Place("s1", 1),
        "x1": Place("elsewhere", 1),
    }
    assert "leaf switches" in how


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["c002-011", "c003-001"], {"c002-011": ("c002", 11), "c003-001": ("c003", 1)}),
        (["r1n2gpu", "r2n3gpu"], {"r1n2gpu": ("r1n", 2), "r2n3gpu": ("r2n", 3)}),
        # Numbers over all racks are no positions.
        (["r1-1001", "r1-1002", "r2-2000"], {"r1-1001": ("r1", 1), "r1-1002": ("r1", 2)}),
    ],
)
def test_names_with_two_numbers_tell_the_rack(
    names: list[str], expected: dict[str, tuple[str, int]]
) -> None:
    found, how = places(names, [switch("s9", "other")])
    assert expected.items() <= found.items()
    assert "before their last number" in how


def test_other_names_are_cut_into_groups() -> None:
    found, how = places([*(f"n{k}" for k in range(1, 34)), "login"], [])
    assert found["n1"] == Place("n1..", 1)
    assert found["n16"] == Place("n1..", 16)
    assert found["n17"] == Place("n17..", 1)
    assert found["login"].rack == "login.."
    assert "groups of 16 nodes" in how
