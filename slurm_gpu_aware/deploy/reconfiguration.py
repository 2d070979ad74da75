"""Reconfiguration of Slurm without losing jobs, even if slurmctld hangs or dies.

A job that slurmctld allocates just before it restarts is never launched: it stays RUNNING with
reason Prolog. The same happens to a job whose launch reaches a slurmd while it reads its files. A
reservation of all nodes therefore prevents starts until the slurmds have restarted; it ends by
itself if this process is killed.

Some releases of Slurm may hang on a reconfigure (docs/internals/slurm.md). After an administrator
restarts slurmctld, the slurmds still have their old files, so the reconfigure is repeated.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from slurm_gpu_aware.errors import SourceError, StoppedError
from slurm_gpu_aware.names import ROLLOUT_HOLD
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.updates import NewReservation

log = logging.getLogger(__name__)

_AWAY = re.compile(r"DOWN|NOT_RESPONDING|POWER")
_LOST = re.compile(
    r"no answer within|timed out|unable to contact|zero bytes|missing socket|header lengths"
    r"|connection (?:refused|reset|timed)|communication (?:connection|shutdown)"
    r"|message (?:send|receive) failure",
    re.IGNORECASE,
)
"""Errors that are not a refusal: slurmctld is slow, hangs, or has died."""
_HANGS = (
    "slurmctld has not answered for {silent:.0f} s, since 'scontrol reconfigure' ({error}). Look at"
    " its log: if it ended, repair the error and start it. If it runs and its log has stopped, it"
    " hangs, as some releases may (24.11 before 24.11.6): kill -9 it and start it again. Running"
    " jobs continue, and so does this command."
)


class Reconfiguration:
    """``scontrol reconfigure``, repeated if slurmctld dies before it reaches the slurmds.

    ``say`` takes a line of progress; ``stopping``, asked while slurmctld is silent, gives up.
    """

    HOLD_S = 60.0
    LONGER_S = 120.0
    """Duration of the reservation; its duration from the reconfigure on."""
    TRIES = 3
    COMMAND_S = 120.0
    """Time limit of ``scontrol reconfigure``."""
    LAUNCH_S = 20.0
    """Longest wait for jobs that are being launched; shorter than the reservation."""
    QUIET_S = 1.0
    """Time without such a job after which none is expected."""
    SLURMDS_S = 20.0
    """Longest wait for slurmds to read their files, and to register with a new slurmctld."""
    ANSWER_S = 30.0
    """Silence of slurmctld before a message."""
    REPEAT_S = 60.0
    """Interval between such messages."""
    RELEASE_S = 30.0
    """Time limit for deleting the reservation."""
    POLL_S = 0.25

    def __init__(
        self, client: SlurmClient, say: Callable[[str], None], stopping: Callable[[], bool]
    ) -> None:
        self._client = client
        self._say = say
        self._stopping = stopping
        self._silent = False
        """slurmctld did not answer the last call."""

    def run(self, ready: Callable[[], None] = lambda: None, node: str | None = None) -> None:
        """Reconfigure. ``ready`` is called before each try and may raise to prevent it.

        ``node``: the node that must read its files, if it answers; None: any. Raises SourceError if
        Slurm refuses or the slurmds have not read their files after three tries, StoppedError if
        ``stopping`` is true while slurmctld does not answer.
        """
        before: Mapping[str, float] | None = None
        for _ in range(self.TRIES):
            ready()
            with self._no_starts() as held:
                self._await_launched()
                try:
                    before = self._starts() if before is None else before
                except SourceError as exc:
                    log.warning("cannot tell when slurmd has read its files: %s", exc)
                if held:  # a large slurmctld reads its files for up to a minute
                    longer = time.time() + self.LONGER_S
                    self._warned(partial(self._client.move_reservation, ROLLOUT_HOLD, longer))
                asked = time.monotonic()
                lost = self._tell()
                since = asked if lost else time.monotonic()
                silent, anew = self._await_slurmds(before or {}, since)
            told = before == {} or (node in anew if node in (before or {}) else bool(anew))
            if told or not (lost or silent):
                return
            self._say("slurmctld answers again, but the slurmds have not read their files")
        raise SourceError(
            f"'scontrol reconfigure' was given up after {self.TRIES} tries: the slurmds did not"
            f" read their files{f' ({lost})' if lost else ''}"
        )

    def _tell(self) -> SourceError | None:
        """Reconfigure; return the error if the answer is lost. Raises SourceError on a refusal."""
        self._silent = True
        try:
            run_command(["scontrol", "reconfigure"], self.COMMAND_S)
        except SourceError as exc:
            if _LOST.search(str(exc)):
                return exc
            self._silent = False
            raise
        self._silent = False
        return None

    def _await_slurmds(
        self, before: Mapping[str, float], silent_since: float
    ) -> tuple[bool, frozenset[str]]:
        """(whether slurmctld was silent, the nodes whose slurmd has restarted).

        Ends when all have restarted, or when slurmctld has answered for ``SLURMDS_S``.
        """
        silent = False
        answered_s = 0.0
        began = silent_since
        told = -math.inf
        while True:
            asked = time.monotonic()
            try:
                starts = self._starts()
            except SourceError as exc:
                self._silent = silent = True
                now = time.monotonic()
                if now - silent_since >= self.ANSWER_S and now - told >= self.REPEAT_S:
                    self._say(_HANGS.format(silent=now - silent_since, error=exc))
                    told = now
                if now - began >= self.ANSWER_S and self._stopping():
                    raise StoppedError("slurmctld does not answer") from exc
            else:
                self._silent = False
                silent_since = time.monotonic()
                answered_s += silent_since - asked + self.POLL_S
                anew = frozenset(n for n, start in before.items() if starts.get(n, start) != start)
                if len(anew) == len(before) or answered_s >= self.SLURMDS_S:
                    return silent, anew
            time.sleep(self.POLL_S)

    def _starts(self) -> dict[str, float]:
        """Node that has registered and answers -> start of its slurmd."""
        return {
            node.name: node.slurmd_start_s
            for node in self._client.nodes()
            if node.slurmd_start_s is not None and not any(map(_AWAY.search, node.states))
        }

    @contextlib.contextmanager
    def _no_starts(self) -> Iterator[bool]:
        self._silent = False
        held = self._warned(self._hold_starts)
        try:
            yield held
        finally:
            if held and not self._silent:
                self._let_start(self.RELEASE_S)

    def _warned(self, change: Callable[[], object]) -> bool:
        try:
            change()
        except SourceError as exc:
            log.warning("jobs may start while Slurm is reconfigured: %s", exc)
            return False
        return True

    def _hold_starts(self) -> None:
        flags = frozenset({"IGNORE_JOBS", "OVERLAP"})
        wanted = NewReservation(ROLLOUT_HOLD, time.time() + self.HOLD_S, nodes="ALL", flags=flags)
        try:
            self._client.create_reservation(wanted)
        except SourceError:
            self._let_start(0.0)  # the reservation of a killed run
            self._client.create_reservation(wanted)

    def _let_start(self, within_s: float) -> None:
        """Delete the reservation; slurmctld may not answer for a moment."""
        end = time.monotonic() + within_s
        while True:
            try:
                return self._client.delete_reservation(ROLLOUT_HOLD)
            except SourceError as exc:
                if time.monotonic() >= end:
                    text = "reservation %s is left; it ends within two minutes: %s"
                    return log.warning(text, ROLLOUT_HOLD, exc)
            time.sleep(self.POLL_S)

    def _await_launched(self) -> None:
        """Wait until no job has been launching for ``QUIET_S``; at most ``LAUNCH_S``."""
        quiet = time.monotonic()
        end = quiet + self.LAUNCH_S
        while time.monotonic() - quiet < self.QUIET_S and time.monotonic() < end:
            if any(
                job.state == "CONFIGURING" or (job.state == "RUNNING" and job.reason == "Prolog")
                for job in self._client.jobs()
            ):
                quiet = time.monotonic()
            time.sleep(self.POLL_S)
