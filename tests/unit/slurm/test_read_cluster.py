"""Nodes, partitions, reservations and settings of Slurm into records."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from memory_slurm import node_record, partition_record, reservation_record

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.request import Sharing
from slurm_gpu_aware.slurm.gres import parse_tres
from slurm_gpu_aware.slurm.libslurm_fields import NOT_SET, UNLIMITED
from slurm_gpu_aware.slurm.read_cluster import (
    config_of,
    node_of,
    parse_settings,
    partition_of,
    reservation_of,
)
from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.records import GpuDefaults, NodeCores, SlurmPartition, SlurmReservation
from slurm_gpu_aware.slurm.words import expand_hostlist, parse_duration, parse_licenses

RECORDED = sorted((Path(__file__).parents[2] / "data").glob("slurm-*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_cluster(path: Path) -> None:
    found = json.loads(path.read_text())
    nodes = [node_of(raw) for raw in found["node"]]
    assert [node.name for node in nodes] == ["n1", "n2", "n3", "n4"]
    first = nodes[0]
    assert first.gpus == (("g0", 1), ("g1", 1), ("g2", 1), ("g3", 1))
    assert first.gpu_sockets == ((0,), (0,), (1,), (1,))
    assert first.cores == NodeCores(sockets=2, cores=8, threads=1, cpus=1)
    assert first.slurmd_start_s is not None
    running = [job for job in map(job_of, found["job"]) if job.state == "RUNNING"]
    held = {(s.node, slot) for job in running for s in job.shares for slot in s.gpus}
    assert {(node.name, slot) for node in nodes for slot in node.gpus_used} == held
    for node in nodes:
        shares = [s for job in running for s in job.shares if s.node == node.name]
        assert node.cpus_used == sum(s.cpus for s in shares)
        assert node.memory_used_mb == sum(s.memory_mb for s in shares)
    (partition,) = map(partition_of, found["partition"])
    assert partition.nodes == {"n1", "n2", "n3", "n4"}
    assert (partition.default_time_s, partition.max_time_s) == (3600, math.inf)
    assert partition.preempt_mode == {"OFF"}
    assert partition.up
    reservations = {r["name"]: reservation_of(r) for r in found["reservation"]}
    assert reservations["maintenance"].nodes == {"n4"}
    assert reservations["maintenance"].flags == {"MAINT", "SPEC_NODES"}
    assert (reservations["half"].gpus, reservations["half"].nodes) == (2, {"n3"})
    assert reservations["gpuaware_gate"].licenses == (("gpuaware", 100000),)
    config = config_of(parse_settings(found["settings"]))
    assert (config.counts_memory, config.counts_cores, config.preempt_mode) == (True, True, {"OFF"})
    assert config.conf_file == "/etc/slurm/slurm.conf"
    assert ".".join(f"{part:02}" for part in config.version[:2]) == path.stem.removeprefix("slurm-")


# -- nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "drained", "found"),
    [
        ("gpu:g0:0(IDX:N/A),gpu:g3:1(IDX:3)", "N/A", ({3}, set())),
        ("gpu:a100:3(IDX:0-1,3)", "gpu:a100:1(IDX:2)", ({0, 1, 3}, {2})),
        ("gpu:a100(CNT:2)", "(null)", ({0, 1}, set())),  # any that stand for them
        ("gpu:g2(CNT:1),gpu:a100(CNT:1)", "", ({0, 2}, set())),
        ("gpu:g1:1,gpu:g3:0", "gpu:g1:1,gpu:g3:1", ({1}, {1, 3})),
        ("gpu:v100:1,gpu:a100:1", "", ({0, 1}, set())),
        ("gpu:v100:1(IDX:0),gpu:a100:2", "(null)", ({0, 1, 2}, set())),
        ("", "N/A", (set(), set())),
    ],
)
def test_gpus_that_are_used_or_drained(used: str, drained: str, found: tuple[set[int], ...]):
    node = node_of(node_record("n1", gres_used=used, gres_drain=drained))
    assert (node.gpus_used, node.gpus_drained) == found


@pytest.mark.parametrize(
    ("gres", "used", "shared"),
    [
        ("gpu:4,shard:32", "(null)", True),
        ("gpu:1g.5gb:7", "(null)", True),
        ("gpu:a100:2(S:0-1),tmp:512G", "gpu:a100:1(IDX:1),tmp:0", False),
        ("gpu:a100:2(S:0-1),shard:16", "gpu:a100:1(IDX:1),shard:2(2/8,-/8)", False),
        ("gpu:a100:2(S:0-1),shard:16", "gpu:a100:1(IDX:1),shard:0", True),
        ("gpu:a100:2,mps:200", "gpu:a100:1(IDX:1),mps:0(0/100,-/100)", True),
        ("gpu:a100:1,gpu:1g.5gb:7(S:0)", "gpu:a100:0(IDX:N/A),gpu:1g.5gb:1(IDX:1)", True),
    ],
)
def test_nodes_whose_gpus_are_shared_or_cut(gres: str, used: str, shared: bool) -> None:
    node = node_of(node_record("n1", gres=gres, gres_used=used))
    assert node.shared_gres is shared
    assert node.gpus_used == (set() if used == "(null)" else {1})


def test_gpus_and_their_sockets() -> None:
    plain = node_of(node_record("n1", gres="gpu:4(S:0-1),tmp:512G"))
    assert (plain.gpus, plain.gpu_sockets) == (((None, 4),), ((0, 1),))
    with pytest.raises(SourceError, match="'gpu:2G' is not a GRES of GPUs"):
        node_of(node_record("n1", gres="gpu:2G"))


INDEXED = "gpu:g0:1,gpu:g1:1,gpu:g3:1"


@pytest.mark.parametrize(
    ("gres", "used", "shards"),
    [
        ("gpu:2,shard:8", "gpu:1(IDX:0),shard:3(0/4,3/4)", {0: (0, 4), 1: (3, 4)}),
        ("gpu:2,shard:8", "gpu:(null):0(IDX:N/A),shard:(null):1(1/4,0/4)", {0: (1, 4), 1: (0, 4)}),
        ("gpu:a100:2,shard:8", "gpu:a100:0,shard:a100:1(-/4,1/4)", {0: (0, 4), 1: (1, 4)}),
        (f"{INDEXED},shard:12", "shard:2(0/4,0/4,2/4)", {0: (0, 4), 1: (0, 4), 3: (2, 4)}),
        (
            f"{INDEXED},shard:g0:4,shard:g3:4",
            "gpu:g1:1(IDX:1),shard:g0:0(0/4),shard:g3:4(4/4)",
            {0: (0, 4), 3: (4, 4)},
        ),
        ("gpu:2", "gpu:1(IDX:0)", {}),
    ],
)
def test_shards_of_each_gpu(gres: str, used: str, shards: dict[int, tuple[int, int]]) -> None:
    node = node_of(node_record("n1", gres=gres, gres_used=used))
    assert (node.shards, node.shared_gres) == (shards, False)
    assert node.untyped_shards == bool(shards and "shard:g" not in gres)
    assert node.shared_gpus == {slot for slot, (held, _) in shards.items() if held}


@pytest.mark.parametrize(
    ("gres", "used"),
    [
        ("gpu:2,shard:8", "(null)"),
        ("gpu:2,shard:8", "gpu:0(IDX:N/A),shard:0"),
        ("gpu:2,shard:8", "shard:1(1/4,0/4,0/4)"),
        ("gpu:a:1,gpu:b:1,shard:8", "shard:a:0(0/4),shard:b:1(1/4)"),
        ("gpu:2,shard:8,mps:200", "shard:1(1/4,0/4),mps:0(0/100,0/100)"),
        (f"{INDEXED},shard:12", "shard:g0:0(0/4),shard:x:0(0/4),shard:g3:0(0/4)"),
    ],
)
def test_shards_of_gpus_that_slurm_does_not_tell(gres: str, used: str) -> None:
    assert node_of(node_record("n1", gres=gres, gres_used=used)).shared_gres


def test_state_features_and_memory() -> None:
    node = node_of(
        node_record("n1", state="MIXED*+DRAIN", features="a,b", reason="a b\n", real_memory=64000,
                    mem_spec_limit=1000, alloc_cpus=3, alloc_memory=500, slurmd_start_time=0)
    )  # fmt: skip
    assert node.states == {"MIXED", "DRAIN", "NOT_RESPONDING"}
    assert (node.features, node.reason) == ({"a", "b"}, "a b\n")
    assert (node.memory_mb, node.cpus_used, node.memory_used_mb) == (63000, 3, 500)
    assert node.slurmd_start_s is None
    assert node_of(node_record("n1", features="")).features == frozenset()


# -- partitions, reservations ----------------------------------------------------------------------


def partition(**fields: Any) -> SlurmPartition:
    return partition_of(partition_record("gpu", "n[1-4]", **fields))


def test_limits_of_partitions() -> None:
    found = partition(max_time=UNLIMITED, default_time=NOT_SET, max_nodes=UNLIMITED)
    assert (found.max_time_s, found.default_time_s, found.max_nodes) == (math.inf, None, None)
    found = partition(max_time=90, default_time=30, max_nodes=2, grace_time=20, priority_tier=5)
    assert (found.max_time_s, found.default_time_s, found.max_nodes) == (5400, 1800, 2)
    assert (found.grace_s, found.priority_tier, found.nodes) == (20, 5, {"n1", "n2", "n3", "n4"})


@pytest.mark.parametrize(("state", "up"), [(3, True), (1, False), (2, False), (0, False)])
def test_only_a_partition_that_is_up_starts_jobs(state: int, up: bool) -> None:
    assert partition(state_up=state).up is up


@pytest.mark.parametrize(("share", "exclusive"), [(0, True), (1, False), (0x8004, False)])
def test_partitions_of_whole_nodes(share: int, exclusive: bool) -> None:
    assert partition(max_share=share).exclusive is exclusive


@pytest.mark.parametrize(
    ("share", "plain", "asks"),
    [
        (0, Sharing(), Sharing()),
        (1, Sharing(), Sharing()),
        (4, Sharing("gpu"), Sharing("gpu", shares=True)),
        (0x8001, Sharing(shares=True), Sharing(shares=True)),
        (0x8004, Sharing("gpu", shares=True), Sharing("gpu", shares=True)),
    ],
)
def test_which_jobs_of_a_partition_share_cpus(share: int, plain: Sharing, asks: Sharing) -> None:
    """EXCLUSIVE, NO, YES:4, FORCE:1, FORCE:4."""
    found = partition(max_share=share)
    assert (found.sharing(asked=False), found.sharing(asked=True)) == (plain, asks)


def test_what_only_the_printed_line_of_a_partition_tells() -> None:
    line = "PartitionName=gpu PreemptMode=GANG,SUSPEND JobDefaults=DefCpuPerGPU=4,DefMemPerGPU=0"
    found = partition(line=line)
    assert found.preempt_mode == {"GANG", "SUSPEND"}
    assert found.per_gpu == GpuDefaults(4, None)
    assert partition(line="PreemptMode=OFF JobDefaults=(null)").per_gpu == GpuDefaults()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ExclusiveUser=YES ExclusiveTopo=NO", True),
        ("ExclusiveUser=NO ExclusiveTopo=NO", False),
        ("Exclusive=USER", True),  # 26.05
        ("Exclusive=NODE", False),
        ("Exclusive=NO", False),
    ],
)
def test_partitions_whose_users_share_no_node(line: str, found: bool) -> None:
    assert partition(line=f"DisableRootJobs=NO {line} GraceTime=0").exclusive_user is found


@pytest.mark.parametrize(("name", "read"), [("gb200", "gb200"), ("", ""), ("(null)", "")])
def test_the_topology_of_a_partition(name: str, read: str) -> None:
    assert partition(topology_name=name).topology == read


def half(**fields: Any) -> SlurmReservation:
    return reservation_of(reservation_record("half", **{"end_time": 200, **fields}))


@pytest.mark.parametrize(
    ("tres", "cpus", "gpus"),
    [
        ("cpu=16", 16, None),
        ("cpu=4,gres/gpu=2,gres/gpu:g0=1,gres/gpu:g1=1", 4, 2),
        ("cpu=2K,gres/gpu:g3=1", 2048, 1),
        ("", None, None),
    ],
)
def test_what_a_reservation_holds_of_its_nodes(tres: str, cpus: int | None, gpus: int | None):
    found = half(node_list="n[1-2]", tres_str=tres, flags="MAGNETIC")
    assert (found.cpus, found.gpus, found.nodes) == (cpus, gpus, {"n1", "n2"})
    assert found.flags == {"MAGNETIC"}


@pytest.mark.parametrize(("now", "active"), [(99, False), (100, True), (200, True), (201, False)])
def test_a_reservation_is_active_between_its_start_and_end(now: float, active: bool) -> None:
    assert half().active_at(now) is active


# -- settings --------------------------------------------------------------------------------------


def settings(**values: str) -> dict[str, str]:
    text = "\n".join(f"{key:<23} = {value}" for key, value in values.items())
    return parse_settings(f"Configuration data as of now\nSLURM_VERSION = 26.05.5\n{text}\n")


def test_settings_as_slurm_prints_them() -> None:
    found = parse_settings(
        "Configuration data as of 2026-01-01T00:00:00\nSLURM_VERSION           = 24.11.5\n"
        "SlurmctldHost[0]        = ctl(10.0.0.1)\nSLURM_VERSION = 1\nPriorityFlags           = \n\n"
        "Cgroup Support Configuration:\nAllowedRAMSpace         = 100.0%\n"
    )
    assert found["SLURM_VERSION"] == "24.11.5"
    assert found["SlurmctldHost[0]"] == "ctl(10.0.0.1)"
    assert (found["PriorityFlags"], found["AllowedRAMSpace"]) == ("", "100.0%")
    with pytest.raises(SourceError, match="no SLURM_VERSION"):
        config_of({"ClusterName": "x"})


def test_preemption_settings() -> None:
    plain = config_of(settings())
    assert (plain.preempt_type, plain.preempt_mode, plain.spared_above) == ("", {"OFF"}, math.inf)
    found = config_of(
        settings(
            PreemptType="preempt/partition_prio",
            PreemptMode="GANG,REQUEUE",
            PreemptExemptTime="00:02:00",
            PreemptParameters="reorder_count=3,youngest_first,min_exempt_priority=500",
            SchedulerParameters="bf_continue,preempt_strict_order,preempt_reorder_count=7",
        )
    )
    assert (found.preempt_type, found.preempt_mode) == ("partition_prio", {"GANG", "REQUEUE"})
    assert (found.preempt_exempt_s, found.spared_above) == (120, 500)
    order = found.preemption
    assert (order.reorder_count, order.youngest_first, order.strict) == (3, True, True)
    assert config_of(settings(PreemptType="(null)")).preempt_type == ""
    assert config_of(settings(PreemptType="preempt/none")).preempt_type == ""


def test_what_a_second_of_age_adds() -> None:
    assert config_of(settings(PriorityType="priority/basic")).age_per_s is None
    given = {"PriorityType": "priority/multifactor", "PriorityMaxAge": "7-00:00:00"}
    assert config_of(settings(**given, PriorityWeightAge="604800")).age_per_s == 1.0
    assert config_of(settings(**given, PriorityWeightAge="0")).age_per_s == 0.0
    assert config_of(settings(**given)).age_per_s == 0.0
    endless = {**given, "PriorityMaxAge": "UNLIMITED", "PriorityWeightAge": "1000"}
    assert config_of(settings(**endless)).age_per_s == 0.0


@pytest.mark.parametrize(
    ("parameters", "cores", "enforced"),
    [
        ("CR_CORE_MEMORY", True, False),
        ("CR_CPU_MEMORY,ENFORCE_BINDING_GRES", True, True),
        ("CR_SOCKET_MEMORY,CR_CORE_DEFAULT_DIST_BLOCK", False, False),
        ("CR_MEMORY", False, False),
    ],
)
def test_how_slurm_gives_out_cpus(parameters: str, cores: bool, enforced: bool) -> None:
    found = config_of(settings(SelectTypeParameters=parameters))
    assert (found.counts_cores, found.enforce_binding) == (cores, enforced)


def test_other_settings() -> None:
    found = config_of(
        settings(
            PrivateData="jobs,reservations",
            JobDefaults="DefCpuPerGPU=4,DefMemPerGPU=1000",
            TopologyParam="RouteTree,TopoOptional",
            SLURM_CONF="/etc/slurm/slurm.conf",
        )
    )
    assert (found.private_jobs, found.private_reservations) == (True, True)
    assert found.per_gpu == GpuDefaults(4, 1000)
    assert (found.topology_optional, found.conf_file) == (True, "/etc/slurm/slurm.conf")
    assert not config_of(settings(TopologyParam="(null)")).topology_optional


@pytest.mark.parametrize(
    ("version", "allowed", "hidden"),
    [
        *(("24.11.5", "yes", True), ("25.11.2", "Yes", True), ("26.05.0", "yes", False)),
        *(("24.11.5", "no", False), ("24.11.5", "", False)),
    ],
)
def test_a_filter_sees_core_spec_since_26_05(version: str, allowed: str, hidden: bool) -> None:
    known = settings(AllowSpecResourcesUsage=allowed)
    found = config_of({**known, "SLURM_VERSION": version})
    assert found.hides_core_spec is hidden


# -- small values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,07]", ("n1", "n2", "n3", "n07")),
        ("n1 n2,", ("n1", "n2")),
        ("r[1-2]n[08-10],x", ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10", "x")),
    ],
)
def test_hostlists(text: str, names: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n;rm", "n[1-999999999]", "$(id)", "n["])
def test_what_is_no_hostlist(text: str) -> None:
    with pytest.raises(SourceError):
        expand_hostlist(text)


def test_small_values() -> None:
    assert parse_licenses("matlab:2,other") == (("matlab", 2), ("other", 1))
    assert parse_duration("1-02:03:04") == 93784
    assert math.isinf(parse_duration("UNLIMITED"))
    for text, memory_mb in (("1.5G", 1536), ("100M", 100), ("2T", 2097152), ("8000", 8000)):
        assert parse_tres(f"mem={text}") == ({"mem": memory_mb}, True)
    for text, count in (("16", 16), ("2K", 2048), ("1.5K", 1536)):
        assert parse_tres(f"cpu={text},mem=16?") == ({"cpu": count}, False)
    with pytest.raises(SourceError):
        parse_duration("soon")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({}, set()),
        ({"MCSPlugin": "(null)", "TopologyPlugin": "topology/flat"}, set()),
        ({"MCSPlugin": "mcs/none", "TopologyPlugin": "topology/tree"}, set()),
        ({"MCSPlugin": "mcs/group", "TopologyPlugin": "topology/block"}, {"mcs", "topo"}),
    ],
)
def test_by_what_jobs_keep_others_off_their_nodes(
    shown: dict[str, str], expected: set[str]
) -> None:
    assert config_of({"SLURM_VERSION": "26.05.5", **shown}).exclusive_kinds == expected
