"""Texts of the files that ``gpu-aware setup`` writes.

The GPU of Slurm index K gets the GRES type ``gK``, so that a job can request exactly this GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.holding_pool import LICENCE, LICENCE_COUNT
from slurm_gpu_aware.names import index_type, slot_of
from slurm_gpu_aware.slurm.conffile import SlurmConf
from slurm_gpu_aware.slurm.hostlist import by_number, hostlist

__all__ = [
    "WITHOUT",
    "NodeGpus",
    "Settings",
    "clock_conf",
    "gres_lines",
    "node_lines",
    "slurm_settings",
]

SCHEDULER = {
    "default_queue_depth": (5000, "parked jobs of higher priority delay others"),
    "batch_sched_delay": (1, "a placed job waits up to 3 s for Slurm's scheduler"),
}
"""Word of SchedulerParameters -> (our value, effect of Slurm's default)."""

WITHOUT = {
    "Prolog": "clocks are not set",
    "Epilog": "clocks are not reset",
    "ResvProlog": "jobs in the holding pool precede all others while the selector is away",
}
"""Key of a script of ours -> effect of its absence."""


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of one node."""

    name: str
    indices: tuple[int, ...]
    """Slurm's GPU indices = minor numbers of /dev/nvidiaN, ascending."""
    model: str | None = None
    """Short name (``a100``); None: unknown or mixed."""
    numa: tuple[int | None, ...] = ()
    """NUMA node of each GPU, parallel to ``indices``."""
    sockets: int = 0
    cores_per_socket: int = 0
    """Slurm's numbers; 0: unknown, and gres.conf gets no ``Cores=``."""

    def cores(self, position: int) -> str | None:
        """``Cores=`` of the GPU at a position of ``indices``; None: not known.

        Slurm counts cores by socket, so the range follows from the socket, not from the system's
        CPU numbers. Requires that NUMA nodes and sockets coincide.
        """
        known = [n for n in self.numa if n is not None]
        if not self.sockets or not self.cores_per_socket or position >= len(self.numa):
            return None
        socket = self.numa[position]
        if socket is None or socket < 0 or max(known) >= self.sockets:
            return None
        first = socket * self.cores_per_socket
        return f"{first}-{first + self.cores_per_socket - 1}"


@dataclass(frozen=True)
class Settings:
    """Settings of slurm.conf other than node lines."""

    values: Mapping[str, str]
    """Key in Slurm's spelling -> value, merged with the site's."""
    notes: tuple[str, ...] = ()
    """Notes for the administrator, one sentence each."""


def gres_lines(nodes: Iterable[NodeGpus]) -> list[str]:
    """Lines for gres.conf: one per GPU index and group of equal nodes."""
    out: list[str] = []
    for names, node in _equal(nodes):
        # AutoDetect would search the product names for our types.
        out.append(f"NodeName={names} AutoDetect=off")
        for position, index in enumerate(node.indices):
            cores = node.cores(position)
            out.append(
                f"NodeName={names} Name=gpu Type={index_type(index)} File=/dev/nvidia{index}"
                + (f" Cores={cores}" if cores else "")
            )
    return out


def node_lines(nodes: Iterable[NodeGpus]) -> list[str]:
    """``Gres=`` and ``Features=`` to merge into the NodeName lines of slurm.conf."""
    out: list[str] = []
    for names, node in _equal(nodes):
        gres = ",".join(f"gpu:{index_type(i)}:1" for i in node.indices)
        feature = f" Features={feature_of(node.model)}" if node.model else ""
        out.append(f"NodeName={names} Gres={gres}{feature}")
    return out


def feature_of(model: str) -> str:
    """Node feature of a GPU model: ``A100`` is ``gpu_a100``.

    Raises ValueError for a name that is invalid in Slurm, or that is the type of a GPU index.
    """
    lower = model.lower()
    if (
        len(lower) > rules.MAX_NAME
        or not re.fullmatch(rules.FEATURE, lower)
        or slot_of(lower) is not None
    ):
        raise ValueError(f"GPU model {model!r} cannot be a Slurm feature")
    return f"gpu_{lower}"


def usable_model(model: str | None) -> str | None:
    """A GPU model in lower case if it can be a feature, else None."""
    try:
        return feature_of(model)[len("gpu_") :] if model else None
    except ValueError:
        return None


def slurm_settings(config: Config, current: SlurmConf, scripts: Mapping[str, str]) -> Settings:
    """Settings for slurm.conf, merged with those of the site (``current``).

    ``scripts``: ``Prolog``, ``Epilog`` and ``ResvProlog`` -> path of our script; may be empty.
    """
    values: dict[str, str] = {}
    notes: list[str] = []
    values["GresTypes"] = _with(current.get("GresTypes"), "gpu")
    values["Licenses"] = _with_licence(current.get("Licenses"), config)
    values["JobSubmitPlugins"] = _with(current.get("JobSubmitPlugins"), "lua")
    values["SchedulerParameters"] = _with_scheduler(current.get("SchedulerParameters"))
    if "bf_licenses" in (current.get("SchedulerParameters") or "").split(","):
        notes.append(
            "SchedulerParameters has bf_licenses: many parked jobs then delay others by many"
            " seconds; remove it if the site can do without"
        )
    for key, path in scripts.items():
        have = current.get(key)
        if have is None or have == path:
            values[key] = path
        elif not _glob_covers(have, path):
            notes.append(f"{key}={have} stays; call {path} from it, or {WITHOUT[key]}")
    _job_completion(config, current, values, notes)
    return Settings(values, tuple(notes))


def _job_completion(
    config: Config, current: SlurmConf, values: dict[str, str], notes: list[str]
) -> None:
    wanted = config.events.jobcomp_file
    kind = current.get("JobCompType") or "jobcomp/none"
    if wanted is None:
        notes.append(
            "events.jobcomp_file is not set: after the end of a job, the next round starts within"
            f" {config.selector.round_s:g} s instead of at once"
        )
    elif kind == "jobcomp/none" or (
        kind == "jobcomp/filetxt" and current.get("JobCompLoc") in (None, str(wanted))
    ):
        values["JobCompType"] = "jobcomp/filetxt"
        values["JobCompLoc"] = str(wanted)
        if kind == "jobcomp/none":
            notes.append(
                f"{wanted} must be writable by SlurmUser, otherwise slurmctld does not start"
            )
    else:
        notes.append(f"JobCompType={kind} stays; events.jobcomp_file has no effect with it")


def _glob_covers(pattern: str, path: str) -> bool:
    return pattern.endswith("/*") and str(Path(path).parent) == pattern[:-2]


def _with(have: str | None, word: str) -> str:
    words = [w for w in (have or "").split(",") if w]
    return ",".join(words if word in words else [*words, word])


def _with_licence(have: str | None, config: Config) -> str:
    ours = {config.gate.licence: config.gate.licence_count, LICENCE: LICENCE_COUNT}
    others = [w for w in (have or "").split(",") if w and re.split(r"[:*=]", w)[0] not in ours]
    return ",".join([*others, *(f"{name}:{count}" for name, count in ours.items())])


def _with_scheduler(have: str | None) -> str:
    words = [w for w in (have or "").split(",") if w]
    given = {w.partition("=")[0] for w in words}
    added = [f"{name}={value}" for name, (value, _) in SCHEDULER.items() if name not in given]
    return ",".join(words + added)


def clock_conf(command: Path) -> str:
    """``clock.conf`` of the compute nodes: program and folders of prolog and epilog."""
    return (
        "# Read by Slurm's prolog and epilog on compute nodes: gpu-aware-clock.\n"
        f"command = {command}\n"
        "# Folder of the records of clocks. If the controller can read it, explain shows them.\n"
        "# spool = /var/spool/slurm-gpu-aware/clocks\n"
        "# Folder of the notes of locked GPUs: local to the node, for root and these files only.\n"
        "# locks = /var/lib/slurm-gpu-aware/clock-locks\n"
    )


def _equal(nodes: Iterable[NodeGpus]) -> list[tuple[str, NodeGpus]]:
    """(host list, one of its nodes) of each group of nodes with equal GPUs, in order of names."""
    groups: dict[tuple[object, ...], list[NodeGpus]] = {}
    for node in sorted(nodes, key=lambda n: by_number(n.name)):
        key = (
            node.indices,
            node.model,
            tuple(node.cores(i) for i in range(len(node.indices))),
        )
        groups.setdefault(key, []).append(node)
    return [(hostlist(n.name for n in group), group[0]) for group in groups.values()]
