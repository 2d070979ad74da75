"""Text of ``scontrol -o show ...`` into records, without falling for what users typed into it.

Users choose job names, comments, working directories, file names and more, and ``scontrol``
prints them raw: blanks, equal signs and newlines included. A job named
``x JobState=RUNNING`` or with a newline and a whole made-up record in its comment must not be
believed. The rules:

- a record starts at ``JobId=`` at the start of a line; one with a second record of the same id is
  *doubtful*, and so is every record that breaks one of the rules below;
- every key occurs once, keys that Slurm always prints are there, and keys stand in their zone:
  what precedes the job's name; the middle that Slurm alone writes; the tail behind ``WorkDir``;
- what lies between a free-text key and the next known key is that text.

Text that forges a key of the middle breaks a rule, because the true key is there as well. A forged
key of the tail is caught if the true one is there too; for a job that the filter parked, the keys
we rely on are. The gateway reads doubtful jobs again as JSON, where nothing can be forged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from slurm_gpu_aware.config import is_shelf
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.gres_line import parse_gres
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import NodeShare, SlurmJob
from slurm_gpu_aware.slurm.unchecked import core_bounds, unchecked_options
from slurm_gpu_aware.slurm.values import (
    UNSET,
    parse_count,
    parse_duration,
    parse_indices,
    parse_licenses,
    parse_memory,
)

__all__ = ["job_from_fields", "job_from_record"]

_HEAD = (
    "JobId ArrayJobId ArrayTaskId ArrayTaskThrottle HetJobId HetJobOffset HetJobIdSet JobName SLUID"
)
_MIDDLE = (
    "UserId GroupId MCS_label Priority Nice Account QOS WCKey JobState Reason FailedNode"
    " Dependency Requeue Restarts BatchFlag Reboot ExitCode DerivedExitCode RunTime TimeLimit"
    " TimeMin SubmitTime EligibleTime AccrueTime StartTime EndTime Deadline PreemptEligibleTime"
    " PreemptTime ResizeTime SuspendTime SecsPreSuspend LastSchedEval Scheduler Partition"
    " AllocNode:Sid ReqNodeList ExcNodeList NodeList BatchHost SchedNodeList NumNodes NumCPUs"
    " NumTasks CPUs/Task ReqB:S:C:T ReqTRES AllocTRES Socks/Node NtasksPerN:B:S:C CoreSpec"
    " ThreadSpec JOB_GRES MinCPUsNode MinMemoryNode MinMemoryCPU MinMemoryTRES MinTmpDiskNode"
    " Features Prefer DelayBoot Reservation OverSubscribe Exclusive Contiguous Licenses"
    " LicensesAlloc Network"
)
_TAIL = (
    "Command WorkDir AdminComment SystemComment Comment Container ContainerID BatchFeatures"
    " ClusterFeatures BurstBuffer BurstBufferState BatchScript Cluster CPU_max_freq Extra"
    " FedOrigin FedSiblings SELinuxContext StdErr StdIn StdOut Power Switches"
    " CpusPerTres MailUser MailType MemPerTres TresBind TresFreq"
    " TresPerJob TresPerNode TresPerSocket TresPerTask TresPerStep NtasksPerTRES GresEnforceBind"
    " GresAllowTaskSharing GresOneTaskPerSharing SpreadJob KillOInInvalidDependent"
    " KillOnInvalidDependent StateDescription SegmentSize StepMgrEnabled OOMKillStep SubmitLine"
)
_ZONE = (
    dict.fromkeys(_HEAD.split(), 0)
    | dict.fromkeys(_MIDDLE.split(), 1)
    | dict.fromkeys(_TAIL.split(), 2)
)
_REQUIRED = frozenset(
    [
        "JobName",
        "UserId",
        "Priority",
        "JobState",
        "Reason",
        "Restarts",
        "BatchFlag",
        "TimeLimit",
        "SubmitTime",
        "Partition",
        "ReqNodeList",
        "ExcNodeList",
        "NodeList",
        "NumNodes",
        "NumCPUs",
        "NumTasks",
        "ReqTRES",
        "Licenses",
        "Features",
        "OverSubscribe",
        "Network",
        "Command",
        "WorkDir",
    ]
)
_FREE_TEXT = frozenset(
    {"JobName", "Network", "Account", "WCKey", *_TAIL.split()} - {"AdminComment"}
)
_KEY = re.compile(
    r"(?:(?<= )|^)(" + "|".join(sorted(map(re.escape, _ZONE), key=len, reverse=True)) + ")="
)
_DETAIL = re.compile(
    r"(?<= CoreSpec=)([^ ]+)((?: JOB_GRES=[^ ]*)?) +(Nodes=[^\n]*?)(?= MinCPUsNode=)"
)
_SHARE = re.compile(
    r"Nodes=([A-Za-z0-9._,\[\]-]+) CPU_IDs=([0-9,-]*) Mem=([0-9]+) GRES=([^ ]*)(?: +|\Z)"
)
_USER = re.compile(r"(.+)\(([0-9]{1,10})\)\Z")


def job_from_record(segment: str, signatures: set[tuple[str, ...]]) -> SlurmJob | None:
    """The job of one record; None if the record breaks a rule.

    ``signatures``: orders of keys that were found right before; new ones are added.
    """
    fields = _fields(segment, signatures)
    if fields is None:
        return None
    try:
        return job_from_fields(fields)
    except (SourceError, ValueError, LookupError):
        return None


def _fields(segment: str, signatures: set[tuple[str, ...]]) -> dict[str, str] | None:
    """Key -> value of one record; None if a rule is broken.

    Most records hold no blank and no newline in any value and have keys in an order that was
    checked before: for these, splitting at blanks is enough.
    """
    shares = ""
    detail = _DETAIL.search(segment) if " CPU_IDs=" in segment else None
    if detail is not None:
        # A forged block brings a second CoreSpec with it, which the check of keys sees.
        found = _SHARE.findall(detail[3])
        if _SHARE.sub("", detail[3]):
            return None
        shares = " ".join("\t".join(share) for share in found)
        segment = segment[: detail.end(2)] + segment[detail.end() :]
    tokens = segment.split()
    pairs = [token.partition("=") for token in tokens]
    keys = tuple([key for key, _, _ in pairs])
    known = keys in signatures or _in_order(keys)
    if known and "\n" not in segment and all(equals for _, equals, _ in pairs):
        signatures.add(keys)
        fields = {key: value for key, _, value in pairs}
        fields["shares"] = shares
        return fields
    return _fields_with_blanks(segment, shares)


def _fields_with_blanks(segment: str, shares: str) -> dict[str, str] | None:
    matches = list(_KEY.finditer(segment))
    if not _in_order(tuple([match[1] for match in matches])):
        return None
    fields: dict[str, str] = {"shares": shares}
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        value = segment[match.end() : following.start() if following else len(segment)]
        value = value.rstrip(" ")
        if match[1] not in _FREE_TEXT and match[1] != "JOB_GRES":
            # A key that we do not know may follow; Slurm's own values hold no blank.
            value = value.split(" ", 1)[0]
        fields[match[1]] = value.strip() if match[1] not in _FREE_TEXT else value
    return fields


def _in_order(keys: tuple[str, ...]) -> bool:
    """Known keys only, each once, all required ones, zones ascending, the name before UserId."""
    zones = [_ZONE.get(key, -1) for key in keys]
    if len(set(keys)) != len(keys) or min(zones, default=-1) < 0 or zones != sorted(zones):
        return False
    if not _REQUIRED.issubset(keys):
        return False
    after_name = keys[keys.index("JobName") + 1 :][:2]
    if after_name[0] != "UserId" and after_name != ("SLUID", "UserId"):
        return False
    return keys[keys.index("Network") + 1] in _TAIL


def job_from_fields(fields: Mapping[str, str]) -> SlurmJob:
    """Build a job from its fields in ``scontrol``'s words. Raises SourceError or ValueError."""
    user = _USER.match(fields["UserId"])
    if user is None:
        raise SourceError(f"UserId={fields['UserId'][:80]!r} is not NAME(NUMBER)")
    raw_id = int(fields["JobId"])
    array_id = int(fields["ArrayJobId"]) if "ArrayJobId" in fields else None
    task = fields.get("ArrayTaskId")
    if task is not None:  # the last task of a throttled array: 6%3 (26.05)
        task = task.partition("%")[0]
    single = task is not None and task.isascii() and task.isdigit()
    state = _state(fields)
    least, most = _node_range(fields["NumNodes"])
    threads, tasks_per_core = core_bounds(fields)
    shortest = parse_duration(fields.get("TimeMin", ""))
    reservation = _word(fields, "Reservation")
    shelf = reservation if is_shelf(reservation) else None
    return SlurmJob(
        id=f"{array_id}_{task}" if single else str(raw_id),
        raw_id=raw_id,
        name=fields["JobName"],
        user=user[1],
        uid=int(user[2]),
        state=state,
        reason=fields["Reason"],
        partitions=tuple(fields["Partition"].split(",")),
        priority=int(fields["Priority"]),
        submit_s=_time(fields["SubmitTime"]) or 0.0,
        eligible_s=_time(fields.get("EligibleTime", "")),
        accrue_s=_time(fields.get("AccrueTime", "")),
        looked_at_s=_time(fields.get("LastSchedEval", "")),
        start_s=_time(fields.get("StartTime", "")),
        end_s=_time(fields.get("EndTime", "")) or math.inf,
        time_limit_s=parse_duration(fields["TimeLimit"]),
        restarts=int(fields["Restarts"]),
        batch=fields["BatchFlag"] != "0",
        time_min_s=shortest if math.isfinite(shortest) else None,
        array_id=array_id,
        array_tasks=None if single else task,
        array_limit=int(fields["ArrayTaskThrottle"]) if "ArrayTaskThrottle" in fields else None,
        het="HetJobId" in fields,
        account=_word(fields, "Account"),
        qos=_word(fields, "QOS"),
        req_nodes=_names(fields["ReqNodeList"]),
        exc_nodes=_names(fields["ExcNodeList"]),
        nodes=_names(fields["NodeList"]) if state != "PENDING" else (),
        min_nodes=least,
        max_nodes=most,
        cpus=parse_count(fields["NumCPUs"].partition("-")[0]),
        tasks=int(fields["NumTasks"]) if fields["NumTasks"].isdigit() else 1,
        cpus_per_task=_count(fields.get("CPUs/Task")),
        ntasks_per_node=_count(fields.get("NtasksPerN:B:S:C", "").partition(":")[0]) or None,
        min_cpus_node=_count(fields.get("MinCPUsNode")) or 1,
        threads_per_core=threads,
        tasks_per_core=tasks_per_core,
        unchecked=unchecked_options(fields),
        enforce_binding=_enforce_binding(fields),
        memory_mb_per_node=_memory(fields, "MinMemoryNode"),
        memory_mb_per_cpu=_memory(fields, "MinMemoryCPU"),
        req_tres=_tres(fields["ReqTRES"]),
        features=_word(fields, "Features"),
        reservation=None if shelf is not None else reservation,
        shelf=shelf,
        exclusive=_exclusive(fields),
        licenses=parse_licenses(fields["Licenses"]),
        admin_comment=_word(fields, "AdminComment"),
        comment=_word(fields, "Comment"),
        extra=_word(fields, "Extra"),
        tres_per_node=_word(fields, "TresPerNode"),
        tres_per_job=_word(fields, "TresPerJob"),
        tres_per_task=_word(fields, "TresPerTask"),
        tres_per_socket=_word(fields, "TresPerSocket"),
        tres_bind=_word(fields, "TresBind"),
        tres_freq=_word(fields, "TresFreq"),
        cpus_per_tres=_word(fields, "CpusPerTres"),
        mem_per_tres=_word(fields, "MemPerTres"),
        shares=_shares(fields.get("shares", "")),
        gpu_types=_gpu_types(fields.get("JOB_GRES", "")),
    )


def _state(fields: Mapping[str, str]) -> str:
    """``RESV_DEL_HOLD`` hides the state of a job that Slurm held once, or would have held if it did
    not run, because its reservation was gone: pending, or running on the nodes that it shows."""
    if fields["JobState"] != "RESV_DEL_HOLD":
        return fields["JobState"]
    return "RUNNING" if _names(fields["NodeList"]) else "PENDING"


def _exclusive(fields: Mapping[str, str]) -> bool:
    """26.05 has a field of its own, and OverSubscribe=NO for ordinary jobs as well."""
    kinds = ("NODE", "USER", "MCS", "TOPO")
    if "Exclusive" in fields:
        return fields["Exclusive"] in kinds
    return fields["OverSubscribe"] in ("NO", "EXCLUSIVE", *kinds)


def _enforce_binding(fields: Mapping[str, str]) -> bool | None:
    """Flags of a job are one word: ``GresAllowTaskSharing=Yes,GresEnforceBind=Yes``."""
    for key in ("GresEnforceBind", "GresAllowTaskSharing"):
        for item in f"{key}={fields[key].rstrip()}".split(",") if key in fields else ():
            if item in ("GresEnforceBind=Yes", "GresEnforceBind=No"):
                return item.endswith("Yes")
    return None


def _shares(text: str) -> tuple[NodeShare, ...]:
    """Shares of a running job: ``nodes TAB cpu ids TAB memory TAB gres`` separated by blanks.

    ``*2`` as CPU ids: two, not told which.
    """
    shares: list[NodeShare] = []
    for item in filter(None, text.split(" ")):
        nodes, cpu_ids, memory, *rest = item.split("\t")
        types: dict[int, str] = {}
        held: list[int] = []
        for gres in parse_gres(rest[0] if rest else ""):
            if gres.name != "gpu" or gres.indices is None:
                continue  # what shares GPUs, and GPUs that Slurm only counts
            if gres.count and not gres.indices:
                raise SourceError(f"no indices in {rest[0][:80]!r}")
            held.extend(gres.indices)
            if gres.kind is not None:
                types.update(dict.fromkeys(gres.indices, gres.kind))
        gpus = tuple(sorted(held))
        ids = None if cpu_ids.startswith("*") else parse_indices(cpu_ids)
        cpus = int(cpu_ids[1:]) if ids is None else len(ids)
        shares.extend(
            NodeShare(node, cpus, int(memory), gpus, types, ids) for node in expand_hostlist(nodes)
        )
    return tuple(shares)


def _gpu_types(text: str) -> frozenset[str]:
    return frozenset(
        item.kind for item in parse_gres(text) if item.name == "gpu" and item.kind and item.count
    )


def _tres(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    if text in UNSET:
        return found
    for item in text.split(","):
        name, _, value = item.partition("=")
        found[name] = parse_memory(value) if name == "mem" else parse_count(value)
    return found


def _node_range(text: str) -> tuple[int, int | None]:
    least, _, most = text.partition("-")
    return max(1, parse_count(least)), parse_count(most) if most else None


def _names(text: str) -> tuple[str, ...]:
    return () if text in UNSET else expand_hostlist(text)


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() and text != "0" else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _memory(fields: Mapping[str, str], key: str) -> int | None:
    return parse_memory(fields[key]) if key in fields else None


def _word(fields: Mapping[str, str], key: str) -> str | None:
    value = fields.get(key)
    return None if value is None or value in ("(null)", "") else value
