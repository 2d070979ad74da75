"""Measurement at several locked SM clocks; the clocks are reset whatever happens.

The locks are noted where those of jobs are (`slurm_gpu_aware.clocks`), as of a job that has ended:
after kill -9 the next prolog or epilog on this node, or the next probe, resets them. While a sweep
runs it holds the lock of the notes, so that none of these does so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gpu_aware_profile.devices.driver import Faults
from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.clocks.driver import lock_clocks, reset_clocks
from slurm_gpu_aware.clocks.hooks import DRIVER_LIMIT_S, TOGETHER_S, Hook
from slurm_gpu_aware.clocks.notes import NO_JOB, Note, Notes
from slurm_gpu_aware.clocks.records import spool
from slurm_gpu_aware.errors import SourceError

_STEPS_MHZ = 30.0
"""Two steps of the supported clocks: no GPU is that far above its lock."""


def clock_steps(supported_mhz: Sequence[int], wanted: int) -> list[int]:
    """``wanted`` (> 0) clocks at even distances, the highest and the lowest included.

    ``supported_mhz``: descending. Units: MHz.
    """
    last = len(supported_mhz) - 1
    if wanted > last:
        return list(supported_mhz)
    if wanted == 1:
        return [supported_mhz[0]]
    return [supported_mhz[round(step * last / (wanted - 1))] for step in range(wanted)]


def reset_left_behind(node: str) -> Faults:
    """Reset clocks that a sweep or a job which has ended left locked; return what failed."""
    conf = read_clock_conf()
    if not os.path.isdir(conf.locks):
        return []
    notes = Notes(conf.locks)
    try:
        hook = Hook({"SLURM_JOB_ID": NO_JOB, "SLURMD_NODENAME": node}, notes, time.time())
    except ValueError as exc:
        return [{"index": None, "call": "clocks", "error": str(exc)}]
    hook.make_up()
    with suppress(OSError):  # a record that is lost costs less than the probe
        spool(conf.spool, hook.records, notes)
    return [
        {"index": index, "call": str(record["call"]), "error": str(record["error"])}
        for record in hook.records
        if record["event"] == "clock_failed" and isinstance(record["gpus"], list)
        for index in record["gpus"]
    ]


class ClockLocks:
    """Locks of this process; :meth:`reset` undoes all of them."""

    def __init__(self, notes: Notes, faults: Faults) -> None:
        self._notes = notes
        self._faults = faults
        self._methods: dict[int, str] = {}

    def lock(self, asked_mhz: Mapping[int, int]) -> dict[int, int]:
        """Lock GPUs; return GPU -> clock of those that are locked. Units: MHz.

        No connection to the driver may be open: the calls are made in a forked process.
        """
        locked: dict[int, int] = {}
        for mhz in sorted(set(asked_mhz.values()), reverse=True):
            indices = [index for index, asked in asked_mhz.items() if asked == mhz]
            for result in lock_clocks(self._noted(indices), mhz, DRIVER_LIMIT_S):
                if result.error:
                    self._fault(result.index, result.call, result.error)
                else:
                    self._methods[result.index] = result.method
                    locked[result.index] = result.mhz
        return locked

    def _noted(self, indices: Sequence[int]) -> list[int]:
        """The GPUs that may be locked, after noting that they are."""
        self.give_up()
        taken = self._notes.all()
        free = []
        for index in indices:
            if index in taken and index not in self._methods:
                self._fault(index, "lock", f"its clock is locked for job {taken[index].job_id}")
                continue
            try:
                self._notes.write(index, Note(NO_JOB, self._methods.get(index, ""), ended=True))
            except OSError as exc:  # nothing would reset a lock that is not noted
                self._fault(index, "note", f"{self._notes.folder}: {exc.strerror}")
                continue
            self._methods.setdefault(index, "")  # reset it even if the answer is lost
            free.append(index)
        return free

    def give_up(self) -> set[int]:
        """Leave GPUs to jobs whose prolog has locked or reset them since; return these GPUs."""
        noted = self._notes.all()
        given = {i for i in self._methods if i not in noted or noted[i].job_id != NO_JOB}
        for index in sorted(given):
            del self._methods[index]
            if index in noted:
                self._fault(index, "lock", f"its clock is locked for job {noted[index].job_id}")
            else:
                self._fault(index, "lock", "a job that has ended reset its clock")
        return given

    def reset(self) -> None:
        """Undo all locks; one that cannot be undone stays noted, and is a fault."""
        self.give_up()
        if not self._methods:
            return
        for result in reset_clocks(self._methods, DRIVER_LIMIT_S):
            if result.error:
                self._fault(result.index, result.call, result.error)
            else:
                self._notes.forget(result.index)
        self._methods.clear()

    def held(self, row: Mapping[str, Any]) -> bool:
        """Whether a timing was measured below its lock; a fault, if the driver forgot it."""
        sm_mhz, locked_mhz = row["sm_mhz"], row["clock_mhz"]
        if sm_mhz is None or sm_mhz <= locked_mhz + _STEPS_MHZ:
            return True
        error = f"the clock was {sm_mhz:.0f} MHz, not {locked_mhz}: does nvidia-persistenced run?"
        self._fault(row["index"], "lock", error)
        return False

    def _fault(self, index: int, call: str, error: str) -> None:
        entry = {"index": index, "call": call, "error": error}
        if entry not in self._faults:
            self._faults.append(entry)


@contextmanager
def _locked_clocks(faults: Faults) -> Iterator[ClockLocks]:
    """Locks that are reset at the end of the block. Raises SourceError."""
    folder = read_clock_conf().locks
    notes = Notes(folder)
    with notes.together(TOGETHER_S) as held:
        if not held:
            raise SourceError(f"{folder}: another process looks after the clocks; try again")
        locks = ClockLocks(notes, faults)
        try:
            yield locks
        finally:
            locks.reset()


def sweep_clocks(
    steps: Mapping[int, Sequence[int]],
    faults: Faults,
    measure: Callable[[Mapping[int, int]], list[dict[str, Any]]],
    ended: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Lock the GPUs at one clock after the other; return the timings of all.

    ``steps``: GPU -> clocks. ``measure``: called with the GPUs that are locked, and their clocks.
    """
    rows: list[dict[str, Any]] = []
    with _locked_clocks(faults) as locks:
        for number in range(max(map(len, steps.values()), default=0)):
            if ended():
                break
            asked = {index: mhz[number] for index, mhz in steps.items() if number < len(mhz)}
            if locked := locks.lock(asked):
                measured = measure(locked)
                given = locks.give_up()
                rows += [row for row in measured if row["index"] not in given and locks.held(row)]
    return rows
