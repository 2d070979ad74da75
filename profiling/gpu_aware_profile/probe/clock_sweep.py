"""Measurement at locked SM clocks and power limits, which are reset whatever happens.

They are noted where those of jobs are (`slurm_gpu_aware.clocks`), as of a job that has ended:
after kill -9 the next prolog or epilog on this node, or the next probe, resets them. While a sweep
runs it holds the lock of the notes, so that none of these does so.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gpu_aware_profile.devices.driver import Faults
from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.clocks.driver import (
    Result,
    limit_power,
    lock_clocks,
    read_limits,
    reset_clocks,
)
from slurm_gpu_aware.clocks.hooks import DRIVER_LIMIT_S, TOGETHER_S, Hook
from slurm_gpu_aware.clocks.job import Setting
from slurm_gpu_aware.clocks.notes import NO_JOB, Limits, Note, Notes, limits_to_note
from slurm_gpu_aware.clocks.records import spool
from slurm_gpu_aware.errors import SourceError

_STEPS_MHZ = 30.0  # Two steps of the supported clocks: no GPU is that far above its lock.
_ABOVE_LIMIT = 1.05  # Mean power over a power limit that the driver keeps, at most.


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


def limit_steps(min_w: float | None, present_w: float | None, wanted: int) -> list[int]:
    """``wanted`` power limits at even distances below the one in force, the highest first, W.

    ``min_w``: the lowest limit that can be set; None: not known, so there is no choice.
    """
    if min_w is None or present_w is None:
        return []
    least, present = math.ceil(min_w), present_w
    steps = (round(least + (present - least) * step / wanted) for step in range(wanted))
    return sorted({step for step in steps if least <= step < present}, reverse=True)


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
        self._limits: dict[int, Limits] = {}

    def lock(self, asked: Mapping[int, Setting]) -> dict[int, Setting]:
        """Lock GPUs, and limit their power; return GPU -> setting of those that are set.

        No connection to the driver may be open: the calls are made in a forked process.
        """
        locked: dict[int, Setting] = {}
        for setting in sorted(set(asked.values()), reverse=True):
            mhz, limit_w = setting
            indices = [index for index, one in asked.items() if one == setting]
            free = self._limited(indices, limit_w) if limit_w else self._noted(indices)
            for result in self._sound(lock_clocks(free, mhz, DRIVER_LIMIT_S)):
                self._methods[result.index] = result.method
                locked[result.index] = result.mhz, limit_w
        return locked

    def _limited(self, indices: Sequence[int], limit_w: int) -> list[int]:
        """The GPUs that have the power limit now, after noting it."""
        read = self._sound(read_limits(indices, DRIVER_LIMIT_S))
        self._limits |= limits_to_note(read, self._limits, limit_w)
        noted = self._noted([result.index for result in read])
        limits = {index: self._limits[index] for index in noted}
        return [result.index for result in self._sound(limit_power(limits, DRIVER_LIMIT_S))]

    def _sound(self, results: Iterable[Result]) -> list[Result]:
        """The results of calls that did not fail; the others are faults."""
        results = list(results)
        for result in results:
            if result.error:
                self._fault(result.index, result.call, result.error)
        return [result for result in results if not result.error]

    def _noted(self, indices: Sequence[int]) -> list[int]:
        """The GPUs that may be set, after noting that they are."""
        self.give_up()
        taken = self._notes.all()
        free = []
        for index in indices:
            if index in taken and index not in self._methods:
                self._fault(index, "lock", f"its clock is locked for job {taken[index].job_id}")
                continue
            try:
                limits_mw = self._limits.get(index, ())
                note = Note(NO_JOB, self._methods.get(index, ""), True, limits_mw=limits_mw)
                self._notes.write(index, note)
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
        limits = {index: self._limits[index] for index in self._methods if index in self._limits}
        for result in reset_clocks(self._methods, DRIVER_LIMIT_S, limits_mw=limits):
            if result.error:
                self._fault(result.index, result.call, result.error)
            else:
                self._notes.forget(result.index)
        self._methods.clear()

    def held(self, row: Mapping[str, Any]) -> bool:
        """Whether a timing was measured as it was set; a fault, if the driver forgot that."""
        sm_mhz, locked_mhz = row["sm_mhz"], row["clock_mhz"]
        power_w, limit_w = row["power_w"], row["limit_w"]
        if sm_mhz is not None and sm_mhz > locked_mhz + _STEPS_MHZ:
            found = f"the clock was {sm_mhz:.0f} MHz, not {locked_mhz}"
        elif limit_w and power_w is not None and power_w > _ABOVE_LIMIT * limit_w:
            found = f"the power was {power_w:.0f} W, not {limit_w}"
        else:
            return True
        self._fault(row["index"], "lock", f"{found}: does nvidia-persistenced run?")
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
    steps: Mapping[int, Sequence[Setting]],
    faults: Faults,
    measure: Callable[[Mapping[int, Setting]], list[dict[str, Any]]],
    ended: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Give the GPUs one setting after the other; return the timings of all.

    ``steps``: GPU -> settings. ``measure``: called with the GPUs that are set, and to what.
    """
    rows: list[dict[str, Any]] = []
    with _locked_clocks(faults) as locks:
        for number in range(max(map(len, steps.values()), default=0)):
            if ended():
                break
            asked = {index: own[number] for index, own in steps.items() if number < len(own)}
            if locked := locks.lock(asked):
                measured = measure(locked)
                given = locks.give_up()
                rows += [row for row in measured if row["index"] not in given and locks.held(row)]
    return rows
