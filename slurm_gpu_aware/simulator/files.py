"""Result folder: a summary, and per policy the jobs and the GPUs in use over time."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.simulator.result import Mask, Result, ended_in_all
from slurm_gpu_aware.text_file import parse_json, read_table, read_text

_SUMMARY = "summary.json"
_NUMBERS = ("submit_s", "gpus", "start_s", "end_s", "wait_s", "jct_s", "run_s", "slowdown")
_MOST = 1e12  # Limit of any number in these files: a hundred times the longest time of a trace.
_COUNTS = ("preemptions", "migrations", "killed")
_COLUMNS = ("job_id", *_NUMBERS, "class", "model", *_COUNTS, "user")
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Errors of reading or drawing a folder with altered or truncated files."""


@dataclass(frozen=True, eq=False)
class SavedRun:
    """One policy of a result folder."""

    label: str
    app_class: tuple[str, ...]  # Class of each job that ended in every run of the folder.
    columns: Mapping[str, FloatArray]  # ``_NUMBERS`` of these jobs.
    used_s: FloatArray
    used_gpus: FloatArray
    power_s: FloatArray  # Times at which the power changed; empty: it is not known.
    power_w: FloatArray


def save_results(folder: Path, head: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Write ``head`` as ``summary.json``, and each run's CSV files. Raises SourceError."""
    summary = json.loads(json.dumps(head))
    names: list[str] = []
    compared = ended_in_all(results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry, result in zip(summary["runs"], results, strict=True):
            name = _file_name(str(entry["policy"]), names)
            entry["files"] = {"jobs": f"jobs-{name}.csv", "gpus": f"gpus-{name}.csv"}
            _write(folder / f"jobs-{name}.csv", _job_rows(result, compared))
            changed = np.diff(result.used_gpus, prepend=-1) != 0
            used = zip(result.used_s[changed].tolist(), result.used_gpus[changed], strict=True)
            rows = ((f"{time:.3f}", gpus) for time, gpus in used)
            _write(folder / f"gpus-{name}.csv", [("time_s", "gpus_in_use"), *rows])
            if (energy := result.energy) is not None and energy.whole:
                entry["files"]["power"] = f"power-{name}.csv"
                drawn = zip(energy.at_s.tolist(), energy.power_w.tolist(), strict=True)
                rows = ((f"{time:.3f}", f"{watts:.1f}") for time, watts in drawn)
                _write(folder / f"power-{name}.csv", [("time_s", "power_w"), *rows])
        (folder / _SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    except OSError as exc:
        raise SourceError(f"{folder}: cannot be written: {exc.strerror}") from None


def _file_name(policy: str, taken: list[str]) -> str:
    base = name = re.sub(r"[^A-Za-z0-9+_.-]", "_", policy)
    number = 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    taken.append(name)
    return name


def _write(path: Path, rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)


def _job_rows(result: Result, compared: Mask) -> Iterator[Sequence[object]]:
    """Every job, with empty times if it did not end; ``compared``: it ended in every run."""
    reasons = dict(result.infeasible)
    energy = None if result.energy is None else result.energy.job_kwh
    yield [*_COLUMNS, "compared", "infeasible", *([] if energy is None else ["energy_kwh"])]
    for i, job in enumerate(result.trace.jobs):
        start, end = float(result.start_s[i]), float(result.end_s[i])
        times = [""] * 6
        if math.isfinite(end):
            run = float(result.run_s[i])
            seconds = (start, end, start - job.submit_s, end - job.submit_s, run)
            times = [*(f"{s:.3f}" for s in seconds), f"{run / job.duration_s:.5f}"]
        row = [job.job_id, f"{job.submit_s:.3f}", job.gpus, *times, job.app_class, job.model]
        counts = (int(getattr(result, name)[i]) for name in _COUNTS)
        row += [*counts, job.user, int(compared[i]), reasons.get(job.job_id)]
        yield row if energy is None else [*row, f"{energy[i]:.6f}"]


def load_results(folder: Path) -> tuple[dict[str, Any], list[SavedRun]]:
    """Read a folder that :func:`save_results` wrote. Raises SourceError that names a bad file."""
    file = folder / _SUMMARY
    try:
        head = parse_json(read_text(file), file)
        runs = [_load_run(folder, entry) for entry in head["runs"]]
    except SourceError as exc:
        raise SourceError(
            f"{exc}; make the folder with: gpu-aware simulate ... --out DIR"
        ) from None
    except DAMAGE as exc:
        raise damaged(folder, exc) from None
    return head, runs


def damaged(folder: Path, exc: Exception) -> SourceError:
    """The error for a folder with invalid content, or without a field that is read today."""
    if isinstance(exc, KeyError):
        return SourceError(
            f"{folder}: {quoted(exc.args[0])} is missing: an older version wrote the folder, "
            "or it was altered; simulate again: gpu-aware simulate ... --out DIR"
        )
    return SourceError(
        f"{folder}: damaged ({exc}); simulate again: gpu-aware simulate ... --out DIR"
    )


def _load_run(folder: Path, entry: Mapping[str, Any]) -> SavedRun:
    files = {kind: folder / Path(name).name for kind, name in entry["files"].items()}
    jobs, used = (_rows_of(files[kind]) for kind in ("jobs", "gpus"))
    power = _rows_of(files["power"]) if "power" in files else []
    rows = [row for row in jobs if row["compared"] == "1"]
    return SavedRun(
        label=str(entry["policy"]),
        app_class=tuple(row["class"] for row in rows),
        columns={name: np.array([_finite(row[name]) for row in rows]) for name in _NUMBERS},
        used_s=np.array([_finite(row["time_s"]) for row in used]),
        used_gpus=np.array([_finite(row["gpus_in_use"]) for row in used]),
        power_s=np.array([_finite(row["time_s"]) for row in power]),
        power_w=np.array([_finite(row["power_w"]) for row in power]),
    )


def _rows_of(file: Path) -> list[Mapping[str, str]]:
    table = read_table(file)
    if table.bad_rows:
        raise ValueError(table.bad_rows[0])
    return [row.cells for row in table.rows]


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) <= _MOST:
        raise ValueError(f"{quoted(text)} is out of range")
    return value
