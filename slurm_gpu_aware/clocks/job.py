"""The job as Slurm describes it to a hook, and what the node says about its GPUs beside Slurm.

Every value goes through a strict grammar. The prolog learns a job's GPUs from its Extra field,
since Slurm names only some of them (see `parse_extra`). Where the filter is out of order a user can
write that field, so nothing is locked that ``SLURM_JOB_GPUS``, gres.conf or a job on the node
speaks against.
"""

from __future__ import annotations

import os

from slurm_gpu_aware.bounds import is_node_name, slot_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conf_grammar import fields_of, in_order, read_text, records_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

Record = dict[str, object]
"""A line of the spool: JSON values that are texts, numbers, None, or lists of numbers."""
SLURM_CONF = "/etc/slurm/slurm.conf"
"""Where slurmd does not say in ``SLURM_CONF``; gres.conf lies beside it."""
SHARED = "no clock is set on a node with shards or MPS: jobs share its GPUs"
Setting = tuple[int, int]
"""Clock of a GPU, MHz, and its power limit, W; 0: the default clock, the site's own limit."""


class Job:
    """A job on this node. Raises ValueError if its number or the node's name are nonsense."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.node = env.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
        self.id = env.get("SLURM_JOB_ID", "")
        restarts = env.get("SLURM_JOB_RESTART_COUNT") or env.get("SLURM_RESTART_COUNT") or "0"
        self.restarts = int(restarts) if _is_number(restarts, 9) else 0
        self.extra = env.get("SLURM_JOB_EXTRA", "")
        self.gpus = env.get("SLURM_JOB_GPUS", "")
        self.slurm_conf = env.get("SLURM_CONF", "")
        if not is_node_name(self.node):
            raise ValueError(f"{self.node[:40]!r} is not a node name")
        if not _is_number(self.id, 12):
            raise ValueError(f"SLURM_JOB_ID is {self.id[:40]!r}")


def parse_extra(text: str) -> tuple[Setting, list[int] | None] | None:
    """(setting, GPU indices on each node) of ``freq=MHZ:W@0+3`` in a list with commas.

    ``:W`` and ``@0+3`` may be left out; ``freq=0@0+3`` names the GPUs of a job at the default clock
    and the site's own limit. Indices None: those of ``SLURM_JOB_GPUS``, which has only the GPUs of
    the job's last type (24.11). Returns None without such an item. Raises ValueError if it is
    malformed or twice there.
    """
    found = [item.strip() for item in text.split(",") if item.strip().startswith("freq=")]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError("freq= occurs more than once")
    words, at, gpus = found[0].removeprefix("freq=").partition("@")
    setting = parse_setting(words)
    indices = gpus.split("+") if at else []
    if (
        setting is None
        or (setting == (0, 0) and not at)
        or not all(_is_number(index, 4) for index in indices)
    ):
        raise ValueError(f"{found[0][:40]!r} is not freq=MHZ:W@INDEX+INDEX, with or without :W, @")
    return setting, sorted({int(index) for index in indices}) if at else None


def parse_setting(text: str) -> Setting | None:
    """The setting of ``MHZ`` or ``MHZ:W`` (`bounds.setting_text`); None for any other text."""
    mhz, colon, watts = text.partition(":")
    if not (mhz == "0" or (_is_number(mhz, 5) and len(mhz) > 1 and mhz[0] != "0")):
        return None
    if colon and not (_is_number(watts, 4) and len(watts) > 1 and watts[0] != "0"):
        return None
    return int(mhz), int(watts or 0)


def parse_gpus(text: str) -> list[int]:
    """GPU indices of ``SLURM_JOB_GPUS`` (``0,2`` or ``0-3``), ascending. Raises ValueError."""
    found: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        first, dash, last = item.partition("-")
        last = last if dash else first
        if not (_is_number(first, 4) and _is_number(last, 4)) or int(last) < int(first):
            raise ValueError(f"{text[:40]!r} is not a list of GPU indices")
        found.update(range(int(first), int(last) + 1))
    return sorted(found)


def _is_number(text: str, most_digits: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= most_digits


class NodeGres:
    """The gres.conf beside a slurm.conf (empty: the usual place), for one node.

    A missing one says nothing; slurmd does not start with a faulty one.
    """

    def __init__(self, slurm_conf: str, node: str) -> None:
        file = os.path.join(os.path.dirname(slurm_conf or SLURM_CONF), "gres.conf")
        self._lines: list[dict[str, str]] = []
        try:
            for _, record, _ in in_order(file, _records):
                self._lines.append(fields_of(record))
        except SourceError:
            pass
        self._node = node

    def shared(self) -> bool:
        """Whether jobs share GPUs: it has shards or MPS."""
        return any(_is_for(line, self._node) for line in self._named("shard", "mps"))

    def names_all(self) -> bool:
        """Whether SLURM_JOB_GPUS holds all GPUs of a job; False: not known (AutoDetect)."""
        lines = self._gpu_lines()
        if all(indexed for _, indexed in lines):
            return False  # whichever are this node's, without reading host lists
        ours = [indexed for line, indexed in lines if _is_for(line, self._node)]
        return bool(ours) and not any(ours)

    def indexed(self) -> bool:
        """Whether each GPU of the node is a type of its own."""
        return any(indexed and _is_for(line, self._node) for line, indexed in self._gpu_lines())

    def _gpu_lines(self) -> list[tuple[dict[str, str], bool]]:
        """Lines of GPUs, and whether their type names one GPU of a node."""
        return [(line, slot_of(line.get("type")) is not None) for line in self._named("gpu")]

    def _named(self, *names: str) -> Iterator[dict[str, str]]:
        return (line for line in self._lines if line.get("name", "").lower() in names)


def agreed_gpus(
    seen: Collection[int], asked: Collection[int] | None, extra: str, gres: NodeGres
) -> list[int]:
    """GPUs on which a clock may be set. Raises ValueError if Slurm contradicts what is asked.

    ``seen``: what Slurm says, on an indexed node one GPU. ``asked``: what the Extra field says.
    """
    if not seen or asked is None:
        return sorted(seen)
    if not set(seen) <= set(asked) or (
        set(seen) != set(asked) and (len(seen) > 1 or gres.names_all())
    ):
        named = ",".join(map(str, sorted(seen)))
        raise ValueError(f"{extra[:60]!r} does not agree with GPUs {named} of Slurm")
    return sorted(asked)


def _records(file: str) -> Iterator[tuple[str, None]]:
    return ((record, None) for _, record in records_of(read_text(file)))


def _is_for(line: dict[str, str], node: str) -> bool:
    names = line.get("nodename", node)
    if names == node:
        return True
    if not any(mark in names for mark in "[,"):
        return False
    # Late: it needs regular expressions.
    from slurm_gpu_aware.slurm.words import expand_hostlist

    try:
        return node in expand_hostlist(names)
    except (SourceError, ValueError):
        return True  # better no clock than one on a GPU of several jobs


def has_step(job_id: str, proc: str = "/proc") -> bool:
    """Whether a step of a job runs on this node, by the command line of its slurmstepd.

    Users' processes can have the same title; only a slurmstepd that root started counts.
    """
    title = f"slurmstepd: [{job_id}.".encode()
    numbers = filter(str.isdecimal, os.listdir(proc))
    return any(_is_titled(f"{proc}/{number}", title) for number in numbers)


def _is_titled(process: str, title: bytes) -> bool:
    try:
        with open(f"{process}/cmdline", "rb") as stream:
            if not stream.read(len(title)).startswith(title):
                return False
        # Debian: slurmstepd-wlm. After an update of Slurm: "slurmstepd (deleted)".
        program = os.readlink(f"{process}/exe")
        with open(f"{process}/status", encoding="utf-8", errors="replace") as stream:
            uids = next((line.split()[1:] for line in stream if line.startswith("Uid:")), [])
    except OSError:
        return False
    # The real user id; slurmstepd may take another effective one for a moment.
    return os.path.basename(program).startswith("slurmstepd") and uids[:1] == ["0"]
