"""Models that are fitted anew, because a job was slower than allowed by its own marks.

A fit takes a second of a core, so a process of lowest priority does it, one at a time and in at
most a tenth of the time. What the job measured is in the store by then. The selector knows by the
ledger what a killed one has not done.
"""

import logging
import sys
import threading
import time

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.events import FITTED
from slurm_gpu_aware.features.models.performance_model import own_name, unnamed
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.commands import run_command

log = logging.getLogger(__name__)

_PROGRAM = "slurm_gpu_aware.features.models.refit"
_TIMEOUT_S = 300.0
_SHARE = 10.0
"""Fits take at most one part in so many of the time."""
Key = tuple[str, str, str, str]
"""User, application, class (of a job that names no application), GPU model."""


def model_name(key: Key) -> str:
    """The application whose model a user's jobs have: no other user's jobs look it up."""
    user, application, app_class, _ = key
    return own_name(user, application or unnamed(app_class))


class _Fit(threading.Thread):
    """Waits for the process that fits one model."""

    def __init__(self, job_id: str, key: Key, store: str, now: float) -> None:
        super().__init__(name="fit", daemon=True)
        self.job_id, self.key = job_id, key
        own = store, model_name(key), key[-1], repr(now)
        self._argv = ["nice", "-n", "19", sys.executable, "-P", "-m", _PROGRAM, *own]
        self.said = self.why = ""
        """How good the model is; why there is none."""
        self.began, self.took_s = time.monotonic(), 0.0

    def run(self) -> None:
        """Fit it."""
        try:
            said, why = run_command(self._argv, _TIMEOUT_S, check=False)
            self.said = said.strip()
            self.why = (why.strip().splitlines() or ["the fit was ended"])[-1]
        except SourceError as exc:
            self.why = str(exc)
        self.took_s = time.monotonic() - self.began


class Refits:
    """The models that are to be fitted anew. Times are Unix s."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._wanted: dict[Key, str] = {}
        """Key of the jobs -> the job that showed that their model is wrong."""
        self._fit: _Fit | None = None
        self._next = 0.0
        """When the next fit may begin, monotonic s."""

    def want(self, key: Key, job_id: str) -> None:
        """Fit the model of these jobs soon."""
        self._wanted[key] = job_id

    def drop(self, key: Key) -> None:
        """It has been done."""
        self._wanted.pop(key, None)

    def step(self, now: float) -> None:
        """Tell of the fit that has ended, and begin the next one; it returns at once."""
        fit = self._fit
        if fit is not None and not fit.is_alive():
            self._fit, self._next = None, time.monotonic() + (_SHARE - 1.0) * fit.took_s
            self._tell(fit, now)
        if self._fit is None and self._wanted and time.monotonic() >= self._next:
            if not self._ledger.is_settled:
                return  # what was measured is not in the store yet
            key = next(iter(self._wanted))
            self._fit = _Fit(self._wanted.pop(key), key, str(self._ledger.path), now)
            self._fit.start()

    def _tell(self, fit: _Fit, now: float) -> None:
        name, gpu_model = model_name(fit.key), fit.key[-1]
        detail = {"key": list(fit.key), "model": name}
        if fit.said:
            log.info("model %s on %s was fitted anew: %s", name, gpu_model, fit.said)
            detail["says"] = fit.said
        else:
            log.warning("model %s on %s was not fitted anew: %s", name, gpu_model, fit.why)
            detail["error"] = fit.why
        self._ledger.event(fit.job_id, FITTED, detail, now)
