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
    "SCHEDULER",
    "WITHOUT",
    "NodeGpus",
    "Settings",
    "clock_conf",
    "feature_of",
    "gres_lines",
    "index_gres",
    "node_lines",
    "slurm_settings",
    "usable_model",
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
    return [
        f"NodeName={names} Gres={','.join(index_gres(node.indices))}"
        + (f" Features={feature_of(node.model)}" if node.model else "")
        for names, node in _equal(nodes)
    ]


def index_gres(indices: Iterable[int]) -> list[str]:
    """Entries of ``Gres=`` with one type per GPU."""
    return [f"gpu:{index_type(i)}:1" for i in indices]


def feature_of(model: str) -> str:
    """Node feature of a GPU model: ``A100`` is ``gpu_a100``."""
    return f"gpu_{model.lower()}"


def usable_model(model: str | None) -> str | None:
    """A GPU model in lower case; None if it cannot be a feature, or is the type of a GPU index."""
    lower = (model or "").lower()
    valid = len(lower) <= rules.MAX_NAME and re.fullmatch(rules.FEATURE, lower)
    return lower if valid and slot_of(lower) is None else None


def slurm_settings(config: Config, current: SlurmConf, scripts: Mapping[str, str]) -> Settings:
    """Settings for slurm.conf, merged with those of the site (``current``).

    ``scripts``: ``Prolog``, ``Epilog`` and ``ResvProlog`` -> path of our script; may be empty.
    """
    licences = {config.gate.licence: config.gate.licence_count, LICENCE: LICENCE_COUNT}
    scheduler = {name: f"{name}={value}" for name, (value, _) in SCHEDULER.items()}
    ours = {
        "GresTypes": {"gpu": "gpu"},
        "Licenses": {name: f"{name}:{count}" for name, count in licences.items()},
        "JobSubmitPlugins": {"lua": "lua"},
        "SchedulerParameters": scheduler,
    }
    values = {
        key: _merged(current.get(key), words, replace=key == "Licenses")
        for key, words in ours.items()
    }
    notes: list[str] = []
    if "bf_licenses" in values["SchedulerParameters"].split(","):
        notes.append(
            "SchedulerParameters has bf_licenses: many parked jobs then delay others by many"
            " seconds; remove it if the site can do without"
        )
    for key, path in scripts.items():
        have = current.get(key)
        if have is None or have == path:
            values[key] = path
        elif have != f"{Path(path).parent}/*":
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


def _merged(have: str | None, ours: Mapping[str, str], *, replace: bool) -> str:
    """A list of the site with our entries (name -> entry); ``replace``: instead of the site's."""
    words = [(re.split(r"[:*=]", word)[0], word) for word in (have or "").split(",") if word]
    kept = [(name, word) for name, word in words if not (replace and name in ours)]
    missing = ours.keys() - dict(kept).keys()
    return ",".join([*(w for _, w in kept), *(ours[name] for name in ours if name in missing)])


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
        cores = tuple(node.cores(i) for i in range(len(node.indices)))
        key = (node.indices, node.model, cores)
        groups.setdefault(key, []).append(node)
    return [(hostlist(n.name for n in group), group[0]) for group in groups.values()]
