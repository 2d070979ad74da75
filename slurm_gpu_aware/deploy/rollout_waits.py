"""Waits of a rollout: for a node without jobs, its registration, an answer of Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from slurm_gpu_aware.deploy.node_control import NodeControl
from slurm_gpu_aware.deploy.rollout_node import DRAINED, ours_now, registration_problem
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.records import SlurmNode

__all__ = ["RegistrationError", "Waits"]


class RegistrationError(SourceError):
    """The registration of the node does not agree with the files."""


class Waits:
    """Waits of a rollout.

    Parameters
    ----------
    control : Slurm.
    say : takes a line of progress.
    stopping : asked often; True ends the run at the next safe moment.
    register_s : time limit for a node to register after a reconfigure.
    now, pause : seconds of a monotonic clock; wait for seconds.
    """

    POLL_S = 1.0
    SETTLE_S = 30.0
    """Wait for a silent node before it is skipped."""
    REPEAT_S = 60.0
    """Interval between reports of an unchanged wait."""

    def __init__(
        self,
        control: NodeControl,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        register_s: float = 120.0,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._control = control
        self.say = say
        self.stopping = stopping
        self._register_s = register_s
        self.now = now
        self._pause = pause

    def empty(self, name: str) -> str | None:
        """Wait for the jobs of a node; return why the wait was given up, or None."""
        told: tuple[str, ...] | None = None
        told_at = started = self.now()
        while True:
            view = self._look(name)
            if view is not None and not view.states & DRAINED:
                return "it was resumed"
            if view is not None and not ours_now(view, name):
                return f"it was drained for another reason ({view.reason})"
            if view is not None and "DOWN" in view.states:
                return "it went down; it stays drained for the next run"
            jobs = self._jobs_on(name)
            if view is not None and "NOT_RESPONDING" not in view.states and jobs == ():
                return None
            now = self.now()
            if jobs is None:
                jobs = told or ()
            if jobs != told or now - told_at >= self.REPEAT_S:
                listed = ", ".join(jobs[:6]) + (", ..." if len(jobs) > 6 else "")
                noun = "job" if len(jobs) == 1 else "jobs"
                self.say(
                    f"{name}: drained, waiting for {len(jobs)} {noun} ({listed}),"
                    f" {now - started:.0f} s so far"
                )
                told, told_at = jobs, now
            if self.stopping():
                return "interrupted"
            self._pause(self.POLL_S)

    def registration(self, name: str, types: set[str], count: int) -> None:
        """Wait for the registration of a node. Raises RegistrationError.

        ``types`` empty: any types except index types.
        """
        wrong: str | None = "Slurm does not answer"
        for last in self._polls(self._register_s, self.POLL_S / 4):
            view = self._look(name)
            if view is not None:
                wrong = registration_problem(view, types, count)
                if wrong is None:
                    return
            if last:
                raise RegistrationError(
                    f"not registered as configured within {self._register_s:g} s: {wrong}"
                )

    def answer(self) -> None:
        """Wait until slurmctld answers. Raises SourceError on a timeout."""
        for last in self._polls(self._register_s, self.POLL_S):
            try:
                self._control.nodes()
                return
            except SourceError:
                if last:
                    raise

    def settled(self, name: str) -> SlurmNode | None:
        """Wait until the node answers and return it: after a reconfigure all nodes register."""
        for last in self._polls(self.SETTLE_S, self.POLL_S):
            view = self._look(name)
            silent = view is None or view.states & {"NOT_RESPONDING", "UNKNOWN"}
            if not silent or last or self.stopping():
                return view
        return None

    def _polls(self, within_s: float, every_s: float) -> Iterator[bool]:
        """Yield every ``every_s`` seconds; True: the time is over."""
        end = self.now() + within_s
        while True:
            yield self.now() >= end
            self._pause(every_s)

    def _look(self, name: str) -> SlurmNode | None:
        """The node; None: slurmctld does not answer, because a reconfigure restarts it."""
        try:
            return self._control.nodes().get(name)
        except SourceError:
            return None

    def _jobs_on(self, name: str) -> tuple[str, ...] | None:
        try:
            return self._control.jobs_on(name)
        except SourceError:
            return None
