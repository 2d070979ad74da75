"""Text output of nccl-tests (``all_reduce_perf`` and the like): bus bandwidths of collectives.

The layout is that of ``writeResultHeader`` and its neighbours, of 2021 to 2026: lines with the
ranks, a line with the names of the columns, and a line per message size. One file may hold several
runs. Of a run the largest message counts: small ones measure latency (doc/PERFORMANCE.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpu_aware_profile.imports.formats.reader import (
    COLLECTIVE_COLUMNS,
    Measured,
    ReadOptions,
    Source,
    node_name,
    number_of,
)
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.interconnect import OPERATIONS
from slurm_gpu_aware.text_file import BadRow, Row, Table

_START = re.compile(r"^# nThread \d+ nGpus \d+ ", re.MULTILINE)
_PROGRAM = re.compile(r"# Collective test starting: (\S*/)?(?P<name>\w{1,64})_perf\w*\Z")
_RANK = re.compile(
    r"#\s+Rank\s+\d{1,6}(\s+Group\s+(?P<group>\d{1,10}))?\s+Pid\s+\d{1,10}\s+on\s+(?P<host>\S{1,252})"
    r"\s+device\s+\d{1,3}\s+\[(0x(?P<bus>[0-9a-f]{2})|(?P<pci>[0-9a-f]{4}(:[0-9a-f]{2}){2}))\]"
)
_WRONG = ("#wrong", "wrong")
_NUMBER = re.compile(r"[0-9]{1,15}\Z")
_VERDICT = re.compile(r"#?\s*Out of bounds values\s*:\s*(?P<count>\d+)\s+(?P<verdict>OK|FAILED)\b")
_FAILURE = re.compile(r"Test (NCCL |CUDA )?failure\b|NCCL WARN .*\berror\b", re.IGNORECASE)


@dataclass
class _Run:
    """One run of a test."""

    line: int
    operation: str | None = None
    hosts: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    columns: list[str] = field(default_factory=list)
    best: tuple[int, list[str]] = (0, [])
    """Size and words of the line with the largest message."""
    wrong: str = ""
    """What the program says is wrong with the run, at any size; empty: nothing."""


class NcclTests:
    """Reader of one or more runs, each on one node."""

    name = "nccl-tests"

    def matches(self, source: Source) -> bool:
        """Say whether a file has a run of nccl-tests."""
        return _START.search(source.text) is not None

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read all runs. ``options.value``: the operation where the output does not name it.

        Raises SourceError.
        """
        if options.value is not None and options.value not in OPERATIONS:
            raise SourceError(f"--value takes {', '.join(OPERATIONS)}, not {quoted(options.value)}")
        rows: list[Row] = []
        bad: list[BadRow] = []
        left_out = Counter[str]()
        for run in _runs(source.text.split("\n")):
            if run.operation is not None and run.operation not in OPERATIONS:
                left_out[f"of {run.operation}"] += 1
                continue
            if len(set(run.hosts)) > 1:
                left_out["across nodes"] += 1
                continue
            try:
                rows.append(_row(run, options))
            except ValueError as exc:
                bad.append(BadRow(run.line, str(exc)))
        if not rows and not bad:
            raise SourceError(f"{source.name}: no run of {', '.join(OPERATIONS)} on one node")
        table = Table(source.name, COLLECTIVE_COLUMNS, tuple(rows), tuple(bad))
        return Measured(table, left_out=left_out)


def _runs(lines: Sequence[str]) -> Iterator[_Run]:
    run: _Run | None = None
    program: str | None = None
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if match := _PROGRAM.match(line):
            program = match["name"]
        elif _START.match(line):
            if run is not None:
                yield run
            run, program = _Run(number, program), None
        elif run is not None:
            _take(run, line)
    if run is not None:
        yield run


def _take(run: _Run, line: str) -> None:
    if match := _RANK.match(line):
        run.hosts.append(match["host"])
        run.gpus.append(match["pci"] or f"{match['bus']}:00")
        run.groups.add(match["group"] or "0")
        return
    if (match := _VERDICT.match(line)) and match["verdict"] == "FAILED":
        run.wrong = f"the program says FAILED: {match['count']} values out of bounds"
    elif match := _FAILURE.search(line):
        run.wrong = run.wrong or f"the program says {quoted(line[:100])}"
    words = line.lstrip("# ").split()
    if "busbw" in words and words[:1] == ["size"]:
        run.columns = words
    elif not line.startswith("#") and words and _NUMBER.match(words[0]):
        size = int(words[0])
        if size >= run.best[0] and len(words) >= len(run.columns) > 0:
            run.best = size, words
        counts = [word for name, word in zip(run.columns, words, strict=False) if name in _WRONG]
        if any(word not in ("0", "N/A") for word in counts):
            run.wrong = run.wrong or f"wrong values at size {size}: {', '.join(counts)}"


def _row(run: _Run, options: ReadOptions) -> Row:
    """The table's row of a run. Raises ValueError."""
    operation = run.operation or options.value
    if operation is None:
        raise ValueError("the output does not name the operation; give it with --value all_reduce")
    hosts = sorted(set(run.hosts))
    if len(hosts) != 1 or len(run.groups) != 1:
        raise ValueError(f"groups of ranks: {len(run.groups)}; only a run of one has a place")
    size, words = run.best
    if run.wrong:
        raise ValueError(run.wrong)
    if not size:
        raise ValueError("no line with a result: the run did not get so far")
    values = [number_of(words[i], "busbw") for i, name in enumerate(run.columns) if name == "busbw"]
    node = options.node or node_name(hosts[0])
    if len(set(run.gpus)) < len(run.gpus) and len(run.gpus[0]) == len("00:00"):
        raise ValueError(
            f"this version of nccl-tests prints the PCI bus alone, which several GPUs of {node}"
            " share; use one of 2025 or later"
        )
    gbps = repr(sum(values) / len(values))
    cells = (node, " ".join(run.gpus), operation, gbps, str(size), "")
    return Row(run.line, dict(zip(COLLECTIVE_COLUMNS, cells, strict=True)))
