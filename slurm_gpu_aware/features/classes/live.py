"""Classes for jobs with ``class=auto``: of the ledger, of saved ones, and of the jobs in Slurm."""

from collections.abc import Iterable
from dataclasses import replace

from slurm_gpu_aware.admission.context import Known
from slurm_gpu_aware.admission.hints import given_class
from slurm_gpu_aware.features.classes.store import given_classes, saved_classes
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.class_history import ClassHistory, GivenClass
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.live import Live, Site
from slurm_gpu_aware.selector.round_state import View

_MOST = 50_000  # Decisions of which the class is read at the start.


class KnownClasses(Live):
    """What the rounds know of classes."""

    name = "classes"

    def __init__(self, site: Site) -> None:
        self.history = ClassHistory()
        self._config, self._ledger = site.config, site.ledger
        self._read: dict[int, tuple[str | None, str | None]] = {}
        """Slurm's record number -> comment and environment, of the jobs of the last round."""

    def load(self) -> None:
        """Read what was given in the past. A store that cannot be read says nothing."""
        for given in self._ledger.rows(lambda store: given_classes(store, _MOST)):
            self.history.note(given)

    def know(self, known: Known, view: View) -> Known:
        """With the history."""
        with contained(self.name):
            self.renew(view.gated)
        return replace(known, classes=self.history)

    def renew(self, gated: Iterable[GatedJob]) -> None:
        """Take in the classes that are stored, and those of the jobs that Slurm has now."""
        self._ledger.profile()  # what was saved is read again when that is
        none: list[GivenClass] = []
        for saved in self._ledger.kept("saved classes", saved_classes, none):
            self.history.note(saved)
        read: dict[int, tuple[str | None, str | None]] = {}
        for one in gated:
            texts = read[one.job.raw_id] = one.job.comment, one.original.environment
            if self._read.get(one.job.raw_id) != texts:
                given = given_class(one, self._config)
                if given is not None:
                    self.history.note(given)
        self._read = read


LIVES = (KnownClasses,)
