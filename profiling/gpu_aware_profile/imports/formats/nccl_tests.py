"""Text output of nccl-tests (``all_reduce_perf`` and the like): bus bandwidths of collectives.

The layout is that of ``writeResultHeader`` and its neighbours, of 2021 to 2026: lines with the
ranks, a line with the names of the columns, a line per message size, and the program's verdict. One
file may hold several runs. Of a run the largest message counts: small ones measure latency
(doc/PERFORMANCE.md).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpu_aware_profile.imports.formats.reader import (
    BUS_ALONE,
    COLLECTIVE_COLUMNS,
    Measured,
    ReadOptions,
    Source,
    number_of,
    read_rows,
    row_of,
)
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import OPERATIONS
from slurm_gpu_aware.text_file import Row

_START = re.compile(
    r"^[ \t]*# nThread (?P<threads>\d{1,6}) nGpus (?P<gpus>\d{1,6})\b", re.MULTILINE
)
_PROGRAM = re.compile(r"# Collective test starting: (\S*/)?(?P<name>\w{1,64})_perf\w*\Z")
_RANK = re.compile(
    r"#\s+Rank\s+(?P<rank>\d{1,6})(\s+Group\s+(?P<group>\d{1,10}))?\s+Pid\s+\d{1,10}\s+on\s+(?P<host>\S{1,252})"
    r"\s+device\s+\d{1,3}\s+\[(0x(?P<bus>[0-9a-f]{2})|(?P<pci>[0-9a-f]{4}(:[0-9a-f]{2}){2}))\]"
)
_VERDICT = re.compile(r"# Out of bounds values : (?P<count>\d{1,20}) (?P<verdict>\w{1,20})")
_FAILED = re.compile(r"Test (NCCL |CUDA )?failure ")
_NUMBER = re.compile(r"[0-9]{1,15}\Z")


@dataclass
class _Run:
    """One run of a test."""

    line: int
    operation: str | None
    of_process: int  # Ranks of each process.
    ranks: list[re.Match[str]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    best: tuple[int, list[str]] = (0, [])  # Size and words of the line with the largest message.
    ended: bool = False  # It has a verdict.
    failed: str | None = None  # Why the program says that the run failed.

    @property
    def whole(self) -> bool:
        """Whether no line with a rank is missing."""
        count = len(self.ranks)
        listed = sorted(int(rank["rank"]) for rank in self.ranks) == list(range(count))
        return count > 0 and listed and count % max(self.of_process, 1) == 0


def matches(source: Source) -> bool:
    """Whether a file has a run of nccl-tests."""
    return _START.search(source.text) is not None


def read(source: Source, options: ReadOptions) -> Measured:
    """Read all runs. ``options.value``: the operation where the output does not name it.

    Raises SourceError.
    """
    if options.value is not None and options.value not in OPERATIONS:
        raise SourceError(f"--value takes {', '.join(OPERATIONS)}, not {quoted(options.value)}")
    runs = list(_runs(source.text.split("\n")))
    left_out = {run.line: why for run in runs if (why := _useless(run))}
    useful = [run for run in runs if run.line not in left_out]
    options.node_or([rank["host"] for run in useful for rank in run.ranks], source.name)
    lines = ((run.line, run) for run in useful)
    row = partial(_row, options, source.name)
    table = read_rows(source, COLLECTIVE_COLUMNS, lines, row)
    return Measured(table, left_out=tuple(left_out.values()))


def _runs(lines: Sequence[str]) -> Iterator[_Run]:
    run: _Run | None = None
    program: str | None = None
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if match := _PROGRAM.match(line):
            program = match["name"]
        elif match := _START.match(line):
            if run is not None:
                yield run
            of_process = int(match["threads"]) * int(match["gpus"])
            run, program = _Run(number, program, of_process), None
        elif run is not None:
            _take(run, line)
    if run is not None:
        yield run


def _take(run: _Run, line: str) -> None:
    if match := _RANK.match(line):
        run.ranks.append(match)
    elif match := _VERDICT.match(line):
        run.ended = True
        if match["verdict"] != "OK":
            run.failed = f"{match['count']} results out of bounds"
    elif _FAILED.search(line):
        run.failed = line[:120]
    words = line.lstrip("# ").split()
    if "busbw" in words and words[:1] == ["size"]:
        run.columns = words
    elif not line.startswith("#") and words and _NUMBER.match(words[0]):
        cells = zip(run.columns, words, strict=False)
        wrong = [word for name, word in cells if name in ("#wrong", "wrong")]
        if any(word not in ("0", "N/A") for word in wrong):
            run.failed = f"{', '.join(wrong)} wrong values"
        size = int(words[0])
        if size >= run.best[0] and len(words) >= len(run.columns) > 0:
            run.best = size, words


def _useless(run: _Run) -> str | None:
    """What a run is for which the store has no place; None: it has one."""
    if run.operation not in (None, *OPERATIONS):
        return f"{run.operation}"
    if len({rank["host"] for rank in run.ranks}) > 1:
        return "a run on several nodes"
    if len({rank["group"] for rank in run.ranks}) > 1:
        return "a run of several groups of ranks"
    return "a run on one GPU" if run.whole and len(run.ranks) == 1 else None


def _row(options: ReadOptions, name: str, line: int, run: _Run) -> Row:
    """The table's row of a run. Raises ValueError."""
    operation = run.operation or options.value
    if operation is None:
        raise ValueError("the output does not name the operation; give it with --value all_reduce")
    if run.failed:
        raise ValueError(f"the program says that the run failed: {quoted(run.failed)}")
    if not run.whole:
        raise ValueError("lines with ranks are missing: it is not known which GPUs took part")
    size, words = run.best
    if not size:
        raise ValueError("no line with a result: the run did not get so far")
    if not run.ended:
        raise ValueError("no verdict: the run was cut off, perhaps before its largest message")
    values = [number_of(words[i], "busbw") for i, what in enumerate(run.columns) if what == "busbw"]
    node = options.node_or([rank["host"] for rank in run.ranks], name)
    gpus = " ".join(rank["pci"] or f"{BUS_ALONE}{rank['bus']}" for rank in run.ranks)
    gbps = repr(sum(values) / len(values))
    cells = (node, gpus, operation, gbps, str(size), "")
    return row_of(COLLECTIVE_COLUMNS, line, *cells)
