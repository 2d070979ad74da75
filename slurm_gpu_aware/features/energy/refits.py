"""Models that are fitted anew, because a job was slower than allowed by its own marks.

A fit takes seconds of a core, so a process of lowest priority does it, one at a time and in at
most a tenth of the time of one core. What the job measured is in the store by then. The selector
knows by the ledger what a killed one has not done: that a model was fitted, or that none fits,
stands there, but not that a fit was ended before it knew.
"""

import json
import logging
import resource
import sys
import threading
import time

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.declared import FITTED
from slurm_gpu_aware.features.models.performance_model import own_name, unnamed
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.commands import run_command

log = logging.getLogger(__name__)

_PROGRAM = "slurm_gpu_aware.features.models.refit"
_TIMEOUT_S = 300.0
_SHARE = 10.0  # Fits take at most one part in so many of the time of a core.
_AGAIN_S = 300.0  # Pause before a fit that was ended is tried again.
_MOST_TRIES = 4
"""Fits of a model that may be ended one after another, until its jobs show anew that it is wrong
or the selector starts again."""
Key = tuple[str, str, str, str]
"""User, application, class (of a job that names no application), GPU model."""


def model_name(key: Key) -> str:
    """The application whose model a user's jobs have: no other user's jobs look it up."""
    user, application, app_class, _ = key
    return own_name(user, application or unnamed(app_class))


def _children_s() -> float:
    """CPU time of the commands that have ended, other ones included: they take little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Fit(threading.Thread):
    """Waits for the process that fits one model."""

    def __init__(self, job_id: str, key: Key, store: str, now: float) -> None:
        super().__init__(name="fit", daemon=True)
        self.job_id, self.key, self.at = job_id, key, now
        own = store, model_name(key), key[-1], repr(now)
        self._argv = ["nice", "-n", "19", sys.executable, "-P", "-m", _PROGRAM, *own]
        self.answer: dict[str, str] | None = None
        """What the process has found (see `models.refit`); None: it was ended before, or failed."""
        self.why = "it was ended"
        self.cpu_s = 0.0

    def run(self) -> None:
        """Fit it."""
        before_s = _children_s()
        try:
            said, _ = run_command(self._argv, _TIMEOUT_S)
            self.answer = json.loads(said)
        except (SourceError, ValueError) as exc:
            self.why = str(exc)
        finally:
            self.cpu_s = _children_s() - before_s


class Refits:
    """The models that are to be fitted anew. Times are Unix s."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._wanted: dict[Key, str] = {}
        """Key of the jobs -> the job that showed that their model is wrong."""
        self._ended: dict[Key, tuple[int, float]] = {}
        """Key -> how many fits were ended one after another; when to try again, monotonic s."""
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
            self._fit, self._next = None, time.monotonic() + (_SHARE - 1.0) * fit.cpu_s
            self._tell(fit, now)
        if self._fit is None and self._wanted and time.monotonic() >= self._next:
            if not self._ledger.is_settled:
                return  # what was measured is not in the store yet
            self._begin(now)

    def _begin(self, now: float) -> None:
        clock = time.monotonic()
        key = next(
            (one for one in self._wanted if self._ended.get(one, (0, 0.0))[1] <= clock), None
        )
        if key is None:
            return
        fit = _Fit(self._wanted.pop(key), key, str(self._ledger.path), now)
        try:
            fit.start()
        except RuntimeError as exc:  # no more threads
            fit.why = str(exc)
            self._try_again(fit)
        else:
            self._fit = fit

    def _tell(self, fit: _Fit, now: float) -> None:
        if fit.answer is None:
            self._try_again(fit)
            return
        self._ended.pop(fit.key, None)
        name, gpu_model = model_name(fit.key), fit.key[-1]
        if "says" in fit.answer:
            log.info("model %s on %s was fitted anew: %s", name, gpu_model, fit.answer["says"])
        else:
            log.warning(
                "model %s on %s was not fitted anew: %s", name, gpu_model, fit.answer["error"]
            )
        detail = {"key": list(fit.key), "model": name, "began": fit.at, **fit.answer}
        self._ledger.event(fit.job_id, FITTED, detail, now)

    def _try_again(self, fit: _Fit) -> None:
        """A process that was killed, a busy store: it says nothing of the model."""
        tries = self._ended.get(fit.key, (0, 0.0))[0] + 1
        self._ended[fit.key] = tries, time.monotonic() + _AGAIN_S
        then = f"in {_AGAIN_S:.0f} s" if tries < _MOST_TRIES else "when the selector starts"
        if tries < _MOST_TRIES:
            self._wanted.setdefault(fit.key, fit.job_id)
        what = model_name(fit.key), fit.key[-1]
        log.warning("the fit of model %s on %s failed, tried again %s: %s", *what, then, fit.why)
