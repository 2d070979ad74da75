"""Class of an application: counters of its utilisation while it runs, and the classes' centres.

It runs under Nsight Compute, or beside DCGM, without a shell: at the time limit, on SIGINT, SIGTERM
and SIGHUP, and when the tool fails, nothing is left running. What it prints goes to stderr. The
centres come from applications, a file, or the store.
"""

import math
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from types import FrameType
from typing import IO, BinaryIO

from gpu_aware_profile.child import KEPT_BYTES, Child, LateError
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.features.classes.store import stored_centres
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.text_file import Row, name_of, read_table
from slurm_gpu_aware.variability import scores as classes
from slurm_gpu_aware.variability.counters import read_dcgm, read_ncu
from slurm_gpu_aware.variability.scores import Utilisation

TOOLS = {"ncu": "Nsight Compute", "dcgm": "DCGM"}
_PROGRAMS = {"ncu": "ncu", "dcgm": "dcgmi"}
_METRICS = (
    "gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,"
    "regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active"
)
_FIELDS = "1002,1004,1005,1006,1007,1008"
FIRST_SAMPLE_S = 15.0  # Longest wait for DCGM's first sample.
_ENDING = (signal.SIGINT, signal.SIGKILL)  # How a process is stopped; dcgmi ends on SIGINT.
_POLL_S = 0.1
_MOST_BYTES = 64 << 20  # of a tool's output that is read
_PERMISSION = "ERR_NVGPUCTRPERM"
_ERROR = re.compile(r"==ERROR==\s*(?P<text>.{1,300})")
_SAMPLE = re.compile(rb"^GPU", re.MULTILINE)
_NEEDED = (
    "no centres of the classes are known; give --centres or --applications, or an administrator"
    " stores them once: gpu-aware-profile classify --applications known.csv --save-centres"
)


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
        status, _ = _run(command, limit_s, "give a higher --time-limit")
        ended = watch.code
    if status != 0:
        raise SourceError(f"{command[0]} failed beside dcgmi: {_ended(status)}")
    if ended is not None:
        raise SourceError(f"dcgmi dmon ended before {command[0]}: {_last_line(output)}")
    return read_dcgm(_read(output).splitlines())


def _await_sample(watch: Child, output: Path) -> None:
    """Wait for the first sample of ``dcgmi dmon``. Raises SourceError."""
    deadline = time.monotonic() + FIRST_SAMPLE_S
    while True:
        ended = watch.code is not None  # before the look: it writes a sample and ends
        if _SAMPLE.search(output.read_bytes()[:KEPT_BYTES]):
            return
        if ended:
            raise SourceError(f"dcgmi dmon counts nothing: {_last_line(output)}")
        if time.monotonic() > deadline:
            raise SourceError(
                f"dcgmi dmon printed no sample within {FIRST_SAMPLE_S:g} s: is nv-hostengine alive?"
            )
        time.sleep(_POLL_S)


@contextmanager
def _started(
    argv: Sequence[str], output: int | IO[bytes] = PIPE, limit_s: float = math.inf
) -> Iterator[Child]:
    """A process, stopped at the end with all that it started."""
    with ExitStack() as stack:
        with _signals_noted():  # one that comes after the fork must find a process to stop
            child = Child(argv, limit_s=limit_s, output=output, merged=True, signals=_ENDING)
            stack.enter_context(child)
        yield child


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
    """Run a command; return its exit status and the end of its output. Raises SourceError."""
    try:
        with _started(argv, limit_s=limit_s) as process:
            for _, piece in process.pieces():
                with suppress(OSError):  # nothing reads our stderr
                    os.write(2, piece)
            return process.code or 0, process.output
    except LateError:
        raise SourceError(f"{argv[0]} did not end within {limit_s:g} s; {advice}") from None


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


def fitted_centres(
    file: BinaryIO, config: Config
) -> tuple[dict[str, Utilisation], dict[str, Utilisation]]:
    """(Centres by K-means, the applications of the file). Raises SourceError."""
    known = _named_points(file, "application")
    try:
        return classes.fit_classes(known, config.site.classes), known
    except ValueError as exc:
        raise SourceError(name_of(file)) from exc


def centres_of_file(file: BinaryIO) -> dict[str, Utilisation]:
    """Centres that an earlier run wrote. Raises SourceError."""
    return _named_points(file, "class")


def centres_of_store(path: Path, config: Config) -> dict[str, Utilisation]:
    """The stored centres of the site. Raises SourceError if there are none or they are outdated."""
    try:
        with open_for_reading(replace(config.store, path=path)) as store:
            found = stored_centres(store)
    except StoreError as exc:
        raise SourceError(_NEEDED) from exc
    if not found:
        raise SourceError(_NEEDED)
    check_names(found, config, "the stored centres")
    return {name: Utilisation(*centre) for name, centre in found.items()}


def check_names(centres: Collection[str], config: Config, what: str) -> None:
    """Raise SourceError unless the centres are of the site's classes."""
    if set(centres) != set(config.site.classes):
        raise SourceError(
            f"{what} are of the classes {', '.join(centres)}; the site has"
            f" {', '.join(config.site.classes)}"
        )


def _named_points(file: BinaryIO, kind: str) -> dict[str, Utilisation]:
    """Named points of a CSV with the columns ``kind``,dram,peak_fu; each name once."""
    points = read_table(file)
    points.require(kind, "dram", "peak_fu")
    names: set[str] = set()

    def point(row: Row) -> tuple[str, Utilisation]:
        name = row.text(kind)
        if name in names:
            raise ValueError(f"{kind} {name!r} occurs twice")
        names.add(name)
        return name, Utilisation(row.number("dram"), row.number("peak_fu"))

    return dict(points.parse_all(point))
