"""Extra of a gated job: the user's items, the job's clock, the record of its owner's change."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.slurm.updates import JobUpdate


def noted_record(extra: str | None) -> str | None:
    """The record of an owner's change at the end of an Extra; None: there is none."""
    at = (extra or "").find(rules.RECORD)
    return None if extra is None or at < 0 else extra[at:]


def extra_with_clock(
    extra: str | None, clock_mhz: int | None, slots: Sequence[int] | None = None
) -> str | None:
    """The job's Extra with ``freq=MHZ@SLOT+SLOT`` among its comma-separated items, or without it.

    The slots are named because SLURM_JOB_GPUS in the prolog of Slurm 24.11 holds only the GPUs of
    the job's last GRES type; without slots (plain nodes) it uses that variable. MHZ 0 with slots is
    the default clock: the prolog must know a job's GPUs for the account of their energy, too. The
    record of an owner's change is dropped. None if an update cannot carry the user's own items.
    """
    extra = (extra or "").removesuffix(noted_record(extra) or "")
    items = [i for i in extra.split(",") if i and not i.strip().startswith(rules.EXTRA_CLOCK)]
    if clock_mhz is not None or slots:
        where = "@" + "+".join(map(str, slots)) if slots else ""
        items.append(f"{rules.EXTRA_CLOCK}{clock_mhz or 0}{where}")
    text = ",".join(items)
    try:
        JobUpdate("1", (("Extra", text),))
    except ValueError:
        return None
    return text
