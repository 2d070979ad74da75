"""Options of a job that bound its nodes in ways that the planner does not look at.

The filter leaves such jobs to Slurm (``etc/lua/gpu_aware_left.lua``), but it does not see all of
them: Slurm 24.11 does not show ``--core-spec`` to it, ``#BB`` lines stand in the script, and an
operator may change a parked job. Chosen all the same, an impossible node would be chosen again and
again, and each time be kept from other jobs until the job is parked again.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["core_bounds", "unchecked_options"]

_UNSET = frozenset({"", "0", "*", "(null)", "N/A"})
_OPTIONS = {
    "Contiguous": "--contiguous",
    "Switches": "--switches",
    "MinTmpDiskNode": "--tmp",
    "Prefer": "--prefer",
    "BatchFeatures": "--batch",
    "BurstBuffer": "--bb",
    "SegmentSize": "--segment",
}
_SPECIALIZED = {"CoreSpec": "--core-spec", "ThreadSpec": "--thread-spec"}
"""0 is a choice, too: it takes the cores that the site keeps for the system."""


def unchecked_options(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Options that a record in ``scontrol``'s words has, as users type them."""
    found = [name for key, name in _OPTIONS.items() if fields.get(key, "") not in _UNSET]
    found += [
        name for key, name in _SPECIALIZED.items() if fields.get(key, "") not in _UNSET - {"0"}
    ]
    cores = _four(fields.get("ReqB:S:C:T"))[2]
    if fields.get("Socks/Node", "") not in _UNSET or cores not in _UNSET:
        found.append("--sockets-per-node or --cores-per-socket (-B)")
    return tuple(found)


def core_bounds(fields: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(``--threads-per-core``, ``--ntasks-per-core``); None: not given."""
    threads = _four(fields.get("ReqB:S:C:T"))[3]
    tasks = _four(fields.get("NtasksPerN:B:S:C"))[3]
    return _count(threads), _count(tasks)


def _four(text: str | None) -> list[str]:
    parts = (text or "").split(":")
    return parts if len(parts) == 4 else [""] * 4


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) else None
