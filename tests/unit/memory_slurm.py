"""A small Slurm of our own behind `SlurmClient`: what slurmctld does, as far as tests rely on it.

Its state is one JSON file under a lock, so that a selector in a process of its own, the command
line and the test see the same Slurm; the keys are those of `START`. Jobs are raw records by the
names of `libslurm_fields.JOB`, beside what only this Slurm knows of them (`OWN`); they are read by
the same code as those of Slurm's library.
"""

import fcntl
import json
import os
import pwd
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_slurmctld import (
    Record,
    State,
    change_jobs,
    find,
    job_as_read,
    node_with_gpus,
    requeue,
)

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.libslurm import CallCounts, SlurmError
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
from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmJob,
    SlurmLicense,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
    SlurmSwitch,
)
from slurm_gpu_aware.slurm.topology import parse_topology
from slurm_gpu_aware.slurm.updates import JobUpdate, NewReservation, check_job_ids
from slurm_gpu_aware.slurm.words import expand_hostlist, parse_licenses

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

FOREVER = 99_999_999_999
OWN = frozenset({"held_cores", "no_requeue", "slots", "starts", "stuck"})
"""Of a job: the cores and GPUs that it holds on each of its nodes, how often it has started, that
it never does, and that Slurm does not requeue it."""
START: State = {
    "jobs": [],
    "nodes": [],
    "tiers": {"gpu": 1},  # of the partitions
    "members": {},  # their nodes as a host list; a partition that is not named has all nodes
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
    "site_refuses": False,  # the site's slurm_job_modify refuses every change
    "no_account": [],  # ids of users whose submissions are refused
    "unheld": [],  # reservations that hold nothing since Slurm refused an update of them
    "licences": {"gpuaware": 100_000, "gpuaware_pool": 8, "matlab": 10, "power": 4},
    "node_licences": ["power"],
    "silent": "",  # why Slurm does not answer
    "calls": [],  # every request: its name and what was given
    "kill_at": 0,  # the N-th request kills the process that asks,
    "kill_before": False,  # before or after doing its work
    "touched_running": [],  # refused updates of `OF_PENDING` of jobs that have started
}


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


def licences_of(records: Sequence[Record]) -> Counter[str]:
    """How many of each licence these records name."""
    counts = Counter[str]()
    for name, count in [pair for one in records for pair in parse_licenses(one["licenses"])]:
        counts[name] += count
    return counts


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
        self.parking_licence = ""
        self.counts = CallCounts()
        self._known: dict[str, SlurmJob | None] = {}

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
            shown = [(json.dumps(job, sort_keys=True), job) for job in state["jobs"]]
        known = self._known
        # As the client does: a record that has not changed gives the same object.
        self._known = {k: known[k] if k in known else job_as_read(job) for k, job in shown}
        found = [(job["job_id"], self._known[text]) for text, job in shown]
        self.unread = frozenset(number for number, job in found if job is None)
        return [job for _, job in found if job is not None]

    def jobs_of(self, ids: Sequence[str]) -> list[SlurmJob]:
        found: list[SlurmJob] = []
        check_job_ids(ids)
        for job_id in ids:
            number = int(job_id.partition("_")[0])
            with self._asked("job", job_id) as state:
                asked = [j for j in state["jobs"] if number in (j["job_id"], j["array_job_id"])]
                parts = [j for j in state["jobs"] if number == j["het_job_id"] != j["job_id"]]
            jobs = [job for job in map(job_as_read, [*asked, *parts]) if job is not None]
            found += [job for job in jobs if job.id == job_id or job.het]
        return found

    def nodes(self) -> list[SlurmNode]:
        with self._asked("nodes") as state:
            return [node_of(node_with_gpus(node, state)) for node in state["nodes"]]

    def ask_ahead(self, *names: str) -> None:
        """It answers at once."""

    def partitions(self) -> list[SlurmPartition]:
        with self._asked("partitions") as state:
            names = ",".join(node["name"] for node in state["nodes"])
            tiers, members = state["tiers"].items(), state["members"]
        records = (
            partition_record(name, members.get(name, names), priority_tier=tier)
            for name, tier in tiers
        )
        return [partition_of(record) for record in records]

    def qos(self) -> list[SlurmQos]:
        with self._asked("qos") as state:
            return parse_qos(state["qos"])

    def reservations(self) -> list[SlurmReservation]:
        with self._asked("reservations") as state:
            return [reservation_of(found) for found in state["reservations"]]

    def topology(self) -> list[SlurmSwitch]:
        with self._asked("topology") as state:
            return parse_topology(state["topology"])

    def licenses(self) -> list[SlurmLicense]:
        with self._asked("licenses") as state:
            running = [job for job in state["jobs"] if job["state"] == "RUNNING"]
            held = [
                r
                for r in state["reservations"]
                if r["name"] not in state["unheld"] and r["end_time"] >= time.time()
            ]
            used = licences_of([*state["reservations"], *running])
            reserved, by_node = licences_of(held), state["node_licences"]
            nodes = {name: frozenset({"n1"}) for name in by_node}
            return [
                SlurmLicense(
                    name, max(0, n - used[name]), reserved[name], nodes.get(name, frozenset())
                )
                for name, n in state["licences"].items()
            ]

    def update_jobs(self, updates: Sequence[JobUpdate]) -> dict[str, str]:
        refused: dict[str, str] = {}
        for update in updates:
            with self._asked("update", update.job_id, dict(update.fields)) as state:
                refused |= change_jobs(state, update)
        return refused

    ended = frozenset({"Invalid job id specified", "Job is no longer pending execution"})

    def submit_held(self, user: int, group: int, name: str, partition: str, comment: str) -> str:
        """Parks the job as the filter does. `State` ``no_account``: users who may not submit."""
        with self._asked("submit_held", user, partition) as state:
            if user in state["no_account"]:
                code = 2045
                raise SlurmError("Slurm, submit held: Invalid account", code, refused=True)
            number = max((job["job_id"] for job in state["jobs"]), default=0) + 1_000_000
            job = job_record(
                job_id=number,
                name=name,
                user_id=user,
                user_name=pwd.getpwuid(user).pw_name,
                priority=0,
                reason="JobHeldUser",
                partition=partition,
                comment=comment,
                tres_per_node="gres/gpu:1",
                licenses="gpuaware:1",
                admin_comment="gpuaware/1;tn=gres/gpu:1;mc=1",
                stuck=True,
            )
            state["jobs"].append(job)
            return str(number)

    def cancel_job(self, number: int) -> None:
        with self._asked("cancel", number) as state:
            state["jobs"] = [job for job in state["jobs"] if job["job_id"] != number]

    def release_jobs(self, ids: Sequence[str]) -> None:
        for job_id in ids:
            with self._asked("release", job_id) as state:
                found = find(state, job_id)
                if found is not None:
                    found["priority"] = found["priority"] or 1

    def requeue_job(self, job_id: str) -> str | None:
        check_job_ids([job_id])
        with self._asked("requeue", job_id) as state:
            return requeue(state, job_id)

    def create_reservation(self, wanted: NewReservation) -> None:
        with self._asked("create_reservation", wanted.name) as state:
            known = [node["name"] for node in state["nodes"]]
            if wanted.name in [found["name"] for found in state["reservations"]]:
                raise SourceError("Slurm, create reservation: Duplicate reservation name")
            if any(
                n > state["licences"].get(name, 0) for name, n in parse_licenses(wanted.licenses)
            ):
                raise SourceError("Slurm, create reservation: Invalid license specification")
            nodes = known if wanted.nodes == "ALL" else expand_hostlist(wanted.nodes)
            if not set(nodes) <= set(known):
                raise SourceError("Slurm, create reservation: Invalid node name specified")
            state["reservations"].append(
                reservation_record(
                    wanted.name,
                    start_time=int(time.time() if wanted.start_s is None else wanted.start_s),
                    end_time=int(wanted.end_s),
                    licenses=wanted.licenses,
                    node_list=",".join(nodes),
                    flags=",".join(sorted(wanted.flags)),
                    comment=wanted.comment,
                )
            )

    def move_reservation(
        self, name: str, end_s: float, start_s: float | None = None, comment: str | None = None
    ) -> bool:
        with self._asked("move_reservation", name, end_s, start_s) as state:
            found = next((r for r in state["reservations"] if r["name"] == name), None)
            if found is None or (start_s is not None and found["start_time"] <= time.time()):
                return False
            found["end_time"] = int(end_s)
            found["comment"] = found["comment"] if comment is None else comment
            if start_s is not None:
                found["start_time"] = int(start_s)
            return True

    def delete_reservation(self, name: str) -> None:
        with self._asked("delete_reservation", name) as state:
            state["reservations"] = [r for r in state["reservations"] if r["name"] != name]
            state["unheld"] = [other for other in state["unheld"] if other != name]

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
