"""Published traces in formats of their own, as CSV that ``gpu-aware simulate`` reads.

    python benchmarks/reproduce/convert.py FILE > trace.csv

Alibaba's 2023 GPU-sharing trace (Weng et al., USENIX ATC 2023): the openb_pod_list_*.csv that
Alibaba publishes (name, num_gpu, gpu_milli, the share of one GPU in thousandths, pod_phase,
creation_time, deletion_time, scheduled_time), or the same as job_id, submit_s, end_s, duration_s,
num_gpu, gpu_milli, phase. Only whole GPUs are allocated: tasks without a GPU or with a share of
one, tasks that never started, and those that the end of the trace cuts off are counted and left
out.

Job files of MAPA (Ranganath et al., SC'21), without a header: GPUs, pattern, arrival, service time,
bandwidth sensitive (0 or 1), task.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import Row, Table, read_table, read_text

__all__ = ["convert"]

COLUMNS = ("job_id", "submit_s", "gpus", "duration_s", "bw", "pattern", "model")
WHOLE = "1000"
"""``gpu_milli`` of a whole GPU."""
PODS = (
    *("name", "num_gpu", "gpu_milli", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
TASKS = ("job_id", "submit_s", "end_s", "duration_s", "num_gpu", "gpu_milli", "phase")
MAPA = re.compile(
    r"(\d{1,3})\s*,\s*([A-Za-z][\w-]{0,40})\s*,\s*(\d[\d.]{0,30})\s*,\s*(\d[\d.]{0,30})\s*,\s*([01])"
    r"\s*(?:,\s*([^,]{0,100}))?"
)
"""A line of a job file."""


class Task(NamedTuple):
    """A task of Alibaba's trace."""

    name: str
    submit: str
    end_s: float | None
    duration: str
    """Units: s; empty: it never started."""
    gpus: str
    milli: str
    phase: str


def alibaba(table: Table, left_out: Counter[str]) -> Iterator[tuple[object, ...]]:
    """Rows of finished jobs on whole GPUs. Raises SourceError."""
    table.require(*(PODS if "pod_phase" in table.columns else TASKS))
    tasks = table.parse_all(task_of)
    last_end = max((task.end_s for task in tasks if task.end_s is not None), default=0.0)
    for task in tasks:
        if reason := unusable(task, last_end):
            left_out[reason] += 1
        else:
            yield task.name, task.submit, task.gpus, task.duration, "", "", ""


def task_of(row: Row) -> Task:
    """A task of either form. Raises ValueError."""
    pod = "pod_phase" in row.cells
    submit, end = ("creation_time", "deletion_time") if pod else ("submit_s", "end_s")
    row.number(submit)
    row.count("num_gpu")
    end_s = row.number(end) if row.cells[end] else None
    if not pod:
        duration = row.cells["duration_s"] and f"{row.number('duration_s'):.15g}"
    elif end_s is None or not row.cells["scheduled_time"]:
        duration = ""
    else:
        duration = f"{end_s - row.number('scheduled_time'):.15g}"
    cells = row.cells
    name, phase = (cells["name"], cells["pod_phase"]) if pod else (cells["job_id"], cells["phase"])
    return Task(name, cells[submit], end_s, duration, cells["num_gpu"], cells["gpu_milli"], phase)


def unusable(task: Task, last_end: float) -> str:
    """Why a task of Alibaba's trace cannot be replayed as a job; empty: it can."""
    if task.gpus == "0":
        return "no GPU"
    if not task.duration:
        return "never started"
    if task.gpus == "1" and task.milli != WHOLE:
        return "a share of one GPU"
    if task.phase == "Running" and task.end_s is not None and task.end_s >= last_end:
        return "still running at the end of the trace"
    return ""


def mapa(text: str, name: str) -> Iterator[tuple[object, ...]]:
    """Rows of a job file of MAPA; jobs are numbered from 0 by their line. Raises SourceError."""
    for number, line in enumerate(filter(str.strip, text.splitlines())):
        match = MAPA.fullmatch(line.strip())
        if match is None:
            raise SourceError(
                f"{name}: line {number + 1}: neither Alibaba's trace of 2023 (columns"
                f" {','.join(PODS)}) nor a job file of MAPA (GPUs, pattern, arrival, service time,"
                " 0 or 1, task)"
            )
        gpus, pattern, arrival, service, sensitive, task = match.groups(default="")
        if pattern == "star":
            pattern = ",".join(f"0-{i}" for i in range(1, int(gpus))) or "none"
        pattern = "all-to-all" if pattern == "clique" else pattern
        bw = "high" if sensitive == "1" else "low"
        yield number, arrival, gpus, service, bw, pattern, task


def convert(file: Path, left_out: Counter[str]) -> Iterator[tuple[object, ...]]:
    """Rows in the order of ``COLUMNS``; ``left_out`` counts the other tasks by reason.

    Raises SourceError if the file is neither trace.
    """
    text = read_text(file)
    header = {cell.strip() for cell in text.partition("\n")[0].split(",")}
    if header & {"pod_phase", "gpu_milli"}:
        return alibaba(read_table(file.name, text), left_out)
    return mapa(text, file.name)


def main() -> None:
    left_out: Counter[str] = Counter()
    out = csv.writer(sys.stdout)
    try:
        rows = list(convert(Path(sys.argv[1]), left_out))
    except SourceError as exc:
        sys.exit(f"Error: {exc}")
    out.writerow(COLUMNS)
    out.writerows(rows)
    for reason, count in left_out.items():
        print(f"{count} tasks left out: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
