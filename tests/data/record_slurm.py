"""Record what a real Slurm answers, for the tests of the parser.

Runs against the container cluster with the selector stopped and the filter off, so that jobs are
exactly what is typed here::

    GPU_AWARE_PROJECT=mine docker/cluster up
    GPU_AWARE_PROJECT=mine python tests/data/record_slurm.py tests/data/slurm-24.11

Writes the raw answers as files. ``jobs.json`` holds what the parser must make of them, read from
Slurm's JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "slurm"))

from cluster import Cluster

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
    "licence": ["-L", "gpuaware:1", "--gpus=2"],
}


def main(folder: Path) -> None:
    """Submit, record, and cancel."""
    cluster = Cluster(os.environ["GPU_AWARE_PROJECT"])
    folder.mkdir(parents=True, exist_ok=True)
    cluster.reset()
    cluster.mode("plain")
    try:
        cluster.sh(
            "ctl",
            "scontrol create reservation reservationname=maintenance nodes=n4"
            " starttime=now+1day duration=60 users=root flags=maint",
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
        ask = "SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0 scontrol "
        for name, words in {
            "jobs.txt": "-o -d show job",
            "nodes.txt": "-o -d show node",
            "partitions.txt": "-o -a show partition",
            "reservations.txt": "-o -a show reservation",
            "config.txt": "show config",
            "licenses.txt": "-o show license",
            "jobs.json": "show job --json -d",
        }.items():
            done = cluster.run("ctl", ask + words, check=True)
            (folder / name).write_bytes(_recent(name, done.stdout, min(map(int, names))))
        (folder / "names.json").write_text(json.dumps(names, indent=1) + "\n")
    finally:
        cluster.mode("aware")
        cluster.reset()


def _recent(name: str, answer: bytes, first: int) -> bytes:
    """The answer without jobs older than ours, and the JSON without its layout."""
    if name == "jobs.txt":
        return answer[answer.index(b"JobId=%d " % first) :]
    if name == "jobs.json":
        jobs = [job for job in json.loads(answer)["jobs"] if job["job_id"] >= first]
        return json.dumps({"jobs": jobs}, separators=(",", ":")).encode()
    return answer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
