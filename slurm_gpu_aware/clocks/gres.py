"""GPUs on which a job may have a clock of its own, as far as gres.conf says it.

The prolog learns a job's GPUs from its Extra field, since Slurm names only some of them (see
`job.parse_extra`). Where the filter is out of order a user can write that field, so nothing is
locked that ``SLURM_JOB_GPUS``, gres.conf or a job on the node (`steps`) speaks against.
"""

from __future__ import annotations

import os

from slurm_gpu_aware.names import slot_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["NodeGres", "agreed_gpus"]

SLURM_CONF = "/etc/slurm/slurm.conf"
"""Where slurmd does not say in ``SLURM_CONF``; gres.conf lies beside it."""


class NodeGres:
    """The gres.conf beside a slurm.conf (empty: the usual place), for one node.

    A missing one says nothing; ``Include`` is not followed.
    """

    def __init__(self, slurm_conf: str, node: str) -> None:
        file = os.path.join(os.path.dirname(slurm_conf or SLURM_CONF), "gres.conf")
        try:
            with open(file, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
        except OSError:
            text = ""
        self._lines = [_fields(line) for line in text.replace("\\\n", " ").splitlines()]
        self._node = node

    def shared(self) -> bool:
        """Whether jobs share GPUs: it has shards or MPS."""
        return any(self._is_ours(line) for line in self._named("shard", "mps"))

    def names_all(self) -> bool:
        """Whether SLURM_JOB_GPUS holds all GPUs of a job: no GPU has a type of its own.

        False if it does not say (AutoDetect).
        """
        lines = self._named("gpu")
        if all(_is_indexed(line) for line in lines):
            return False  # whichever are this node's, without reading host lists
        ours = [line for line in lines if self._is_ours(line)]
        return bool(ours) and not any(_is_indexed(line) for line in ours)

    def _named(self, *names: str) -> list[dict[str, str]]:
        return [line for line in self._lines if line.get("name", "").lower() in names]

    def _is_ours(self, line: dict[str, str]) -> bool:
        return _is_for(line.get("nodename"), self._node)


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
        set(seen) != set(asked) and (len(seen) > 1 or gres.names_all())
    ):
        named = ",".join(map(str, sorted(seen)))
        raise ValueError(f"{extra[:60]!r} does not agree with GPUs {named} of Slurm")
    return sorted(asked)


def _fields(line: str) -> dict[str, str]:
    """``Name = gpu Type=g0 # comment`` -> {"name": "gpu", "type": "g0"}."""
    words = line.partition("#")[0].replace("=", " = ").split()
    return {
        words[at - 1].lower(): words[at + 1]
        for at in range(1, len(words) - 1)
        if words[at] == "=" and words[at - 1] != "=" and words[at + 1] != "="
    }


def _is_indexed(line: dict[str, str]) -> bool:
    """Whether the GPU of a line has a type of its own: ``g0``, ``g1``, ..."""
    return slot_of(line.get("type")) is not None


def _is_for(names: str | None, node: str) -> bool:
    if names is None or names == node:
        return True
    if not any(mark in names for mark in "[,"):
        return False
    # Late: it needs regular expressions.
    from slurm_gpu_aware.errors import AwareError
    from slurm_gpu_aware.slurm.hostlist import expand_hostlist

    try:
        return node in expand_hostlist(names)
    except (AwareError, ValueError):
        return True  # better no clock than one on a GPU of several jobs
