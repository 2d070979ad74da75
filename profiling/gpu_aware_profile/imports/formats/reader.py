"""What the readers share: each makes one table, as in our own CSV files, of one file.

Text that launchers put before each line of an output is taken off, and tasks are told apart.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.report import ProbeReport
from slurm_gpu_aware.text_file import BadRow, Row, Table

T = TypeVar("T")
ONE_RUN_A_FILE = "write each run to a file of its own"
MAX_CHARACTERS = 64 << 20  # Limit of a file of another program; a CSV file of ours may be larger.
TIMING_COLUMNS = ("gpu", "node", "value_ms", "taken_at")
"""Columns of a table of times per GPU; the class is given with ``--class``."""
PAIR_COLUMNS = ("node", "a", "b", "ab_gbps", "ba_gbps", "both_gbps", "taken_at")
"""Columns of a table of bandwidths between two GPUs, see `model.hardware_graph.PairBandwidth`."""
COLLECTIVE_COLUMNS = ("node", "gpus", "operation", "gbps", "size_bytes", "taken_at")
"""Columns of a table of collectives, see `model.hardware_graph.Collective`; ``gpus``: separated by
blanks."""

_OBJECT = re.compile(r'^[ \t]*\{(?=\s*")', re.MULTILINE)
_PREAMBLE = 1 << 20
"""Characters in which a JSON object begins, after lines of a launcher or a driver."""
_ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}\Z")

BUS_ALONE = "bus:"  # Before a PCI bus in a cell of a GPU: an output without domain and device.
_PREFIX = (
    r"(?:(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d [\d:]{8}(?: \d{4})?"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]{0,16}\]? ?)?"
    r"(?P<task>(?:\[[^\]\n]{1,128}\]){1,2}|[ ]{0,8}[\w.-]{1,252}(?= {0,8}[:|]))?"
    r"(?:<std(?:out|err)>)?(?: {0,8}[:|])? ?"
)
"""Of ``srun -l`` (``3: ``), ``mpirun --tag-output`` (``[1,3]<stdout>:``, Open MPI 5: with the job)
and ``--timestamp-output``, Hydra's ``-prepend-rank`` (``[3] ``), pdsh
(``n1: ``), containers (``n1 | ``), ``ts`` (``Nov 28 10:00:00 ``)."""
_LINE = re.compile(_PREFIX)
_FIRST = re.compile(
    rf"^(?P<prefix>{_PREFIX})"
    r"(?:[ \t]*(?:\{\s*$|\{\"|nvbandwidth Version:"
    r"|# (?:nccl-tests version|Collective test starting|nThread) )"
    r"|(?:\x1b\[4m)?[ \t]+(?:\x1b\[4m)?GPU0[ \t])",
    re.MULTILINE,
)
"""How the outputs of the programs begin that a launcher starts."""


@dataclass(frozen=True)
class Source:
    """A file to read."""

    name: str  # For messages.
    text: str
    host: str = ""  # What pdsh and the like put before each line; empty: nothing.

    @cached_property
    def content(self) -> Any:
        """Its JSON object; None: there is none. Other lines before and after it are skipped.

        Raises SourceError if it is damaged or not the only one.
        """
        start = 0 if self.text.lstrip().startswith("{") else None
        if start is None and (match := _OBJECT.search(self.text, 0, _PREAMBLE)):
            start = match.start()
        if start is None:
            return None
        if len(self.text) > MAX_CHARACTERS:
            raise SourceError(f"{self.name}: a JSON file above {MAX_CHARACTERS >> 20} MiB")
        text = self.text[start:].lstrip()
        try:
            content, end = json.JSONDecoder().raw_decode(text)
        except RecursionError:
            raise SourceError(f"{self.name}: not JSON: nested too deep") from None
        except ValueError as exc:
            raise SourceError(f"{self.name}: not JSON: {exc}") from None
        if text[end:].partition("\n")[0].strip():
            raise SourceError(f"{self.name}: not JSON: text after its end in the same line")
        if _OBJECT.search(text, end):
            raise SourceError(f"{self.name}: several JSON objects; {ONE_RUN_A_FILE}")
        return content


@dataclass(frozen=True)
class ReadOptions:
    """What a person adds to a file that does not say all. None: not given."""

    node: str | None = None
    value: str | None = None  # Which of the values of the file.
    unit: str | None = None
    nodes: Collection[str] = frozenset()  # Nodes of the store.

    def named(self, text: str) -> str:
        """The node that a host or file name with a domain or suffix means.

        It is the longest part before a dot that is a node of the store or an IP address, else the
        part before the first dot.
        """
        parts = text.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        known = (name for name in names if name in self.nodes)
        address = (name for name in names if _ADDRESS.match(name))
        return next(known, None) or next(address, None) or parts[0]

    def node_or(self, hosts: Collection[str], name: str) -> str:
        """``--node``, else the node of the first host of the file ``name``; empty: none is known.

        Raises SourceError if ``--node`` is given for several nodes.
        """
        nodes = sorted({self.named(host) for host in hosts})
        if self.node is not None and len(nodes) > 1:
            raise SourceError(
                f"{name}: --node is for a file of one node; it has {', '.join(nodes)}"
            )
        return self.node or next(iter(nodes), "")


@dataclass(frozen=True)
class Measured:
    """What a file says, as a table."""

    table: Table  # With the columns of one of the tables that ``import_rows`` reads.
    rate: str | None = None  # Unit of the rates that became times; None: they were no rates.
    report: ProbeReport | None = None  # What a probe of ours says, in place of the table.
    left_out: tuple[str, ...] = ()
    """For each valid measurement for which the store has no place: what it is."""


class Reader(NamedTuple):
    """Reader of one format."""

    name: str  # As ``--format`` takes it.
    matches: Callable[[Source], bool]  # Whether a file is of this format.
    read: Callable[[Source, ReadOptions], Measured]
    """Reads a file. A value that cannot be used is a bad row. Raises SourceError."""


def as_time_ms(rate: float) -> float:
    """Time of one unit of work in ms, for a rate in units per second. Raises ValueError."""
    if not 0.0 < rate < math.inf:
        raise ValueError(f"a rate must be above 0, not {rate:g}")
    return 1e3 / rate


def node_of(source: Source, options: ReadOptions) -> str:
    """Node of a file that does not name it: ``--node``, the host before its lines, its name."""
    if options.node is not None:
        return options.node
    file = "" if source.name == "stdin" else Path(source.name).name
    name = options.named(source.host or file)
    if not name:
        raise SourceError(f"{source.name}: it does not name its node; give it with --node NAME")
    return name


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


def row_of(columns: Sequence[str], line: int, *cells: str) -> Row:
    """A row of a table with these columns. ``gpu``: as `known_gpus.KnownGpus` reads it."""
    return Row(line, dict(zip(columns, cells, strict=True)))


def read_rows(
    source: Source,
    columns: tuple[str, ...],
    found: Iterable[tuple[int, T]],
    make: Callable[[int, T], Row],
    unit: str = "line",
) -> Table:
    """The table of ``make`` for each (line, thing); one for which it raises ValueError is bad.

    ``unit``: what the lines count.
    """
    rows, bad = [], []
    for line, one in found:
        try:
            rows.append(make(line, one))
        except ValueError as exc:
            bad.append(BadRow(line, str(exc), unit))
    return Table(source.name, columns, tuple(rows), tuple(bad), unit)


def outputs(source: Source) -> list[Source]:
    """The output of each task without the prefixes of its lines; as it is if there are none.

    Raises SourceError if a file with prefixes is too large.
    """
    first = _FIRST.search(source.text, 0, 1 << 20)
    if first is None or not first["prefix"].strip():
        return [source]
    if len(source.text) > MAX_CHARACTERS:
        raise SourceError(f"{source.name}: above {MAX_CHARACTERS >> 20} MiB; give it in parts")
    lines: dict[str, list[str]] = {}
    for line in source.text.split("\n"):
        if match := _LINE.match(line):
            lines.setdefault((match["task"] or "").strip(), []).append(line[match.end() :])
    by_host = first["prefix"].rstrip().endswith(":")
    found = (
        Source(source.name, "\n".join(own), task if by_host and task[:1].isalpha() else "")
        for task, own in lines.items()
    )
    return [task for task in found if _FIRST.search(task.text)] or [source]
