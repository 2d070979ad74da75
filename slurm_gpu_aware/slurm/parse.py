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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.gateway import NodeShare, SlurmJob
from slurm_gpu_aware.slurm.hostlist import expand_hostlist

__all__ = [
    "JobTexts",
    "job_from_fields",
    "parse_duration",
    "parse_gres",
    "parse_jobs",
    "parse_licenses",
    "parse_memory",
]

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
    " KillOInInvalidDependent KillOnInvalidDependent StateDescription SegmentSize StepMgrEnabled"
    " OOMKillStep SubmitLine"
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
_RECORD = re.compile(r"^JobId=(?=[0-9]+ )", re.MULTILINE)
_DETAIL = re.compile(
    r"(?<= CoreSpec=)([^ ]+)((?: JOB_GRES=[^ ]*)?) +(Nodes=[^\n]*?)(?= MinCPUsNode=)"
)
_SHARE = re.compile(
    r"Nodes=([A-Za-z0-9._,\[\]-]+) CPU_IDs=([0-9,-]*) Mem=([0-9]+) GRES=([^ ]*)(?: +|\Z)"
)
_GRES = re.compile(
    r"([a-z_]+)(?::([A-Za-z0-9._-]+))?:([0-9]+)(?:\((?:IDX:([0-9,-]*|N/A)|S:[0-9,-]+)\))?\Z"
)
_INDEX_TYPE = re.compile(r"g(0|[1-9][0-9]{0,3})\Z")
_USER = re.compile(r"(.+)\(([0-9]{1,10})\)\Z")
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "": 1.0}
_UNSET = frozenset({"(null)", "N/A", "None", "Unknown", "NONE", ""})


@dataclass
class JobTexts:
    """Outcome of `parse_jobs`."""

    jobs: list[SlurmJob] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    """Record numbers that must be read in another way, or not believed."""
    digests: dict[int, int] = field(default_factory=dict)
    """Hash of all text of a doubtful record: the same as long as Slurm says the same of it."""


def parse_jobs(text: str) -> JobTexts:
    """Parse the answer to ``scontrol -o show job -d`` (times by ``SLURM_TIME_FORMAT=%s``)."""
    result = JobTexts()
    segments: dict[int, str | None] = {}
    texts: dict[int, list[str]] = {}
    for number, record in _segments(text):
        segments[number] = None if number in segments else record
        texts.setdefault(number, []).append(record)
    signatures: set[tuple[str, ...]] = set()
    follows_doubtful = False
    for number, segment in segments.items():
        job = None if segment is None else _job(segment, signatures)
        if job is None or follows_doubtful:
            # What stands behind a broken record may be the rest of it.
            result.doubtful.append(number)
            result.digests[number] = hash(tuple(texts[number]))
        else:
            result.jobs.append(job)
        follows_doubtful = job is None
    return result


def _job(segment: str, signatures: set[tuple[str, ...]]) -> SlurmJob | None:
    fields = _fields(segment, signatures)
    if fields is None:
        return None
    try:
        return job_from_fields(fields)
    except (SourceError, ValueError, KeyError):
        return None


def _segments(text: str) -> Iterator[tuple[int, str]]:
    starts = [match.start() for match in _RECORD.finditer(text)]
    for start, end in pairwise([*starts, len(text)]):
        segment = text[start:end].rstrip("\n")
        yield int(segment[6 : segment.index(" ")]), segment


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
    single = task is not None and task.isascii() and task.isdigit()
    state = fields["JobState"]
    least, most = _node_range(fields["NumNodes"])
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
        start_s=_time(fields.get("StartTime", "")),
        end_s=_time(fields.get("EndTime", "")) or math.inf,
        time_limit_s=parse_duration(fields["TimeLimit"]),
        restarts=int(fields["Restarts"]),
        batch=fields["BatchFlag"] != "0",
        array_id=array_id,
        array_tasks=None if task is None or single else task.partition("%")[0],
        array_limit=int(fields["ArrayTaskThrottle"]) if "ArrayTaskThrottle" in fields else None,
        het="HetJobId" in fields,
        account=_word(fields, "Account"),
        qos=_word(fields, "QOS"),
        req_nodes=_names(fields["ReqNodeList"]),
        exc_nodes=_names(fields["ExcNodeList"]),
        nodes=_names(fields["NodeList"]) if state != "PENDING" else (),
        min_nodes=least,
        max_nodes=most,
        cpus=int(fields["NumCPUs"].partition("-")[0]),
        tasks=int(fields["NumTasks"]) if fields["NumTasks"].isdigit() else 1,
        cpus_per_task=_count(fields.get("CPUs/Task")),
        ntasks_per_node=_count(fields.get("NtasksPerN:B:S:C", "").partition(":")[0]) or None,
        min_cpus_node=_count(fields.get("MinCPUsNode")) or 1,
        memory_mb_per_node=_memory(fields, "MinMemoryNode"),
        memory_mb_per_cpu=_memory(fields, "MinMemoryCPU"),
        req_tres=_tres(fields["ReqTRES"]),
        features=_word(fields, "Features"),
        reservation=_word(fields, "Reservation"),
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


def _exclusive(fields: Mapping[str, str]) -> bool:
    """26.05 has a field of its own, and OverSubscribe=NO for ordinary jobs as well."""
    kinds = ("NODE", "USER", "MCS", "TOPO")
    if "Exclusive" in fields:
        return fields["Exclusive"] in kinds
    return fields["OverSubscribe"] in ("NO", "EXCLUSIVE", *kinds)


def _shares(text: str) -> tuple[NodeShare, ...]:
    """Shares of a running job: ``nodes TAB cpu ids TAB memory TAB gres`` separated by blanks."""
    shares: list[NodeShare] = []
    for item in filter(None, text.split(" ")):
        nodes, cpu_ids, memory, *rest = item.split("\t")
        types: dict[int, str] = {}
        held: list[int] = []
        for name, kind, count, indices in parse_gres(rest[0] if rest else ""):
            if name != "gpu":
                continue
            if count and not indices:
                raise SourceError(f"no indices in {rest[0][:80]!r}")
            held.extend(indices)
            if kind is not None:
                types.update(dict.fromkeys(indices, kind))
        cpus, gpus = len(_indices(cpu_ids)), tuple(sorted(held))
        shares.extend(
            NodeShare(node, cpus, int(memory), gpus, types) for node in expand_hostlist(nodes)
        )
    return tuple(shares)


def _gpu_types(text: str) -> frozenset[str]:
    return frozenset(
        kind for name, kind, count, _ in parse_gres(text) if name == "gpu" and kind and count
    )


def parse_gres(text: str) -> list[tuple[str, str | None, int, tuple[int, ...]]]:
    """(name, type, count, indices) of each entry of a GRES line.

    Takes ``gpu:g1:1(IDX:1),gpu:2(S:0-1)`` and ``(null)``. Raises SourceError.
    """
    return list(_gres(text))


@lru_cache(maxsize=8192)  # thousands of nodes and jobs show the same few lines
def _gres(text: str) -> tuple[tuple[str, str | None, int, tuple[int, ...]], ...]:
    if text in _UNSET:
        return ()
    entries: list[tuple[str, str | None, int, tuple[int, ...]]] = []
    for item in re.split(r",(?![^()]*\))", text):
        match = _GRES.match(item)
        if match is None:
            raise SourceError(f"{item[:80]!r} is not a GRES; expected name[:type]:count[(IDX:..)]")
        indices = _indices(match[4]) if match[4] and match[4] != "N/A" else ()
        index = _INDEX_TYPE.match(match[2] or "")
        if index is not None and len(indices) == 1:
            # IDX counts the GPUs that Slurm knows; on a node that lacks one, only the type tells.
            indices = (int(index[1]),)
        entries.append((match[1], match[2], int(match[3]), indices))
    return tuple(entries)


def parse_licenses(text: str) -> tuple[tuple[str, int], ...]:
    """``a,b:2`` into (name, count); ``(null)`` into nothing."""
    if text in _UNSET:
        return ()
    found = []
    for item in re.split(r"[,;|]", text):
        name, _, count = item.partition(":")
        found.append((name, int(count) if count else 1))
    return tuple(found)


def parse_duration(text: str) -> float:
    """``[DAYS-]HH:MM:SS`` into seconds; ``UNLIMITED`` and no value are inf. Raises SourceError."""
    if text in ("UNLIMITED", "Partition_Limit", "INFINITE") or text in _UNSET:
        return math.inf
    match = re.match(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)\Z", text)
    if match is None:
        raise SourceError(f"{text[:80]!r} is not a duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@lru_cache(maxsize=8192)
def parse_memory(text: str) -> int:
    """``8000``, ``100M``, ``1.5G`` into MB. Raises SourceError."""
    match = re.match(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)\Z", text)
    if match is None:
        raise SourceError(f"{text[:80]!r} is not an amount of memory")
    return math.ceil(float(match[1]) * _UNITS[match[2]])


def _tres(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    if text in _UNSET:
        return found
    for item in text.split(","):
        name, _, value = item.partition("=")
        found[name] = parse_memory(value)
    return found


@lru_cache(maxsize=8192)
def _indices(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for item in filter(None, text.split(",")):
        first, _, last = item.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def _node_range(text: str) -> tuple[int, int | None]:
    least, _, most = text.partition("-")
    return max(1, parse_memory(least)), parse_memory(most) if most else None


def _names(text: str) -> tuple[str, ...]:
    return () if text in _UNSET else expand_hostlist(text)


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() and text != "0" else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _memory(fields: Mapping[str, str], key: str) -> int | None:
    return parse_memory(fields[key]) if key in fields else None


def _word(fields: Mapping[str, str], key: str) -> str | None:
    value = fields.get(key)
    return None if value is None or value in ("(null)", "") else value
