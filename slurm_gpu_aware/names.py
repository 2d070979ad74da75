"""Names in Slurm: nodes, classes and licences, GRES types of single GPUs. Standard library only."""

from __future__ import annotations

NODE_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,254}"
"""Pattern of a node name that may be passed to a command."""
NAME = "[A-Za-z][A-Za-z0-9_-]{0,31}"
"""Pattern of the name of a class, licence or reservation: a short ``filter_rules.NAME``."""
MARKS = "GPU_AWARE_MARKS"
"""Variable with the file to which a measured job appends one byte per iteration."""
PROBE_TIME_LIMIT = "time limit"
"""Fault of a probe that left out runs because its time was over."""
PROBE_JOB = "gpu-aware-probe."
"""Start of the job names of a sweep's probes."""
ROLLOUT_HOLD = "gpuaware_rollout"
"""Reservation of all nodes while a rollout reconfigures Slurm: no job starts."""
INDEX_TYPES = 1024
"""``g0`` to ``g1023`` are the GRES types of GPU indices."""

_LONGEST_NODE = 255
_LONGEST_NAME = 32
_NODE_MARKS = str.maketrans("", "", "._-")
_NAME_MARKS = str.maketrans("", "", "_-")


def is_node_name(text: str) -> bool:
    """Whether a text matches `NODE_NAME`; without regular expressions, for the hooks."""
    plain = text.translate(_NODE_MARKS)
    return len(text) <= _LONGEST_NODE and text[:1].isalnum() and plain.isascii() and plain.isalnum()


def is_name(text: str) -> bool:
    """Whether a text matches `NAME`; without regular expressions, for the hooks."""
    plain = text.translate(_NAME_MARKS)
    return len(text) <= _LONGEST_NAME and text[:1].isalpha() and plain.isascii() and plain.isalnum()


def index_type(slot: int) -> str:
    """GRES type of a GPU index."""
    return f"g{slot}"


def setting_text(mhz: int, limit_w: int) -> str:
    """``MHZ`` or ``MHZ:WATTS``: clock and power limit of a GPU; 0: the default, the site's own."""
    return f"{mhz}:{limit_w}" if limit_w else str(mhz)


def slot_of(kind: str | None) -> int | None:
    """GPU index K of the GRES type ``gK``; None for any other type."""
    digits = (kind or "")[1:5]
    if not digits.isascii() or not digits.isdigit():
        return None
    slot = int(digits)
    return slot if kind == index_type(slot) and slot < INDEX_TYPES else None
