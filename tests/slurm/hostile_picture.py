"""Whether the selector's picture of all jobs is Slurm's own; runs in the controller's container.

Prints JSON: ``jobs`` (how many were compared), ``unread``, ``different`` (``JOB FIELD: one, two``).
Slurm's own is ``squeue --json``, in which every value stands by itself. Jobs that change meanwhile
are compared at the next try.
"""

import json
import subprocess
from typing import Any

from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob

TRIES = 5
READ_LONGEST = 4096
"""Longer texts are not read (MAX_TEXT of libslurm_records.c)."""
TEXTS = {
    "name": "name",
    "user": "user_name",
    "account": "account",
    "qos": "qos",
    "comment": "comment",
    "admin_comment": "admin_comment",
    "extra": "extra",
    "dependency": "dependency",
    "features": "features",
    "tres_per_node": "tres_per_node",
    "tres_per_job": "tres_per_job",
    "tres_per_task": "tres_per_task",
    "tres_freq": "tres_freq",
}
"""Field of `SlurmJob` -> field of ``squeue --json``."""


def number(value: dict[str, Any]) -> float | None:
    """A number of ``squeue --json``; None: not set."""
    if value["infinite"]:
        return float("inf")
    return value["number"] if value["set"] else None


def squeue() -> dict[int, dict[str, Any]]:
    """All jobs by number."""
    done = subprocess.run(["squeue", "--json", "-t", "all"], capture_output=True, check=True)
    found = json.loads(done.stdout.decode("utf-8", "surrogateescape"), strict=False)
    return {job["job_id"]: job for job in found["jobs"]}


def differences(job: SlurmJob, slurm: dict[str, Any]) -> list[str]:
    """Fields in which the two differ."""
    task = number(slurm["array_task_id"])
    array, tasks = number(slurm["array_job_id"]), slurm["array_task_string"].partition("%")[0]
    if array and task is None and tasks.isdigit():
        task = int(tasks)
    single = array and task is not None
    reason = slurm["state_description"].replace(" ", "_") or slurm["state_reason"]
    pairs: dict[str, tuple[object, object]] = {
        "id": (job.id, f"{array}_{task}" if single else str(slurm["job_id"])),
        "state": (job.state, slurm["job_state"][0]),
        "reason": (job.reason, reason),
        "partitions": (",".join(job.partitions), slurm["partition"]),
        "priority": (job.priority, number(slurm["priority"])),
        "time_limit": (job.time_limit_s / 60, number(slurm["time_limit"])),
        "restarts": (job.restarts, slurm["restart_cnt"]),
        "array_tasks": (job.array_tasks or "", "" if single else tasks),
        "licences": (counted(job), counted_text(slurm["licenses"])),
    }
    for ours, theirs in TEXTS.items():
        if len(slurm[theirs].encode("utf-8", "surrogateescape")) <= READ_LONGEST:
            pairs[ours] = (getattr(job, ours) or "", slurm[theirs])
    return [
        f"{job.id} {name}: {one!r}, {other!r}"[:600]
        for name, (one, other) in pairs.items()
        if one != other
    ]


def counted(job: SlurmJob) -> list[str]:
    """Names of licences."""
    return sorted(name for name, _ in job.licenses)


def counted_text(text: str) -> list[str]:
    """Names of licences in Slurm's text of them."""
    items = text.replace(";", ",").replace("|", ",").split(",")
    if len(text) > READ_LONGEST:
        return []
    return sorted(item.split(":")[0].strip() for item in items if item)


def compare() -> None:
    client = SlurmClient(30)
    different: list[str] = []
    for _ in range(TRIES):
        before, jobs, after = squeue(), client.jobs(), squeue()
        still = [job for job in jobs if before.get(job.raw_id) == after.get(job.raw_id)]
        different = [d for job in still for d in differences(job, before[job.raw_id])]
        missing = set(before) & set(after) - {job.raw_id for job in jobs} - client.unread
        different += [f"{job} is not read" for job in missing]
        if not different and len(still) == len(jobs):
            break
    unread = sorted(client.unread)
    print(json.dumps({"jobs": len(still), "unread": unread, "different": different}))


if __name__ == "__main__":
    compare()
