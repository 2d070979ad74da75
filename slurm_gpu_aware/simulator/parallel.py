"""Parallel runs, one process each, with progress for the caller."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from slurm_gpu_aware.errors import AwareError
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace

__all__ = ["Run", "run_all"]

_EVERY_S = 0.25
_PR_SET_PDEATHSIG = 1
"""Option of prctl(2)."""
_work: dict[str, Any] = {}
"""Runs of a worker, inherited by fork so that no trace is copied per run."""


@dataclass(frozen=True, eq=False)
class Run:
    """One simulation: a trace, a cluster in both views, and settings."""

    trace: Trace
    cluster: Cluster
    truth: Mapping[str, FloatArray]
    """Class -> scores at which the jobs run; a missing class runs at those of ``cluster``."""
    settings: SimSettings
    keep_placements: bool = False

    def execute(
        self, timer: Callable[[], float] | None, progress: Callable[[int], None] | None = None
    ) -> Result:
        """Simulate in this process."""
        return simulate(
            self.trace,
            self.cluster,
            self.settings,
            truth={**self.cluster.scores, **self.truth},
            timer=timer,
            progress=progress,
            keep_placements=self.keep_placements,
        )


def run_all(
    runs: Sequence[Run],
    *,
    timer: Callable[[], float] | None = None,
    processes: int | None = None,
    progress: Callable[[Sequence[int]], None] | None = None,
) -> list[Result]:
    """Simulate all runs; return their results in the same order.

    Parameters
    ----------
    timer : seconds from any origin; measures planning.
    processes : at most this many at a time; None: one per CPU. 1: in this process.
    progress : called periodically with the number of ended jobs per run.

    Raises
    ------
    AwareError
        A run raises it; the other runs are terminated.
    """
    count = min(len(runs), processes or os.cpu_count() or 1)
    if count <= 1:
        return list(_here(runs, timer, progress))
    context = multiprocessing.get_context("fork")
    done = context.Array("q", len(runs), lock=False)
    with ProcessPoolExecutor(count, context, _start, (runs, timer, done, os.getpid())) as pool:
        futures = [pool.submit(_one, position) for position in range(len(runs))]
        try:
            _wait(futures, lambda: progress(list(done)) if progress is not None else None)
            results = [future.result() for future in futures]
        except BaseException as exc:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            if isinstance(exc, AwareError):  # without the worker's traceback
                raise type(exc)(*exc.args) from None
            raise
    return [replace(r, trace=run.trace) for r, run in zip(results, runs, strict=True)]


def _here(
    runs: Sequence[Run],
    timer: Callable[[], float] | None,
    progress: Callable[[Sequence[int]], None] | None,
) -> Iterator[Result]:
    done = [0] * len(runs)
    for position, run in enumerate(runs):

        def ended(jobs: int, position: int = position) -> None:
            done[position] += jobs
            if progress is not None:
                progress(done)

        yield run.execute(timer, ended)


def _start(runs: Sequence[Run], timer: Callable[[], float] | None, done: Any, parent: int) -> None:
    """Initialize a worker. Ctrl-C is ignored: the parent handles it and ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(parent)
    _work.update(runs=runs, timer=timer, done=done)


def _end_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _one(position: int) -> Result:
    """Simulate one run in a worker. The result omits the trace: the parent has it."""
    done = _work["done"]

    def ended(jobs: int) -> None:
        done[position] += jobs

    run: Run = _work["runs"][position]
    result = run.execute(_work["timer"], ended)
    return replace(result, trace=Trace(run.trace.name, ()))


def _wait(futures: Sequence[Future[Result]], report: Callable[[], None]) -> None:
    """Wait until all are done; raise what one raises."""
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=_EVERY_S, return_when=FIRST_COMPLETED)
        report()
        for future in finished:
            future.result()
