"""The formats that ``import`` reads, and which of them a file has."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from gpu_aware_profile.imports.formats import (
    dcgm_diag,
    nccl_tests,
    nvbandwidth,
    reframe,
    topology_matrix,
)
from gpu_aware_profile.imports.formats.reader import (
    MAX_CHARACTERS,
    ONE_RUN_A_FILE,
    Measured,
    Reader,
    ReadOptions,
    Source,
    outputs,
)
from gpu_aware_profile.imports.formats.topology_matrix import BACKEND as MATRIX
from gpu_aware_profile.imports.import_rows import Kind
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.report import SCHEMA, parse_report
from slurm_gpu_aware.text_file import Table, name_of, read_table, read_text

_COLUMNS = frozenset(column for kind in Kind for column in kind.value if len(column) > 1)
_DELIMITERS = re.compile(r"[,;|\t]")
_DCGM_TEXT = re.compile(r"Successfully ran diagnostic|^\| Diagnostic +\| Result", re.MULTILINE)
_BEHIND_PREFIX = re.compile(r"(nvbandwidth) Version: |# (n)Thread \d+ nGpus ")


def _csv_matches(source: Source) -> bool:
    """Whether the first line has one of our columns and a comma."""
    line = _first_line(source.text)
    return "," in line and bool(_COLUMNS & set(_cells(line)))


def _csv_read(source: Source, options: ReadOptions) -> Measured:
    """Read a table that ``import`` describes; its columns are checked later."""
    return Measured(read_table(source.name, source.text))


def _report_matches(source: Source) -> bool:
    return source.content is not None and source.content.get("schema") == SCHEMA


def _report_read(source: Source, options: ReadOptions) -> Measured:
    """Read what ``gpu-aware-profile node --json`` printed on a node that no sweep reaches."""
    if options.node is not None or options.value is not None:
        raise SourceError(f"{source.name}: a report names its node; leave --node, --value out")
    return Measured(Table(source.name, (), (), ()), report=parse_report(source.content))


_CSV = Reader("csv", _csv_matches, _csv_read)
_READERS = (
    Reader("probe-report", _report_matches, _report_read),
    Reader("dcgm-diag", dcgm_diag.matches, dcgm_diag.read),
    Reader("nvbandwidth", nvbandwidth.matches, nvbandwidth.read),
    Reader("nccl-tests", nccl_tests.matches, nccl_tests.read),
    Reader("reframe-report", reframe.report_matches, reframe.report_read),
    Reader("reframe-log", reframe.log_matches, reframe.log_read),
    Reader("nvidia-smi-topo", topology_matrix.matches, topology_matrix.read),
    _CSV,
)
"""In the order in which they are asked."""
FORMATS = {reader.name: reader for reader in _READERS}


def read_measured(
    file: Path | str | BinaryIO, options: ReadOptions, format_name: str | None = None
) -> list[Measured]:
    """Read a file, each report in it apart. ``format_name``: None: the only one that matches.

    Raises SourceError.
    """
    parts = outputs(Source(name_of(file), read_text(file)))
    hosts = {source.host for source in parts} - {""}
    options.node_or(hosts, parts[0].name)
    found = [_reader(source, format_name).read(source, options) for source in parts]
    first, tables = found[0], [one.table for one in found]
    reports = [one for one in found if one.report is not None]
    nameless = reports or any(source.content is not None for source in parts)
    if (nameless and 1 < len(parts) != len(hosts)) or (
        len({(one.table.columns, one.rate) for one in found}) > 1
    ):
        raise SourceError(f"{first.table.name}: output of {len(parts)} tasks; {ONE_RUN_A_FILE}")
    if reports:
        return found
    rows = tuple(row for table in tables for row in table.rows)
    bad = tuple(row for table in tables for row in table.bad_rows)
    left_out = tuple(what for one in found for what in one.left_out)
    table = replace(first.table, rows=rows, bad_rows=bad)
    return [replace(first, table=table, left_out=left_out)]


def _reader(source: Source, format_name: str | None) -> Reader:
    """The reader of a file. Raises SourceError if none or several match, or the file is large."""
    readers = _READERS if format_name is None else (FORMATS[format_name],)
    matching = [reader for reader in readers if reader.matches(source)]
    if not matching:
        raise SourceError(f"{source.name}: {_unknown(source, format_name)}")
    names = " and ".join(one.name for one in matching if one.name != _CSV.name)
    if " and " in names:
        raise SourceError(f"{source.name}: it holds {names}; name one with --format")
    if matching[0].name != _CSV.name and len(source.text) > MAX_CHARACTERS:
        raise SourceError(f"{source.name}: above {MAX_CHARACTERS >> 20} MiB; give it in parts")
    return matching[0]


def cut_name(measured: Measured, options: ReadOptions) -> str | None:
    """A sentence on a node that was taken from a file's name with dots; None: it is certain."""
    stem = Path(measured.table.name).stem
    node = stem.partition(".")[0]
    named = {row.cells.get("node") for row in measured.table.rows}
    if measured.report is not None and measured.report.backend == MATRIX:
        named.add(measured.report.node)
    if options.node or node == stem or node in options.nodes or node not in named:
        return None
    return f"{measured.table.name}: taken for node {node}; if that is wrong, give --node"


def _unknown(source: Source, format_name: str | None) -> str:
    """Why a file cannot be read, as far as can be told."""
    if _DCGM_TEXT.search(source.text, 0, 1 << 16):
        return "the text form of dcgmi diag has no rates; run dcgmi diag with -j and -v"
    if format_name not in (None, _CSV.name):
        return f"not a file of the format {format_name}"
    line = _first_line(source.text)
    if not line:
        return "it is empty"
    if isinstance(source.content, Mapping) and "nccl_version" in source.content:
        return "nccl-tests -J does not list all GPUs; import the text that the program prints"
    if match := _BEHIND_PREFIX.search(source.text, 0, 1 << 20):
        what = match[1] or "nccl-tests"
        return f"it looks like {what} with a prefix before each line; run it without the prefix"
    separator = _DELIMITERS.search(line)
    if separator and separator[0] != "," and _COLUMNS & set(_cells(line)):
        return f"separated by {quoted(separator[0])}, expected ','"
    if format_name is not None:
        return f"no line of columns such as {','.join(Kind.TIMES.value)}"
    return (
        f"none of the formats {', '.join(FORMATS)}; a CSV file begins with a line of columns such"
        f" as {','.join(Kind.TIMES.value)}"
    )


def _first_line(text: str) -> str:
    """The first line with text that is no comment; empty: none."""
    lines = (line.strip() for line in text[: 1 << 16].split("\n"))
    return next((line for line in lines if line.strip(",; \t") and not line.startswith("#")), "")


def _cells(line: str) -> list[str]:
    return [cell.strip().strip('"').lower() for cell in _DELIMITERS.split(line)]
