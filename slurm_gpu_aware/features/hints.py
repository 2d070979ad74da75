"""Keys of the comment: those of the core, and those of the features."""

from slurm_gpu_aware.features import found
from slurm_gpu_aware.model.job_hints import BANDWIDTH, CLASS, PATTERN, PLACE, Hint, HintValue

HINTS: tuple[Hint[HintValue], ...] = (
    *(CLASS, BANDWIDTH, PATTERN),
    *(hint for hints in found("hints", "HINTS") for hint in hints),
    PLACE,
)
"""In the order in which messages list them."""
SENTENCES: dict[str, str] = {
    name: text for some in found("hints", "SENTENCES") for name, text in some.items()
}
"""What the filter says about the keys of features, by name."""
