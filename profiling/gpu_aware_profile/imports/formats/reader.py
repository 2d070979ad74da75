"""Protocol of the readers: each makes one table, as in our own CSV files, of one file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import BadRow, Row, Table, parse_json

MAX_CHARACTERS = 64 << 20
"""Limit of a file of another program; a CSV file of ours may be larger."""
TIMING_COLUMNS = ("gpu", "node", "value_ms", "taken_at")
"""Columns of a table of times per GPU; the class is given with ``--class``."""
PAIR_COLUMNS = ("node", "a", "b", "ab_gbps", "ba_gbps", "both_gbps", "taken_at")
"""Columns of a table of bandwidths between two GPUs, see `model.interconnect.PairBandwidth`."""
COLLECTIVE_COLUMNS = ("node", "gpus", "operation", "gbps", "size_bytes", "taken_at")
"""Columns of a table of collectives, see `model.interconnect.Collective`; ``gpus``: separated by
blanks."""


_HEAD, _LINES_BEFORE = 1 << 16, 20
"""Characters and lines in which a JSON object begins; warnings may stand before it."""
_ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}\Z")


@dataclass(frozen=True)
class Source:
    """A file to read."""

    name: str
    """For messages."""
    text: str

    @cached_property
    def content(self) -> Any:
        """Its JSON value; None: it is not a JSON object. Raises SourceError if it is damaged."""
        lines = self.text[:_HEAD].splitlines(keepends=True)[:_LINES_BEFORE]
        start = next((i for i, line in enumerate(lines) if line.lstrip().startswith("{")), None)
        if start is None or any("," in line for line in lines[:start]):
            return None
        if len(self.text) > MAX_CHARACTERS:
            raise SourceError(f"{self.name}: a JSON file above {MAX_CHARACTERS >> 20} MiB")
        return parse_json(self.text[sum(map(len, lines[:start])) :], self.name)


@dataclass(frozen=True)
class ReadOptions:
    """What a person adds to a file that does not say all. None: not given."""

    node: str | None = None
    value: str | None = None
    """Which of the values of the file."""
    unit: str | None = None


@dataclass(frozen=True)
class Measured:
    """What a file says, as a table."""

    table: Table
    """With the columns of one of the tables that ``import_rows`` reads."""
    rate: str | None = None
    """Unit of the rates that became times; None: they were no rates."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """What has no place in the store, in words -> how many runs."""


class Reader(Protocol):
    """Reader of one format."""

    name: str
    """As ``--format`` takes it."""

    def matches(self, source: Source) -> bool:
        """Say whether a file is of this format."""

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read a file. A value that cannot be used is a bad row. Raises SourceError."""


def as_time_ms(rate: float) -> float:
    """Time of one unit of work in ms, for a rate in units per second. Raises ValueError."""
    if not 0.0 < rate < math.inf:
        raise ValueError(f"a rate must be above 0, not {rate:g}")
    return 1e3 / rate


def node_of(source: Source, options: ReadOptions) -> str:
    """Node of a file that does not name it: ``--node``, or `node_name` of the file."""
    if options.node is not None:
        return options.node
    path = Path(source.name)
    name = "" if source.name == "stdin" else node_name(path.stem if path.suffix else path.name)
    if not name:
        raise SourceError(f"{source.name}: it does not name its node; give it with --node NAME")
    return name


def node_name(host: str) -> str:
    """A host's name up to its first dot, as slurmd names its node; an IP address is kept whole."""
    return host if _ADDRESS.match(host) else host.partition(".")[0]


def number_of(value: object, what: str) -> float:
    """A finite number, or its text. Raises ValueError."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ValueError(f"{what} is {quoted(value)}: not a finite number")


def objects(value: object) -> list[Mapping[str, Any]]:
    """The objects in a JSON list; empty if it is none."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def timing_row(line: int, gpu: str, node: str, value_ms: float, taken_at: str = "") -> Row:
    """A row of `timings_table`. ``gpu``: as `import_rows.KnownGpus` reads it."""
    cells = (gpu, node, repr(value_ms), taken_at)
    return Row(line, dict(zip(TIMING_COLUMNS, cells, strict=True)))


def timings_table(
    source: Source, rows: Sequence[Row], bad: Sequence[BadRow], unit: str = "line"
) -> Table:
    """A table of times per GPU; ``unit``: what the lines of its rows count."""
    return Table(source.name, TIMING_COLUMNS, tuple(rows), tuple(bad), unit)
