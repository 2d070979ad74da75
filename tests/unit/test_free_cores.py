"""``enforce-binding`` in Slurm's answers: the flag, sockets of GPUs, and which cores are taken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from sample_jobs import slurm_job

from slurm_gpu_aware.cluster import Cluster
from slurm_gpu_aware.slurm.free_cores import with_sockets
from slurm_gpu_aware.slurm.job_reader import parse_jobs
from slurm_gpu_aware.slurm.parse_cluster import parse_config, parse_nodes
from slurm_gpu_aware.slurm.parse_json import parse_jobs_json
from slurm_gpu_aware.slurm.records import NodeCores, NodeShare, SlurmConfig, SlurmJob, SlurmNode
from slurm_gpu_aware.slurm.snapshot import Hold, build_cluster
from slurm_gpu_aware.sockets import Sockets

RECORDED = Path(__file__).parents[1] / "data" / "slurm-24.11"
SLURM = SlurmConfig((24, 11, 5), "c", counts_memory=True, counts_cpus=True, counts_cores=True)

JOB = (
    "JobId=9 JobName=b {sluid}UserId=alice(2001) GroupId=alice(2001) MCS_label=N/A Priority=21000"
    " Nice=0 Account=lab QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1"
    " Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:15"
    " TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1795259951 EligibleTime=1795259951"
    " AccrueTime=1795259951 StartTime=1795259952 EndTime=1795263552 Deadline=N/A SuspendTime=None"
    " SecsPreSuspend=0 LastSchedEval=1795259952 Scheduler=Main Partition=gpu AllocNode:Sid=ctl:17"
    " ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 BatchHost=n1 NumNodes=1 NumCPUs=9"
    " NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* ReqTRES=cpu=1,mem=500M,node=1,billing=1,gres/gpu=1"
    " AllocTRES=cpu=9,mem=4500M,node=1,billing=9,gres/gpu=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:*"
    " CoreSpec=* JOB_GRES=gpu:g0:1,gpu:g1:0,gpu:g2:0,gpu:g3:0   Nodes=n1 CPU_IDs=0-7,12 Mem=4500"
    " GRES=gpu:g0:1(IDX:0),gpu:g1:0(IDX:),gpu:g2:0(IDX:),gpu:g3:0(IDX:) MinCPUsNode=1"
    " MinMemoryCPU=500M MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK"
    "{exclusive} Contiguous=0 Licenses=(null){alloc} Network=(null) Command=(null){line}"
    " WorkDir=/shared/home/alice StdErr= StdIn=/dev/null StdOut=/shared/home/alice/slurm-9.out"
    "{flags} TresPerNode=gres/gpu:1 \n"
)
OLD = {"sluid": "", "exclusive": "", "alloc": "", "line": ""}
NEW = {
    "sluid": "SLUID=s8NXM7YZ3Y3W00 ",
    "exclusive": " Exclusive=NO",
    "alloc": " LicensesAlloc=(null)",
    "line": " SubmitLine=sbatch --gres=gpu:1 --gres-flags=enforce-binding --wrap true",
}
FLAGS = [
    ("", None),
    (" GresEnforceBind=Yes", True),
    (" GresEnforceBind=No", False),
    (" GresEnforceBind=Yes,KillOInInvalidDependent=Yes", True),
    (" GresAllowTaskSharing=Yes,GresEnforceBind=Yes,SpreadJob=Yes", True),
    (" GresOneTaskPerSharing=Yes", None),
    (" SpreadJob=Yes", None),
]


@pytest.mark.parametrize("release", [OLD, NEW], ids=["24.11", "26.05"])
@pytest.mark.parametrize(("flags", "bound"), FLAGS)
def test_the_flag_in_text(release: dict[str, str], flags: str, bound: bool | None) -> None:
    found = parse_jobs(JOB.format(**release, flags=flags))
    assert not found.doubtful
    assert found.jobs[0].enforce_binding is bound
    assert found.jobs[0].shares[0].cpu_ids == (0, 1, 2, 3, 4, 5, 6, 7, 12)


def test_a_second_flag_in_a_users_text_is_doubted() -> None:
    flags = " Comment=x GresEnforceBind=No GresEnforceBind=Yes"
    found = parse_jobs(JOB.format(**OLD, flags=flags))
    assert found.doubtful == [9]


@pytest.mark.parametrize(
    ("flags", "bound"),
    [
        (["GRES_BINDING_ENFORCED", "JOB_WAS_RUNNING"], True),
        (["GRES_ENFORCE_BIND"], True),
        (["GRES_BINDING_DISABLED"], False),
        (["JOB_WAS_RUNNING"], None),
    ],
)
def test_the_flag_in_json(flags: list[str], bound: bool | None) -> None:
    record = json.loads((RECORDED / "jobs.json").read_text())["jobs"][0]
    text = json.dumps({"jobs": [{**record, "flags": flags}]})
    assert parse_jobs_json(text)[0].enforce_binding is bound


def test_text_and_json_name_the_same_cpus() -> None:
    by_text = {job.raw_id: job for job in parse_jobs((RECORDED / "jobs.txt").read_text()).jobs}
    by_json = parse_jobs_json((RECORDED / "jobs.json").read_text())
    compared = 0
    for job in by_json:
        if job.state == "RUNNING" and job.raw_id in by_text:
            assert [s.cpu_ids for s in job.shares] == [
                s.cpu_ids for s in by_text[job.raw_id].shares
            ]
            compared += len(job.shares)
    assert compared >= 4


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
    text = f"SLURM_VERSION           = 26.05.5\nSelectTypeParameters    = {parameters}\n"
    found = parse_config(text)
    assert (found.counts_cores, found.enforce_binding) == (cores, enforced)


NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=8  CPUAlloc={alloc} CPUEfctv={able} CPUTot={total}"
    " CPULoad=0.10 AvailableFeatures=gpu_v100 ActiveFeatures=gpu_v100 Gres={gres} GresDrain=N/A"
    " GresUsed=gpu:g0:0(IDX:N/A) NodeAddr=n1 NodeHostName=n1 Version={version} OS=Linux 6.1 #1 SMP"
    " RealMemory=64000 AllocMem=0 FreeMem=18549 Sockets=2 Boards=1{special} State=MIXED"
    " ThreadsPerCore={threads} TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu"
    " BootTime=1795254948 CfgTRES=cpu=16,mem=62.50G,billing=16,gres/gpu=4\n"
)
GPUS = "gpu:g0:1(S:0),gpu:g1:1(S:0),gpu:g2:1(S:1),gpu:g3:1(S:1)"


def node(**fields: Any) -> SlurmNode:
    usual = {"alloc": 0, "able": 16, "total": 16, "gres": GPUS, "special": "", "threads": 1}
    return parse_nodes(NODE.format(**{**usual, "version": "24.11.5", **fields}))[0]


def test_sockets_of_a_recorded_node() -> None:
    first = parse_nodes((RECORDED / "nodes.txt").read_text())[0]
    assert first.cores == NodeCores(sockets=2, cores=8, threads=1, cpus=1)
    assert first.gpu_sockets == ((0,), (0,), (1,), (1,))


@pytest.mark.parametrize(
    ("fields", "cores"),
    [
        ({"threads": 2, "total": 32, "able": 32}, NodeCores(2, 8, 2, 2)),
        # CPUs=16 in slurm.conf: a core counts as one CPU, its ids as two.
        ({"threads": 2, "total": 16}, NodeCores(2, 8, 2, 1)),
        (
            {"special": " CoreSpecCount=1 CPUSpecList=15", "able": 15, "version": "26.05.5"},
            NodeCores(2, 8, 1, 1, frozenset({15})),
        ),
        # Which core is kept is not told; CPUs that are no whole cores.
        ({"special": " CoreSpecCount=1", "able": 15}, None),
        ({"total": 12, "able": 12}, None),
    ],
)
def test_cores_of_a_node(fields: dict[str, Any], cores: NodeCores | None) -> None:
    assert node(**fields).cores == cores


def seen(one: SlurmNode, *jobs: SlurmJob, holds: tuple[Hold, ...] = ()) -> Cluster:
    names = {"classes": ["A"], "penalties": {"cluster": 1.5}, "holds": holds}
    cluster = build_cluster([one], jobs, None, SLURM, **names)
    return with_sockets(cluster, {one.name: one}, jobs, holds, 0.0)


def sockets(*args: Any, **kwargs: Any) -> Sockets:
    found = seen(*args, **kwargs).sockets
    assert found is not None
    return found


def holding(number: int, *cpu_ids: int, **fields: Any) -> SlurmJob:
    share = NodeShare("n1", len(cpu_ids), 500, (), {}, cpu_ids)
    return slurm_job(number, **{"state": "RUNNING", "shares": (share,), **fields})


def test_free_cores_of_each_socket() -> None:
    """A job without GPUs counts, too; a suspended one holds no cores."""
    found = sockets(
        node(alloc=5), holding(1, 0, 1, 2), holding(2, 8, 15), holding(3, 9, state="SUSPENDED")
    )
    assert found.gpu.tolist() == [[0, 0, 1, 1]]
    assert found.cpus.tolist() == [[8, 8]]
    assert found.free_cpus.tolist() == [[5, 6]]


def test_a_core_is_taken_whole() -> None:
    found = sockets(node(threads=2, total=32, able=32, alloc=4), holding(1, 0, 17))
    assert found.free_cpus.tolist() == [[14, 14]]
    assert found.per_core.tolist() == [2]


def test_cores_kept_for_the_system_are_nobodys() -> None:
    one = node(special=" CoreSpecCount=2 CPUSpecList=7,15", able=14, alloc=1)
    found = sockets(one, holding(1, 14))
    assert found.cpus.tolist() == [[7, 7]]
    assert found.free_cpus.tolist() == [[7, 6]]


def test_cpus_of_whom_nobody_knows_may_be_anywhere() -> None:
    assert sockets(node(alloc=5), holding(1, 0)).free_cpus.tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("gres", "bound"),
    [
        ("gpu:g0:1,gpu:g1:1(S:0),gpu:g2:1(S:0-1),gpu:g3:1(S:1)", [-1, 0, -1, 1]),
        ("gpu:v100:4(S:0-1)", [-1, -1, -1, -1]),
        ("gpu:v100:4(S:1)", [1, 1, 1, 1]),
        ("gpu:a:2(S:0),gpu:b:2(S:1)", [0, 0, 1, 1]),
    ],
)
def test_gpus_whose_socket_is_not_told(gres: str, bound: list[int]) -> None:
    assert sockets(node(gres=gres)).gpu.tolist() == [bound]


def test_running_jobs_give_back_what_they_hold() -> None:
    (job,) = seen(node(alloc=3), holding(1, 0, 1, 8, end_s=50.0)).running
    assert job.socket_cpus == {0: (2, 1)}


def hold(slots: tuple[int, ...], cpus: int = 2, **fields: Any) -> Hold:
    return Hold("7", ("n1",), slots, 2, cpus, 1000, math.inf, **fields)


def test_a_placed_job_that_has_not_started_has_its_cores() -> None:
    cluster = seen(node(), holds=(hold((2,)),))
    assert cluster.sockets is not None
    assert cluster.sockets.free_cpus.tolist() == [[8, 6]]
    assert cluster.sockets.quiet.tolist() == [False]
    assert cluster.running[0].socket_cpus == {0: (0, 2)}


def test_a_placed_job_that_gets_all_cores_beside_its_gpus() -> None:
    cluster = seen(node(), holds=(hold((0, 1), fills_sockets=True, memory_mb_per_cpu=500),))
    assert cluster.sockets is not None
    assert cluster.sockets.free_cpus.tolist() == [[0, 8]]
    assert cluster.free_cpus.tolist() == [8]
    assert cluster.free_memory_mb.tolist() == [64000 - 1000 - 6 * 500]
    assert cluster.running[0].cpus == {0: 8}


def test_where_slurm_is_about_to_choose_nobody_is_sent() -> None:
    cluster = seen(node(), holds=(hold(()),))
    assert not cluster.free.any()
    given_back = [job for job in cluster.running if job.end_s == 0.0]
    assert [job.gpus for job in given_back] == [((0, (2, 3)),)]


def test_jobs_without_the_flag_cost_nothing() -> None:
    one = node()
    cluster = build_cluster([one], [], None, SLURM, classes=["A"], penalties={"cluster": 1.5})
    assert cluster.sockets is None
