"""Readers of utilisation counters from Nsight Compute and DCGM.

Nsight Compute measures each kernel exactly, but slows the application down; DCGM samples the
application while it runs. Use the same tool for all applications that are compared.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import csv_records
from slurm_gpu_aware.variability.scores import Utilisation

_DRAM = re.compile(r"(gpu__)?dram_+throughput\.avg\.pct_of_peak_sustained_elapsed\Z")
# Arithmetic pipes; lsu, tex, adu, cbu, ipa and uniform move data or control the flow.
_UNIT = re.compile(
    r"sm__(inst_executed_pipe|pipe)_(?P<pipe>(alu|fma|fp16|fp32|fp64|xu|tensor)\w*?)"
    r"(_cycles_active)?\.avg\.pct_of_peak_sustained_(active|elapsed)\Z"
)
_TIME = "gpu__time_duration.sum"
_LONG = {"Metric Name", "Metric Value"}
_NS = {"n": 1.0, "u": 1e3, "m": 1e6, "s": 1e9}
_UNITS_OF_TIME = re.compile(r"(?P<prefix>[num]?)s(ec(ond)?s?)?\Z")

_DCGM_UNITS = frozenset({"TENSO", "FP64A", "FP32A", "FP16A"})
"""dmon's column names of fields 1004, 1006, 1007, 1008."""
Kernel = dict[str, float | None]
"""Our name of a metric -> value in percent or ns; None: ncu could not measure it (n/a)."""
_Metric = tuple[object, str, str, str]  # Kernel, name, unit, value.


def read_ncu(lines: Iterable[str]) -> Utilisation:
    """Utilisation of an application from both layouts of ``ncu --csv``.

    The layouts have one row per metric (``Metric Name``, ``Metric Unit``, ``Metric Value``) or one
    row per kernel with a column per metric and a row of units (``--page raw``). Lines before the
    header are skipped. Kernels are weighted by duration if ``gpu__time_duration.sum`` was
    collected, else equally. Several tables in a file are several runs; the kernels of all runs
    count. A metric that a kernel lacks is 0, unless its whole table lacks it; ``n/a`` is left out.

    Raises SourceError if the table, the DRAM metric or every functional unit metric is missing,
    or a value is not a number.
    """
    printed = (line for line in lines if not line.startswith("=="))
    rows = [row for _, row in csv_records(printed, strict=False) if row]
    tables: list[tuple[list[str], list[list[str]]]] = []
    for row in rows:
        if _is_header(row, tables[-1][0] if tables else None):
            tables.append((row, []))
        elif tables:
            tables[-1][1].append(row)
    if not tables:
        raise SourceError("no Nsight Compute table: expected the output of 'ncu --csv --metrics'")
    kernels: list[Kernel] = []
    for header, own in tables:
        # The application's own output lies between the rows.
        rows = [row for row in own if len(row) == len(header)]
        found: dict[object, Kernel] = {}
        for which, name, unit, value in (_long if set(header) >= _LONG else _wide)(header, rows):
            _take(found.setdefault(which, {}), name, value, unit)
        # 0 for metrics that only other kernels of the table have.
        zeros = dict.fromkeys(
            (name for one in found.values() for name in one if name != _TIME), 0.0
        )
        kernels += [{**zeros, **one} for one in found.values()]
    return _average(kernels)


def _is_header(row: Sequence[str], before: Sequence[str] | None) -> bool:
    """Say whether a table begins here. ``before``: header of the table before this row."""
    if set(row) >= _LONG:
        return True
    if before is not None and set(before) >= _LONG and len(row) == len(before):
        return False  # a row of the long layout also names metrics
    return any(_DRAM.match(name) or _UNIT.match(name) for name in row)


def is_dcgm(lines: Iterable[str]) -> bool:
    """Say whether the lines have the header of ``dcgmi dmon``."""
    return any(re.match(r"\s*#?\s*Entity\s", line) for line in lines)


def read_dcgm(lines: Iterable[str]) -> Utilisation:
    """Utilisation of an application from ``dcgmi dmon -e 1002,1004,1005,1006,1007,1008``.

    Averages over all samples and GPUs. ``N/A`` values and samples without SM activity (field 1002,
    if collected), which lie before or after the application, are left out.

    Raises SourceError if there is no header, no DRAM column (DRAMA, field 1005), no functional
    unit column, or no sample.
    """
    columns: list[str] = []
    sums: dict[str, list[float]] = {}
    idle = False
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and words[0].lstrip("#") in ("Entity", ""):
            columns = [w for w in words if w.lstrip("#") not in ("", "Entity")]
        elif len(words) > 2 and words[0] in ("GPU", "GPU-I", "GPU-CI") and columns:
            values = words[-len(columns) :]
            if len(words) < len(columns) + 2:
                raise SourceError(f"line {number}: expected {len(columns)} values: {line.strip()}")
            sample = {
                column: _float(f"line {number}", value)
                for column, value in zip(columns, values, strict=True)
                if value not in ("N/A", "-")
            }
            if sample.get("SMACT") == 0.0:
                idle = True
                continue
            for name, value in sample.items():
                if value < 2.0**47:  # DCGM's blank values are 2^47 and slightly above
                    sums.setdefault(name, []).append(value)
    if not columns:
        raise SourceError("no DCGM table: expected the output of 'dcgmi dmon -e 1002,1004,...'")
    if idle and not sums:
        raise SourceError("no GPU was busy in any sample: did the application use these GPUs?")
    if "DRAMA" not in sums:
        raise SourceError("no DRAM activity: collect field 1005 (DRAMA)")
    units = [fmean(sums[name]) for name in sums if name in _DCGM_UNITS]
    if not units:
        raise SourceError("no functional unit: collect fields 1004, 1006, 1007, 1008")
    return _utilisation(100.0 * fmean(sums["DRAMA"]), 100.0 * max(units))


def _long(header: list[str], rows: list[list[str]]) -> Iterator[_Metric]:
    for row in (dict(zip(header, row, strict=True)) for row in rows):
        kernel = row.get("Process ID"), row.get("ID")
        yield kernel, row["Metric Name"], row.get("Metric Unit", ""), row["Metric Value"]


def _wide(header: list[str], rows: list[list[str]]) -> Iterator[_Metric]:
    units = [""] * len(header)
    for number, row in enumerate(rows):
        if "ID" in header and not row[header.index("ID")].strip():
            units = row
            continue
        for name, unit, value in zip(header, units, row, strict=True):
            yield number, name, unit, value


def _take(kernel: Kernel, name: str, value: str, unit: str) -> None:
    """Store a metric that we use; ignore the others."""
    if name == _TIME:
        match = _UNITS_OF_TIME.match(unit.strip() or "ns")
        if match is None:
            raise SourceError(f"{name}: unknown unit {unit!r}")
        took = _ncu_number(name, value)
        kernel[_TIME] = None if took is None else took * _NS[match["prefix"] or "s"]
    elif _DRAM.match(name):
        kernel["dram"] = _ncu_number(name, value)
    elif unit_match := _UNIT.match(name):
        pipe = unit_match["pipe"]
        both = kernel.get(pipe), _ncu_number(name, value)  # instructions and cycles of one pipe
        kernel[pipe] = max((number for number in both if number is not None), default=None)


def _average(kernels: Sequence[Kernel]) -> Utilisation:
    names = {name for k in kernels for name, value in k.items() if value is not None} - {_TIME}
    if "dram" not in names:
        raise SourceError(
            "no value of dram__throughput.avg.pct_of_peak_sustained_elapsed in the table"
        )
    if names == {"dram"}:
        raise SourceError(
            "no functional unit in the table: collect"
            " regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active"
        )
    timed = all(k.get(_TIME) is not None for k in kernels)

    def mean(name: str) -> float:
        known = [k for k in kernels if k.get(name) is not None]
        weights = [k[_TIME] or 0.0 if timed else 1.0 for k in known]
        values = [k[name] or 0.0 for k in known]
        return fmean(values, weights if math.fsum(weights) > 0.0 else None)

    return _utilisation(mean("dram"), max(mean(name) for name in names - {"dram"}))


def _utilisation(dram: float, peak_fu: float) -> Utilisation:
    # Counters of several passes can slightly exceed their peak.
    for name, value in (("DRAM", dram), ("functional unit", peak_fu)):
        if not 0.0 <= value <= 110.0:
            raise SourceError(f"{name} utilisation of {value:.3g}% is not possible")
    return Utilisation(min(dram, 100.0), min(peak_fu, 100.0))


def _ncu_number(name: str, text: str) -> float | None:
    """A number in any locale of ncu: ``1,234.5``, ``12,345``, ``9,00``. None: ``n/a``."""
    plain = text.strip()
    if plain.lower() == "n/a":
        return None
    if "," in plain:
        head, _, tail = plain.rpartition(",")
        decimal_comma = "." not in plain and "," not in head and len(tail) != 3
        plain = f"{head}.{tail}" if decimal_comma else plain.replace(",", "")
    value = _float(name, plain)
    if not math.isfinite(value):
        raise SourceError(f"{name}: {text!r} is not a number")
    return value


def _float(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SourceError(f"{where}: {text!r} is not a number") from None
