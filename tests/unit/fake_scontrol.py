"""A ``scontrol`` that answers from a folder: recorded text, or a small Slurm of its own.

Put on PATH as an executable named ``scontrol``; the code under test runs it like the real one.
``$FAKE_SLURM`` names the folder:

- ``answers/``: files by what is asked (``jobs.txt``, ``nodes.txt``, ...), given out as they are;
- ``state.json``: jobs as ``scontrol`` shows them; ``update`` changes them, and a pending job
  without the gate's licence starts at once where it is pinned (or on n1);
- ``log``: every command that was given, one JSON line each;
- ``json``: if it is there, jobs of ``state.json`` are given as JSON where that is asked;
- ``reservations``: reservations as ``scontrol`` shows them; ``licence-total``: how many licences
  one can hold;
- ``private-data``: Slurm's PrivateData;
- ``topology``: what ``show topology`` prints; without it nothing;
- ``kill-at``: a number N: the N-th command kills the process that asked, with SIGKILL, before
  (``kill-before``) or after doing its work;
- ``refuse``: job ids whose updates are refused, one a line; those of array tasks (``98_3``) as
  Slurm puts it for these.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

HOME = Path(os.environ["FAKE_SLURM"])
GATE = "gpuaware"
ORDER = """
    JobId ArrayJobId ArrayTaskId ArrayTaskThrottle JobName UserId GroupId MCS_label Priority Nice
    Account QOS JobState Reason Dependency Requeue Restarts BatchFlag TimeLimit SubmitTime
    EligibleTime AccrueTime StartTime EndTime Deadline LastSchedEval Partition ReqNodeList
    ExcNodeList NodeList NumNodes NumCPUs NumTasks CPUs/Task ReqTRES AllocTRES
    NtasksPerN:B:S:C CoreSpec JOB_GRES MinCPUsNode MinMemoryCPU Features Reservation OverSubscribe
    Licenses Network Command WorkDir AdminComment Comment Extra StdErr GresEnforceBind CpusPerTres
    MemPerTres TresBind TresFreq TresPerJob TresPerNode TresPerTask
"""
CLEARED = {"ReqNodeList", "ExcNodeList", "Licenses", "Features"}


def load() -> dict:
    return json.loads((HOME / "state.json").read_text())


def save(state: dict) -> None:
    fresh = HOME / "state.new"
    fresh.write_text(json.dumps(state, indent=1))
    fresh.replace(HOME / "state.json")


def line(job: dict) -> str:
    parts = []
    for key in ORDER.split():
        if key in job:
            parts.append(f"{key}={job[key]}")
        if key == "JOB_GRES" and job["JobState"] == "RUNNING":
            for node in job["NodeList"].split(","):
                gres = ",".join(f"gpu:g{i}:1(IDX:{i})" for i in job["slots"])
                cpus = job.get("cpu_ids", "0")
                parts.append(f"  Nodes={node} CPU_IDs={cpus} Mem=500 GRES={gres}")
    return " ".join(parts) + " "


def find(state: dict, job_id: str) -> dict | None:
    """The record of an id; one task of an unsplit array is split off, as Slurm does."""
    for job in state["jobs"]:
        own = job["JobId"]
        if job.get("ArrayTaskId", "").isdigit():
            own = f"{job['ArrayJobId']}_{job['ArrayTaskId']}"
        if job_id in (own, job["JobId"]):
            return job
    array, _, task = job_id.partition("_")
    for job in state["jobs"]:
        tasks = [t for t in job.get("ArrayTaskId", "").partition("%")[0].split(",") if t]
        if job.get("ArrayJobId") == array and task in tasks:
            new = dict(job, JobId=str(max(int(j["JobId"]) for j in state["jobs"]) + 1))
            new["ArrayTaskId"] = task
            tasks.remove(task)
            job["ArrayTaskId"] = ",".join(tasks)
            state["jobs"].append(new)
            if not tasks:
                state["jobs"].remove(job)
            return new
    return None


def shown_id(job: dict) -> str:
    """The id of a record as ``scontrol`` names it in its complaints: ``98_3``, ``98_[4-9]``."""
    if "ArrayTaskId" not in job:
        return job["JobId"]
    task = job["ArrayTaskId"]
    return f"{job['ArrayJobId']}_{task if task.isdigit() else f'[{task}]'}"


def update(state: dict, words: list[str]) -> None:
    fields = dict(word.split("=", 1) for word in words)
    job_id = fields.pop("jobid")
    # The id of an array means every record of it, running tasks too.
    jobs = [job for job in state["jobs"] if job.get("ArrayJobId") == job_id]
    if not jobs:
        found = find(state, job_id)
        jobs = [] if found is None else [found]
    refused = (HOME / "refuse").read_text().split() if (HOME / "refuse").exists() else []
    if not jobs or (job_id in refused and "ArrayTaskId" not in jobs[0]):
        print(f"Invalid job id specified for job {job_id}", file=sys.stderr)
        return
    for job in jobs:
        no = job_id in refused or shown_id(job) in refused
        if no or len(jobs) > 1:
            text = "Requested node configuration is not available" if no else "No error"
            print(f"{shown_id(job)}: {text}", file=sys.stderr)
        if not no and unknown_reservation(fields.get("ReservationName")):
            print(f"Requested reservation is invalid for job {job_id}", file=sys.stderr)
        elif not no:
            change(state, job, job_id, fields)


def unknown_reservation(name: str | None) -> bool:
    kept = HOME / "reservations"
    known = kept.read_text() if kept.exists() else ""
    return bool(name) and f"ReservationName={name} " not in known


def change(state: dict, job: dict, job_id: str, fields: dict) -> None:
    if "StartTime" in fields and job["JobState"] != "PENDING":
        print(f"Job is no longer pending execution for job {job_id}", file=sys.stderr)
        return
    for key, value in fields.items():
        if job["JobState"] != "PENDING" and key in ("NumNodes", "ReqNodeList", "TresPerNode"):
            (HOME / "touched-running").write_text(f"{job_id} {key}")
        if key == "ReservationName":
            job["Reservation"] = value or "(null)"
            job["Reason"] = "Reservation" if value else "None"
        elif key == "StartTime":
            job |= {"EligibleTime": str(int(time.time())), "Reason": "None"}
        elif value == "" and key not in CLEARED:
            job.pop(key, None)
        else:
            job[key] = value or "(null)"
    start(state, job)


def start(state: dict, job: dict) -> None:
    if (
        job["JobState"] not in ("PENDING", "RESV_DEL_HOLD")
        or GATE in job["Licenses"]
        or job.get("stuck")
        or float(job.get("EligibleTime", "0").replace("Unknown", "0")) > time.time()
    ):
        return
    slots = [int(i) for i in re.findall(r"gpu:g(\d+):1", job.get("TresPerNode", ""))] or [0, 1]
    nodes = job["ReqNodeList"] if job["ReqNodeList"] != "(null)" else "n1"
    held = {
        (node, slot)
        for other in state["jobs"]
        if other["JobState"] == "RUNNING"
        for node in other["NodeList"].split(",")
        for slot in other["slots"]
    }
    if held & {(node, slot) for node in nodes.split(",") for slot in slots}:
        return
    job |= {"JobState": "RUNNING", "NodeList": nodes, "slots": slots, "StartTime": "1000"}
    job["JOB_GRES"] = ",".join(f"gpu:g{slot}:1" for slot in slots)
    job["starts"] = job.get("starts", 0) + 1


def nodes_text(state: dict) -> str:
    lines = []
    for name in state["nodes"]:
        used = {
            slot
            for job in state["jobs"]
            if job["JobState"] == "RUNNING" and name in job["NodeList"].split(",")
            for slot in job["slots"]
        }
        gres = ",".join(
            f"gpu:g{i}:{int(i in used)}(IDX:{i if i in used else 'N/A'})" for i in range(4)
        )
        drained = state.get("drained", {}).get(name, [])
        drain = ",".join(f"gpu:g{i}:1(IDX:{i})" for i in drained) or "N/A"
        lines.append(
            f"NodeName={name} Arch=x86_64 CoresPerSocket=8  CPUAlloc=0 CPUEfctv=16 CPUTot=16"
            f" ActiveFeatures=gpu_v100 Sockets=2 Boards=1 ThreadsPerCore=1"
            f" Gres=gpu:g0:1(S:0),gpu:g1:1(S:0),gpu:g2:1(S:1),gpu:g3:1(S:1) GresDrain={drain}"
            f" GresUsed={gres} RealMemory=64000 AllocMem=0 State={state['nodes'][name]}"
            f" Partitions=gpu OS=Linux 6.1 #1 SMP"
        )
    return "\n".join(lines) + "\n"


def own_answer(state: dict, what: str) -> str:
    if what == "job":
        return "\n".join(line(job) for job in state["jobs"]) + "\n"
    if what == "node":
        return nodes_text(state)
    if what == "partition":
        return (
            f"PartitionName=gpu DefaultTime=01:00:00 MaxNodes=UNLIMITED MaxTime=UNLIMITED"
            f" Nodes={','.join(state['nodes'])} PriorityTier=1 State=UP\n"
        )
    if what == "reservation":
        if (HOME / "reservations").exists():
            return (HOME / "reservations").read_text()
        return "No reservations in the system\n"
    if what == "license":
        return "LicenseName=matlab Total=10 Used=0 Free=10 Reserved=0 Remote=no\n"
    if what == "topology":
        return (HOME / "topology").read_text() if (HOME / "topology").exists() else ""
    private = HOME / "private-data"
    return f"PrivateData = {private.read_text() if private.exists() else 'none'}\n" + (
        "ClusterName             = fake\nSLURM_VERSION           = 24.11.5\n"
        "SelectTypeParameters    = CR_CORE_MEMORY\n"
    )


def as_json(job: dict) -> str:
    """A pending job, as far as it is needed."""
    unset = {"set": False, "infinite": False, "number": 0}
    record = {
        "job_id": int(job["JobId"]),
        "name": job["JobName"],
        "user_name": "alice",
        "user_id": 2001,
        "job_state": [job["JobState"]],
        "state_reason": job["Reason"],
        "partition": job["Partition"],
        "restart_cnt": int(job["Restarts"]),
        "batch_flag": True,
        "time_limit": {"set": True, "infinite": False, "number": 60},
        "memory_per_node": unset,
        "memory_per_cpu": unset,
        "priority": int(job["Priority"]),
        "cpus": 1,
        "tasks": 1,
        "licenses": job["Licenses"].replace("(null)", ""),
        "admin_comment": job["AdminComment"],
        "tres_per_node": job["TresPerNode"],
        "tres_req_str": job["ReqTRES"],
    }
    return json.dumps({"jobs": [record]})


def begin(text: str) -> str:
    return "100" if text == "now" else text.removeprefix("uts")


def put_off(name: str, start: str) -> int:
    """Move the start of a reservation that has not begun: its StartTime is in the future."""
    kept = HOME / "reservations"
    lines = kept.read_text().splitlines() if kept.exists() else []
    for number, text in enumerate(lines):
        if not text.startswith(f"ReservationName={name} "):
            continue
        if int(re.findall(r"StartTime=([0-9]+)", text)[0]) <= time.time():
            print("slurm_update error: Reservation already started", file=sys.stderr)
            return 1
        lines[number] = re.sub(r"StartTime=[0-9]+", f"StartTime={begin(start)}", text)
        kept.write_text("\n".join(lines) + "\n")
        return 0
    print("slurm_update error: Requested reservation is invalid", file=sys.stderr)
    return 1


def create_reservation(fields: dict) -> int:
    """Written down where reservations are; ``licence-total`` bounds what can be held."""
    total = HOME / "licence-total"
    if total.exists() and int(fields["licenses"].partition(":")[2]) > int(total.read_text()):
        print("Error creating the reservation: Invalid license specification", file=sys.stderr)
        return 1
    if (HOME / "reservations").exists():
        with (HOME / "reservations").open("a") as file:
            file.write(
                f"ReservationName={fields['reservationname']}"
                f" StartTime={begin(fields['starttime'])} EndTime=99999999999"
                f" Nodes=(null) Flags={fields['flags']} Licenses={fields['licenses']}"
                f" State={'ACTIVE' if fields['starttime'] == 'now' else 'INACTIVE'}\n"
            )
    return 0


def carry_out(argv: list[str], stdin: str) -> int:
    answers = HOME / "answers"
    words = [word for word in argv if not word.startswith("-")]
    if words[:1] == ["show"]:
        if answers.exists():
            suffix = ".json" if "--json" in argv else ".txt"
            name = {"license": "licenses", "config": "config"}.get(words[1], f"{words[1]}s")
            sys.stdout.buffer.write((answers / f"{name}{suffix}").read_bytes())
            return 0
        if "--json" in argv and (HOME / "json").exists():
            asked = [job for job in load()["jobs"] if job["JobId"] == words[2]]
            if not asked:
                print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
                return 1
            print(as_json(asked[0]))
            return 0
        if words[1] == "job" and len(words) > 2 and "--json" not in argv:
            found = find(load(), words[2])
            if found is None:
                print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
                return 1
            print(line(found))
            return 0
        print(own_answer(load(), words[1]), end="")
        return 0
    if words[:1] == ["update"] and words[1].startswith("reservationname="):
        if (HOME / "no-reservation").exists():
            print("slurm_update error: Requested reservation is invalid", file=sys.stderr)
            return 1
        fields = dict(word.split("=", 1) for word in words[1:])
        if "starttime" in fields:
            return put_off(fields["reservationname"], fields["starttime"])
        return 0
    if words[:2] == ["create", "reservation"]:
        (HOME / "no-reservation").unlink(missing_ok=True)
        return create_reservation(dict(word.split("=", 1) for word in words[2:]))
    if words[:1] == ["delete"]:
        kept = HOME / "reservations"
        name = f"ReservationName={words[1].partition('=')[2]} "
        lines = kept.read_text().splitlines(keepends=True) if kept.exists() else []
        kept.write_text("".join(text for text in lines if not text.startswith(name)))
        return 0
    if not words and (HOME / "state.json").exists():
        state = load()
        for text in stdin.splitlines():
            given = shlex.split(text)
            if given[:1] == ["update"]:
                update(state, given[1:])
                save(state)
        return 0
    print(f"invalid: {argv}", file=sys.stderr)
    return 1


def main() -> int:
    argv = sys.argv[1:]
    stdin = "" if argv else sys.stdin.read()
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (HOME / "log").open("a") as log:
            log.write(json.dumps([argv, stdin, dict(os.environ)]) + "\n")
        count = len((HOME / "log").read_text().splitlines())
        kill = HOME / "kill-at"
        struck = kill.exists() and int(kill.read_text()) == count
        if struck and (HOME / "kill-before").exists():
            os.kill(os.getppid(), signal.SIGKILL)
            return 1
        code = carry_out(argv, stdin)
        if struck:
            os.kill(os.getppid(), signal.SIGKILL)
        return code


if __name__ == "__main__":
    sys.exit(main())
