"""Text of ``scontrol -o show node|part|res|config|license`` into records.

Only admins write what stands here, so that keys can be believed; free text (a node's reason, its
operating system) may still hold blanks.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from functools import lru_cache

from slurm_gpu_aware.cluster import PreemptionOrder
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.gres_line import is_slice, parse_gres, slot_of
from slurm_gpu_aware.slurm.hostlist import expand_hostlist
from slurm_gpu_aware.slurm.records import (
    GpuDefaults,
    NodeCores,
    SlurmConfig,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
)
from slurm_gpu_aware.slurm.values import (
    parse_count,
    parse_duration,
    parse_indices,
    parse_licenses,
)

__all__ = [
    "parse_config",
    "parse_free_licenses",
    "parse_nodes",
    "parse_partitions",
    "parse_qos",
    "parse_reservations",
]

_PAIR = re.compile(r"(?:(?<=\s)|^)([A-Za-z_/:]+)=(\S*)")
_SETTING = re.compile(r"([A-Za-z]\w*)\s*=\s(.*)\Z")
_UNSET = frozenset({"(null)", "N/A", "", "None"})


def parse_nodes(text: str, unreadable: dict[str, str] | None = None) -> list[SlurmNode]:
    """Nodes of ``scontrol -o show node -d``.

    A node that cannot be understood is left out, and stands in ``unreadable`` with the reason;
    without that, SourceError is raised.
    """
    nodes = []
    for line in text.splitlines():
        if not line.startswith("NodeName="):
            continue
        try:
            nodes.append(_node(line))
        except (SourceError, ValueError, LookupError) as exc:
            name = line.partition("=")[2].partition(" ")[0]
            if unreadable is None:
                raise SourceError(f"node {name}: {exc}") from exc
            unreadable[name] = str(exc)
    return nodes


@lru_cache(maxsize=16384)  # most lines are those of the last reading
def _node(line: str) -> SlurmNode:
    fields = next(_records(line, "NodeName"))
    gres = parse_gres(_value(fields, "Gres"))
    gpus = tuple((item.kind, item.count) for item in gres if item.name == "gpu")
    return SlurmNode(
        name=fields["NodeName"],
        states=frozenset(fields["State"].replace("*", "+NOT_RESPONDING").split("+")),
        features=frozenset(filter(None, _value(fields, "ActiveFeatures").split(","))),
        gpus=gpus,
        gpus_used=_gpu_indices(_value(fields, "GresUsed")),
        gpus_drained=_gpu_indices(_value(fields, "GresDrain")),
        cpus=int(fields.get("CPUEfctv") or fields.get("CPUTot") or 0),
        threads=int(fields.get("ThreadsPerCore") or 1),
        cpus_used=int(fields.get("CPUAlloc") or 0),
        memory_mb=int(fields.get("RealMemory") or 0) - int(fields.get("MemSpecLimit") or 0),
        memory_used_mb=int(fields.get("AllocMem") or 0),
        partitions=tuple(filter(None, _value(fields, "Partitions").split(","))),
        shared_gres=any(item.name != "gpu" or is_slice(item.kind) for item in gres),
        cores=_cores(fields),
        gpu_sockets=tuple(item.sockets for item in gres if item.name == "gpu"),
    )


def _cores(fields: dict[str, str]) -> NodeCores | None:
    """None where the CPUs are no whole cores, or it is not told which are kept for the system."""
    sockets, cores = int(fields.get("Sockets") or 0), int(fields.get("CoresPerSocket") or 0)
    threads, total = int(fields.get("ThreadsPerCore") or 1), int(fields.get("CPUTot") or 0)
    special = _value(fields, "CPUSpecList")
    kept = bool(special) or fields.get("CPUEfctv", str(total)) == str(total)
    if not sockets * cores or total not in (sockets * cores, sockets * cores * threads) or not kept:
        return None
    per_core = total // (sockets * cores)
    return NodeCores(sockets, cores, threads, per_core, frozenset(parse_indices(special)))


def _gpu_indices(text: str) -> frozenset[int]:
    """GPU indices of ``GresUsed`` or ``GresDrain``.

    Of GPUs without a device file Slurm says only how many there are; any indices stand for them.
    """
    found: set[int] = set()
    counted = 0
    for item in parse_gres(text):
        slot = slot_of(item.kind)
        if item.indices is not None:
            found.update(item.indices)
        elif slot is not None and item.count:
            found.add(slot)
        else:
            counted += item.count
    free = (slot for slot in itertools.count() if slot not in found)
    return frozenset([*found, *itertools.islice(free, counted)])


def parse_partitions(text: str) -> list[SlurmPartition]:
    """Partitions of ``scontrol -o show partition``."""
    found = []
    for fields in _records(text, "PartitionName"):
        default = parse_duration(fields.get("DefaultTime", "NONE"))
        most = fields.get("MaxNodes", "UNLIMITED")
        found.append(
            SlurmPartition(
                name=fields["PartitionName"],
                nodes=frozenset(expand_hostlist(_value(fields, "Nodes"))),
                up=fields.get("State") == "UP",
                max_time_s=parse_duration(fields.get("MaxTime", "UNLIMITED")),
                default_time_s=None if math.isinf(default) else default,
                max_nodes=int(most) if most.isdigit() else None,
                priority_tier=int(fields.get("PriorityTier", "1")),
                preempt_mode=_modes(fields.get("PreemptMode", "OFF")),
                exclusive=fields.get("OverSubscribe") == "EXCLUSIVE",
                grace_s=_grace(fields.get("GraceTime", "")),
                per_gpu=_gpu_defaults(fields.get("JobDefaults", "")),
                topology=_value(fields, "Topology"),
            )
        )
    return found


def _gpu_defaults(text: str) -> GpuDefaults:
    """``DefCpuPerGPU=4,DefMemPerGPU=1000``; 0 is no default."""
    found = dict(item.strip().lower().partition("=")[::2] for item in text.split(","))
    cpus, memory = (found.get(f"def{name}pergpu", "") for name in ("cpu", "mem"))
    return GpuDefaults(
        int(cpus) or None if cpus.isdigit() else None,
        int(memory) or None if memory.isdigit() else None,
    )


def parse_qos(text: str) -> list[SlurmQos]:
    """QOS of ``sacctmgr -nP show qos``; its columns are name, preempt, preemptmode, priority,
    preemptexempttime, gracetime.

    Raises SourceError.
    """
    found = []
    for line in filter(None, text.splitlines()):
        values = line.split("|")
        if len(values) != 6:
            raise SourceError(f"sacctmgr show qos: {line[:80]!r} has not six values")
        name, preempts, mode, priority, exempt, grace = values
        found.append(
            SlurmQos(
                name=name,
                preempts=frozenset(filter(None, preempts.split(","))),
                preempt_mode=frozenset() if mode in ("", "cluster") else _modes(mode),
                priority=int(priority) if priority.isdigit() else 0,
                exempt_s=_exempt(exempt),
                grace_s=_grace(grace),
            )
        )
    return found


def _modes(text: str) -> frozenset[str]:
    return frozenset(part.strip().upper() for part in text.split(","))


def _exempt(text: str) -> float | None:
    seconds = parse_duration(text)
    return None if math.isinf(seconds) else seconds


def _grace(text: str) -> float:
    """Seconds, also where Slurm writes only their number."""
    return float(text) if text.isdigit() else _exempt(text) or 0.0


def parse_reservations(text: str) -> list[SlurmReservation]:
    """Reservations of ``scontrol -o show reservation`` (times by ``SLURM_TIME_FORMAT=%s``)."""
    return [
        SlurmReservation(
            name=fields["ReservationName"],
            start_s=float(fields["StartTime"]),
            end_s=float(fields["EndTime"]),
            nodes=frozenset(expand_hostlist(_value(fields, "Nodes"))),
            licenses=parse_licenses(fields.get("Licenses", "(null)")),
            flags=frozenset(filter(None, _value(fields, "Flags").split(","))),
            active=fields.get("State") == "ACTIVE",
            cpus=_cpus_of(fields),
            gpus=_gpus_of(fields),
        )
        for fields in _records(text, "ReservationName")
    ]


def _cpus_of(fields: dict[str, str]) -> int | None:
    cpus = dict(item.partition("=")[::2] for item in _value(fields, "TRES").split(",")).get("cpu")
    return parse_count(cpus) if cpus else None


def _gpus_of(fields: dict[str, str]) -> int | None:
    """``gres/gpu=2``, or typed ones, or both, which then count the same GPUs."""
    items = [item.partition("=")[::2] for item in _value(fields, "TRES").split(",")]
    typed = [int(n) for name, n in items if name.startswith("gres/gpu:") and n.isdigit()]
    untyped = [int(n) for name, n in items if name == "gres/gpu" and n.isdigit()]
    return max(sum(typed), *untyped, 0) if typed or untyped else None


def parse_free_licenses(text: str) -> dict[str, int]:
    """Free licences of ``scontrol -o show license``."""
    found: dict[str, int] = {}
    for fields in _records(text, "LicenseName"):
        free = int(fields.get("Free", "0"))
        # A reservation's licences count as free until jobs inside it take them.
        reserved = int(fields.get("Reserved", "0"))
        found[fields["LicenseName"]] = max(0, free - reserved)
    return found


def parse_config(text: str) -> SlurmConfig:
    """Settings of ``scontrol show config``."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        match = _SETTING.match(line)
        if match is not None:
            settings.setdefault(match[1], match[2].strip())
    if "SLURM_VERSION" not in settings:
        raise SourceError("scontrol show config: no SLURM_VERSION in the answer")
    version = re.findall(r"[0-9]+", settings["SLURM_VERSION"])[:3]
    resources = settings.get("SelectTypeParameters", "").upper()
    preempting = settings.get("PreemptParameters", "").lower()
    return SlurmConfig(
        version=tuple(int(part) for part in version),
        cluster=settings.get("ClusterName", ""),
        counts_memory="MEMORY" in resources,
        counts_cpus=any(word in resources for word in ("CR_CPU", "CR_CORE", "CR_SOCKET")),
        counts_cores=("CR_CPU" in resources or "CR_CORE" in resources)
        and "CR_SOCKET" not in resources,
        enforce_binding="ENFORCE_BINDING_GRES" in resources,
        preempt_type=_value(settings, "PreemptType").removeprefix("preempt/").replace("none", ""),
        preempt_mode=_modes(settings.get("PreemptMode", "OFF")),
        per_gpu=_gpu_defaults(settings.get("JobDefaults", "")),
        preempt_exempt_s=_exempt(settings.get("PreemptExemptTime", "NONE")) or 0.0,
        preemption=_preemption_order(preempting, settings.get("SchedulerParameters", "").lower()),
        spared_above=_number_behind("min_exempt_priority=", preempting, math.inf),
        private_jobs="JOBS" in _modes(settings.get("PrivateData", "none")),
        private_reservations="RESERVATIONS" in _modes(settings.get("PrivateData", "none")),
        conf_file=_value(settings, "SLURM_CONF"),
        topology_optional="TOPOOPTIONAL" in _modes(settings.get("TopologyParam", "")),
    )


def _preemption_order(preempting: str, scheduling: str) -> PreemptionOrder:
    """PreemptParameters; SchedulerParameters has the same words behind ``preempt_``.

    Both in lower case: Slurm looks for the words anywhere in the text, whatever their case.
    """
    default = PreemptionOrder.reorder_count
    older = _number_behind("preempt_reorder_count=", scheduling, default)
    count = int(_number_behind("reorder_count=", preempting, older))
    return PreemptionOrder(
        youngest_first="youngest_first" in preempting or "preempt_youngest_first" in scheduling,
        strict="strict_order" in preempting or "preempt_strict_order" in scheduling,
        reorder_count=count if count >= 0 else default,
    )


def _number_behind(word: str, text: str, default: float) -> float:
    match = re.search(re.escape(word) + "(-?[0-9]*)", text)
    if match is None:
        return default
    return float(match[1]) if match[1].strip("-") else 0.0  # as C reads it


def _records(text: str, first_key: str) -> Iterator[dict[str, str]]:
    """Fields of each line that starts with ``first_key``; a key's first value counts."""
    for line in text.splitlines():
        if not line.startswith(f"{first_key}="):
            continue
        fields: dict[str, str] = {}
        for match in _PAIR.finditer(line):
            fields.setdefault(match[1], match[2])
        yield fields


def _value(fields: dict[str, str], key: str) -> str:
    """The value; empty if Slurm says that there is none."""
    value = fields.get(key, "")
    return "" if value in _UNSET else value
