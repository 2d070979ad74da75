"""Keys of the comment: when a job should end, and how much work there may be until then."""

from slurm_gpu_aware.model.job_hints import DURATION, Duration, Hint, Repeated, Time, Whole

_EPOCHS = Whole(1, 100_000)
_EPOCH = Duration({"s": 1, "m": 60, "min": 60, "h": 3600}, DURATION.most_s)
DUE: Hint[str | int] = Hint(
    "due",
    forms=(DURATION, Time()),
    says="a time such as 2026-12-01T08:00, or a duration from submission, such as 90m, 36h or 2d,"
    f" at most {DURATION.most_s // 86_400}d",
    of_shards=False,
)
"""A local time, or seconds from submission."""
EPOCHS: Hint[tuple[int, int]] = Hint(
    "epochs",
    forms=(Repeated(_EPOCHS, _EPOCH),),
    says=f"the most epochs, 1 to {_EPOCHS.most}, and the time of one, such as 90x10m or 30x45s",
    of_shards=False,
    carried=True,
)
"""(most epochs, seconds of each)."""
HINTS = (DUE, EPOCHS)
SENTENCES = {
    "late": "gpu-aware: due=%s has passed, so it plays no part",
    "no_epoch": "gpu-aware: the due date leaves no time for one epoch of %d s, even with its most"
    " GPUs, %d; it plays no part unless an earlier run was as short",
    "no_run": "gpu-aware: the due date leaves no time for any earlier run of this name, as the"
    " shortest takes at least %d s, even with its most GPUs, %d; it plays no part",
}
