"""One job of ``scontrol show job ID --json -d`` into a record: for jobs whose text is doubtful.

Ten times slower than text, but nothing that a user typed can pose as another field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.parse import job_from_fields
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["parse_jobs_json"]

_STRINGS = {
    "Account": "account",
    "QOS": "qos",
    "Features": "features",
    "Reservation": "resv_name",
    "Licenses": "licenses",
    "AdminComment": "admin_comment",
    "Comment": "comment",
    "Extra": "extra",
    "ReqNodeList": "required_nodes",
    "ExcNodeList": "excluded_nodes",
    "NodeList": "nodes",
    "TresPerNode": "tres_per_node",
    "TresPerJob": "tres_per_job",
    "TresPerTask": "tres_per_task",
    "TresPerSocket": "tres_per_socket",
    "TresBind": "tres_bind",
    "TresFreq": "tres_freq",
    "CpusPerTres": "cpus_per_tres",
    "MemPerTres": "memory_per_tres",
    "ReqTRES": "tres_req_str",
    "Prefer": "prefer",
    "BatchFeatures": "batch_features",
    "BurstBuffer": "burst_buffer",
}
_NUMBERS = {
    "Priority": "priority",
    "SubmitTime": "submit_time",
    "EligibleTime": "eligible_time",
    "AccrueTime": "accrue_time",
    "LastSchedEval": "last_sched_evaluation",
    "StartTime": "start_time",
    "EndTime": "end_time",
    "NumCPUs": "cpus",
    "NumTasks": "tasks",
    "CPUs/Task": "cpus_per_task",
    "MinTmpDiskNode": "minimum_tmp_disk_per_node",
    "Switches": "required_switches",
    "MinCPUsNode": "minimum_cpus_per_node",
}
_STATES_FIRST = ("COMPLETING", "CONFIGURING")


def parse_jobs_json(text: str) -> list[SlurmJob]:
    """Jobs of a JSON answer. Raises SourceError if it cannot be understood."""
    try:
        records = json.loads(text)["jobs"]
        return [job_from_fields(_fields(record)) for record in records]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as exc:
        raise SourceError(f"scontrol --json: answer not understood: {exc!r}") from None
    except RecursionError:
        raise SourceError("scontrol --json: answer not understood: nested too deeply") from None


def _fields(job: Mapping[str, Any]) -> dict[str, str]:
    """The record in the words of ``scontrol``'s text."""
    fields = {key: str(job.get(name) or "(null)") for key, name in _STRINGS.items()}
    for key, name in _NUMBERS.items():
        fields[key] = str(_number(job.get(name)) or 0)
    states = [str(state) for state in job["job_state"]]
    limit = job["time_limit"]
    least, most = _number(job.get("node_count")) or 1, _number(job.get("max_nodes")) or 0
    fields |= {
        "JobId": str(int(job["job_id"])),
        "JobName": str(job["name"]),
        "UserId": f"{job['user_name']}({int(job['user_id'])})",
        "JobState": next((s for s in _STATES_FIRST if s in states), states[0]),
        "Reason": str(job["state_reason"]),
        "Partition": str(job["partition"]),
        "Restarts": str(int(job["restart_cnt"])),
        "BatchFlag": "1" if job["batch_flag"] else "0",
        "TimeLimit": f"{_number(limit)}:00" if limit["set"] else "UNLIMITED",
        "NumNodes": f"{least}-{most}" if most > least else str(least),
        "Contiguous": "1" if job.get("contiguous") else "0",
        "Socks/Node": _bounds(job, "sockets_per_node"),
        "ReqB:S:C:T": _bounds(job, "", "", "cores_per_socket", "threads_per_core"),
        "NtasksPerN:B:S:C": _bounds(job, "tasks_per_node", "", "", "tasks_per_core"),
        "OverSubscribe": "NO" if "none" in [str(s) for s in job.get("shared", [])] else "OK",
        "shares": _shares(job),
        **_flags(job),
    }
    for key, name in (("CoreSpec", "core_spec"), ("ThreadSpec", "thread_spec")):
        special = _number(job.get(name))  # none is 0, 32766 or 65534; 0 is a choice in text only
        fields[key] = str(special) if special and special < 32766 else "N/A"
    segment = _number(job.get("segment_size"))
    fields["SegmentSize"] = str(segment) if segment and segment < 65534 else "N/A"
    shortest = _number(job.get("time_minimum"))
    if shortest:
        fields["TimeMin"] = f"{shortest}:00"
    for key, name in (("MinMemoryNode", "memory_per_node"), ("MinMemoryCPU", "memory_per_cpu")):
        if job[name]["set"]:
            fields[key] = str(_number(job[name]))
    array_id = _number(job.get("array_job_id"))
    if array_id:
        task = _number(job.get("array_task_id")) if job["array_task_id"]["set"] else None
        fields["ArrayJobId"] = str(array_id)
        fields["ArrayTaskId"] = str(job["array_task_string"]) if task is None else str(task)
        limit_tasks = _number(job.get("array_max_tasks"))
        if limit_tasks:
            fields["ArrayTaskThrottle"] = str(limit_tasks)
    if _number(job.get("het_job_id")):
        fields["HetJobId"] = str(_number(job["het_job_id"]))
    return fields


def _bounds(job: Mapping[str, Any], *names: str) -> str:
    """Numbers as ``ReqB:S:C:T`` writes them; 0: not given, in 16 bits 65534 and 65535 as well."""
    numbers = [_number(job.get(name)) or 0 for name in names]
    return ":".join(str(number) if number < 65534 else "0" for number in numbers)


def _shares(job: Mapping[str, Any]) -> str:
    """Node, CPU ids, memory and GRES of each node, as `parse` hands them on."""
    resources = job.get("job_resources") or {}
    nodes = (resources.get("nodes") or {}).get("allocation") or []
    details = job.get("gres_detail") or []
    shares = []
    for i, node in enumerate(nodes):
        cpus = int(node["cpus"]["count"])
        gres = str(details[i]) if i < len(details) else ""
        memory = int(node["memory"]["allocated"])
        ids = _cpu_ids(node.get("sockets") or (), cpus)
        shares.append(f"{node['name']}\t{ids}\t{memory}\t{gres}")
    return " ".join(shares)


def _cpu_ids(sockets: Sequence[Mapping[str, Any]], cpus: int) -> str:
    """CPU ids of the allocated cores; ``*2``: two, not told which."""
    held: list[int] = []
    before = 0
    for socket in sockets:
        cores = socket["cores"]
        held += [before + i for i, core in enumerate(cores) if "ALLOCATED" in core["status"]]
        before += len(cores)
    if not cpus:
        return ""
    if not held or cpus % len(held):
        return f"*{cpus}"
    threads = cpus // len(held)
    return ",".join(str(core * threads + k) for core in held for k in range(threads))


def _flags(job: Mapping[str, Any]) -> dict[str, str]:
    """``GresEnforceBind`` as text has it; its flag has another name in each parser's version."""
    flags = {str(flag) for flag in job.get("flags") or ()}
    for value, names in (
        ("Yes", {"GRES_BINDING_ENFORCED", "GRES_ENFORCE_BIND"}),
        ("No", {"GRES_BINDING_DISABLED", "GRES_DISABLE_BIND"}),
    ):
        if flags & names:
            return {"GresEnforceBind": value}
    return {}


def _number(value: Any) -> int | None:
    """A plain number, or Slurm's ``{set, infinite, number}``."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value["set"] and not value["infinite"] else None
    return None if value is None else int(value)
