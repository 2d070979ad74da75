"""Which GPUs a job may have a clock of its own on: what else the node says than the job's Extra.

The prolog learns a job's GPUs from its Extra field, since Slurm names only some of them (see
`clock_settings.parse_extra`). Where the filter is out of order a user can write that field, so
nothing is locked that ``SLURM_JOB_GPUS``, gres.conf or a job on the node speaks against.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NodeGres", "agreed_gpus", "read_gres", "runs_here"]

SLURM_CONF = Path("/etc/slurm/slurm.conf")
"""Where slurmd does not say in ``SLURM_CONF``; gres.conf lies beside it."""
_INDEX_TYPE = re.compile(r"g(?:0|[1-9][0-9]{0,3})\Z")
_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")


@dataclass(frozen=True)
class NodeGres:
    """What gres.conf says of a node."""

    types: frozenset[str] = frozenset()
    """Types of its GPUs; empty: it does not say (AutoDetect)."""
    shared: bool = False
    """It has shards or MPS."""

    @property
    def names_all(self) -> bool:
        """Whether SLURM_JOB_GPUS holds all GPUs of a job: no GPU has a type of its own."""
        return bool(self.types) and not any(_INDEX_TYPE.match(kind) for kind in self.types)


def agreed_gpus(
    seen: Collection[int], asked: Collection[int] | None, extra: str, gres: NodeGres
) -> list[int]:
    """GPUs on which a clock may be set. Raises ValueError if Slurm contradicts what is asked.

    ``seen``: what Slurm says, which on an indexed node is one GPU, that of the job's last type
    (24.11). ``asked``: what the Extra field says; None: nothing.
    """
    if not seen or asked is None:
        return sorted(seen)
    if not set(seen) <= set(asked) or (
        set(seen) != set(asked) and (len(seen) > 1 or gres.names_all)
    ):
        named = ",".join(map(str, sorted(seen)))
        raise ValueError(f"{extra[:60]!r} does not agree with GPUs {named} of Slurm")
    return sorted(asked)


def read_gres(slurm_conf: str, node: str) -> NodeGres:
    """Read the gres.conf beside a slurm.conf (empty: the usual place). A missing one says nothing.

    ``Include`` is not followed.
    """
    try:
        text = (Path(slurm_conf or SLURM_CONF).parent / "gres.conf").read_text(errors="replace")
    except OSError:
        return NodeGres()
    lines = [line for line in _lines(text) if _is_for(line.get("nodename"), node)]
    gpus = [line for line in lines if line.get("name", "").lower() == "gpu"]
    return NodeGres(
        types=frozenset(line.get("type", "") for line in gpus),
        shared=any(line.get("name", "").lower() in ("shard", "mps") for line in lines),
    )


def _lines(text: str) -> Iterator[dict[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        yield {key.lower(): value for key, value in _PAIR.findall(line.split("#", 1)[0])}


def _is_for(names: str | None, node: str) -> bool:
    from slurm_gpu_aware.errors import AwareError
    from slurm_gpu_aware.slurm.hostlist import expand_hostlist

    try:
        return names is None or node in expand_hostlist(names)
    except (AwareError, ValueError):
        return True  # better no clock than one on a GPU of several jobs


def runs_here(job_id: str, proc: Path = Path("/proc")) -> bool:
    """Whether a step of a job runs on this node: slurmstepd shows it in its command line."""
    for folder in proc.glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(f"slurmstepd: [{job_id}.".encode()):
            return True
    return False
