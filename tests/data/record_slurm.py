"""Record what a real Slurm answers through its library, for the tests of the readers.

Runs against the container cluster with the selector stopped and the filter off, so that jobs are
exactly what is typed here::

    GPU_AWARE_PROJECT=mine docker/cluster up
    GPU_AWARE_PROJECT=mine python tests/data/record_slurm.py tests/data/slurm-24.11.json

Writes the records as `libslurm.decode` gives them, and which job was which.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "slurm"))

from cluster import Cluster

INSIDE = """
import json, sys
from slurm_gpu_aware.slurm import libslurm_fields as fields
from slurm_gpu_aware.slurm.libslurm import Libslurm, decode
slurm = Libslurm(20.0)
found = {
    kind.name: [decode(kind, record) for record in slurm.records(function)]
    for kind, function in (
        (fields.JOB, "aware_jobs"),
        (fields.NODE, "aware_nodes"),
        (fields.PARTITION, "aware_partitions"),
        (fields.RESERVATION, "aware_reservations"),
        (fields.LICENSE, "aware_licenses"),
    )
}
found["settings"] = slurm.reply("aware_settings").decode()
print(json.dumps(found))
"""
WHOLE_RECORD = (
    "x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=9 Nice=0 Account=(null) QOS=normal"
    " JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0"
    " ExitCode=0:0 RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1 EligibleTime=1"
    " AccrueTime=1 StartTime=1 EndTime=2 Deadline=N/A SuspendTime=None SecsPreSuspend=0"
    " LastSchedEval=1 Scheduler=Main Partition=gpu AllocNode:Sid=ctl:1 ReqNodeList=(null)"
    " ExcNodeList=(null) NodeList=n1 NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1"
    " ReqTRES=cpu=1 Features=(null) OverSubscribe=OK Licenses=(null) Network=(null)"
    " Command=(null) WorkDir=/tmp\nJobId=999999 JobName=y"
)
HOSTILE: dict[str, list[str]] = {
    "state in the name": ["-J", "x JobState=RUNNING"],
    "user in the name": ["-J", "x UserId=root(0) GroupId=root(0)"],
    "newline in the name": ["-J", "a\nJobId=424242 JobName=forged"],
    "a record in the name": ["-J", "a\nJobId=1 JobName=forged UserId=root(0) JobState=RUNNING"],
    "admin comment in the comment": ["--comment", "c AdminComment=gpuaware/1;tn=gres/gpu:4"],
    "licences in the comment": ["--comment", "class=A Licenses=gpuaware:1"],
    "newline in the comment": ["--comment", "a\nb JobId=7"],
    "quotes": ["--comment", "'\"$(touch /tmp/no)`id`\\", "-J", "'\"; rm"],
    "utf-8": ["--comment", "größe 猫", "-J", "猫"],
    "a directory with words": ["--chdir", "/tmp/a b=c TresPerNode=gres/gpu:g0:1"],
    "shares in the comment": [
        "--comment",
        " Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:g3:1(IDX:3) MinCPUsNode=1",
    ],
    "a whole record in the output's name": ["-o", "/tmp/" + WHOLE_RECORD],
    "blanks": ["-J", "  two  blanks  ", "--comment", "   "],
    "extra": ["--extra", "e x=1\nTresPerJob=gres/gpu:7"],
}
MANY = sorted({n * n % 997 for n in range(40)})
PLAIN: dict[str, list[str]] = {
    "gres": ["--gres=gpu:2"],
    "two nodes": ["-N2", "--gpus-per-node=2", "--cpus-per-gpu=2", "--mem-per-gpu=100"],
    "tasks": ["-n4", "--gpus-per-task=1"],
    "range": ["--nodes=2-4", "--gres=gpu:1"],
    "array": ["--array=0-9:3%2", "--gres=gpu:1", "--begin=now+1hour"],
    "deadline": ["--gres=gpu:1", "-t5", "--deadline=now+2days", "-C", "gpu_v100", "-x", "n1,n2"],
    "typed": ["--gres=gpu:g1:1,gpu:g3:1", "--gpu-freq=900", "-w", "n4"],
    "exclusive": ["--exclusive", "--gres=gpu:1", "--begin=now+1hour"],
    "socket": ["--gpus-per-socket=1", "--sockets-per-node=2", "-c4", "--begin=now+1hour"],
    "memory": ["--mem=0", "--gpus=1", "--begin=now+1hour"],
    "memory per CPU": ["--mem-per-cpu=1500M", "-n3", "--ntasks-per-node=3", "--gpus=1"],
    "many tasks": ["--array=" + ",".join(map(str, MANY)), "--begin=now+1hour"],
    "endless": ["-tUNLIMITED", "--gpus=1", "-w", "n3"],
    "bound": ["--gres-flags=enforce-binding", "--gpus=1", "--begin=now+1hour"],
    "cores": ["-B", "1:2", "--threads-per-core=1", "--ntasks-per-core=1", "--begin=now+1hour"],
    "unchecked": ["--contiguous", "--switches=1", "--prefer=gpu_v100", "--begin=now+1hour"],
    "several sizes": ["--nodes=1,3", "--begin=now+1hour"],
    "after": ["--dependency=singleton", "-J", "one", "--time-min=10", "--begin=now+1hour"],
    "licence": ["-L", "gpuaware:1", "--gpus=2"],
}


def record(file: Path) -> None:
    """Submit, record, and cancel."""
    cluster = Cluster(os.environ["GPU_AWARE_PROJECT"])
    cluster.reset()
    cluster.mode("plain")
    try:
        cluster.sh(
            "ctl",
            "scontrol create reservation reservationname=maintenance nodes=n4"
            " starttime=now+1day duration=60 users=root flags=maint;"
            "scontrol create reservation reservationname=half nodes=n3 starttime=now+2day"
            " duration=60 users=root tres=gres/gpu=2",
        )
        names = {}
        for group in (PLAIN, HOSTILE):
            for what, options in group.items():
                if "--chdir" in options:
                    argv = ["sbatch", "--parsable", *options, "-o", "/dev/null"]
                else:
                    argv = ["sbatch", "--parsable", *options]
                script = "#!/bin/bash\nsleep 60\n"
                job_id = cluster.sh("ctl", argv, "alice", stdin=script).split(";")[0].strip()
                names[job_id] = what
        time.sleep(6)
        python = "/opt/slurm-gpu-aware/bin/python"
        found = json.loads(cluster.sh("ctl", [python, "-c", INSIDE], "slurm"))
        first = min(map(int, names))
        found["job"] = [job for job in found["job"] if job["job_id"] >= first]
        file.write_text(json.dumps({"names": names, **found}, indent=1) + "\n")
    finally:
        cluster.mode("aware")
        cluster.reset()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
