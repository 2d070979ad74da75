"""JSON reports of ReFrame (``--report-file``): all test cases of a session with their values.

The layout is that of ``reframe/schemas/runreport.json`` of ReFrame 4: a performance variable is
named ``system:partition:NAME`` and has value, reference, two thresholds, unit and verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_aware_profile.imports.formats import reframe
from gpu_aware_profile.imports.formats.reader import Measured, ReadOptions, Source, objects

__all__ = ["ReframeReport"]

_UNIT_AT = 4
"""Place of the unit in the list of a performance variable."""


class ReframeReport:
    """Reader of the report of one session."""

    name = "reframe-report"

    def matches(self, source: Source) -> bool:
        """Say whether a file is a report of ReFrame."""
        content = source.content
        return isinstance(content, Mapping) and {"session_info", "runs"} <= content.keys()

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read all test cases that have the wanted variables. Raises SourceError."""
        results = [
            reframe.TestResult(number, case, dict(_variables(case)))
            for number, case in enumerate(_cases(source.content), 1)
        ]
        return reframe.measured(source, results, options, "test case")


def _cases(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for run in objects(content.get("runs")):
        yield from objects(run.get("testcases"))


def _variables(case: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    values = case.get("perfvalues")
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, list) and len(value) > _UNIT_AT:
            yield name.rpartition(":")[2], (value[0], value[_UNIT_AT])
