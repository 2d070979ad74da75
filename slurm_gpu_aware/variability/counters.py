"""Utilisation counters of an application, from Nsight Compute and from DCGM.

What to run::

    ncu --csv --metrics gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,\\
    regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active APP > app.csv
    dcgmi dmon -e 1002,1004,1005,1006,1007,1008 -d 1000 > app.txt      # beside the running APP

Nsight Compute sees each kernel and is exact, but slows the application down; DCGM samples it
while it runs. Use one of them for all applications that are to be compared.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.variability.classes import Utilisation

__all__ = ["is_dcgm", "read_dcgm", "read_ncu"]

_DRAM = re.compile(r"(gpu__)?dram_+throughput\.avg\.pct_of_peak_sustained_elapsed\Z")
# Arithmetic pipes; lsu, tex, adu, cbu, ipa and uniform move data or control the flow.
_UNIT = re.compile(
    r"sm__(inst_executed_pipe|pipe)_(?P<pipe>(alu|fma|fp16|fp32|fp64|xu|tensor)\w*?)"
    r"(_cycles_active)?\.avg\.pct_of_peak_sustained_(active|elapsed)\Z"
)
_TIME = "gpu__time_duration.sum"
_NS = {"n": 1.0, "u": 1e3, "m": 1e6, "s": 1e9}
_UNITS_OF_TIME = re.compile(r"(?P<prefix>[num]?)s(ec(ond)?s?)?\Z")

_DCGM_UNITS = frozenset({"TENSO", "FP64A", "FP32A", "FP16A"})
"""dmon's column names of fields 1004, 1006, 1007, 1008."""


def read_ncu(lines: Iterable[str]) -> Utilisation:
    """Utilisation of an application from ``ncu --csv``, both of its layouts.

    One row per metric (``Metric Name``, ``Metric Unit``, ``Metric Value``) or one row per kernel
    with a column per metric and a row of units (``--page raw``). Lines before the header (the
    application's output, ``==PROF==``) are skipped. Kernels are weighted by their duration if
    ``gpu__time_duration.sum`` was collected, else equally.

    Raises SourceError if the table, the DRAM metric or every functional unit metric is missing,
    or a value is not a number.
    """
    rows = [row for row in csv.reader(line for line in lines if not line.startswith("==")) if row]
    for i, header in enumerate(rows):
        if "Metric Name" in header and "Metric Value" in header:
            kernels = _long(header, rows[i + 1 :])
            break
        if any(_DRAM.match(name) or _UNIT.match(name) for name in header):
            kernels = _wide(header, rows[i + 1 :])
            break
    else:
        raise SourceError("no Nsight Compute table: expected the output of 'ncu --csv --metrics'")
    return _average(kernels)


def is_dcgm(lines: Iterable[str]) -> bool:
    """Whether this is a table of ``dcgmi dmon``, by its header."""
    return any(re.match(r"\s*#?\s*Entity\s", line) for line in lines)


def read_dcgm(lines: Iterable[str]) -> Utilisation:
    """Utilisation of an application from ``dcgmi dmon -e 1002,1004,1005,1006,1007,1008``.

    Averages over all samples and GPUs; samples without SM activity (field 1002, if it is there)
    are from before or after the application and left out, and so are ``N/A`` values.

    Raises SourceError if there is no header, no DRAM column (DRAMA, field 1005), no functional
    unit column, or no sample.
    """
    columns: list[str] = []
    sums: dict[str, list[float]] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and words[0].lstrip("#") in ("Entity", ""):
            columns = [w for w in words if w.lstrip("#") not in ("", "Entity")]
        elif len(words) > 2 and words[0] in ("GPU", "GPU-I", "GPU-CI") and columns:
            values = words[-len(columns) :]
            if len(words) < len(columns) + 2:
                raise SourceError(f"line {number}: expected {len(columns)} values: {line.strip()}")
            sample = {c: _number(v, number) for c, v in zip(columns, values, strict=True)}
            if sample.get("SMACT") == 0.0:
                continue
            for name, value in sample.items():
                if value is not None:
                    sums.setdefault(name, []).append(value)
    if not columns:
        raise SourceError("no DCGM table: expected the output of 'dcgmi dmon -e 1002,1004,...'")
    if "DRAMA" not in sums:
        raise SourceError("no DRAM activity: collect field 1005 (DRAMA)")
    units = [_mean(sums[name]) for name in sums if name in _DCGM_UNITS]
    if not units:
        raise SourceError("no functional unit: collect fields 1004, 1006, 1007, 1008")
    return _utilisation(100.0 * _mean(sums["DRAMA"]), 100.0 * max(units))


Kernel = dict[str, float]


def _long(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Kernel]:
    name_at, value_at = header.index("Metric Name"), header.index("Metric Value")
    unit_at = header.index("Metric Unit") if "Metric Unit" in header else None
    id_at = header.index("ID") if "ID" in header else None
    kernels: dict[str, Kernel] = {}
    for row in rows:
        if len(row) != len(header):
            continue  # the application's own output
        unit = row[unit_at] if unit_at is not None else ""
        kernel = kernels.setdefault(row[id_at] if id_at is not None else "", {})
        _take(kernel, row[name_at], row[value_at], unit)
    return list(kernels.values())


def _wide(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Kernel]:
    units: Sequence[str] = [""] * len(header)
    kernels: list[Kernel] = []
    for row in rows:
        if len(row) != len(header):
            continue
        if "ID" in header and not row[header.index("ID")].strip():
            units = row
            continue
        kernel: Kernel = {}
        for name, value, unit in zip(header, row, units, strict=True):
            _take(kernel, name, value, unit)
        kernels.append(kernel)
    return kernels


def _take(kernel: Kernel, name: str, value: str, unit: str) -> None:
    """Store a metric that we use, in percent or nanoseconds; ignore the others."""
    if name == _TIME:
        match = _UNITS_OF_TIME.match(unit.strip() or "ns")
        if match is None:
            raise SourceError(f"{name}: unknown unit {unit!r}")
        kernel[_TIME] = _ncu_number(name, value) * _NS[match["prefix"] or "s"]
    elif _DRAM.match(name):
        kernel["dram"] = _ncu_number(name, value)
    elif unit_match := _UNIT.match(name):
        pipe = unit_match["pipe"]
        kernel[pipe] = max(kernel.get(pipe, 0.0), _ncu_number(name, value))


def _average(kernels: Sequence[Kernel]) -> Utilisation:
    if not any("dram" in k for k in kernels):
        raise SourceError("no dram__throughput.avg.pct_of_peak_sustained_elapsed in the table")
    pipes = {name for k in kernels for name in k} - {"dram", _TIME}
    if not pipes:
        raise SourceError(
            "no functional unit in the table: collect"
            " regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active"
        )
    timed = all(_TIME in k for k in kernels)
    weights = [k[_TIME] if timed else 1.0 for k in kernels]
    total = math.fsum(weights)
    if total <= 0.0:
        weights, total = [1.0] * len(kernels), float(len(kernels))

    def mean(name: str) -> float:
        parts = (w * k.get(name, 0.0) for w, k in zip(weights, kernels, strict=True))
        return math.fsum(parts) / total

    return _utilisation(mean("dram"), max(mean(pipe) for pipe in pipes))


def _utilisation(dram: float, peak_fu: float) -> Utilisation:
    # Counters of several passes can exceed their peak by a little.
    for name, value in (("DRAM", dram), ("functional unit", peak_fu)):
        if not 0.0 <= value <= 110.0:
            raise SourceError(f"{name} utilisation of {value:.3g}% is not possible")
    return Utilisation(min(dram, 100.0), min(peak_fu, 100.0))


def _ncu_number(name: str, text: str) -> float:
    """ncu prints by locale: ``1,234.5``, ``12,345`` and ``9,00`` all occur."""
    plain = text.strip()
    if "," in plain:
        head, _, tail = plain.rpartition(",")
        decimal_comma = "." not in plain and "," not in head and len(tail) != 3
        plain = f"{head}.{tail}" if decimal_comma else plain.replace(",", "")
    try:
        value = float(plain)
    except ValueError:
        raise SourceError(f"{name}: {text!r} is not a number") from None
    if not math.isfinite(value):
        raise SourceError(f"{name}: {text!r} is not a number")
    return value


def _number(text: str, line: int) -> float | None:
    if text in ("N/A", "-"):
        return None
    try:
        value = float(text)
    except ValueError:
        raise SourceError(f"line {line}: {text!r} is not a number") from None
    # DCGM's blank values are 2^47 and a little above.
    return value if math.isfinite(value) and value < 2.0**47 else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
