"""Classes for jobs with ``class=auto``: of the ledger, of saved ones, and of the jobs in Slurm."""

from collections.abc import Iterable

from slurm_gpu_aware.admission.translate import given_class
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.classes.history import ClassHistory
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter


class KnownClasses:
    """What the rounds know of classes."""

    def __init__(self, config: Config, ledger: LedgerWriter) -> None:
        self.history = ClassHistory()
        self._config, self._ledger = config, ledger
        self._read: dict[int, tuple[str | None, str | None]] = {}
        """Slurm's record number -> comment and environment, of the jobs of the last round."""

    def load(self) -> None:
        """Read what was given in the past. A store that cannot be read says nothing."""
        for given in self._ledger.given_classes():
            self.history.note(given)

    def renew(self, gated: Iterable[GatedJob]) -> None:
        """Take in the classes that are stored, and those of the jobs that Slurm has now."""
        for saved in self._ledger.saved_classes():
            self.history.note(saved)
        read: dict[int, tuple[str | None, str | None]] = {}
        for one in gated:
            texts = read[one.job.raw_id] = one.job.comment, one.original.environment
            if self._read.get(one.job.raw_id) != texts:
                given = given_class(one, self._config)
                if given is not None:
                    self.history.note(given)
        self._read = read
