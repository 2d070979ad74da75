"""Short jobs on idle nodes, and the files that they find there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.hostlist import hostlist

_TIME_S = 60.0
_LOOK = """echo "$SLURMD_NODENAME" $(
    for file; do
        case $file in *.conf) ;; *) [ -x "$file" ] || continue ;; esac
        sha256sum "$file"
    done 2>/dev/null)"""
_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_NODES = 256
"""Nodes of one job."""


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
        output = run_on_nodes(partition, some, "gpu-aware-look", shell, _TIME_S)
        for line in output.splitlines():
            name, *rest = line.split()
            pairs = zip(rest[::2], rest[1::2], strict=False)
            if name in some:
                found[name] = {path: value for value, path in pairs if _SHA256.fullmatch(value)}
    return found
