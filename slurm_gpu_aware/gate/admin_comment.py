"""Record of a parked job in its AdminComment: the original request.

``etc/lua/gpu_aware_request.lua`` writes it at submission; the selector reads it to place the job
and to restore it. One line of ASCII without blanks::

    gpuaware/1;tn=gres/gpu:2;nn=2-2;feat=gpu_a100%26big

Values are percent-encoded outside `filter_rules.RECORD_SAFE`; an option that was not given has no
key. A model type (``gpu:a100:2``) is a feature, and the gate's licence is not among the licences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from slurm_gpu_aware import filter_rules as rules

__all__ = ["OriginalRequest", "encode", "is_ours", "parse"]

_UNSAFE = re.compile(f"[^{rules.RECORD_SAFE}]".encode())
_ENTRY = re.compile(rf"([a-z]{{2,4}})=((?:[{rules.RECORD_SAFE}]|%[0-9A-F]{{2}})*)\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
_NODES = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?\Z")


@dataclass(frozen=True)
class OriginalRequest:
    """A request in Slurm's own words; None: not given."""

    tres_per_node: str | None = None
    """``gres/gpu:2``: ``--gres``, ``--gpus-per-node``."""
    tres_per_job: str | None = None
    """``--gpus``."""
    tres_per_task: str | None = None
    """``--gpus-per-task`` (``gres/gpu=1``), and ``cpu=N`` where Slurm writes ``-c`` this way."""
    tres_per_socket: str | None = None
    tres_bind: str | None = None
    cpus_per_tres: str | None = None
    """``--cpus-per-gpu``."""
    mem_per_tres: str | None = None
    """``--mem-per-gpu``."""
    nodes: tuple[int, int | None] | None = None
    """(least, most) nodes; most None: no upper bound."""
    licenses: str | None = None
    """Those of the user, without the gate's."""
    features: str | None = None
    """``--constraint``, with the model's feature."""
    req_nodes: str | None = None
    exc_nodes: str | None = None
    num_tasks: int | None = None
    cpus_per_task: int | None = None
    ntasks_per_node: int | None = None
    min_cpus: int | None = None
    min_cpus_node: int | None = None
    """``--mincpus``."""
    memory: bool = False
    """``--mem`` or ``--mem-per-cpu`` was given, so ``DefMemPerGPU`` does not apply."""
    tres_freq: str | None = None
    model: str | None = None
    """GPU model that the user typed as GRES type (``a100``)."""
    exclusive: bool = False
    """``--exclusive``: whole nodes."""
    interactive: bool = False
    """No batch script: salloc or srun."""
    begin_s: int | None = None
    """Begin time that the filter gave, Unix seconds; see `gate.deferral`."""
    environment: str | None = None
    """Hints of the environment variable (`filter_rules.ENVIRONMENT`) of a batch job."""
    admin_comment: str | None = None
    """AdminComment that a script of the site set before."""


_KEYS = dict(rules.RECORD_KEYS)
_KINDS = {f.name: str(f.type) for f in fields(OriginalRequest)}


def is_ours(text: str | None) -> bool:
    """Whether an AdminComment holds a record of any version."""
    return text is not None and text.startswith(rules.RECORD)


@lru_cache(maxsize=1 << 14)  # several steps of each round ask for the same job
def parse(text: str | None) -> OriginalRequest | None:
    """Read an AdminComment; None if it is not a record or does not follow the grammar.

    Unknown keys are skipped, so that a newer filter does no harm.
    """
    if text is None or not text.startswith(rules.RECORD_VERSION):
        return None
    values: dict[str, object] = {}
    for entry in filter(None, text[len(rules.RECORD_VERSION) :].split(";")):
        match = _ENTRY.match(entry)
        if match is None:
            return None
        name = _KEYS.get(match[1])
        if name is None:
            continue
        value = _read(_KINDS[name], unquote_to_bytes(match[2]).decode("utf-8", "surrogateescape"))
        if value is None or name in values:
            return None
        values[name] = value
    return OriginalRequest(**values)  # type: ignore[arg-type]  # checked key by key in _read


def encode(request: OriginalRequest) -> str:
    """Write a request as the filter does; the inverse of `parse`."""
    entries = []
    for key, name in _KEYS.items():
        value = getattr(request, name)
        if value is None or value is False:
            continue
        entries.append(f"{key}={_written(value)}")
    return rules.RECORD_VERSION + ";".join(entries)


def _read(kind: str, text: str) -> object | None:
    """Convert a decoded value; None if it does not have the type."""
    if kind == "bool":
        return True if text == "1" else None
    if kind.startswith("int"):
        return int(text) if _NUMBER.match(text) else None
    if kind.startswith("tuple"):
        match = _NODES.match(text)
        if match is None:
            return None
        return int(match[1]), None if match[2] is None else int(match[2])
    return text


def _written(value: object) -> str:
    if value is True:
        return "1"
    if isinstance(value, tuple):
        least, most = value
        return f"{least}" if most is None else f"{least}-{most}"
    raw = str(value).encode("utf-8", "surrogateescape")
    return _UNSAFE.sub(lambda m: b"%%%02X" % m[0][0], raw).decode("ascii")
