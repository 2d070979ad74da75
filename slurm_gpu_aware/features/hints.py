"""Keys of the comment: those of the core, and those of the features."""

from typing import Protocol

from slurm_gpu_aware.features import found
from slurm_gpu_aware.model.job_hints import BANDWIDTH, CLASS, PATTERN, PLACE, Hint, HintValue


class OfTrace(Protocol):
    """Fields of a `TraceJob` by a key."""

    def __call__(self, value: HintValue | None, /, *, plain: bool) -> dict[str, object]:
        """``plain``: the job is neither an array task nor a part of a heterogeneous job."""
        ...


HINTS: tuple[Hint[HintValue], ...] = (
    *(CLASS, BANDWIDTH, PATTERN),
    *(hint for hints in found("hints", "HINTS") for hint in hints),
    PLACE,
)
"""In the order in which messages list them."""
TRACED: tuple[tuple[Hint[HintValue], OfTrace], ...] = tuple(
    pair for some in found("hints", "TRACED") for pair in some
)
"""Keys that say something of a `TraceJob`, and what; None: the job does not have the key."""
SENTENCES: dict[str, str] = {
    name: text for some in found("hints", "SENTENCES") for name, text in some.items()
}
"""What the filter says about the keys of features, by name."""
