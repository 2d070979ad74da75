"""What the slurmctld of `MemorySlurm` does with jobs: it splits, changes and starts them."""

import re
import time
from collections.abc import Iterable
from typing import Any

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.libslurm_fields import NOT_SET
from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.records import SlurmJob, array_tasks
from slurm_gpu_aware.slurm.updates import JobUpdate, refused_id
from slurm_gpu_aware.slurm.words import expand_hostlist, parse_licenses

__all__ = [
    "OF_PENDING",
    "Record",
    "State",
    "change_jobs",
    "find",
    "job_as_read",
    "node_with_gpus",
    "requeue",
]

State = dict[str, Any]
Record = dict[str, Any]

GATE = "gpuaware"
_CHANGED = {
    "begin_time": "eligible_time",
    "max_cpus": None,
    "min_cpus": "num_cpus",
    "min_nodes": "num_nodes",
    "reservation": "resv_name",
}
"""Fields of an update whose names in a record are others; None: not shown there."""
OF_PENDING = ("begin_time", "features", "min_nodes", "req_nodes", "tres_per_node")
"""Fields that cannot be changed any more when a job has started."""
_CHECKED_LAST = ("tres_per_node", "tres_per_job", "tres_per_socket")
"""Fields that Slurm checks when it has set all others."""


def job_as_read(job: Record) -> SlurmJob | None:
    """The job of a record; None if it cannot be understood."""
    shares = []
    if job["state"] == "RUNNING":
        gres = ",".join(f"gpu:g{slot}:1(IDX:{slot})" for slot in job.get("slots", []))
        cores = job.get("held_cores", "0")
        first, _, last = cores.partition("-")
        cpus = int(last or first) - int(first) + 1
        shares = [f"{node}\t{cpus}\t{cores}\t500\t{gres}\n" for node in job["nodes"].split(",")]
    try:
        return job_of({**job, "shares": "".join(shares)})
    except (SourceError, ValueError, LookupError):
        return None


def _held(jobs: Iterable[Record]) -> set[tuple[str, int]]:
    """(node, GPU) of all jobs that run."""
    return {
        (node, slot)
        for job in jobs
        if job["state"] == "RUNNING"
        for node in job["nodes"].split(",")
        for slot in job.get("slots", [])
    }


def node_with_gpus(node: Record, state: State) -> Record:
    """The node's record, with the GPUs that jobs hold where there are any, and its own shards."""
    used = {slot for name, slot in _held(state["jobs"]) if name == node["name"]}
    held = ",".join(f"gpu:g{slot}:1(IDX:{slot})" for slot in sorted(used))
    return node | {"gres_used": ",".join(filter(None, [held, node["gres_used"]]))}


def _shown_id(job: Record) -> str:
    """The id of a record as Slurm names it in its complaints: ``98_3``, ``98_[4-9]``."""
    if not job["array_job_id"]:
        return str(job["job_id"])
    single = job["array_task_id"] != NOT_SET
    task = job["array_task_id"] if single else f"[{job['array_task_str']}]"
    return f"{job['array_job_id']}_{task}"


def find(state: State, job_id: str) -> Record | None:
    """The record of an id; one task of an unsplit array is split off, as Slurm does."""
    for job in state["jobs"]:
        if job_id in (str(job["job_id"]), _shown_id(job)):
            return job
        tasks_of_rest = job["array_task_str"]
        if not tasks_of_rest.isdigit() and job_id == f"{job['array_job_id']}_{tasks_of_rest}":
            return job
    array, _, task = job_id.partition("_")
    for job in state["jobs"]:
        if str(job["array_job_id"]) != array or not job["array_task_str"] or not task.isdigit():
            continue
        tasks = array_tasks(job["array_task_str"].partition("%")[0])
        if int(task) in tasks:
            number = max(j["job_id"] for j in state["jobs"]) + 1
            new = job | {"job_id": number, "array_task_id": int(task), "array_task_str": ""}
            tasks.remove(int(task))
            job["array_task_str"] = ",".join(map(str, tasks))
            state["jobs"].append(new)
            if not tasks:
                state["jobs"].remove(job)
            return new
    return None


def change_jobs(state: State, update: JobUpdate) -> dict[str, str]:
    """Complaints by the id that was asked for."""
    job_id, refused = update.job_id, state["refuse"]
    if state["site_refuses"]:
        return {job_id: "Unspecified error"}
    # The id of an array means every record of it, running tasks too.
    jobs = [job for job in state["jobs"] if str(job["array_job_id"]) == job_id]
    if not jobs:
        found = find(state, job_id)
        jobs = [] if found is None else [found]
    if not jobs or (job_id in refused and not jobs[0]["array_job_id"]):
        return {job_id: "Invalid job id specified"}
    complaints = {}
    for job in jobs:
        if job_id in refused or _shown_id(job) in refused:
            why = "Requested node configuration is not available"
        else:
            why = _change(state, job, update)
        if why:
            complaints[refused_id(_shown_id(job), job_id)] = why
    return complaints


def requeue(state: State, job_id: str) -> str | None:
    """Stop a job and put it back, as Slurm does for two minutes; why it does not."""
    job = find(state, job_id)
    if job is None:
        return "Invalid job id specified"
    if job.get("no_requeue"):
        return "Requested operation is presently disabled"
    if job["state"] == "RUNNING":
        job |= {"state": "PENDING", "reason": "BeginTime", "nodes": "", "slots": []}
        now = int(time.time())
        job |= {"restart_cnt": job["restart_cnt"] + 1, "submit_time": now - 2}  # it stopped then
        job["eligible_time"] = now + 121
    return None


def _change(state: State, job: Record, update: JobUpdate) -> str:
    """Change a record; the complaint if Slurm refuses."""
    texts, numbers = update.descriptor()
    name = texts.get("reservation", "")
    if name and name not in [found["name"] for found in state["reservations"]]:
        return "Requested reservation is invalid"
    if not set(expand_hostlist(texts.get("req_nodes", ""))) <= {n["name"] for n in state["nodes"]}:
        return "Invalid node name specified"
    if any(lic not in state["licences"] for lic, _ in parse_licenses(texts.get("licenses", ""))):
        return "Invalid license specification"
    changed = texts | numbers
    touched = [field for field in OF_PENDING if field in changed and job["state"] != "PENDING"]
    state["touched_running"] += [[update.job_id, field] for field in touched]
    if touched:
        return "Job is no longer pending execution"
    late = [field for field in _CHECKED_LAST if not _is_tres(texts.get(field, ""))]
    for field, value in changed.items():
        shown = _CHANGED.get(field, field)
        if shown is not None and field not in late:
            job[shown] = value
    if "reservation" in changed:
        job["reason"] = "Reservation" if name else "None"
    if "begin_time" in changed:
        job["reason"] = "None"
    _start(state, job)
    return "Invalid Trackable RESource (TRES) specification" if late else ""


def _is_tres(text: str) -> bool:
    return not text or "gres" in text


def _start(state: State, job: Record) -> None:
    """A pending job whose gate is open starts at once where it is pinned (or on n1)."""
    if (
        job["state"] != "PENDING"
        or GATE in job["licenses"]
        or job.get("stuck")
        or job["eligible_time"] > time.time()
    ):
        return
    slots = [int(i) for i in re.findall(r"gpu:g(\d+):1", job["tres_per_node"])] or [0, 1]
    nodes = job["req_nodes"] or "n1"
    wanted = {(node, slot) for node in nodes.split(",") for slot in slots}
    if wanted & _held(state["jobs"]):
        return
    job |= {"state": "RUNNING", "nodes": nodes, "slots": slots, "start_time": 1000}
    job["gres_total"] = ",".join(f"gpu:g{slot}:1" for slot in slots)
    job["starts"] = job.get("starts", 0) + 1
