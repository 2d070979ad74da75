"""What Slurm's topology asks of the nodes of one job: blocks, fabrics, partitions of their own."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from make import asked, context_of, nodes_for, request_of, slurm_job, slurm_node, why_left
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmReservation
from slurm_gpu_aware.slurm.topology import (
    BLOCK,
    TREE,
    Fabric,
    fabric_of,
    parse_topology,
    yaml_topology,
)

# As slurmctld 24.11 and 26.05 write them.
BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n[1,3] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[2,4] BlockSize=2
"""
AGGREGATED = BLOCKS + "AggregatedBlock=b[0-1] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n"
ONE_FABRIC = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1,3]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2,4]
SwitchName=r0 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]
"""
TWO_FABRICS = """\
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[0-1]
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n1
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[4-5]
"""


def fabric(text: str) -> Fabric:
    return fabric_of(parse_topology(text))


def where(text: str, *used: tuple[str, int], nodes: int = 4, **more: object) -> AdmissionContext:
    """Nodes n1, n2, ... of four GPUs; ``used``: name and how many of its GPUs are held."""
    held = dict(used)
    there = [slurm_node(f"n{i}", used=range(held.get(f"n{i}", 0))) for i in range(1, nodes + 1)]
    return replace(context_of(there), fabric=fabric(text), **more)


def groups(request_site: AdmissionContext, original: OriginalRequest) -> list[int] | None:
    kept = request_of(slurm_job(), original, request_site).nodes.groups
    return None if kept is None else kept.of.tolist()


TWO, THREE = asked(nodes=(2, 2)), asked(nodes=(3, 3))


# What the topology says --------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BLOCKS, AGGREGATED])
def test_base_blocks_count_whatever_they_aggregate_to(text: str):
    found = fabric(text)
    assert (found.kind, found.block_size, found.doubt) == (BLOCK, 2, None)
    assert found.groups == {"n1": "b0", "n3": "b0", "n2": "b1", "n4": "b1"}
    kept = found.of(["n1", "n2", "n3", "login"])
    assert (kept.of.tolist(), kept.name) == ([0, 1, 0, -1], "block")


def test_a_fabric_is_what_the_topmost_switch_reaches():
    found = fabric(TWO_FABRICS)
    assert (found.kind, found.doubt) == (TREE, None)
    kept = found.of(["n1", "n2", "n3", "n4", "n6", "n5", "n7"]).of.tolist()
    assert kept == [0, 0, 0, 1, 2, 1, 3], "n6 and n7 are below no switch: each alone"


@pytest.mark.parametrize("text", ["", ONE_FABRIC, "SwitchName=empty Level=0 LinkSpeed=1\n"])
def test_one_fabric_or_none_binds_no_job(text: str):
    assert fabric(text).of(["n1", "n2", "n3", "n4"]) is None
    assert where(text).groups is None
    assert groups(where(text), TWO) is None


def test_one_block_binds_no_job_either():
    text = "BlockName=b0 Nodes=n[1-4] BlockSize=2\nBlockName=b1 BlockIndex=1 BlockSize=2\n"
    assert fabric(text).doubt is None
    assert groups(where(text), THREE) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "SwitchName=a Level=0 Nodes=n[1-2]\nSwitchName=b Level=0 Nodes=n[2-4]\n",
            "Slurm's topology is not clear: nodes below a are also below",
        ),
        (
            "BlockName=a Nodes=n[1-3] BlockSize=2\nBlockName=b Nodes=n[3-4] BlockSize=2\n",
            "not clear",
        ),
    ],
    ids=["fabrics", "blocks"],
)
def test_overlapping_groups_are_not_clear(text: str, said: str):
    assert said in why_left(slurm_job(), TWO, where(text))
    assert groups(where(text), asked()) is None, "a job on one node does not care"


# Blocks ------------------------------------------------------------------------------------------


def test_up_to_the_base_block_size_a_job_stays_in_one():
    at = where(AGGREGATED)
    assert groups(at, TWO) == [0, 1, 0, 1]
    assert groups(at, asked(nodes=(1, 2))) == [0, 1, 0, 1]
    total = OriginalRequest(tres_per_job="gres/gpu:4", nodes=(1, 2))
    assert groups(at, total) == [0, 1, 0, 1]
    assert groups(at, asked()) is None
    one, other = (request_of(slurm_job(), TWO, at).nodes.groups for _ in range(2))
    assert one is other, "jobs of one round share it, by which they are of one shape"


@pytest.mark.parametrize(
    ("original", "count"),
    [
        (THREE, "3"),
        (asked(nodes=(2, 4)), "2 to 4"),
        (asked(nodes=(1, 3)), "1 to 3"),
        (OriginalRequest(tres_per_job="gres/gpu:4"), "1 to 4"),
        (OriginalRequest(tres_per_job="gres/gpu:8", nodes=(4, 4)), "4"),
    ],
)
def test_wider_jobs_and_those_that_may_be_are_left_to_slurm(original: OriginalRequest, count: str):
    assert why_left(slurm_job(), original, where(AGGREGATED)) == (
        f"it has {count} nodes, and a block counts as 2; which nodes it gets together is left to"
        " Slurm"
    )


def test_a_job_cannot_have_more_nodes_than_there_are():
    """-x leaves two nodes: four GPUs are on one or two of them."""
    total = OriginalRequest(tres_per_job="gres/gpu:4", exc_nodes="n1,n2")
    assert groups(where(BLOCKS), total) == [0, 1, 0, 1]


def test_a_range_of_nodes_is_counted_inside_one_block():
    """Three nodes are free, but no block has more than two of them."""
    at = where(BLOCKS.replace("BlockSize=2", "BlockSize=3"), ("n4", 4))
    assert request_of(slurm_job(), asked(nodes=(1, 3)), at).gpus == 2
    assert request_of(slurm_job(), asked(nodes=(1, 3)), where("", ("n4", 4))).gpus == 3


def test_a_range_of_nodes_is_counted_in_the_block_of_the_required_ones():
    """Both nodes of the other block are free; asked for two, n1 would wait for n3 meanwhile."""
    wanted = asked(nodes=(1, 2), req_nodes="n1")
    request = request_of(slurm_job(), wanted, where(BLOCKS, ("n3", 4)))
    assert (request.gpus, request.min_nodes, request.max_nodes) == (1, 1, 1)
    assert request_of(slurm_job(), wanted, where(BLOCKS, ("n2", 4), ("n4", 4))).gpus == 2


def test_a_node_in_no_block():
    """Slurm starts nothing there, whatever the number of nodes; so it is asked."""
    at = where(BLOCKS, nodes=5)
    for original in (asked(), TWO):
        assert "node n5, which it may use, is in no block" in why_left(slurm_job(), original, at)
    assert groups(at, replace(TWO, exc_nodes="n5")) == [0, 1, 0, 1, -1]


def test_required_nodes_of_two_blocks():
    at = where(BLOCKS)
    said = why_left(slurm_job(), replace(TWO, req_nodes="n1,n2"), at)
    assert "its required nodes are not in one block" in said
    assert groups(at, replace(TWO, req_nodes="n1,n3")) == [0, 1, 0, 1]


def test_the_partition_where_a_block_has_room_is_chosen():
    at = where(BLOCKS + "BlockName=b2 BlockIndex=2 Nodes=n[5-6] BlockSize=2\n", nodes=6)
    at.cluster.free[[0, 3]] = False  # n2 and n3 are free, of two blocks
    inside = {"a": ["n1", "n2", "n3", "n4"], "b": ["n5", "n6"]}
    parts = {
        name: replace(at.partitions["gpu"], name=name, nodes=frozenset(names))
        for name, names in inside.items()
    }
    assert nodes_for(replace(at, partitions=parts), TWO, partitions=("a", "b")) == {"n5", "n6"}


def test_a_reservation_does_not_make_a_node_one_of_no_block():
    kept = SlurmReservation("maintenance", 1060.0, 1600.0, frozenset({"n5"}), cpus=16)
    at = where(BLOCKS, nodes=5, reservations=[kept])
    assert groups(at, TWO) == [0, 1, 0, 1, -1]


# Fabrics, partitions of their own ----------------------------------------------------------------


def test_a_tree_of_two_fabrics_keeps_jobs_in_one_of_any_width():
    at = where(TWO_FABRICS, nodes=5)
    assert groups(at, THREE) == [0, 0, 0, 1, 1]
    assert groups(at, OriginalRequest(tres_per_job="gres/gpu:4")) == [0, 0, 0, 1, 1]
    assert "not in one switch fabric" in why_left(slurm_job(), replace(TWO, req_nodes="n1,n4"), at)


def test_topo_optional_frees_jobs_of_a_tree_and_not_of_blocks():
    tree, blocks = where(TWO_FABRICS, nodes=5), where(BLOCKS)
    optional = replace(tree.slurm, topology_optional=True)
    assert groups(replace(tree, slurm=optional), THREE) is None
    assert groups(replace(blocks, slurm=optional), TWO)


def test_a_partition_with_a_topology_of_its_own_keeps_only_small_jobs():
    at = where(BLOCKS, nodes=5)
    own = {"gpu": replace(at.partitions["gpu"], topology="gb200")}
    other = replace(at, partitions=own)
    assert "its partition has a topology of its own, gb200" in why_left(slurm_job(), TWO, other)
    assert groups(other, asked()) is None, "blocks of the default topology do not bind it"
    same = replace(other, slurm=replace(at.slurm, default_topology="gb200"))
    assert groups(same, replace(TWO, exc_nodes="n5")) == [0, 1, 0, 1, -1]


@pytest.mark.parametrize(
    ("text", "name", "blocks"),
    [
        ("- topology: a\n  tree:\n- topology: 'b'  # racks\n  cluster_default: true\n", "b", False),
        ("---\n- topology: a\n  flat: true\n- topology: b\n  cluster_default: false\n", "a", False),
        ("- topology: default\n  block:\n    block_sizes: [2]\n", "default", True),
        ("- cluster_default: true\n", "default", False),
        (None, "default", False),
    ],
)
def test_the_default_topology_of_topology_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str, blocks: bool
):
    if text is not None:
        (tmp_path / "topology.yaml").write_text(text)
    assert yaml_topology(tmp_path / "topology.yaml") == (name, blocks)
    settings = {"SLURM_VERSION": "26.05.5", "SLURM_CONF": f"{tmp_path}/slurm.conf"}
    monkeypatch.setattr("slurm_gpu_aware.slurm.reader.Libslurm", lambda timeout_s: Mock())
    monkeypatch.setattr(SlurmClient, "settings", lambda client: settings)
    config = SlurmClient(20.0).config()
    assert (config.default_topology, "topo" in config.exclusive_kinds) == (name, blocks)


# The selector ------------------------------------------------------------------------------------

WIDE = "gpuaware/1;tn=gres/gpu:2;nn=2-2;mc=2"


def test_the_selector_waits_for_a_block_and_leaves_wider_jobs(tmp_path: Path):
    """n2 and n3 have GPUs enough for job 7, but are of two blocks; 9 fits beside the others."""
    slurm = SlurmFolder(tmp_path)
    slurm.set(topology=BLOCKS)
    running = {"state": "RUNNING", "licenses": "", "admin_comment": "", "slots": [0, 1, 2]}
    small = [parked(f"9{i}", nodes=name, **running) for i, name in ((1, "n1"), (4, "n4"))]
    wide = parked("7", admin_comment=WIDE, num_nodes=2, num_cpus=2)
    three = parked("8", admin_comment=WIDE.replace("2-2", "3-3"), num_nodes=3, num_cpus=3)
    narrow = parked("9", admin_comment=WIDE.replace("gpu:2", "gpu:1"), num_nodes=2, priority=1)
    jobs = [wide, three | {"stuck": True}, narrow, *small]
    slurm.write(jobs, [f"n{i}" for i in range(1, 5)])
    slurm.round()
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1", slurm.said
    assert slurm.jobs["7"]["req_nodes"] == ""
    # Left to Slurm in its turn: too few are free.
    assert slurm.jobs["8"]["licenses"] == "gpuaware:1"
    assert set(slurm.jobs["9"]["nodes"].split(",")) in ({"n1", "n3"}, {"n2", "n4"})
    (decision,) = slurm.ledger("9")
    assert "all nodes in one block" in Facts.read(decision.why).text
