"""Performance models in the selector: those of the store, and what its jobs have measured."""

import logging
from collections.abc import Sequence

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models.performance_model import MODEL, NamedSample
from slurm_gpu_aware.features.models.store import PerformanceModels, put_samples, read_models
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.live import Live, Told
from slurm_gpu_aware.store.database import Store

log = logging.getLogger(__name__)


def live_models(ledger: LedgerWriter, most_error: float) -> PerformanceModels | None:
    """The models of the store, read again when the profile is; None: they cannot be read."""
    none: PerformanceModels | None = None
    return ledger.kept("models", lambda store: read_models(store, most_error), none)


def put_measured(ledger: LedgerWriter, samples: Sequence[NamedSample]) -> None:
    """Write samples of jobs; where there are too many applications, they are left out."""

    def write(store: Store) -> None:
        try:
            put_samples(store, samples, source="job")
        except SourceError as exc:
            log.warning("measurements of %s are not stored: %s", samples[0].name, exc)

    ledger.write(write)


class NamedModels(Live):
    """Says which application a job names."""

    name = "performance models"

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """The same request."""
        if (model := request.get(MODEL)) is not None:
            told.asked["model"] = model
        return request


LIVES = (NamedModels,)
