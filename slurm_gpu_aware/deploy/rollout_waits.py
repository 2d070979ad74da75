"""What a rolling change waits for: a node without jobs, its registration, an answer of Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from slurm_gpu_aware.deploy.rollout_node import DRAINED, ours_now, registration_problem
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.records import SlurmNode

__all__ = ["Control", "RegistrationError", "Waits"]


class Control(Protocol):
    """What is asked of Slurm; see `slurm_gpu_aware.deploy.node_control.NodeControl`."""

    def nodes(self) -> dict[str, SlurmNode]: ...
    def jobs_on(self, node: str) -> tuple[str, ...]: ...
    def drain(self, node: str, reason: str) -> None: ...
    def resume(self, node: str) -> None: ...
    def reconfigure(
        self,
        ready: Callable[[], None],
        node: str | None,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None: ...
    def jobs_with_feature(self, features: frozenset[str]) -> list[str]: ...
    def untype_pending(self, models: frozenset[str]) -> tuple[list[str], dict[str, str]]: ...


class RegistrationError(SourceError):
    """The node did not register with what the files say."""


class Waits:
    """Waits as the parameters of `Rollout` say."""

    POLL_S = 1.0
    SETTLE_S = 30.0
    """How long a silent node is waited for before it is skipped."""
    REPEAT_S = 60.0
    """How often an unchanged wait is reported."""

    def __init__(
        self,
        control: Control,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        register_s: float,
        now: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._control = control
        self._say = say
        self._stopping = stopping
        self._register_s = register_s
        self._now = now
        self._pause = pause

    def empty(self, name: str) -> str | None:
        """Wait for the node's jobs; why it was given up, or None."""
        told: tuple[str, ...] | None = None
        told_at = started = self._now()
        while True:
            view = self._look(name)
            if view is not None and not view.states & DRAINED:
                return "somebody resumed it"
            if view is not None and not ours_now(view, name):
                return f"somebody else drained it ({view.reason})"
            if view is not None and "DOWN" in view.states:
                return "it went down; it stays drained for the next run"
            jobs = self._jobs_on(name)
            if view is not None and "NOT_RESPONDING" not in view.states and jobs == ():
                return None
            now = self._now()
            if jobs is None:
                jobs = told or ()
            if jobs != told or now - told_at >= self.REPEAT_S:
                listed = ", ".join(jobs[:6]) + (", ..." if len(jobs) > 6 else "")
                noun = "job" if len(jobs) == 1 else "jobs"
                self._say(
                    f"{name}: drained, waiting for {len(jobs)} {noun} ({listed}),"
                    f" {now - started:.0f} s so far"
                )
                told, told_at = jobs, now
            if self._stopping():
                return "interrupted"
            self._pause(self.POLL_S)

    def registration(self, name: str, types: set[str], count: int) -> None:
        """Raises RegistrationError. ``types`` empty: any but those of indices."""
        end = self._now() + self._register_s
        last = "Slurm does not answer"
        while True:
            view = self._look(name)
            if view is not None:
                problem = registration_problem(view, types, count)
                if problem is None:
                    return
                last = problem
            if self._now() >= end:
                raise RegistrationError(
                    f"not registered as configured within {self._register_s:g} s: {last}"
                )
            self._pause(self.POLL_S / 4)

    def answer(self) -> None:
        end = self._now() + self._register_s
        while True:
            try:
                self._control.nodes()
                return
            except SourceError:
                if self._now() >= end:
                    raise
            self._pause(self.POLL_S)

    def settled(self, name: str) -> SlurmNode | None:
        """The node once it answers: after a reconfigure all nodes have to register again."""
        end = self._now() + self.SETTLE_S
        while True:
            view = self._look(name)
            silent = view is None or view.states & {"NOT_RESPONDING", "UNKNOWN"}
            if not silent or self._now() >= end or self._stopping():
                return view
            self._pause(self.POLL_S)

    def _look(self, name: str) -> SlurmNode | None:
        """None while slurmctld does not answer: it restarts when it is reconfigured."""
        try:
            return self._control.nodes().get(name)
        except SourceError:
            return None

    def _jobs_on(self, name: str) -> tuple[str, ...] | None:
        try:
            return self._control.jobs_on(name)
        except SourceError:
            return None
