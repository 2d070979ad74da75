"""Parallel runs, one process each, with progress for the caller."""

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from slurm_gpu_aware.errors import AwareError
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace

_EVERY_S = 0.25
_PR_SET_PDEATHSIG = 1  # Option of prctl(2).
_work: tuple[Any, ...] = ()
"""Runs, timer and counts of a worker, inherited by fork so that no trace is copied per run."""
Timer = Callable[[], float]
Progress = Callable[[Sequence[int]], None]


@dataclass(frozen=True, eq=False)
class Run:
    """One simulation: a trace, a cluster in both views, and settings."""

    trace: Trace
    cluster: Cluster
    truth: Mapping[str, FloatArray]
    """Class -> scores at which the jobs run; a missing class runs at those of ``cluster``."""
    settings: SimSettings
    keep_placements: bool = False


def run_all(
    runs: Sequence[Run],
    *,
    timer: Timer | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Simulate all runs; return their results in order. An AwareError of one ends the others.

    ``processes``: at most this many at a time (None: one per CPU; 1: this process). ``progress`` is
    called periodically with the number of ended jobs per run.
    """
    count = min(len(runs), processes or os.cpu_count() or 1)
    if count <= 1:
        here = [0] * len(runs)
        return [_simulate(run, i, timer, here, progress) for i, run in enumerate(runs)]
    context = multiprocessing.get_context("fork")
    done = context.Array("q", len(runs), lock=False)
    with ProcessPoolExecutor(count, context, _start, (os.getpid(), runs, timer, done)) as pool:
        futures = [pool.submit(_in_worker, position) for position in range(len(runs))]
        pending = set(futures)
        try:
            while pending:
                finished, pending = wait(pending, _EVERY_S, FIRST_COMPLETED)
                if progress is not None:
                    progress(list(done))
                for future in finished:
                    future.result()  # raises what the run raised
        except BaseException as exc:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            if isinstance(exc, AwareError):  # without the worker's traceback
                raise type(exc)(*exc.args) from None
            raise
    return [replace(f.result(), trace=run.trace) for f, run in zip(futures, runs, strict=True)]


def _simulate(
    run: Run, position: int, timer: Timer | None, done: Any, progress: Progress | None
) -> Result:
    """Simulate in this process; count the ended jobs in ``done``."""

    def ended(jobs: int) -> None:
        done[position] += jobs
        if progress is not None:
            progress(done)

    return simulate(
        run.trace,
        run.cluster,
        run.settings,
        truth={**run.cluster.scores, **run.truth},
        timer=timer,
        progress=ended,
        keep_placements=run.keep_placements,
    )


def _start(parent: int, *work: Any) -> None:
    """Initialize a worker. Ctrl-C is ignored: the parent handles it and ends the workers."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # end with the parent
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
    _work = work


def _in_worker(position: int) -> Result:
    """Simulate one run in a worker. The result omits the trace: the parent has it."""
    runs, timer, done = _work
    result = _simulate(runs[position], position, timer, done, None)
    return replace(result, trace=Trace(result.trace.name, ()))
