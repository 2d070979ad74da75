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

    from slurm_gpu_aware.clocks.nvml import Gpu

    Work = Callable[[], Iterator["Result"]]
    """Talks to the driver; runs in a child process. Yields a result per GPU as it goes."""

__all__ = ["Result", "indices_here", "lock_clocks", "nearest_clock", "reset_clocks"]

_NO_GPU = -1
_SIGKILL = 9  # the module ``signal`` takes milliseconds to import


class Result:
    """Outcome for one GPU."""

    def __init__(
        self,
        index: int,
        mhz: int | None = None,
        method: str | None = None,
        call: str | None = None,
        error: str | None = None,
        answered: bool = True,
    ) -> None:
        self.index = index
        self.mhz = mhz
        """Clock that was set; None for a reset or a failure."""
        self.method = method
        """``locked`` or ``application`` (GPUs before Volta)."""
        self.call = call
        self.error = error
        """What failed; None: nothing."""
        self.answered = answered
        """False: the call was cut off, so it may have had its effect or may still have it."""

    def line(self) -> bytes:
        """As the child writes it: fields between tabs, empty for None."""
        fields = (self.index, self.mhz, self.method, self.call, self.error)
        words = ("" if field is None else " ".join(str(field).split()) for field in fields)
        return "\t".join(words).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Result:
        """Inverse of :meth:`line`."""
        index, mhz, method, call, error = line.decode().rstrip("\n").split("\t")
        return cls(
            int(index), int(mhz) if mhz else None, method or None, call or None, error or None
        )


def lock_clocks(indices: Sequence[int], asked_mhz: int, limit_s: float) -> list[Result]:
    """Lock GPUs (by minor number) at the supported clock nearest to ``asked_mhz``.

    Returns one result per index, within about ``limit_s`` seconds. Never raises for a driver.
    """
    return _in_child(
        lambda: _found(indices, lambda gpu, i: _lock(gpu, i, asked_mhz)), indices, limit_s
    )


def reset_clocks(methods: Mapping[int, str | None], limit_s: float) -> list[Result]:
    """Undo :func:`lock_clocks`; one result per index.

    ``methods``: index -> how it was set. None, not known: both ways are undone.
    """
    return _in_child(
        lambda: _found(methods, lambda gpu, i: _reset(gpu, i, methods[i])), list(methods), limit_s
    )


def indices_here(limit_s: float) -> list[int]:
    """Minor numbers of the GPUs that answer; empty if the driver does not."""
    return sorted(r.index for r in _in_child(_listed, [], limit_s) if r.error is None)


def nearest_clock(asked_mhz: int, supported_mhz: Sequence[int]) -> int:
    """Return the supported clock nearest to the asked one; of two equally near the lower."""
    return min(supported_mhz, key=lambda mhz: (abs(mhz - asked_mhz), mhz), default=asked_mhz)


def _found(indices: Iterable[int], act: Callable[[Gpu, int], Result]) -> Iterator[Result]:
    """Open NVML and act on GPUs by minor number; a GPU that fails gives a failed result."""
    from slurm_gpu_aware.clocks.nvml import Nvml, NvmlError

    wanted = set(indices)
    call, reason = "nvmlDeviceGetMinorNumber", "no such GPU"
    try:
        with Nvml() as nvml:
            for gpu in nvml.gpus():
                if isinstance(gpu, NvmlError):
                    # any index that is not found in the end may be this one
                    call, reason = gpu.call, gpu.reason
                elif gpu.minor in wanted:
                    wanted.discard(gpu.minor)
                    try:
                        yield act(gpu, gpu.minor)
                    except NvmlError as exc:
                        yield Result(gpu.minor, call=exc.call, error=exc.reason)
    except NvmlError as exc:
        call, reason = exc.call, exc.reason
    for index in sorted(wanted):
        yield Result(index, call=call, error=reason)


def _lock(gpu: Gpu, index: int, asked_mhz: int) -> Result:
    from slurm_gpu_aware.clocks.nvml import NvmlError

    if gpu.has_mig():
        return Result(index, call="lock", error="MIG is on: its clock is that of several jobs")
    mhz = nearest_clock(asked_mhz, gpu.clocks_mhz())
    try:
        gpu.lock_clock(mhz)
    except NvmlError as exc:
        if not exc.unsupported:
            raise
        gpu.set_application_clock(mhz)
        return Result(index, mhz, "application")
    return Result(index, mhz, "locked")


def _reset(gpu: Gpu, index: int, method: str | None) -> Result:
    """Undo one way of setting, or both; what a GPU does not support needs no undoing."""
    from slurm_gpu_aware.clocks.nvml import NvmlError

    for way, undo in (
        ("locked", gpu.unlock_clock),
        ("application", gpu.reset_application_clock),
    ):
        if method in (way, None):
            try:
                undo()
            except NvmlError as exc:
                if not exc.unsupported:
                    raise
    return Result(index, method=method)


def _in_child(work: Work, indices: Sequence[int], limit_s: float) -> list[Result]:
    """Run ``work`` in a child and return a result per index, also for those it did not reach."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            for result in work():
                os.write(writer, result.line())
            code = 0
        except Exception as exc:
            failed = Result(_NO_GPU, error=f"{type(exc).__name__}: {exc}")
            os.write(writer, failed.line())
        finally:
            os._exit(code)
    os.close(writer)
    text, ended = _read_until(reader, time.monotonic() + limit_s)
    os.close(reader)
    if not ended:
        os.kill(child, _SIGKILL)
    _reap(child)
    results = [Result.of_line(line) for line in text.splitlines(True) if line.endswith(b"\n")]
    error = "the child ended abnormally" if ended else f"no answer within {limit_s:g} s"
    for result in results:
        if result.index == _NO_GPU and result.error is not None:
            error = result.error
    results = [result for result in results if result.index != _NO_GPU]
    reached = {result.index for result in results}
    cut_off = [i for i in indices if i not in reached]
    return results + [Result(i, call="nvml", error=error, answered=False) for i in cut_off]


def _read_until(reader: int, deadline: float) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        part = os.read(reader, 65536)
        if not part:
            return b"".join(parts), True
        parts.append(part)
    return b"".join(parts), False


def _reap(child: int) -> None:
    """Collect the child, but do not wait for one that hangs inside the kernel."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.001)


def _listed() -> Iterator[Result]:
    from slurm_gpu_aware.clocks.nvml import Gpu, Nvml

    with Nvml() as nvml:
        for gpu in nvml.gpus():
            if isinstance(gpu, Gpu):
                yield Result(gpu.minor)
