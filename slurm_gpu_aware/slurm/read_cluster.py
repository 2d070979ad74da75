"""Records of nodes, partitions, QOS, reservations and settings from libslurm's fields.

Their texts are those of administrators. With AutoDetect slurmd names a MIG device after its
profile, which `is_mig` recognises. For ``Name=gpu Type=small MultipleFiles=...`` scontrol shows
``gpu:small``, so gres.conf is read, too.
"""

import itertools
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from slurm_gpu_aware.bounds import slot_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.cluster import PreemptionOrder
from slurm_gpu_aware.slurm.conf_grammar import fields_of
from slurm_gpu_aware.slurm.conffile import ConfFiles
from slurm_gpu_aware.slurm.gres import GresItem, gpu_count, is_mig, parse_gres, parse_tres
from slurm_gpu_aware.slurm.records import (
    GpuDefaults,
    NodeCores,
    SlurmConfig,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
)
from slurm_gpu_aware.slurm.words import (
    UNSET,
    expand_hostlist,
    parse_duration,
    parse_indices,
    parse_licenses,
)

log = logging.getLogger(__name__)

_SETTING = re.compile(r"\s*([A-Za-z]\w*(?:\[\d+\])?)\s*=\s(.*)\Z")
_PRINTED = re.compile(r"\s(Exclusive|ExclusiveUser|JobDefaults|PreemptMode)=(\S+)")
_PARTITION_UP = 3  # PARTITION_UP: submission and scheduling.
_EXCLUSIVE, _FORCED = 0, 0x8000  # ``max_share`` of OverSubscribe=EXCLUSIVE; bit of FORCE.


def node_of(raw: Mapping[str, Any]) -> SlurmNode:
    """A node from the fields of `libslurm_fields.NODE`. Raises SourceError."""
    gres = parse_gres(raw["gres"])
    shards = _shards(gres, raw["gres_used"])
    started = raw["slurmd_start_time"]
    return SlurmNode(
        name=raw["name"],
        states=frozenset(raw["state"].replace("*", "+NOT_RESPONDING").split("+")),
        features=frozenset(filter(None, raw["features"].split(","))),
        gpus=tuple((item.kind, item.count) for item in gres if item.name == "gpu"),
        gpus_used=_gpu_indices(raw["gres_used"]),
        gpus_drained=_gpu_indices(raw["gres_drain"]),
        cpus=raw["cpus_efctv"] or raw["cpus"],
        threads=raw["threads"] or 1,
        cpus_used=raw["alloc_cpus"],
        memory_mb=raw["real_memory"] - raw["mem_spec_limit"],
        memory_used_mb=raw["alloc_memory"],
        shared_gres=shards is None or any(item.name == "mps" or is_mig(item.kind) for item in gres),
        shards=shards or {},
        untyped_shards=any(item.name == "shard" and item.kind is None for item in gres),
        cores=_cores(raw),
        gpu_sockets=tuple(item.sockets for item in gres if item.name == "gpu"),
        reason=raw["reason"],
        slurmd_start_s=float(started) if started > 0 else None,
    )


def _cores(raw: Mapping[str, Any]) -> NodeCores | None:
    """The node's cores; None if its CPUs are not whole cores, or those of the system unknown."""
    sockets, cores, threads = raw["sockets"], raw["cores"], raw["threads"] or 1
    total, special = raw["cpus"], _value(raw["cpu_spec_list"])
    if not special and raw["cpus_efctv"] != total:
        return None
    if not sockets * cores or total not in (sockets * cores, sockets * cores * threads):
        return None
    per_core = total // (sockets * cores)
    return NodeCores(sockets, cores, threads, per_core, frozenset(parse_indices(special)))


@lru_cache(maxsize=8192)  # thousands of nodes show the same few lines
def _gpu_indices(text: str) -> frozenset[int]:
    """GPU indices of ``GresUsed`` or ``GresDrain``; free ones for GPUs without device file."""
    found: set[int] = set()
    counted = 0
    for item in (item for item in parse_gres(text) if item.name == "gpu"):
        slot = slot_of(item.kind)
        if item.indices is not None:
            found.update(item.indices)
        elif slot is not None and item.count:
            found.add(slot)
        else:
            counted += item.count
    free = (slot for slot in itertools.count() if slot not in found)
    return frozenset([*found, *itertools.islice(free, counted)])


def _shards(gres: Sequence[GresItem], used: str) -> dict[int, tuple[int, int]] | None:
    """GPU index -> (shards in use, all shards); None: Slurm does not tell which GPUs these are."""
    if all(item.name != "shard" for item in gres):
        return {}
    gpus = [item for item in gres if item.name == "gpu"]
    slots: Sequence[int | None] = [slot_of(item.kind) for item in gpus]
    if None in slots:
        slots = range(sum(item.count for item in gpus))
    shown = [item for item in parse_gres(used) if item.name == "shard"]
    if len(shown) == 1 and len(shown[0].parts) == len(slots):
        found = dict(zip(slots, shown[0].parts, strict=True))
    elif all(len(item.parts) == 1 for item in shown):
        found = {slot_of(item.kind): item.parts[0] for item in shown}
    else:
        return None
    told = {slot: parts for slot, parts in found.items() if slot is not None}
    return told if told and len(told) == len(found) else None


def partition_of(raw: Mapping[str, Any]) -> SlurmPartition:
    """A partition from the fields of `libslurm_fields.PARTITION`."""
    printed = dict(_PRINTED.findall(raw["line"]))
    return SlurmPartition(
        name=raw["name"],
        nodes=frozenset(expand_hostlist(_value(raw["nodes"]))),
        up=raw["state_up"] == _PARTITION_UP,
        max_time_s=60.0 * raw["max_time"] if raw["max_time"] >= 0 else math.inf,
        default_time_s=60.0 * raw["default_time"] if raw["default_time"] >= 0 else None,
        max_nodes=raw["max_nodes"] if raw["max_nodes"] >= 0 else None,
        priority_tier=raw["priority_tier"],
        preempt_mode=_modes(printed.get("PreemptMode", "OFF")),
        exclusive=raw["max_share"] == _EXCLUSIVE,
        jobs_on_cpu=raw["max_share"] & ~_FORCED,
        oversubscribes=bool(raw["max_share"] & _FORCED),
        # 26.05 prints Exclusive=USER
        exclusive_user=printed.get("ExclusiveUser") == "YES" or printed.get("Exclusive") == "USER",
        grace_s=float(max(0, raw["grace_time"])),
        per_gpu=_gpu_defaults(printed.get("JobDefaults", "")),
        topology=_value(raw["topology_name"]),
    )


def _gpu_defaults(text: str) -> GpuDefaults:
    """Defaults of ``DefCpuPerGPU=4,DefMemPerGPU=1000``; 0 means none."""
    defaults = dict(item.strip().lower().partition("=")[::2] for item in text.split(","))
    amounts = (defaults.get(f"def{name}pergpu", "") for name in ("cpu", "mem"))
    return GpuDefaults(*(int(each) or None if each.isdigit() else None for each in amounts))


def parse_qos(text: str) -> list[SlurmQos]:
    """QOS of ``sacctmgr -nP show qos``. Raises SourceError.

    Columns: name, preempt, preemptmode, priority, preemptexempttime, gracetime.
    """
    found = []
    for line in filter(None, text.splitlines()):
        values = line.split("|")
        if len(values) != 6:
            raise SourceError(f"sacctmgr show qos: {line[:80]!r} has not six values")
        name, preempts, mode, priority, exempt, grace = values
        qos = SlurmQos(
            name=name,
            preempts=frozenset(filter(None, preempts.split(","))),
            preempt_mode=frozenset() if mode in ("", "cluster") else _modes(mode),
            priority=int(priority) if priority.isdigit() else 0,
            exempt_s=_exempt(exempt),
            # a duration, or a plain number of seconds
            grace_s=float(grace) if grace.isdigit() else _exempt(grace) or 0.0,
        )
        found.append(qos)
    return found


def _modes(text: str) -> frozenset[str]:
    return frozenset(part.strip().upper() for part in text.split(","))


def _exempt(text: str) -> float | None:
    seconds = parse_duration(text)
    return None if math.isinf(seconds) else seconds


def reservation_of(raw: Mapping[str, Any]) -> SlurmReservation:
    """A reservation from the fields of `libslurm_fields.RESERVATION`."""
    tres, _ = parse_tres(_value(raw["tres_str"]))
    return SlurmReservation(
        name=raw["name"],
        start_s=float(raw["start_time"]),
        end_s=float(raw["end_time"]),
        nodes=frozenset(expand_hostlist(_value(raw["node_list"]))),
        licenses=parse_licenses(_value(raw["licenses"])),
        flags=frozenset(filter(None, _value(raw["flags"]).split(","))),
        cpus=tres.get("cpu"),
        gpus=gpu_count(tres) or None,
        comment=_value(raw["comment"]),
    )


def parse_settings(text: str) -> dict[str, str]:
    """Mapping of the lines ``Key = value`` of Slurm's configuration."""
    matches = filter(None, map(_SETTING.match, reversed(text.splitlines())))
    return {match[1]: match[2].strip() for match in matches}  # the first one wins


def config_of(settings: Mapping[str, str]) -> SlurmConfig:
    """The settings that matter to placing. Raises SourceError if they are not Slurm's."""
    if "SLURM_VERSION" not in settings:
        raise SourceError("Slurm's configuration has no SLURM_VERSION")
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
        preempt_type=_value(settings.get("PreemptType", "")).rpartition("/")[2].replace("none", ""),
        preempt_mode=_modes(settings.get("PreemptMode", "OFF")),
        per_gpu=_gpu_defaults(settings.get("JobDefaults", "")),
        preempt_exempt_s=_exempt(settings.get("PreemptExemptTime", "NONE")) or 0.0,
        preemption=_preemption_order(preempting, settings.get("SchedulerParameters", "").lower()),
        spared_above=_number_behind("min_exempt_priority=", preempting, math.inf),
        private_jobs="JOBS" in _modes(settings.get("PrivateData", "none")),
        private_reservations="RESERVATIONS" in _modes(settings.get("PrivateData", "none")),
        conf_file=_value(settings.get("SLURM_CONF", "")),
        exclusive_kinds=_exclusive_kinds(settings),
        topology_optional="TOPOOPTIONAL" in _modes(settings.get("TopologyParam", "")),
        age_per_s=_age_per_s(settings),
        hides_core_spec="YES" in _modes(settings.get("AllowSpecResourcesUsage", ""))
        and version[:2] < ["26", "05"],
    )


def _exclusive_kinds(settings: Mapping[str, str]) -> frozenset[str]:
    """Without MCS and blocks Slurm starts other jobs beside such ones (26.05.5)."""
    mcs, topology = (_value(settings.get(f"{name}Plugin", "")) for name in ("MCS", "Topology"))
    by = {"mcs": mcs not in ("", "mcs/none", "none"), "topo": topology.endswith("block")}
    return frozenset(one for one, keeps in by.items() if keeps)


def _age_per_s(settings: Mapping[str, str]) -> float | None:
    """What a second of age adds to a priority; None: it says only the order of the jobs."""
    if not settings.get("PriorityType", "").endswith("multifactor"):
        return None
    weight, most_s = settings.get("PriorityWeightAge", ""), settings.get("PriorityMaxAge", "")
    return float(weight) / parse_duration(most_s) if weight.isdigit() and most_s else 0.0


def _preemption_order(preempting: str, scheduling: str) -> PreemptionOrder:
    """Order from PreemptParameters or older SchedulerParameters, both in lower case."""
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


def _value(value: str) -> str:
    """The value; empty if Slurm says that there is none."""
    return "" if value in UNSET else value


class MigNodes:
    """Nodes with MIG by gres.conf; a missing or unreadable file names no node."""

    def __init__(self) -> None:
        slurm_conf = os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf"
        self.gres_conf = Path(slurm_conf).with_name("gres.conf")
        """The file; read again when it or one of its includes has changed."""
        self._states: dict[Path, tuple[int, int] | None] = {}
        """Files as last read -> time of change and size; None: missing."""
        self._records: list[tuple[frozenset[str] | None, str | None]] = []
        """(nodes, None: all; GRES type, None: any) of each record with MultipleFiles."""

    def mark(self, nodes: Sequence[SlurmNode]) -> list[SlurmNode]:
        """The nodes; those with MIG are marked as having shared GPUs."""
        now = {path: _state(path) for path in self._states}
        if self.gres_conf not in now or now != self._states:
            self._read()
        return [replace(node, shared_gres=True) if self._has_mig(node) else node for node in nodes]

    def _has_mig(self, node: SlurmNode) -> bool:
        kinds = {kind for kind, _ in node.gpus}
        return bool(kinds) and any(
            (names is None or node.name in names) and (kind is None or kind in kinds)
            for names, kind in self._records
        )

    def _read(self) -> None:
        self._records = []
        files = [self.gres_conf, *self._states]
        try:
            conf = ConfFiles(self.gres_conf, missing_ok=True)
            files = list(conf.texts)
            for entry in conf.records():
                values = fields_of(entry.text)
                if "multiplefiles" not in values or values.get("name", "gpu").lower() != "gpu":
                    continue
                names = values.get("nodename")
                inside = None if names is None else frozenset(expand_hostlist(names))
                self._records.append((inside, values.get("type")))
        except SourceError as exc:
            log.warning("MIG is recognised by GRES types only: %s", exc)
        self._states = {path: _state(path) for path in files}


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
