"""Deferral of new jobs while the holding pool is in use.

Slurm's main scheduler tries a job that only lacks a licence at every node. So the filter
(``etc/lua/gpu_aware_defer.lua``) gives a new job a begin time some seconds ahead, and records it in
AdminComment (``bt``). Before that time the selector moves the job to the holding pool, or places it
and lets it begin at once. A file holds the time until which the filter defers: if the selector
dies, the file is not renewed, and the deferral ends with the gate.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["defer_until"]


def defer_until(submit_file: Path, until_s: float) -> None:
    """Let the filter defer new jobs until ``until_s`` (Unix seconds), by a file at ``submit_file``.

    Raises OSError; the filter then defers no job.
    """
    path = submit_file.with_name(f"{submit_file.name}.defer")
    new = path.with_name(f"{path.name}.new")
    new.write_text(f"{int(until_s)}\n")
    new.replace(path)
