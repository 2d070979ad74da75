"""Driver calls of the clock hooks, in a child process with a time limit.

A faulty GPU may hang a call forever, even unkillably; the hook must end in time and report it.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from slurm_gpu_aware.clocks.notes import Limits

_NO_GPU = -1
_SIGKILL = 9  # the module ``signal`` takes milliseconds to import


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
    return _in_child(lambda nvml: nvml.lock(indices, asked_mhz), indices, limit_s)


def counter_mj(results: Sequence[Result]) -> int | None:
    """Sum of the energy counters after a change of clocks, mJ; None: one is not known."""
    known = [result.energy_mj for result in results if result.energy_mj is not None]
    return sum(known) if len(known) == len(results) else None


def read_limits(indices: Sequence[int], limit_s: float) -> list[Result]:
    """Read the power limit in force of each GPU; one that has none that can be set has an error."""
    return _in_child(lambda nvml: nvml.power_limits(indices), indices, limit_s)


def limit_power(
    limits_mw: Mapping[int, Limits], limit_s: float, *, undo: bool = False
) -> list[Result]:
    """Set the power limit of GPUs to the last one of theirs; ``undo``: to the site's own.

    ``limits_mw``: index -> what its note holds (`notes.Note`). A limit that the site has set
    since is not undone.
    """
    return _in_child(lambda nvml: nvml.limit(limits_mw, undo), limits_mw, limit_s)


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
    return _in_child(lambda nvml: nvml.reset(methods, every, limits_mw or {}), methods, limit_s)


def read_meters(indices: Sequence[int], limit_s: float, *, every: bool = False) -> list[Result]:
    """Read energy and power of GPUs; one per index, and (``every``) per other GPU that answers."""
    return _in_child(lambda nvml: nvml.meters(indices, every), indices, limit_s)


def read_states(limit_s: float) -> list[Result]:
    """Read power, clock and reasons for a lower clock of every GPU that answers."""
    return _in_child(lambda nvml: nvml.states(), (), limit_s)


def nvml_indices(indices: Sequence[int], limit_s: float) -> list[int]:
    """Places of GPUs (by minor number) in NVML's order, ascending; those that answer."""
    results = _in_child(lambda nvml: nvml.places(indices), indices, limit_s)
    return sorted(result.nvml_index for result in results if result.nvml_index is not None)


def _in_child(
    work: Callable[[Any], Iterator[Result]], indices: Iterable[int], limit_s: float
) -> list[Result]:
    """Results of ``work``, given `nvml` in a child, and of the indices that it did not reach."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            from slurm_gpu_aware.clocks import nvml  # takes milliseconds

            for result in work(nvml):
                os.write(writer, result.line())
            code = 0
        except Exception as exc:
            os.write(writer, Result(_NO_GPU, error=f"{type(exc).__name__}: {exc}").line())
        finally:
            os._exit(code)
    os.close(writer)
    text, ended = _read_until(reader, time.monotonic() + limit_s)
    os.close(reader)
    if not ended:
        os.kill(child, _SIGKILL)
    deadline = time.monotonic() + 1.0  # it may hang inside the kernel
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < deadline:
        time.sleep(0.001)
    error = "the child ended abnormally" if ended else f"no answer within {limit_s:g} s"
    results: dict[int, Result] = {}
    for line in text.splitlines(True):
        if line.endswith(b"\n"):
            gpu, mhz, method, call, why, uuid, *numbers = line.decode().rstrip("\n").split("\t")
            values = [int(number) if number else None for number in numbers]
            result = Result(int(gpu), int(mhz), method, call, why, values[0], uuid=uuid)
            result.power_mw, result.sm_mhz, result.throttle = values[1:4]
            result.nvml_index, result.limit_mw = values[4:]
            results[result.index] = result
    if failed := results.pop(_NO_GPU, None):
        error = failed.error
    missing = (index for index in indices if index not in results)
    silent = [Result(index, call="nvml", error=error, answered=False) for index in missing]
    return [*results.values(), *silent]


def _read_until(reader: int, deadline: float) -> tuple[bytes, bool]:
    """(what was written, whether the other end was closed in time)."""
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            if not (part := os.read(reader, 65536)):
                return text, True
            text += part
    return text, False
