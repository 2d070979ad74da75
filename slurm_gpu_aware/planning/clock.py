"""Which SM clock a job gets. The site's class default for now; models raise it later."""

from __future__ import annotations

from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import PlanSettings

__all__ = ["clock_mhz"]


def clock_mhz(request: Request, settings: PlanSettings) -> int | None:
    """Return the clock to lock, MHz, or None to leave the default.

    A number of the request counts as it is, ``max`` is the site's largest clock, and ``auto`` or
    nothing is the default of the job's class. A word that is none of these leaves the default.
    """
    wish = request.clock
    if wish is None or wish == "auto":
        return settings.class_clock_mhz.get(request.app_class)
    if wish == "max":
        return settings.max_clock_mhz
    if isinstance(wish, int):
        return wish
    return int(wish) if wish.isascii() and wish.isdigit() else None
