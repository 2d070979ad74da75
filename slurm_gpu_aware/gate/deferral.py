"""Deferral of new jobs while the holding pool is in use, until the selector has seen them.

Slurm's main scheduler would try each of them at every node once, as its gate is only a licence. So
the filter (``etc/lua/gpu_aware_defer.lua``) gives a job a begin time some seconds ahead, and writes
it into AdminComment (``bt``). Meanwhile the selector puts the job in the holding pool, or places it
and lets it begin at once; if it does neither, the begin time passes. Until when the filter does so
stands in a file: a selector that has died does not renew it, and it ends with the gate.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["defer_until"]


def defer_until(submit_file: Path, until_s: float) -> None:
    """Tell the filter, in a file beside ``submit_file``; ``until_s``: Unix seconds.

    Raises OSError: the filter goes on without.
    """
    path = submit_file.with_name(f"{submit_file.name}.defer")
    new = path.with_name(f"{path.name}.new")
    new.write_text(f"{int(until_s)}\n")
    new.replace(path)
