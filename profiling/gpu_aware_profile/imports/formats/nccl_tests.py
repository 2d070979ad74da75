"""Text output of nccl-tests (``all_reduce_perf`` and the like): bus bandwidths of collectives.

The layout is that of ``writeResultHeader`` and its neighbours, of 2021 to 2026: lines with the
ranks, a line with the names of the columns, and a line per message size. One file may hold several
runs. Of a run the largest message counts: small ones measure latency (doc/PERFORMANCE.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpu_aware_profile.imports.formats.reader import (
    COLLECTIVE_COLUMNS,
    Measured,
    ReadOptions,
    Source,
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
_NUMBER = re.compile(r"[0-9]{1,15}\Z")


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
        for run in _runs(source.text.split("\n")):
            try:
                rows.append(_row(run, options))
            except ValueError as exc:
                bad.append(BadRow(run.line, str(exc)))
        return Measured(Table(source.name, COLLECTIVE_COLUMNS, tuple(rows), tuple(bad)))


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
    words = line.lstrip("# ").split()
    if "busbw" in words and words[:1] == ["size"]:
        run.columns = words
    elif not line.startswith("#") and words and _NUMBER.match(words[0]):
        size = int(words[0])
        if size >= run.best[0] and len(words) >= len(run.columns) > 0:
            run.best = size, words


def _row(run: _Run, options: ReadOptions) -> Row:
    """The table's row of a run. Raises ValueError."""
    operation = run.operation or options.value
    if operation is None:
        raise ValueError("the output does not name the operation; give it with --value all_reduce")
    hosts = sorted(set(run.hosts))
    if len(hosts) != 1 or len(run.groups) != 1:
        raise ValueError(
            f"nodes: {len(hosts)}, groups of ranks: {len(run.groups)}; only a run of one group on"
            " one node has a place in the store"
        )
    size, words = run.best
    if not size:
        raise ValueError("no line with a result: the run did not get so far")
    values = [number_of(words[i], "busbw") for i, name in enumerate(run.columns) if name == "busbw"]
    wrong = [words[i] for i, name in enumerate(run.columns) if name.lstrip("#") == "wrong"]
    if any(word not in ("0", "N/A") for word in wrong):
        raise ValueError(f"the result is wrong ({', '.join(wrong)} wrong values)")
    node = options.node or hosts[0].partition(".")[0]
    gbps = repr(sum(values) / len(values))
    cells = (node, " ".join(run.gpus), operation, gbps, str(size), "")
    return Row(run.line, dict(zip(COLLECTIVE_COLUMNS, cells, strict=True)))
