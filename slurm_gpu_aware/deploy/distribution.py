"""How a change of /etc/slurm reaches the nodes, and which slurmds have read it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware.config.settings import SetupConfig
from slurm_gpu_aware.deploy.node_files import idle_nodes, run_on_nodes
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmNode

WANTED = (
    "name the command that copies {folder} to all nodes in the configuration, for example"
    ' distribute = ["/root/push-slurm-conf"] in [setup]'
)
"""What a site with a folder on each host needs."""
_TEST_S = 30.0
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
