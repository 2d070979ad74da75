"""Performance logs of ReFrame (handler ``filelog``): one line per run of a test.

The site's configuration chooses the fields and the delimiter; the first line names the fields. A
performance variable has columns of its own (``NAME_value``, ``NAME_unit``), or, with
``perflog_compat``, a line of its own (``perf_var``, ``perf_value``, ``perf_unit``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpu_aware_profile.imports.formats import reframe
from gpu_aware_profile.imports.formats.reader import Measured, ReadOptions, Source
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import BadRow

__all__ = ["ReframeLog"]

_VALUE = "_value"
_DELIMITERS = "|,;\t"
_FIELD = re.compile(r"[\w.:#%()@ /+-]{1,256}\Z")


class ReframeLog:
    """Reader of one performance log."""

    name = "reframe-log"

    def matches(self, source: Source) -> bool:
        """Say whether the first line has a column of a performance value."""
        return any(name.endswith(_VALUE) for name in _header(source)[1])

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read all lines. Raises SourceError."""
        delimiter, names = _header(source)
        columns = [name[: -len(_VALUE)] for name in names if name.endswith(_VALUE)]
        if not columns:
            raise SourceError(f"{source.name}: no field NAME_value in the first line: no header")
        if "perf_var" in names and "perf_value" not in names:
            raise SourceError(f"{source.name}: the field perf_var needs perf_value")
        if len(set(names)) < len(names):
            raise SourceError(f"{source.name}: a field occurs twice in the first line")
        results: list[reframe.TestResult] = []
        bad: list[BadRow] = []
        for number, line in enumerate(source.text.split("\n"), 1):
            cells = [cell.strip() for cell in line.split(delimiter)]
            if number == 1 or not any(cells):
                continue
            if len(cells) != len(names):
                bad.append(BadRow(number, f"{len(cells)} fields, expected {len(names)}"))
                continue
            fields = dict(zip(names, cells, strict=True))
            results.append(reframe.TestResult(number, fields, _variables(fields, columns)))
        if not results:
            raise SourceError(f"{source.name}: no line with {len(names)} fields after the header")
        found = reframe.measured(source, results, options, "line")
        all_bad = tuple(sorted((*bad, *found.table.bad_rows)))
        return replace(found, table=replace(found.table, bad_rows=all_bad))


def _header(source: Source) -> tuple[str, list[str]]:
    """(delimiter, names of the fields); no names: the first line is not a header."""
    first = source.text[: 1 << 16].split("\n", 1)[0].strip()
    delimiter = next((d for d in _DELIMITERS if d in first), "|")
    names = [name.strip() for name in first.split(delimiter)]
    return delimiter, names if all(_FIELD.match(name) for name in names) else []


def _variables(fields: dict[str, str], columns: Sequence[str]) -> dict[str, tuple[object, object]]:
    if "perf_var" in fields:
        return {fields["perf_var"]: (fields["perf_value"], fields.get("perf_unit"))}
    return {name: (fields[name + _VALUE], fields.get(f"{name}_unit")) for name in columns}
