"""Results of ``dcgmi diag -r 3 -v -j``: rates of a GPU in the tests that report one.

The layout is that of ``dcgmi/Diag.cpp`` of DCGM 2.4 to 4.6: test categories, their tests, and one
result per GPU. The rate stands in the texts of the result's ``info``, which only ``-v`` collects.
The file names neither the node nor the GPUs: their numbers are those of DCGM, in PCI order.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_aware_profile.imports.formats.reader import (
    TIMING_COLUMNS,
    Measured,
    ReadOptions,
    Source,
    as_time_ms,
    node_of,
    number_of,
    objects,
    read_rows,
    row_of,
)
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import Row

_TITLES = ("DCGM Diagnostic", "DCGM GPU Diagnostic")  # Of DCGM 4, and before.
_NOT_RUN = ("skip", "not_run")
_STRESS = re.compile(r"GPU (?P<gpu>\d+) relative stress level:?\s+(?P<rate>[\d.]{1,32})")
_RATES = {
    "diagnostic": re.compile(
        r"GPU (?P<gpu>\d+) calculated at approximately (?P<rate>[\d.]{1,32}) gigaflops"
    ),
    "targeted_stress": _STRESS,
    "sm_stress": _STRESS,
}
"""Test -> the text with its rate."""


def matches(source: Source) -> bool:
    """Whether a file is a report of ``dcgmi diag``, of one or of several iterations."""
    content = source.content
    return isinstance(content, Mapping) and bool(list(_reports(content)))


def read(source: Source, options: ReadOptions) -> Measured:
    """Read the rates of the test ``options.value``; several iterations are repeated runs."""
    wanted = _word(options.value or "diagnostic")
    if wanted not in _RATES:
        raise SourceError(f"no test with a rate is {quoted(options.value)}; {_known()}")
    node = node_of(source, options)

    def row(number: int, result: Mapping[str, Any]) -> Row:
        gpu, rate = _rate(result, wanted)
        return row_of(TIMING_COLUMNS, number, f"nvml:{gpu}", node, repr(as_time_ms(rate)), "")

    results = list(enumerate(_results(source.content, wanted), 1))
    done = [one for one in results if _word(one[1].get("status")) not in _NOT_RUN]
    table = read_rows(source, TIMING_COLUMNS, done, row, "result")
    if not results:
        errors = (one.get("runtime_error") for one in _reports(source.content))
        why = next((f"dcgmi diag failed: {quoted(error)}" for error in errors if error), None)
        why = why or f"no result of the test {wanted} (of dcgmi diag -r 3); {_known()}"
        raise SourceError(f"{source.name}: {why}")
    left_out = (f"{wanted}, which dcgmi diag has skipped",) * (len(results) - len(done))
    return Measured(table, rate="gigaflops", left_out=left_out)


def _known() -> str:
    return f"--value takes {', '.join(_RATES)}"


def _word(name: object) -> str:
    """DCGM 3 prints ``Targeted Stress``, DCGM 4 ``targeted_stress``."""
    return str(name).strip().lower().replace(" ", "_")


def _reports(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The report of each iteration (``--iterations``)."""
    for one in (content, *objects(content.get("iterations"))):
        for title in _TITLES:
            if isinstance(one.get(title), Mapping):
                yield one[title]


def _results(content: Mapping[str, Any], wanted: str) -> Iterator[Mapping[str, Any]]:
    for report in _reports(content):
        for category in objects(report.get("test_categories")):
            for test in objects(category.get("tests")):
                if _word(test.get("name")) == wanted:
                    results = objects(test.get("results"))
                    yield from (r for r in results if r.get("entity_group", "GPU") == "GPU")


def _rate(result: Mapping[str, Any], test: str) -> tuple[int, float]:
    """(DCGM's number of the GPU, its rate). Raises ValueError."""
    said = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids")))
    if not re.fullmatch(r"\d{1,3}", str(said)):
        raise ValueError(f"{quoted(said)} is not the number of one GPU")
    gpu, status = int(str(said)), result.get("status")
    if str(status).lower() != "pass":
        why = next((w.get("warning") for w in objects(result.get("warnings"))), None)
        reason = f": {quoted(why)}" if why else ""
        raise ValueError(f"GPU {gpu}: the result of {test} is {quoted(status)}{reason}")
    info = result.get("info")
    texts = [text for text in (info if isinstance(info, list) else [info]) if isinstance(text, str)]
    for match in (m for text in texts for m in _RATES[test].finditer(text[:4096])):
        if int(match["gpu"][:4]) == gpu:
            return gpu, number_of(match["rate"], f"the rate of GPU {gpu}")
    raise ValueError(f"GPU {gpu}: no rate in its info; run dcgmi diag with -v")
