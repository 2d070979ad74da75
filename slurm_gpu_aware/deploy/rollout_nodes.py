"""Nodes of a rollout in Slurm: their states, their jobs, and waits for both."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from slurm_gpu_aware.deploy.job_requests import all_jobs
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.names import index_type
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import HOLDING, SlurmNode
from slurm_gpu_aware.slurm.values import is_mig

REASON = "gpu-aware setup --roll"
"""Reason of nodes that a rollout drains."""
DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_INVALID = frozenset({"DOWN", "INVAL", "INVALID_REG"})
_AWAY = re.compile("DOWN|ERROR|FAIL|FUTURE|INVAL|MAINT|NOT_RESPONDING|POWER|REBOOT")
_ON_NODE = HOLDING | {"SIGNALING", "STAGE_OUT"}

POLL_S = 1.0
SETTLE_S = 30.0
"""Wait for a silent node before it is skipped."""
REPEAT_S = 60.0
"""Interval between reports of an unchanged wait."""


class RolloutNodes:
    """Queries, changes and waits. Methods raise SourceError if Slurm refuses.

    ``say`` takes a line of progress; ``stopping``, asked often, ends the run at the next safe
    moment; ``register_s`` limits the wait for a node to register after a reconfigure.
    """

    def __init__(
        self,
        client: SlurmClient,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        register_s: float,
    ) -> None:
        self.client = client
        self.say = say
        self.stopping = stopping
        self._register_s = register_s
        self.in_hand: set[str] = set()
        """Nodes that this run or a killed one has drained."""

    def all(self) -> dict[str, SlurmNode]:
        """Name -> node."""
        return {node.name: node for node in self.client.nodes()}

    def jobs_on(self, name: str) -> tuple[str, ...]:
        """Ids of the jobs that hold resources on a node, also during the epilog."""
        jobs = all_jobs(self.client)
        return tuple(sorted(j.id for j in jobs if j.state in _ON_NODE and name in j.nodes))

    def is_free(self, view: SlurmNode) -> bool:
        """Whether a node is drained and has no job, so that its GPUs may change."""
        return bool(view.states & DRAINED) and not self.jobs_on(view.name)

    def ours(self, view: SlurmNode) -> bool:
        """Whether a rollout drained it. Slurm replaces the reason if it registers wrong GPUs."""
        if not view.states & (DRAINED | _INVALID):
            return False
        replaced = view.name in self.in_hand and "gres/" in view.reason
        return view.reason.startswith(REASON) or replaced

    def give_back(self, name: str) -> None:
        """Resume a node, unless it is drained for another reason."""
        view = self.all()[name]
        if view.states & DRAINED and self.ours(view):
            self.client.resume_node(name)
        elif view.states & DRAINED:
            self.say(f"{name}: stays drained: {view.reason}")

    # -- waits ---------------------------------------------------------------------------------

    def pause(self) -> None:
        """Wait for a moment."""
        time.sleep(POLL_S)

    def await_empty(self, name: str) -> tuple[str | None, float]:
        """Wait for the jobs of a node; (why the wait was given up or None, seconds)."""
        told: tuple[str, ...] | None = None
        told_at = started = time.monotonic()
        while True:
            view = self._look(name)
            jobs = None
            with suppress(SourceError):
                jobs = self.jobs_on(name)
            now = time.monotonic()
            given_up = self._given_up(view)
            responds = view is not None and "NOT_RESPONDING" not in view.states
            if given_up or (responds and jobs == ()):
                return given_up, round(now - started, 1)
            if jobs is None:
                jobs = told or ()
            if jobs != told or now - told_at >= REPEAT_S:
                listed = ", ".join(jobs[:6]) + (", ..." if len(jobs) > 6 else "")
                noun = "job" if len(jobs) == 1 else "jobs"
                self.say(
                    f"{name}: drained, waiting for {len(jobs)} {noun} ({listed}),"
                    f" {now - started:.0f} s so far"
                )
                told, told_at = jobs, now
            if self.stopping():
                return "interrupted", round(now - started, 1)
            time.sleep(POLL_S)

    def _given_up(self, view: SlurmNode | None) -> str | None:
        if view is None:
            return None
        if not view.states & DRAINED:
            return "it was resumed"
        if not self.ours(view):
            return f"it was drained for another reason ({view.reason})"
        return "it went down; it stays drained for the next run" if "DOWN" in view.states else None

    def await_registered(self, name: str, types: set[str], count: int) -> None:
        """Wait for the registration of a node as in the files. Raises SourceError on a timeout.

        ``types`` empty: any types except index types.
        """
        wrong: str | None = "Slurm does not answer"
        for last in _polls(self._register_s, POLL_S / 4):
            view = self._look(name)
            if view is not None:
                wrong = _registration_problem(view, types, count)
            if wrong is None:
                return
            if last:
                raise SourceError(
                    f"not registered as configured within {self._register_s:g} s: {wrong}"
                )

    def await_settled(self, name: str) -> SlurmNode | None:
        """Wait until the node answers and return it: after a reconfigure all nodes register."""
        view = None
        for last in _polls(SETTLE_S, POLL_S):
            view = self._look(name)
            silent = view is None or view.states & {"NOT_RESPONDING", "UNKNOWN"}
            if not silent or last or self.stopping():
                break
        return view

    def _look(self, name: str) -> SlurmNode | None:
        """The node; None: slurmctld does not answer, because a reconfigure restarts it."""
        with suppress(SourceError):
            return self.all().get(name)
        return None


def _polls(within_s: float, every_s: float) -> Iterator[bool]:
    """Yield every ``every_s`` seconds; True: the time is over."""
    end = time.monotonic() + within_s
    while True:
        yield time.monotonic() >= end
        time.sleep(every_s)


def unusable(view: SlurmNode) -> str | None:
    """Why a node cannot be moved now; None: it can."""
    if view.states & DRAINED:
        return f"drained for another reason ({view.reason or 'none is given'})"
    if any(map(_AWAY.search, view.states)):
        return f"its state is {'+'.join(sorted(view.states))}"
    if any(is_mig(kind) for kind, _ in view.gpus):
        return "its GPUs are partitioned (MIG)"
    return None


def has_index_types(view: SlurmNode, count: int) -> bool:
    """Whether Slurm itself has one type per GPU for a node of ``count`` GPUs."""
    return not {kind or "" for kind, _ in view.gpus}.isdisjoint(map(index_type, range(count)))


def _registration_problem(view: SlurmNode, types: set[str], count: int) -> str | None:
    """Difference between a registration and the files; ``types`` empty: plain. None: they agree."""
    if view.states & (_INVALID | {"NOT_RESPONDING", "UNKNOWN"}) or view.slurmd_start_s is None:
        reason = f", {view.reason}" if view.reason and not view.reason.startswith(REASON) else ""
        return f"its state is {'+'.join(sorted(view.states))}{reason}"
    have = {kind or "" for kind, _ in view.gpus}
    fits = have == types if types else not has_index_types(view, count)
    if fits and sum(n for _, n in view.gpus) == count:
        return None
    shown = ", ".join(f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for kind, n in view.gpus)
    return f"Slurm has {shown or 'no GPUs'} for it"
