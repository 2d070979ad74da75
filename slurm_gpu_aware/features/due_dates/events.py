"""Event of a job: its due date cannot be met."""

from collections.abc import Callable, Mapping
from typing import Any

from slurm_gpu_aware.features.due_dates.facts import DueAccount

IMPOSSIBLE = "due_impossible"  # No earlier run of the job's name would have met its due date.
EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    IMPOSSIBLE: lambda detail: f"due {DueAccount.said(detail)}",
}
