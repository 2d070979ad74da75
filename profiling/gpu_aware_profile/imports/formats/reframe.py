"""Performance values of ReFrame: performance logs (handler ``filelog``), one line per run of a
test, and JSON reports of sessions (``--report-file``).

A performance variable is a value with a unit. ReFrame records no GPUs: a variable per GPU has the
GPU in its name, or the test has a loggable parameter ``gpu``. The node is that of the test's job.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpu_aware_profile.imports.formats.reader import (
    TIMING_COLUMNS,
    Measured,
    ReadOptions,
    Source,
    as_time_ms,
    number_of,
    objects,
    read_rows,
    row_of,
)
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import BadRow, Row

_MS = {
    "ns": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "sec": 1e3,
    "second": 1e3,
    "seconds": 1e3,
    "min": 6e4,
    "minutes": 6e4,
    "h": 3.6e6,
    "hours": 3.6e6,
}
"""Unit of time -> ms."""
_PER_STEP = re.compile(r"\s*/\s*(it|iter|iteration|step|epoch|run)\Z", re.IGNORECASE)
"""After a unit of time."""
_RATE = re.compile(r".*\S\s*/\s*(s|sec|second|min|h|hour|day)\Z|[kMGTPE]?flops\Z", re.IGNORECASE)
_MOST_UNIT = 40
_PLACES = {
    "{gpu}": r"(?P<gpu>\d{1,2})",
    "{nvml}": r"(?P<nvml>\d{1,2})",
    "{node}": r"(?P<node>[A-Za-z0-9][\w.-]{0,251}?)",
}
_EMPTY = (None, "", "None", "null", "<undefined>")  # ReFrame's words for no value.
_VALUE = "_value"
_DELIMITERS = "|,;\t"
_FIELD = re.compile(r"[\w.:#%()@ /+-]{1,256}\Z")
_UNIT_AT = 4  # Place of the unit in the list of a performance variable of a report.


@dataclass(frozen=True)
class _Result:
    """One run of a test."""

    line: int
    fields: Mapping[str, Any]  # What was logged of the test, by name.
    variables: Mapping[str, tuple[Any, Any]]  # Performance variable -> (value, unit).


def log_matches(source: Source) -> bool:
    """Whether the first line has a column of a performance value."""
    return any(name.endswith(_VALUE) for name in _header(source)[1])


def log_read(source: Source, options: ReadOptions) -> Measured:
    """Read all lines. Raises SourceError.

    The site's configuration chooses the fields and the delimiter; the first line names the fields.
    A performance variable has columns of its own (``NAME_value``, ``NAME_unit``), or, with
    ``perflog_compat``, a line of its own (``perf_var``, ``perf_value``, ``perf_unit``).
    """
    delimiter, names = _header(source)
    columns = [name[: -len(_VALUE)] for name in names if name.endswith(_VALUE)]
    if not columns:
        raise SourceError(f"{source.name}: no field NAME_value in the first line: no header")
    if "perf_var" in names and "perf_value" not in names:
        raise SourceError(f"{source.name}: the field perf_var needs perf_value")
    if len(set(names)) < len(names):
        raise SourceError(f"{source.name}: a field occurs twice in the first line")
    results: list[_Result] = []
    bad: list[BadRow] = []
    for number, line in enumerate(source.text.split("\n"), 1):
        cells = [cell.strip() for cell in line.split(delimiter)]
        if number == 1 or not any(cells):
            continue
        if len(cells) != len(names):
            bad.append(BadRow(number, f"{len(cells)} fields, expected {len(names)}"))
            continue
        fields = dict(zip(names, cells, strict=True))
        results.append(_Result(number, fields, _columns(fields, columns)))
    if not results:
        raise SourceError(f"{source.name}: no line with {len(names)} fields after the header")
    found = _measured(source, results, options, "line")
    all_bad = tuple(sorted((*bad, *found.table.bad_rows)))
    return replace(found, table=replace(found.table, bad_rows=all_bad))


def report_matches(source: Source) -> bool:
    """Whether a file is a report of ReFrame."""
    content = source.content
    return isinstance(content, Mapping) and {"session_info", "runs"} <= content.keys()


def report_read(source: Source, options: ReadOptions) -> Measured:
    """Read all test cases that have the wanted variables. Raises SourceError.

    The layout is that of ``reframe/schemas/runreport.json`` of ReFrame 4. Since 4.7 a performance
    variable is named ``system:partition:NAME`` and has value, reference, two thresholds, unit and
    verdict; before, it is an object in a list.
    """
    results = [
        _Result(number, case, dict(_values(case)))
        for number, case in enumerate(_cases(source.content), 1)
    ]
    return _measured(source, results, options, "test case")


def _measured(
    source: Source, results: Sequence[_Result], options: ReadOptions, unit: str
) -> Measured:
    """Times of GPUs from the variables that ``options.value`` names.

    The name may contain ``{gpu}`` (Slurm's index) or ``{nvml}`` (nvidia-smi's), and ``{node}``.
    Values are times, or rates of one unit, which become times of one unit of work. ``unit``: what
    the lines of the results count. Raises SourceError.
    """
    wanted = _wanted(source, results, options)
    units: set[str] = set()
    """Of rates; empty: a time."""

    def row(line: int, found: tuple[_Result, re.Match[str], Any, Any]) -> Row:
        result, match, value, own_unit = found
        _check_sane(result.fields)
        ms, rate = _time_ms(match[0], value, options.unit or own_unit)
        node, gpu = _node(match, result.fields, options), _gpu(match, result.fields)
        made = row_of(TIMING_COLUMNS, line, gpu, node, repr(ms), _time(result.fields))
        units.add(rate)
        return made

    found = (
        (result.line, (result, match, *variable))
        for result in results
        for name, variable in result.variables.items()
        if (match := wanted.fullmatch(name))
    )
    table = read_rows(source, TIMING_COLUMNS, found, row, unit)
    if len(units) > 1:
        named = " and ".join(rate or "times" for rate in sorted(units, key=lambda r: (not r, r)))
        raise SourceError(f"{source.name}: {named} cannot be compared")
    return Measured(table, rate=next(filter(None, units), None))


def _check_sane(fields: Mapping[str, Any]) -> None:
    """Raise ValueError if the test failed before its performance was judged."""
    phase = fields.get("fail_phase")
    if phase not in (*_EMPTY, "performance"):
        raise ValueError(f"the test failed in the phase {quoted(phase)}: its value says nothing")


def _wanted(source: Source, results: Sequence[_Result], options: ReadOptions) -> re.Pattern[str]:
    """Pattern of the names of the wanted variables."""
    names = list(dict.fromkeys(name for result in results for name in result.variables))
    if not names:
        raise SourceError(f"{source.name}: no test has a performance variable")
    if options.value is None and len(names) > 1:
        raise SourceError(
            f"{source.name}: several performance variables; choose one with --value, which may"
            f" contain {{gpu}}: {_some(names)}"
        )
    text = options.value or names[0]
    parts = re.split(r"(\{gpu\}|\{nvml\}|\{node\})", text)
    if len(text) > 256 or any(parts.count(place) > 1 for place in _PLACES):
        raise SourceError(f"--value {quoted(text)}: {{gpu}} and {{node}} may occur once each")
    pattern = re.compile("".join(_PLACES.get(part, re.escape(part)) for part in parts))
    if not any(pattern.fullmatch(name) for name in names):
        raise SourceError(
            f"{source.name}: no performance variable {quoted(text)}; there are: {_some(names)}"
        )
    return pattern


def _some(names: Iterable[str]) -> str:
    shown = [name if len(name) < 60 else f"{name[:60]}..." for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def _time_ms(name: str, value: object, unit: object) -> tuple[float, str]:
    """(time in ms, unit of the rate that it was; empty: it was a time). Raises ValueError."""
    if value in _EMPTY:
        raise ValueError(f"{name} has no value: the test did not get so far")
    number = number_of(value, name)
    word = unit.strip() if isinstance(unit, str) and len(unit) <= _MOST_UNIT else ""
    scale = _MS.get(_PER_STEP.sub("", word))
    if scale is not None:
        return number * scale, ""
    if _RATE.fullmatch(word):
        return as_time_ms(number), word
    raise ValueError(
        f"{name} has the unit {quoted(unit)}: neither a time (ms) nor a rate (GB/s, Gflop/s);"
        " give it with --unit"
    )


def _node(match: re.Match[str], fields: Mapping[str, Any], options: ReadOptions) -> str:
    if "node" in match.re.groupindex:
        return match["node"]
    if options.node is not None:
        return options.node
    nodes = fields.get("job_nodelist")
    if isinstance(nodes, list) and len(nodes) == 1:
        nodes = nodes[0]
    if nodes in _EMPTY or not isinstance(nodes, str):
        raise ValueError(f"job_nodelist is {quoted(nodes)}: not one node; give it with --node")
    return nodes


def _gpu(match: re.Match[str], fields: Mapping[str, Any]) -> str:
    if "gpu" in match.re.groupindex:
        return match["gpu"]
    if "nvml" in match.re.groupindex:
        return f"nvml:{match['nvml']}"
    gpu = fields.get("gpu")
    if gpu in _EMPTY or not isinstance(gpu, str | int):
        raise ValueError("no GPU: neither {gpu} in --value nor a logged test parameter 'gpu'")
    return str(gpu)


def _time(fields: Mapping[str, Any]) -> str:
    """Unix time of the end of the job; empty: not known. Raises ValueError."""
    unix = fields.get("job_completion_time_unix")
    if unix not in _EMPTY:
        return repr(number_of(unix, "job_completion_time_unix"))
    text = fields.get("job_completion_time")
    if text in _EMPTY:
        return ""
    try:
        at = datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        at = math.nan
    if not math.isfinite(at):
        raise ValueError(f"job_completion_time is {quoted(text)}: not YYYY-MM-DDTHH:MM:SS")
    return repr(at)


def _header(source: Source) -> tuple[str, list[str]]:
    """(delimiter, names of the fields); no names: the first line is not a header."""
    first = source.text[: 1 << 16].split("\n", 1)[0].strip()
    delimiter = next((d for d in _DELIMITERS if d in first), "|")
    names = [name.strip() for name in first.split(delimiter)]
    return delimiter, names if all(_FIELD.match(name) for name in names) else []


def _columns(fields: dict[str, str], columns: Sequence[str]) -> dict[str, tuple[object, object]]:
    if "perf_var" in fields:
        return {fields["perf_var"]: (fields["perf_value"], fields.get("perf_unit"))}
    return {name: (fields[name + _VALUE], fields.get(f"{name}_unit")) for name in columns}


def _cases(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for run in objects(content.get("runs")):
        yield from objects(run.get("testcases"))


def _values(case: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """(variable, (value, unit)) of a test case; ``perfvars`` was the list before ReFrame 4.7."""
    for one in objects(case.get("perfvars")):
        yield str(one.get("name")), (one.get("value"), one.get("unit"))
    values = case.get("perfvalues")
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, list) and len(value) > _UNIT_AT:
            yield name.rpartition(":")[2], (value[0], value[_UNIT_AT])
