"""Runs of an application under Nsight Compute, or beside DCGM, which counts its utilisation.

The application runs without a shell, in a process group of its own, which ends with it: at the time
limit, on SIGINT, SIGTERM and SIGHUP, and when the tool fails, nothing is left running. What the
application prints goes to stderr.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.variability.counters import read_dcgm, read_ncu
from slurm_gpu_aware.variability.scores import Utilisation

TOOLS = {"ncu": "Nsight Compute", "dcgm": "DCGM"}
_PROGRAMS = {"ncu": "ncu", "dcgm": "dcgmi"}
_METRICS = (
    "gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,"
    "regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active"
)
_FIELDS = "1002,1004,1005,1006,1007,1008"
FIRST_SAMPLE_S = 15.0
"""Longest wait for DCGM's first sample."""
_STOP_S = 5.0  # from the request to stop until a process is killed
_POLL_S = 0.1
_MOST_BYTES = 64 << 20  # of a tool's output that is read
_LAST_READS = 4  # of what the pipe (64 KiB) still holds when the process has ended
_TAIL = 1 << 16  # bytes of the application's output that are searched for a tool's errors
_PERMISSION = "ERR_NVGPUCTRPERM"
_ERROR = re.compile(r"==ERROR==\s*(?P<text>.{1,300})")
_SAMPLE = re.compile(rb"^GPU", re.MULTILINE)


def tool_of(wanted: str | None) -> str:
    """The tool to use: the wanted one, else the first that is installed. Raises SourceError."""
    for tool in [wanted] if wanted else TOOLS:
        if shutil.which(_PROGRAMS[tool]):
            return tool
    names = [wanted] if wanted else list(TOOLS)
    what = " or ".join(f"{_PROGRAMS[tool]} ({TOOLS[tool]})" for tool in names)
    raise SourceError(f"{what} is not on PATH; load its module, or install it on this node")


def counted(
    tool: str, command: Sequence[str], *, kernels: int, gpus: str | None, limit_s: float
) -> Utilisation:
    """Run a command under a tool; return the utilisation that it caused.

    Parameters
    ----------
    kernels : of Nsight Compute: how many kernels are measured; the others run at full speed.
    gpus : of DCGM: comma-separated numbers of the GPUs that are watched; None: all of the node.
    limit_s : the command is stopped after this time.

    Raises
    ------
    SourceError
        The tool cannot be run, may not read the counters, or counted nothing; or the command
        failed, or ran longer than ``limit_s``. The message is one sentence.
    """
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="gpu-aware-classify-") as folder:
        output = Path(folder) / "counters"
        if tool == "ncu":
            return _ncu(command, output, kernels, limit_s)
        return _dcgm(command, output, gpus, limit_s)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The first SIGTERM or SIGHUP raises KeyboardInterrupt; more do not disturb the clearing up."""
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]

    def interrupt(number: int, frame: object) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _ncu(command: Sequence[str], output: Path, kernels: int, limit_s: float) -> Utilisation:
    options = ("--csv", "--target-processes", "all", "--launch-count", str(kernels))
    argv = ["ncu", *options, "--log-file", str(output), "--metrics", _METRICS, *command]
    status, printed = _run(argv, limit_s, "give a higher --time-limit or fewer --kernels")
    text = _read(output)
    said = printed + text
    if _PERMISSION in said:
        raise SourceError(
            f"ncu may not read the performance counters of this GPU ({_PERMISSION}): the"
            " administrators can allow it (NVreg_RestrictProfilingToAdminUsers=0); until then use"
            " --tool dcgm where DCGM runs as root"
        )
    error = _ERROR.search(said)
    if status != 0 or error is not None:
        reason = error["text"].strip() if error is not None else _ended(status)
        raise SourceError(f"{command[0]} failed under ncu: {reason}")
    if "No kernels were profiled" in said:
        raise SourceError(f"{command[0]} ran no kernel on a GPU that ncu could measure")
    return read_ncu(text.splitlines(keepends=True))


def _dcgm(command: Sequence[str], output: Path, gpus: str | None, limit_s: float) -> Utilisation:
    argv = ["dcgmi", "dmon", "-e", _FIELDS, "-d", "1000", *(["-i", gpus] if gpus else [])]
    with output.open("wb") as stream, _started(argv, stream) as watch:
        _await_sample(watch, output)
        status, _ = _run(list(command), limit_s, "give a higher --time-limit")
        ended = watch.poll()
    if status != 0:
        raise SourceError(f"{command[0]} failed beside dcgmi: {_ended(status)}")
    if ended is not None:
        raise SourceError(f"dcgmi dmon ended before {command[0]}: {_last_line(output)}")
    return read_dcgm(_read(output).splitlines())


def _await_sample(watch: subprocess.Popen[bytes], output: Path) -> None:
    """Wait for the first sample of ``dcgmi dmon``. Raises SourceError."""
    deadline = time.monotonic() + FIRST_SAMPLE_S
    while not _SAMPLE.search(output.read_bytes()[:_TAIL]):
        if watch.poll() is not None:
            raise SourceError(f"dcgmi dmon counts nothing: {_last_line(output)}")
        if time.monotonic() > deadline:
            raise SourceError(
                f"dcgmi dmon printed no sample within {FIRST_SAMPLE_S:g} s: is nv-hostengine alive?"
            )
        time.sleep(_POLL_S)


@contextmanager
def _started(argv: Sequence[str], stdout: int | IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output on ``stdout``, stopped at the end with all that it started."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with _signals_noted():  # one that comes after the fork must find a process to stop
            process = _begin(argv, stdout)
        yield process
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):  # dcgmi ends on SIGINT
            if process is None:
                break
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
        if process is not None and process.stdout is not None:
            process.stdout.close()


def _begin(argv: Sequence[str], stdout: int | IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    except (OSError, ValueError) as exc:  # ValueError: a NUL in an argument
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise SourceError(f"{argv[0]}: cannot be run: {reason}") from None


@contextmanager
def _signals_noted() -> Iterator[None]:
    """Signals that have a handler of Python call it at the end.

    Ignored ones stay so (nohup): a process that begins meanwhile ignores them, too.
    """
    came: list[tuple[int, FrameType | None]] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: handler for n in numbers if callable(handler := signal.getsignal(n))}
    for number in before:
        signal.signal(number, lambda *one: came.append(one))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for came_number, frame in came:
        before[signal.Signals(came_number)](came_number, frame)


def _run(argv: Sequence[str], limit_s: float, advice: str) -> tuple[int, str]:
    """Run a command; return its exit status and the end of its output. Raises SourceError.

    It has ended when its process has, even if one that it started keeps the pipe open.
    """
    tail = b""
    deadline = time.monotonic() + limit_s
    with _started(argv, subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        pipe = process.stdout.fileno()
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise SourceError(f"{argv[0]} did not end within {limit_s:g} s; {advice}")
            tail = (tail + _passed_on(pipe, _POLL_S))[-_TAIL:]
        for _ in range(_LAST_READS):
            tail = (tail + _passed_on(pipe, 0.0))[-_TAIL:]
        return int(process.returncode), tail.decode("utf-8", "replace")


def _passed_on(pipe: int, wait_s: float) -> bytes:
    """What comes out of a pipe within this time, written to stderr; empty: nothing."""
    if not select.select([pipe], [], [], wait_s)[0]:
        return b""
    data = os.read(pipe, _TAIL)
    if not data:
        time.sleep(wait_s)  # closed by a process that goes on
    with suppress(OSError):  # nothing reads our stderr
        os.write(2, data)
    return data


def _read(output: Path) -> str:
    """The start of a tool's output; empty: it wrote none."""
    try:
        with output.open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _last_line(output: Path) -> str:
    lines = [line.strip() for line in _read(output).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def _ended(status: int) -> str:
    return f"exit {status}" if status >= 0 else f"signal {-status}"
