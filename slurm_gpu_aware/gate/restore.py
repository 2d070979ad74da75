"""Back to what a user asked for: every pin, the clock and the selector's mark are cleared."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.job_marker import unmarked
from slurm_gpu_aware.gate.request_forms import restored_fields
from slurm_gpu_aware.slurm.client import JobUpdate
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["extra_with_clock", "undo_fields"]


def undo_fields(job: SlurmJob, original: OriginalRequest) -> tuple[tuple[str, str], ...]:
    """Fields that clear every pin, the clock and the selector's mark of a parked job.

    Raises SourceError or ValueError for a request that cannot be read.
    """
    fields = restored_fields(job, original)
    extra = extra_with_clock(job.extra, None)
    if extra is not None and extra != (job.extra or ""):
        fields += (("Extra", extra),)
    if job.admin_comment is not None and unmarked(job.admin_comment) != job.admin_comment:
        fields += (("AdminComment", unmarked(job.admin_comment)),)
    return fields


def extra_with_clock(
    extra: str | None, clock_mhz: int | None, slots: Sequence[int] | None = None
) -> str | None:
    """The job's Extra with ``freq=MHZ@SLOT+SLOT`` among its comma separated items, or without any.

    The slots go with it because SLURM_JOB_GPUS in the prolog of Slurm 24.11 names only the GPUs of
    the job's last GRES type. Without slots (plain nodes) the prolog has to believe it.

    None if what the user put there cannot be kept in an update; it is then left as it is.
    """
    items = [i for i in (extra or "").split(",") if i and not i.strip().startswith("freq=")]
    if clock_mhz is not None:
        where = "@" + "+".join(map(str, slots)) if slots else ""
        items.append(f"freq={clock_mhz}{where}")
    text = ",".join(items)
    try:
        JobUpdate("1", (("Extra", text),))
    except ValueError:
        return None
    return text
