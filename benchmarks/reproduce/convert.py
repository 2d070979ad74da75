"""Published traces in formats of their own, as CSV that ``gpu-aware simulate`` reads.

    python benchmarks/reproduce/convert.py FILE > trace.csv

Alibaba's 2023 GPU-sharing trace (Weng et al., USENIX ATC 2023), as published (openb_pod_list_*.csv)
or with the columns job_id, submit_s, end_s, duration_s, num_gpu, gpu_milli (share of one GPU in
thousandths), phase. Only whole GPUs are
allocated: tasks without a GPU or with a share of one, tasks that never started, and tasks that the
end of the trace cuts off are counted on stderr and left out.

Job files of MAPA (Ranganath et al., SC'21), without a header: GPUs, pattern, arrival, service time,
bandwidth sensitive (0 or 1), task.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_gpu_aware.text_file import read_table, read_text

__all__ = ["convert"]

COLUMNS = ("job_id", "submit_s", "gpus", "duration_s", "bw", "pattern", "model")
ALIBABA = (
    {"job_id", "submit_s", "end_s", "duration_s", "num_gpu", "gpu_milli", "phase"},
    {"name", "num_gpu", "gpu_milli", "pod_phase"}
    | {f"{what}_time" for what in ("creation", "deletion", "scheduled")},
)
WHOLE = "1000"
"""``gpu_milli`` of a whole GPU."""


def alibaba(text: str, name: str, left_out: Counter[str]) -> Iterator[tuple[object, ...]]:
    """Rows of finished jobs on whole GPUs."""
    rows = [as_published(row.cells) for row in read_table(name, text).rows]
    last_end = max(float(row["end_s"]) for row in rows if row["end_s"])
    for row in rows:
        if reason := unusable(row, last_end):
            left_out[reason] += 1
        else:
            yield row["job_id"], row["submit_s"], row["num_gpu"], row["duration_s"], "", "", ""


def as_published(row: Mapping[str, str]) -> Mapping[str, str]:
    """A row with the columns of this module, of one with those that Alibaba publishes."""
    if "pod_phase" not in row:
        return row
    start, end = row["scheduled_time"], row["deletion_time"]
    return {
        "job_id": row["name"],
        "submit_s": row["creation_time"],
        "end_s": end,
        "duration_s": str(float(end) - float(start)) if start and end else "",
        "num_gpu": row["num_gpu"],
        "gpu_milli": row["gpu_milli"],
        "phase": row["pod_phase"],
    }


def unusable(row: Mapping[str, str], last_end: float) -> str:
    """Why a task of Alibaba's trace cannot be replayed as a job; empty: it can."""
    if row["num_gpu"] == "0":
        return "no GPU"
    if not row["duration_s"]:
        return "never started"
    if row["num_gpu"] == "1" and row["gpu_milli"] != WHOLE:
        return "a share of one GPU"
    if row["phase"] == "Running" and float(row["end_s"]) >= last_end:
        return "still running at the end of the trace"
    return ""


def mapa(text: str) -> Iterator[tuple[object, ...]]:
    """Rows of a job file of MAPA; jobs are numbered from 0 by their line."""
    for number, line in enumerate(filter(str.strip, text.splitlines())):
        gpus, pattern, arrival, service, sensitive, *task = map(str.strip, line.split(","))
        if pattern == "star":
            pattern = ",".join(f"0-{i}" for i in range(1, int(gpus))) or "none"
        pattern = "all-to-all" if pattern == "clique" else pattern
        bw = "high" if sensitive == "1" else "low"
        yield number, arrival, gpus, service, bw, pattern, *(task or [""])


def convert(file: Path, left_out: Counter[str]) -> Iterator[tuple[object, ...]]:
    """Rows in the order of ``COLUMNS``; ``left_out`` counts the other tasks by reason."""
    text = read_text(file)
    columns = {word.strip() for word in text.split("\n", 1)[0].split(",")}
    if any(columns >= wanted for wanted in ALIBABA):
        return alibaba(text, file.name, left_out)
    if re.match(r"\s*\d+\s*,\s*[\w-]+\s*,[^,\n]+,[^,\n]+,\s*[01]\s*(,|$)", text, re.M):
        return mapa(text)
    raise SystemExit(f"{file.name}: neither Alibaba's trace of 2023 nor a job file of MAPA")


def main() -> None:
    left_out: Counter[str] = Counter()
    rows = convert(Path(sys.argv[1]), left_out)
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    out.writerows(rows)
    for reason, count in left_out.items():
        print(f"{count} tasks left out: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
