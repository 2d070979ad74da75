"""A small Slurm of our own behind `SlurmClient`: what slurmctld does, as far as tests rely on it.

Its state is one JSON file under a lock, so that a selector in a process of its own, the command
line and the test see the same Slurm; the keys are those of `START`. Jobs are raw records by the
names of `libslurm_fields.JOB`, beside what only this Slurm knows of them (`OWN`); they are read by
the same code as those of Slurm's library.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import JOB_ID, JobUpdate, NewReservation
from slurm_gpu_aware.slurm.libslurm_client import _descriptor, _named
from slurm_gpu_aware.slurm.libslurm_fields import (
    JOB,
    NODE,
    NOT_SET,
    PARTITION,
    RESERVATION,
    UNLIMITED,
    RecordKind,
)
from slurm_gpu_aware.slurm.read_cluster import (
    config_of,
    node_of,
    parse_qos,
    parse_settings,
    partition_of,
    reservation_of,
)
from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
    SlurmSwitch,
)
from slurm_gpu_aware.slurm.topology import parse_topology

__all__ = [
    "FOREVER",
    "OWN",
    "START",
    "MemorySlurm",
    "job_record",
    "node_record",
    "opened",
    "partition_record",
    "reservation_record",
]

State = dict[str, Any]
Record = dict[str, Any]

GATE = "gpuaware"
FOREVER = 99_999_999_999
OWN = frozenset({"cpu_ids", "slots", "starts", "stuck"})
"""Of a job: the CPU ids and GPUs that it holds on each of its nodes, how often it has started, and
that it never does."""
START: State = {
    "jobs": [],
    "nodes": [],
    "reservations": [],
    "settings": {
        "ClusterName": "fake",
        "PrivateData": "none",
        "SLURM_VERSION": "24.11.5",
        "SelectTypeParameters": "CR_CORE_MEMORY",
    },
    "topology": "",  # as Slurm prints it
    "qos": "",  # as sacctmgr prints it
    "refuse": [],  # ids of jobs and array tasks whose updates are refused
    "licence_total": None,  # how many licences a reservation can hold
    "silent": "",  # why Slurm does not answer
    "calls": [],  # every request: its name and what was given
    "kill_at": 0,  # the N-th request kills the process that asks,
    "kill_before": False,  # before or after doing its work
    "touched_running": [],  # updates of placements of jobs that run
}
_CHANGED = {
    "begin_time": "eligible_time",
    "max_cpus": None,
    "min_cpus": "num_cpus",
    "min_nodes": "num_nodes",
    "reservation": "resv_name",
}
"""Fields of an update whose names in a record are others; None: not shown there."""
_PLACEMENT = ("min_nodes", "req_nodes", "tres_per_node")


def _record(kind: RecordKind, usual: Mapping[str, Any], fields: Mapping[str, Any]) -> Record:
    """A record with all fields; those that are not named are 0 or empty, as Slurm leaves them."""
    known = dict.fromkeys(kind.numbers, 0) | dict.fromkeys(kind.texts, "")
    for name, value in {**usual, **fields}.items():
        if name not in OWN and not isinstance(value, type(known.get(name))):
            raise TypeError(f"{kind.name}: {name}={value!r}")
    return {**known, **usual, **fields}


def job_record(**fields: Any) -> Record:
    """A pending job of one task on one node without GPUs, but for ``fields``."""
    unset = ("array_task_id", "ntasks_per_core", "threads_per_core", "sockets_per_node")
    usual = dict.fromkeys((*unset, "cores_per_socket", "core_spec"), NOT_SET) | {
        "job_id": 7,
        "name": "job",
        "user_id": 2001,
        "user_name": "alice",
        "priority": 100,
        "state": "PENDING",
        "reason": "Licenses",
        "batch_flag": 1,
        "time_limit": 60,
        "submit_time": 900,
        "partition": "gpu",
        "num_nodes": 1,
        "num_cpus": 1,
        "num_tasks": 1,
        "cpus_per_task": 1,
        "pn_min_cpus": 1,
        "pn_min_memory": 500 - (1 << 63),  # 500 MB per CPU
    }
    return _record(JOB, usual, fields)


def node_record(name: str, **fields: Any) -> Record:
    """A node of two sockets with eight cores and two GPUs each."""
    usual = {
        "name": name,
        "state": "IDLE",
        "features": "gpu_v100",
        "gres": "gpu:g0:1(S:0),gpu:g1:1(S:0),gpu:g2:1(S:1),gpu:g3:1(S:1)",
        "cpus": 16,
        "cpus_efctv": 16,
        "sockets": 2,
        "cores": 8,
        "threads": 1,
        "real_memory": 64000,
    }
    return _record(NODE, usual, fields)


def partition_record(name: str, nodes: str, **fields: Any) -> Record:
    """A partition without limits."""
    usual = {
        "name": name,
        "nodes": nodes,
        "state_up": 3,
        "max_time": UNLIMITED,
        "default_time": 60,
        "max_nodes": UNLIMITED,
        "priority_tier": 1,
        "max_share": 1,
    }
    return _record(PARTITION, usual, fields)


def reservation_record(name: str, **fields: Any) -> Record:
    """A reservation that has begun and does not end."""
    return _record(RESERVATION, {"name": name, "start_time": 100, "end_time": FOREVER}, fields)


@contextmanager
def opened(folder: Path) -> Iterator[State]:
    """The state, to be looked at and changed; it is kept at the end."""
    path = folder / "state.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text()) if path.exists() else json.loads(json.dumps(START))
        try:
            yield state
        finally:
            fresh = folder / "state.new"
            fresh.write_text(json.dumps(state))
            fresh.replace(path)


class MemorySlurm:
    """See `SlurmClient`; ``folder``: where the state is kept."""

    def __init__(self, folder: Path, timeout_s: float = 20.0) -> None:
        self._folder = folder
        self.unread: frozenset[int] = frozenset()

    @contextmanager
    def _asked(self, *call: object) -> Iterator[State]:
        """The state for one request. Raises SourceError if Slurm is silent."""
        struck = False
        with opened(self._folder) as state:
            state["calls"].append(call)
            struck = state["kill_at"] == len(state["calls"])
            if struck and state["kill_before"]:
                os.kill(os.getpid(), signal.SIGKILL)
            if state["silent"]:
                raise SourceError(state["silent"])
            yield state
        if struck:
            os.kill(os.getpid(), signal.SIGKILL)

    def settings(self) -> Mapping[str, str]:
        with self._asked("settings") as state:
            lines = [f"{key:<23} = {value}" for key, value in state["settings"].items()]
        return parse_settings("\n".join(lines))

    def config(self) -> SlurmConfig:
        return config_of(self.settings())

    def jobs(self) -> list[SlurmJob]:
        with self._asked("jobs") as state:
            found = [(job["job_id"], _read(job)) for job in state["jobs"]]
        self.unread = frozenset(number for number, job in found if job is None)
        return [job for _, job in found if job is not None]

    def jobs_of(self, ids: Sequence[str]) -> list[SlurmJob]:
        found: list[SlurmJob] = []
        for job_id in ids:
            if not JOB_ID.match(job_id):
                raise ValueError(f"{job_id!r} is not a job id")
            number = int(job_id.partition("_")[0])
            with self._asked("job", job_id) as state:
                asked = [j for j in state["jobs"] if number in (j["job_id"], j["array_job_id"])]
            jobs = [job for job in map(_read, asked) if job is not None]
            found += [job for job in jobs if job.id == job_id][:1]
        return found

    def nodes(self) -> list[SlurmNode]:
        with self._asked("nodes") as state:
            return [node_of(_with_gpus(node, state)) for node in state["nodes"]]

    def partitions(self) -> list[SlurmPartition]:
        with self._asked("partitions") as state:
            names = ",".join(node["name"] for node in state["nodes"])
        return [partition_of(partition_record("gpu", names))]

    def qos(self) -> list[SlurmQos]:
        with self._asked("qos") as state:
            return parse_qos(state["qos"])

    def reservations(self) -> list[SlurmReservation]:
        with self._asked("reservations") as state:
            return [reservation_of(found, time.time()) for found in state["reservations"]]

    def topology(self) -> list[SlurmSwitch]:
        with self._asked("topology") as state:
            return parse_topology(state["topology"])

    def free_licenses(self) -> dict[str, int]:
        with self._asked("licenses"):
            return {"matlab": 10}

    def update_jobs(self, updates: Sequence[JobUpdate]) -> dict[str, str]:
        refused: dict[str, str] = {}
        for update in updates:
            with self._asked("update", update.job_id, dict(update.fields)) as state:
                refused |= _update(state, update)
        return refused

    def release_jobs(self, ids: Sequence[str]) -> None:
        for job_id in ids:
            with self._asked("release", job_id):
                pass

    def create_reservation(self, wanted: NewReservation) -> None:
        with self._asked("create_reservation", wanted.name) as state:
            total = state["licence_total"]
            if total is not None and int(wanted.licenses.partition(":")[2]) > total:
                raise SourceError("Error creating the reservation: Invalid license specification")
            state["reservations"].append(
                reservation_record(
                    wanted.name,
                    start_time=int(time.time() if wanted.start_s is None else wanted.start_s),
                    end_time=int(wanted.end_s),
                    users=wanted.users,
                    licenses=wanted.licenses,
                    node_list=wanted.nodes,
                    flags=",".join(sorted(wanted.flags)),
                )
            )

    def move_reservation(self, name: str, end_s: float, start_s: float | None = None) -> bool:
        with self._asked("move_reservation", name, end_s, start_s) as state:
            found = next((r for r in state["reservations"] if r["name"] == name), None)
            if found is None or (start_s is not None and found["start_time"] <= time.time()):
                return False
            found["end_time"] = int(end_s)
            if start_s is not None:
                found["start_time"] = int(start_s)
            return True

    def delete_reservation(self, name: str) -> None:
        with self._asked("delete_reservation", name) as state:
            state["reservations"] = [r for r in state["reservations"] if r["name"] != name]

    def drain_node(self, name: str, reason: str) -> None:
        self._set_node("drain_node", name, "IDLE+DRAIN", reason)

    def resume_node(self, name: str) -> None:
        self._set_node("resume_node", name, "IDLE", "")

    def _set_node(self, call: str, name: str, node_state: str, reason: str) -> None:
        with self._asked(call, name) as state:
            for node in state["nodes"]:
                if node["name"] == name:
                    node |= {"state": node_state, "reason": reason}
                    return
            raise SourceError("Slurm, update node: Invalid node name specified")


def _read(job: Record) -> SlurmJob | None:
    """The job of a record; None if it cannot be understood."""
    shares = []
    if job["state"] == "RUNNING":
        gres = ",".join(f"gpu:g{slot}:1(IDX:{slot})" for slot in job.get("slots", []))
        cores = job.get("cpu_ids", "0")
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


def _with_gpus(node: Record, state: State) -> Record:
    """The node's record, with the GPUs that jobs hold where there are any."""
    used = {slot for name, slot in _held(state["jobs"]) if name == node["name"]}
    held = ",".join(f"gpu:g{slot}:1(IDX:{slot})" for slot in sorted(used))
    return node | {"gres_used": held}


def _shown_id(job: Record) -> str:
    """The id of a record as Slurm names it in its complaints: ``98_3``, ``98_[4-9]``."""
    if not job["array_job_id"]:
        return str(job["job_id"])
    single = job["array_task_id"] != NOT_SET
    task = job["array_task_id"] if single else f"[{job['array_task_str']}]"
    return f"{job['array_job_id']}_{task}"


def _find(state: State, job_id: str) -> Record | None:
    """The record of an id; one task of an unsplit array is split off, as Slurm does."""
    for job in state["jobs"]:
        if job_id in (str(job["job_id"]), _shown_id(job)):
            return job
    array, _, task = job_id.partition("_")
    for job in state["jobs"]:
        tasks = [t for t in job["array_task_str"].partition("%")[0].split(",") if t]
        if str(job["array_job_id"]) == array and task in tasks:
            number = max(j["job_id"] for j in state["jobs"]) + 1
            new = job | {"job_id": number, "array_task_id": int(task), "array_task_str": ""}
            tasks.remove(task)
            job["array_task_str"] = ",".join(tasks)
            state["jobs"].append(new)
            if not tasks:
                state["jobs"].remove(job)
            return new
    return None


def _update(state: State, update: JobUpdate) -> dict[str, str]:
    """Complaints by the id that was asked for."""
    job_id, refused = update.job_id, state["refuse"]
    # The id of an array means every record of it, running tasks too.
    jobs = [job for job in state["jobs"] if str(job["array_job_id"]) == job_id]
    if not jobs:
        found = _find(state, job_id)
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
            complaints[_named(_shown_id(job), job_id)] = why
    return complaints


def _change(state: State, job: Record, update: JobUpdate) -> str:
    """Change a record; the complaint if Slurm refuses."""
    texts, numbers = _descriptor(update.fields)
    name = texts.get("reservation", "")
    if name and name not in [found["name"] for found in state["reservations"]]:
        return "Requested reservation is invalid"
    if "begin_time" in numbers and job["state"] != "PENDING":
        return "Job is no longer pending execution"
    changed = texts | numbers
    if job["state"] != "PENDING":
        touched = [field for field in _PLACEMENT if field in changed]
        state["touched_running"] += [[update.job_id, field] for field in touched]
    for field, value in changed.items():
        shown = _CHANGED.get(field, field)
        if shown is not None:
            job[shown] = value
    if "reservation" in changed:
        job["reason"] = "Reservation" if name else "None"
    if "begin_time" in changed:
        job["reason"] = "None"
    _start(state, job)
    return ""


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
