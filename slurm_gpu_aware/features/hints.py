"""Keys of the comment: those of the core, and those of the features."""

from collections.abc import Callable

from slurm_gpu_aware.features import found
from slurm_gpu_aware.model.job_hints import BANDWIDTH, CLASS, PATTERN, PLACE, Hint, HintValue

HINTS: tuple[Hint[HintValue], ...] = (
    *(CLASS, BANDWIDTH, PATTERN),
    *(hint for hints in found("declared", "HINTS") for hint in hints),
    PLACE,
)
"""In the order in which messages list them."""
TRACED: tuple[tuple[Hint[HintValue], Callable[..., dict[str, object]]], ...] = tuple(
    pair for some in found("declared", "TRACED") for pair in some
)
"""Keys that say something of a `TraceJob`, and its fields by their value (None: the job does not
have the key) and ``plain``: it is neither an array task nor a part of a heterogeneous job."""
SENTENCES: dict[str, str] = {
    name: text for some in found("declared", "SENTENCES") for name, text in some.items()
}
"""What the filter says about the keys of features, by name."""
