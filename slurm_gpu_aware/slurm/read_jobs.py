"""Job records from libslurm's fields: sentinels, units, lists.

Users choose names, comments, licences and more, so a text that cannot be read must concern only its
own job.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from struct import Struct
from typing import Any

from slurm_gpu_aware.bounds import slot_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.files import user_name
from slurm_gpu_aware.filter_rules import UNSUPPORTED_BOUNDS, in_holding_pool
from slurm_gpu_aware.slurm.gres import parse_gres, parse_tres
from slurm_gpu_aware.slurm.libslurm_fields import JOB, NOT_SET, UNLIMITED
from slurm_gpu_aware.slurm.records import HOLDING, NodeShare, SlurmJob
from slurm_gpu_aware.slurm.words import expand_hostlist, parse_indices, parse_licenses

_user_name = lru_cache(maxsize=4096)(user_name)
_GOING_ON = HOLDING - {"COMPLETING"}
_MEM_PER_CPU = 1 << 63
_THREADS = 0x8000  # CORE_SPEC_THREAD: the number counts threads, not cores.
_GRES_ENFORCE_BIND = 1 << 4
_GRES_DISABLE_BIND = 1 << 19
_NUMBER = Struct("=q")
_TRIED_AT, _FLAGS_AT = (8 * JOB.numbers.index(name) for name in ("last_sched_eval", "bitflags"))
"""Places in a record."""
_SHARED, _OF_USER = 0, 2
_BY = {3: "mcs", 4: "topo"}
"""Of ``exclusive``; else it gets whole nodes, or with MCS and topologies keeps them from others."""
_SPECIAL = ("core_spec", "thread_spec")
_TEXTS = (
    *("dependency", "account", "qos", "features", "admin_comment", "comment", "extra"),
    *("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket", "tres_freq"),
    *("cpus_per_tres", "mem_per_tres"),
)
"""Fields that are copied; empty: not given."""
_COUNTS = {name: name for name in ("cpus_per_task", "ntasks_per_node", "threads_per_core")} | {
    "array_limit": "array_max_tasks",
    "tasks_per_core": "ntasks_per_core",
}
"""Number of a job -> Slurm's field; 0 and its sentinels: not given."""
_TIMES = {f"{name}_s": f"{name}_time" for name in ("eligible", "accrue", "start")} | {
    "tried_at_s": "last_sched_eval",
    "deadline_s": "deadline",
}
"""Unix time of a job -> Slurm's field; 0: not yet, or not given."""


def settled(records: Iterable[bytes], licence: str) -> Iterator[bytes]:
    """Records of `JOB`; those with ``licence`` without what each pass of Slurm changes in them.

    These are the time of the last try, and flags that `job_of` does not read.
    """
    parked = f"{licence}:".encode()
    for record in records:
        if parked in record:
            (flags,) = _NUMBER.unpack_from(record, _FLAGS_AT)
            read = _NUMBER.pack(flags & (_GRES_DISABLE_BIND | _GRES_ENFORCE_BIND))
            begin = record[:_TRIED_AT] + bytes(8) + record[_TRIED_AT + 8 : _FLAGS_AT]
            record = begin + read + record[_FLAGS_AT + 8 :]
        yield record


def job_of(raw: Mapping[str, Any]) -> SlurmJob:
    """A job from the fields of `libslurm_fields.JOB`.

    Raises SourceError or ValueError if a field that slurmctld itself writes cannot be read.
    """
    job_id, array_id, tasks = _ids(raw)
    state = raw["state"]
    pending = state == "PENDING"
    limit = raw["time_limit"]
    endless = limit == UNLIMITED and (pending or state in _GOING_ON)  # its end_time is in a year
    required, excluded = _nodes(raw["req_nodes"]), _nodes(raw["exc_nodes"])
    tres, counted = parse_tres(raw["tres_req_str"])
    unsupported = _unsupported(raw)
    if required is None or excluded is None:
        unsupported += ("--nodelist or --exclude that is not understood",)
    if not counted:
        unsupported += ("an amount that Slurm cannot write",)
    reservation = raw["resv_name"] or None
    disabled, enforced = (raw["bitflags"] & bit for bit in (_GRES_DISABLE_BIND, _GRES_ENFORCE_BIND))
    pool = reservation if in_holding_pool(reservation) else None
    return SlurmJob(
        **_optional(raw),
        **_amounts(raw),
        id=job_id,
        raw_id=raw["job_id"],
        name=raw["name"],
        submitted_with=raw["submit_line"] or None,
        user=raw["user_name"] or _user_name(raw["user_id"]),
        state=state,
        reason=raw["reason"],
        partitions=tuple(raw["partition"].split(",")),
        priority=raw["priority"] & 0xFFFFFFFF,
        submit_s=float(raw["submit_time"]),
        end_s=math.inf if endless else _time(raw["end_time"]) or math.inf,
        time_limit_s=60.0 * limit if limit >= 0 else math.inf if limit == UNLIMITED else None,
        restarts=raw["restart_cnt"],
        time_min_s=60.0 * raw["time_min"] if raw["time_min"] > 0 else None,
        array_id=array_id,
        array_tasks=tasks,
        het_id=raw["het_job_id"] if raw["het_job_id"] > 0 else None,
        req_nodes=required or (),
        exc_nodes=excluded or (),
        nodes=() if pending else expand_hostlist(raw["nodes"]),
        unsupported=unsupported,
        enforce_binding=not disabled if disabled or enforced else None,
        req_tres=tres,
        reservation=None if pool is not None else reservation,
        holding_pool=pool,
        exclusive=raw["exclusive"] not in (_SHARED, _OF_USER),
        exclusive_user=raw["exclusive"] == _OF_USER,
        exclusive_by=_BY.get(raw["exclusive"], ""),
        oversubscribe=raw["oversubscribe"] > 0,
        licenses=parse_licenses(raw["licenses"]),
        shares=_shares(raw["shares"]) if not pending else (),
        gpu_types=_gpu_types(raw["gres_total"]),
    )


def _optional(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Optional texts, numbers and times; None: not given."""
    texts = {name: raw[name] or None for name in _TEXTS}
    counts = {name: _count(raw[field]) for name, field in _COUNTS.items()}
    return texts | counts | {name: _time(raw[field]) for name, field in _TIMES.items()}


def _amounts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Nodes, CPUs, tasks and memory, each with its sentinels."""
    most = raw["max_nodes"] if raw["state"] == "PENDING" else 0
    per_node, per_cpu = _memory(raw)
    return {
        "min_nodes": max(1, min(raw["num_nodes"], most) if most > 0 else raw["num_nodes"]),
        "max_nodes": most if most > 0 else None,
        "cpus": max(0, raw["num_cpus"]),
        "tasks": _count(raw["num_tasks"]) or 1,
        "min_cpus_node": _count(raw["pn_min_cpus"]) or 1,
        "memory_mb_per_node": per_node,
        "memory_mb_per_cpu": per_cpu,
    }


def _ids(raw: Mapping[str, Any]) -> tuple[str, int | None, str | None]:
    """(id as users type it, number of its array, tasks of an unsplit array record)."""
    array_id: int | None = raw["array_job_id"] or None
    task = raw["array_task_str"].strip("[]").partition("%")[0] if array_id else ""
    if array_id and not task and raw["array_task_id"] >= 0:
        task = str(raw["array_task_id"])
    if task.isdigit():
        return f"{array_id}_{task}", array_id, None
    return str(raw["job_id"]), array_id, task or None


def _nodes(text: str) -> tuple[str, ...] | None:
    """Nodes that a user names; None: not a valid list."""
    try:
        return expand_hostlist(text)
    except SourceError:
        return None


def _time(seconds: int) -> float | None:
    return float(seconds) if seconds > 0 else None


def _count(number: int) -> int | None:
    return number if number > 0 else None


def _memory(raw: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(MB per node, MB per CPU); None: given in another way."""
    amount = raw["pn_min_memory"]
    if raw["mem_per_tres"] or amount in (NOT_SET, UNLIMITED):
        return None, None
    if amount < 0:
        return None, amount + _MEM_PER_CPU
    return amount, None


def _unsupported(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Unsupported options, which bound its nodes in ways that the planner does not check.

    The filter (``etc/lua/gpu_aware_unsupported.lua``) does not see all of them: Slurm 24.11 hides
    ``--core-spec``, ``#BB`` lines are in the script, and an operator can change a parked job.
    """
    options = [
        option
        for field, option, _ in UNSUPPORTED_BOUNDS
        if field not in _SPECIAL and (value := raw[field]) and (isinstance(value, str) or value > 0)
    ]
    special = raw["core_spec"]
    if special >= 0:  # 0 counts: it takes the cores that the site reserves for the system
        options.append("--thread-spec" if special & _THREADS else "--core-spec")
    if raw["oversized"]:
        options.append("an option of more than 4,096 characters")
    if raw["job_size_str"]:
        options.append("--nodes with several sizes")
    return tuple(dict.fromkeys(options))


@lru_cache(maxsize=4096)
def _gpu_types(text: str) -> frozenset[str]:
    return frozenset(
        item.kind for item in parse_gres(text) if item.name != "mps" and item.kind and item.count
    )


def _shares(text: str) -> tuple[NodeShare, ...]:
    """Shares of a running job, from lines ``node TAB CPUs TAB cores TAB MB TAB gres``."""
    shares: list[NodeShare] = []
    for line in text.splitlines():
        node, cpus, cores, memory, gres_line = line.split("\t")
        types: dict[int, str] = {}
        held: list[int] = []
        shards: dict[int, int] = {}
        for gres in parse_gres(gres_line):
            if gres.name == "shard" and gres.count:
                found = {slot: used for slot, (used, _) in enumerate(gres.parts) if used}
                slot = slot_of(gres.kind)
                shards |= found if slot is None else {slot: gres.count}
            if gres.name != "gpu" or gres.indices is None:
                continue  # GPUs that Slurm only counts, or MPS
            if gres.count and not gres.indices:
                raise SourceError(f"no indices in {gres_line[:80]!r}")
            held.extend(gres.indices)
            if gres.kind is not None:
                types.update(dict.fromkeys(gres.indices, gres.kind))
        ids = None if cores == "*" else parse_indices(cores)
        gpus = tuple(sorted(held))
        shares.append(NodeShare(node, int(cpus), int(memory), gpus, types, ids, shards))
    return tuple(shares)
