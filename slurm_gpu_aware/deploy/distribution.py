"""How a change of /etc/slurm reaches the nodes, which have read it, and what files they have.

Nodes are asked by short jobs on idle ones.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware.config.settings import SetupConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.hostlist import hostlist
from slurm_gpu_aware.slurm.records import SlurmNode

WANTED = (
    "name the command that copies {folder} to all nodes in the configuration, for example"
    ' distribute = ["/root/push-slurm-conf"] in [setup]'
)
"""What a site with a folder on each host needs."""
_TEST_S = 30.0
_ASK_S = 60.0
_LOOK = """echo "$SLURMD_NODENAME" $(
    for file; do
        case $file in *.conf) ;; *) [ -x "$file" ] || continue ;; esac
        sha256sum "$file"
    done 2>/dev/null)"""
_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_NODES = 256
"""Nodes of one job."""
_AWAY = re.compile(r"DOWN|NOT_RESPONDING|POWER|UNKNOWN|FUTURE")


@dataclass(frozen=True)
class Delivery:
    """Whether the nodes get a change of the folder of slurm.conf when Slurm is reconfigured."""

    arrives: bool | None
    """None: it is not known."""
    why: str


def find_delivery(
    setup: SetupConfig, client: SlurmClient, slurm_dir: Path, nodes: Collection[str] | None = None
) -> Delivery:
    """Find out how the nodes get the files.

    By a command, from slurmctld (configless), or from a shared folder: a job on one idle node
    of ``nodes`` (None: of all) looks for a file that is made here. Raises SourceError if
    ``setup.distribute`` cannot be run, or Slurm does not answer.
    """
    if setup.distribute:
        if shutil.which(setup.distribute[0]) is None:
            raise SourceError(
                f"setup.distribute: {setup.distribute[0]!r} is not a command that can be run on"
                " this host"
            )
        return Delivery(True, f"setup.distribute: {' '.join(setup.distribute)}")
    if "enable_configless" in client.settings().get("SlurmctldParameters", ""):
        return Delivery(True, "configless: nodes get the files from slurmctld")
    seen = _seen_by_a_node(client, slurm_dir, nodes)
    if seen is None:
        return Delivery(
            None,
            f"it is not known whether the nodes share {slurm_dir}: no idle node could be asked",
        )
    node, there = seen
    if there:
        return Delivery(True, f"the nodes share {slurm_dir} ({node} was asked)")
    return Delivery(False, f"{node} has a {slurm_dir} of its own, and setup.distribute is not set")


def not_read_since(nodes: Collection[SlurmNode], changed_s: float) -> list[str]:
    """Nodes that answer and whose slurmd has not started anew since then (Unix seconds)."""
    return [
        node.name
        for node in nodes
        if node.slurmd_start_s is not None
        and not any(map(_AWAY.search, node.states))
        and node.slurmd_start_s < int(changed_s)
    ]


def _seen_by_a_node(
    client: SlurmClient, slurm_dir: Path, nodes: Collection[str] | None
) -> tuple[str, bool] | None:
    """(a node, whether it sees a file that is made here); None: no node could be asked."""
    free = [(part, name) for part, names in idle_nodes(client, nodes).items() for name in names]
    marker = slurm_dir / f".gpu-aware-{os.getpid()}"
    try:
        marker.touch()
    except OSError as exc:
        raise SourceError(f"{marker}: cannot be written: {exc.strerror}") from None
    try:
        look = ["sh", "-c", 'if [ -e "$0" ]; then echo seen; else echo unseen; fi', str(marker)]
        for partition, name in free[:2]:
            said = run_on_nodes(partition, [name], "gpu-aware-setup", look, _TEST_S).strip()
            if said in ("seen", "unseen"):
                return name, said == "seen"
    finally:
        marker.unlink(missing_ok=True)
    return None


# -- jobs on idle nodes ------------------------------------------------------------------------


def digest(path: Path) -> str | None:
    """SHA-256 of a file of this host; None: there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def idle_nodes(client: SlurmClient, among: Collection[str] | None = None) -> dict[str, list[str]]:
    """Partition -> those of the nodes (None: all) on which a job can start at once."""
    partition: dict[str, str] = {}
    for one in client.partitions():
        for name in one.nodes:
            partition.setdefault(name, one.name)
    found: dict[str, list[str]] = {}
    for node in client.nodes():
        name, wanted = node.name, among is None or node.name in among
        if wanted and name in partition and node.states <= {"IDLE", "MIXED"}:
            found.setdefault(partition[name], []).append(name)
    return found


def run_on_nodes(
    partition: str, nodes: Sequence[str], job_name: str, command: Sequence[str], time_s: float
) -> str:
    """What a command prints on idle nodes, run once on each; empty if it could not be run."""
    words = ["srun", f"--nodelist={hostlist(nodes)}", f"--partition={partition}"]
    words += [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    words += ["--immediate=10", "--time=1", "--mem=1", "--chdir=/", f"--job-name={job_name}"]
    try:
        output, _ = run_command([*words, *command], time_s, check=False)
    except SourceError:
        return ""
    return output


def ask_nodes(
    partition: str, nodes: Sequence[str], paths: Sequence[Path]
) -> dict[str, dict[str, str]]:
    """Node -> path -> SHA-256 of the files that it has; without nodes that could not be asked.

    A script counts only if it is executable.
    """
    found: dict[str, dict[str, str]] = {}
    for first in range(0, len(nodes), MAX_NODES):
        some = nodes[first : first + MAX_NODES]
        shell = ["sh", "-c", _LOOK, "sh", *map(str, paths)]
        output = run_on_nodes(partition, some, "gpu-aware-look", shell, _ASK_S)
        for line in output.splitlines():
            name, *rest = line.split()
            pairs = zip(rest[::2], rest[1::2], strict=False)
            if name in some:
                found[name] = {path: value for value, path in pairs if _SHA256.fullmatch(value)}
    return found
