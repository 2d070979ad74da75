"""Slurm's topology as 24.11 and 26.05 print it, what is refused, and racks of nodes."""

import logging

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.slurm.topology import Network, Place, network_groups, parse_topology, places

NAMES = ("switch", "rack", "row")
# Recorded from slurmctld 24.11.5 and 26.05.5: a leaf switch on the top of a tree of three levels.
TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[5-8]
SwitchName=r0 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]
SwitchName=top Level=2 LinkSpeed=1 Nodes=n[1-8] Switches=r0,s2
"""
BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[3-4] BlockSize=2
BlockName=b2 BlockIndex=2 Nodes=n[5-6] BlockSize=2
BlockName=b3 BlockIndex=3 Nodes=n[7-8] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=4 Nodes=n[1-4] BlockSize=4
AggregatedBlock=b[2-3] BlockIndex=6 Nodes=n[5-8] BlockSize=4
AggregatedBlock=b[0-3] BlockIndex=5 Nodes=n[1-8] BlockSize=8
"""
# 26.05 with topology.yaml: the default topology, its root first.
YAML = """\
SwitchName=sw_root Level=1 LinkSpeed=0 Nodes=n[1-6] Switches=s[1-2]
SwitchName=s1 Level=0 LinkSpeed=0 Nodes=n[1-4]
SwitchName=s2 Level=0 LinkSpeed=0 Nodes=n[5-6]
"""


def together(text: str, level: str) -> list[list[int]]:
    """Numbers of the nodes of each group."""
    groups: dict[str, list[int]] = {}
    for node, name in network_groups(parse_topology(text), NAMES)[level].items():
        groups.setdefault(name, []).append(int(node[1:]))
    return sorted(sorted(members) for members in groups.values())


def test_a_tree():
    assert together(TREE, "switch") == [[1, 2], [3, 4], [5, 6, 7, 8]]
    assert together(TREE, "rack") == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert together(TREE, "row") == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert together(YAML, "switch") == [[1, 2, 3, 4], [5, 6]]
    assert "row" not in network_groups(parse_topology(YAML), NAMES)


def test_blocks_and_what_they_aggregate_to():
    assert together(BLOCKS, "switch") == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert together(BLOCKS, "rack") == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert together(BLOCKS, "row") == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_no_topology_is_no_level():
    assert network_groups(parse_topology(""), NAMES) == {}


def test_a_switch_without_nodes():
    text = "SwitchName=empty Level=0 LinkSpeed=1\n"
    assert parse_topology(text) == [SlurmSwitch("empty", 0, frozenset())]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("RingName=r0 Nodes=n[1-4] RingSize=4", "neither topology/tree nor topology/block"),
        ("no topology", "'no topology' is not a record"),
        ("SwitchName=s0 LinkSpeed=1 Nodes=n1", "Level='' is not a number"),
        ("SwitchName=s0 Level=-1 Nodes=n1", "Level='-1' is not a number"),
        ("AggregatedBlock=b Nodes=n1", "BlockSize='' is not a number"),
        ("SwitchName=s0 Level=0 Nodes=n[1-", "'n[1-' is not a host list"),
        ("SwitchName=s0 Level=0 Nodes=n1;reboot", "is not a host list"),
    ],
)
def test_anything_else_is_refused(text, reason):
    with pytest.raises(SourceError) as caught:
        parse_topology(text)
    assert reason in str(caught.value)


def test_a_node_below_two_switches_of_one_level_is_refused():
    text = "SwitchName=s0 Level=0 Nodes=n1\nSwitchName=s1 Level=0 Nodes=n[1-2]\n"
    with pytest.raises(SourceError, match="node n1 is below two switches of level 0: s0 and s1"):
        network_groups(parse_topology(text), NAMES)


class Slurm:
    """Prints its topology, or does not answer; counts how often it was asked."""

    text: str | None = None
    asked = 0

    def topology(self) -> list[SlurmSwitch]:
        self.asked += 1
        if self.text is None:
            raise SourceError("no answer within 5 s")
        return parse_topology(self.text)


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


def test_it_is_read_now_and_then_and_kept_when_it_fails(slurm, caplog):
    network, used = Network(slurm.topology, NAMES), ("switch",)
    with caplog.at_level(logging.WARNING):
        assert network.groups(used, lambda: 0.0) == {}
        assert network.groups(used, lambda: 700.0) == {}
    assert len(caplog.messages) == 1
    assert "the network cannot be read" in caplog.messages[0]
    assert network.fabric.kind == ""
    slurm.text = YAML
    assert network.groups(used, lambda: 730.0) == {}, "asked again only after a while"
    assert network.groups(used, lambda: 1400.0)["switch"]["n6"] == "s2"
    slurm.text = None
    assert network.groups(used, lambda: 2100.0)["switch"]["n6"] == "s2"
    assert slurm.asked == 4


def test_a_site_that_uses_no_level_asks_too_but_misses_none(slurm, caplog):
    """What the network asks of jobs on several nodes holds whatever locality costs."""
    slurm.text = BLOCKS
    network = Network(slurm.topology, (*NAMES, "hall"))
    with caplog.at_level(logging.WARNING):
        network.groups(("socket", "node"), lambda: 0.0)
    assert not caplog.messages
    assert network.fabric.kind == "block"
    assert network.fabric.block_size == 2
    assert network.groups(("node", "switch"), lambda: 1.0)["switch"]["n6"] == "b2"
    assert slurm.asked == 1


def test_a_level_that_slurm_lacks_is_told_once(slurm, caplog):
    slurm.text = YAML
    network = Network(slurm.topology, NAMES)
    with caplog.at_level(logging.WARNING):
        network.groups(("switch", "row"), lambda: 0.0)
        network.groups(("switch", "row"), lambda: 700.0)
    assert caplog.messages == ["Slurm's topology has no level row; locality counts without it"]


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
