"""Driver calls of the clock hooks, in a child process with a time limit.

A faulty GPU may hang a call forever, even unkillably; the hook must end in time and report it. A
hook has one child for each call, the agent one for all (`OneChild`): to fork costs more than a
call.
"""

from __future__ import annotations

import marshal
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, NoReturn

    from slurm_gpu_aware.clocks.notes import Limits

_NO_GPU = -1
_SIGKILL = 9  # the module ``signal`` takes milliseconds to import
_MOST_FILES = 65536
_END = b"\0"  # Of an answer.


class Result:
    """Outcome for one GPU; empty texts: not known, nothing.

    ``mhz``: clock that was set; 0 for a reset or a failure. ``method``: ``locked`` or
    ``application`` (GPUs before Volta). ``call``, ``error``: what failed. ``energy_mj``: the GPU's
    counter right after that; None: not known. ``answered`` False: the call was cut off, so it may
    have had its effect or may still have it. Of changes and meters: the GPU's UUID, of meters its
    power now, too.
    Of states: its power, its SM clock, and the reasons for a lower clock as bits.
    ``nvml_index``: its place in NVML's order, where that was asked for. ``limit_mw``: its power
    limit, where that was asked for.
    """

    def __init__(
        self,
        index: int,
        mhz: int = 0,
        method: str = "",
        call: str = "",
        error: str = "",
        energy_mj: int | None = None,
        *,
        answered: bool = True,
        uuid: str = "",
        power_mw: int | None = None,
        sm_mhz: int | None = None,
        throttle: int | None = None,
        nvml_index: int | None = None,
        limit_mw: int | None = None,
    ) -> None:
        self.index = index
        self.mhz = mhz
        self.method = method
        self.call = call
        self.error = error
        self.energy_mj = energy_mj
        self.answered = answered
        self.uuid = uuid
        self.power_mw = power_mw
        self.sm_mhz = sm_mhz
        self.throttle = throttle
        self.nvml_index = nvml_index
        self.limit_mw = limit_mw

    def line(self) -> bytes:
        """Arguments as the child writes them, between tabs."""
        texts = (self.index, self.mhz, self.method, self.call, self.error, self.uuid)
        known = (self.energy_mj, self.power_mw, self.sm_mhz, self.throttle, self.nvml_index)
        numbers = ("" if n is None else n for n in (*known, self.limit_mw))
        words = (" ".join(str(field).split()) for field in (*texts, *numbers))
        return "\t".join(words).encode() + b"\n"


def lock_clocks(indices: Sequence[int], asked_mhz: int, limit_s: float) -> list[Result]:
    """Lock GPUs (by minor number) at the supported clock nearest to ``asked_mhz``.

    Returns one result per index, within about ``limit_s`` seconds. Never raises for a driver.
    """
    return _in_child("lock", (list(indices), asked_mhz), indices, limit_s)


def counter_mj(results: Sequence[Result]) -> int | None:
    """Sum of the energy counters after a change of clocks, mJ; None: one is not known."""
    known = [result.energy_mj for result in results if result.energy_mj is not None]
    return sum(known) if len(known) == len(results) else None


def read_limits(indices: Sequence[int], limit_s: float) -> list[Result]:
    """Read the power limit in force of each GPU; one that has none that can be set has an error."""
    return _in_child("power_limits", (list(indices),), indices, limit_s)


def limit_power(
    limits_mw: Mapping[int, Limits], limit_s: float, *, undo: bool = False
) -> list[Result]:
    """Set the power limit of GPUs to the last one of theirs; ``undo``: to the site's own.

    ``limits_mw``: index -> what its note holds (`notes.Note`). A limit that the site has set
    since is not undone.
    """
    return _in_child("limit", (dict(limits_mw), undo), limits_mw, limit_s)


def reset_clocks(
    methods: Mapping[int, str],
    limit_s: float,
    *,
    every: bool = False,
    limits_mw: Mapping[int, Limits] | None = None,
) -> list[Result]:
    """Undo :func:`lock_clocks`; one result per index, and (``every``) per other GPU that answers.

    ``methods``: index -> how it was set. Empty, not known: both ways are undone. ``limits_mw``: of
    GPUs whose power limit is undone, too (`limit_power`).
    """
    return _in_child("reset", (dict(methods), every, dict(limits_mw or {})), methods, limit_s)


def read_meters(indices: Sequence[int], limit_s: float) -> list[Result]:
    """Read energy and power of GPUs; one result per index."""
    return _in_child("meters", (list(indices),), indices, limit_s)


def counters(indices: Sequence[int], changed: Iterable[Result], limit_s: float) -> list[Result]:
    """Counters of GPUs; those that their change has told are not read again."""
    told = {one.index: one for one in changed if one.index in indices and one.uuid}
    others = [index for index in indices if index not in told]
    return [*told.values(), *(read_meters(others, limit_s) if others else ())]


def read_states(limit_s: float) -> list[Result]:
    """Read power, clock and reasons for a lower clock of every GPU that answers."""
    return _in_child("states", (), (), limit_s)


def nvml_indices(indices: Sequence[int], limit_s: float) -> list[int]:
    """Places of GPUs (by minor number) in NVML's order, ascending; those that answer."""
    results = _in_child("places", (list(indices),), indices, limit_s)
    return sorted(result.nvml_index for result in results if result.nvml_index is not None)


class OneChild:
    """While one child makes all calls of this process."""

    kept: _Child | None = None
    on = False

    def __enter__(self) -> None:
        OneChild.on = True

    def __exit__(self, *_: object) -> None:
        OneChild.on = False
        if OneChild.kept is not None:
            OneChild.kept.end()
            OneChild.kept = None


def _in_child(
    work: str, args: tuple[Any, ...], indices: Iterable[int], limit_s: float
) -> list[Result]:
    """Results of a function of `nvml`, and of the indices that it did not reach.

    A child that is kept may be gone, or have a library of the driver before an update: after an
    error a new one is asked. All that is asked can be done twice.
    """
    deadline = time.monotonic() + limit_s
    results, error = dict[int, Result](), f"no answer within {limit_s:g} s"
    for child in (OneChild.kept, None):
        reused, OneChild.kept = child is not None, None
        child = child or _Child()
        text, ended = child.ask(work, args, deadline)
        whole = text.endswith(_END)
        results = _results(text)
        if ended and not whole:
            error = "the child ended abnormally"
        if failed := results.pop(_NO_GPU, None):
            error = failed.error
        good = whole and not failed and not any(one.error for one in results.values())
        if OneChild.on and good:
            OneChild.kept = child
        else:
            child.end()
        if good or not reused or not (whole or ended):
            break
    missing = (index for index in indices if index not in results)
    silent = [Result(index, call="nvml", error=error, answered=False) for index in missing]
    return [*results.values(), *silent]


class _Child:
    """A child that makes calls. All methods are for the parent."""

    def __init__(self) -> None:
        asked, self._asks = os.pipe()
        self._reads, answers = os.pipe()
        self._id = os.fork()
        if self._id == 0:
            _serve(asked, answers)
        os.close(asked)
        os.close(answers)

    def ask(self, work: str, args: tuple[Any, ...], deadline: float) -> tuple[bytes, bool]:
        """(what it answers, whether it has ended or answered all by then)."""
        text = b""
        try:
            os.write(self._asks, marshal.dumps((work, args)))
        except OSError:
            return text, True
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._reads], [], [], left)[0]:
                part = os.read(self._reads, 65536)
                text += part
                if not part or text.endswith(_END):
                    return text, True
        return text, False

    def end(self) -> None:
        """Kill it; it may hang inside the kernel."""
        os.close(self._asks)
        os.close(self._reads)
        os.kill(self._id, _SIGKILL)
        deadline = time.monotonic() + 1.0
        while not os.waitpid(self._id, os.WNOHANG)[0] and time.monotonic() < deadline:
            time.sleep(0.001)


def _serve(asked: int, answers: int) -> NoReturn:
    """Do what is asked until the parent ends."""
    try:
        # The parent's locks must end with it, even if a call hangs here.
        first, last = sorted((asked, answers))
        os.closerange(3, first)
        os.closerange(first + 1, last)
        os.closerange(last + 1, _MOST_FILES)
        from slurm_gpu_aware.clocks import nvml  # takes milliseconds

        with open(asked, "rb") as stream:
            while True:
                work, args = marshal.load(stream)  # noqa: S302 - of our own process
                try:
                    for result in getattr(nvml, work)(*args):
                        os.write(answers, result.line())
                except Exception as exc:
                    os.write(answers, Result(_NO_GPU, error=f"{type(exc).__name__}: {exc}").line())
                os.write(answers, _END)
    finally:
        os._exit(0)


def _results(text: bytes) -> dict[int, Result]:
    """GPU -> its result, of the lines that are whole."""
    results: dict[int, Result] = {}
    for line in text.splitlines(True):
        if line.endswith(b"\n"):
            gpu, mhz, method, call, why, uuid, *numbers = line.decode().rstrip("\n").split("\t")
            values = [int(number) if number else None for number in numbers]
            result = Result(int(gpu), int(mhz), method, call, why, values[0], uuid=uuid)
            result.power_mw, result.sm_mhz, result.throttle = values[1:4]
            result.nvml_index, result.limit_mw = values[4:]
            results[result.index] = result
    return results
