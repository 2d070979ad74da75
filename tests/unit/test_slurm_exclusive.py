"""Whole-node jobs in the answers of Slurm 24.11 and 26.05; the record is one of 26.05.5."""

from __future__ import annotations

import pytest

from slurm_gpu_aware.slurm.job_reader import parse_jobs

RECORD = (
    "JobId=2 JobName={name} SLUID=s8NXM7YZ3Y3W00 UserId=alice(2001) GroupId=alice(2001)"
    " MCS_label=N/A Priority=0 Nice=0 Account=lab QOS=normal JobState=PENDING Reason=JobHeldUser"
    " Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0"
    " DerivedExitCode=0:0 RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1795261855"
    " EligibleTime=Unknown AccrueTime=Unknown StartTime=Unknown EndTime=Unknown Deadline=N/A"
    " SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795261855 Scheduler=Main Partition=gpu"
    " AllocNode:Sid=ctl:214 ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=1-1 NumCPUs=1"
    " NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*"
    " ReqTRES=cpu=1,mem=500M,node=1,billing=1,gres/gpu=1 AllocTRES=(null) Socks/Node=*"
    " NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryCPU=500M MinTmpDiskNode=0"
    " Features=(null) DelayBoot=00:00:00 {sharing} Contiguous=0 Licenses=(null)"
    " LicensesAlloc=(null) Network=(null) Command=(null)"
    " SubmitLine=sbatch --gres=gpu:1 --exclusive --wrap true WorkDir=/shared/home/alice"
    " Comment=place=off StdErr= StdIn=/dev/null StdOut=/shared/home/alice/slurm-2.out"
    " TresPerNode=gres/gpu:1 \n"
)


@pytest.mark.parametrize(
    ("sharing", "exclusive"),
    [
        ("OverSubscribe=NO Exclusive=NO", False),
        ("OverSubscribe=YES Exclusive=NO", False),
        ("OverSubscribe=NO Exclusive=NODE", True),
        ("OverSubscribe=NO Exclusive=USER", True),
        ("OverSubscribe=OK", False),
        ("OverSubscribe=NO", True),
        ("OverSubscribe=EXCLUSIVE", True),
    ],
)
def test_whole_nodes_by_release(sharing: str, exclusive: bool) -> None:
    (job,) = parse_jobs(RECORD.format(name="wrap", sharing=sharing)).jobs
    assert job.exclusive is exclusive
    assert job.name == "wrap"


def test_a_name_does_not_forge_the_owner() -> None:
    name = "x SLUID=s1 UserId=root(0)"
    found = parse_jobs(RECORD.format(name=name, sharing="OverSubscribe=NO Exclusive=NO"))
    assert found.jobs == []
    assert found.doubtful == [2]
