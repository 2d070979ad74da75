"""Quality and speed of the estimates of run times on recorded traces.

python benchmarks/estimates.py FILE...

A FILE is a trace as `gpu-aware simulate` takes it, or a log in the standard workload format (.swf)
of the Parallel Workloads Archive, where the executable stands for the job's name and the group for
the account. Each job is estimated at its recorded start from the runs that had ended by then. Its
error is |ln(estimate / run time)|, with times below a minute counted as one; 0.69 is a factor of 2.
The target: a median error of at most half that of the time limits.
"""

import argparse
import heapq
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_gpu_aware.features.estimates.history import JobKind, RunHistory
from slurm_gpu_aware.simulator.sacct_trace import read_trace
from slurm_gpu_aware.simulator.trace import TraceJob

SHORTEST_S = 60.0
Pair = tuple[float, float]
"""(estimate, run time)."""


def swf_jobs(path: Path) -> list[TraceJob]:
    """Jobs of a log in the standard workload format, which ran; -1 is "not known"."""
    jobs = []
    for line in path.read_text().splitlines():
        cells = line.split()
        if not cells or cells[0].startswith(";") or float(cells[3]) <= 0:
            continue
        used, wanted, limit = int(cells[4]), int(cells[7]), float(cells[8])
        jobs.append(
            TraceJob(
                cells[0],
                float(cells[1]),
                max(1, wanted if wanted > 0 else used),
                float(cells[3]),
                time_limit_s=limit if limit > 0 else math.inf,
                user=cells[11],
                account=cells[12] if cells[12] != "-1" else None,
                name=cells[13] if cells[13] != "-1" else None,
                recorded_start_s=float(cells[1]) + max(0.0, float(cells[2])),
            )
        )
    return jobs


def estimates(jobs: Sequence[TraceJob]) -> tuple[dict[str, list[Pair]], float]:
    """Source -> pairs, of jobs with a limit; and the seconds that it took per job."""
    history, ends = RunHistory(), list[tuple[float, int]]()
    pairs: dict[str, list[Pair]] = {}
    kinds = [
        JobKind(j.user or "", j.name or j.model or "", j.account or "", j.gpus, j.time_limit_s)
        for j in jobs
    ]
    start = [j.submit_s if j.recorded_start_s is None else j.recorded_start_s for j in jobs]
    began = time.perf_counter()
    for i in sorted(range(len(jobs)), key=start.__getitem__):
        while ends and ends[0][0] <= start[i]:
            _, ended = heapq.heappop(ends)
            run = jobs[ended].duration_s
            history.add(kinds[ended], run, cut_off=run >= jobs[ended].time_limit_s)
        estimate = history.estimate(kinds[i])
        heapq.heappush(ends, (start[i] + jobs[i].duration_s, i))
        if math.isfinite(jobs[i].time_limit_s):
            pairs.setdefault(estimate.source, []).append((estimate.seconds, jobs[i].duration_s))
    return pairs, (time.perf_counter() - began) / max(1, len(jobs))


def row(pairs: Sequence[Pair]) -> str:
    """Number, median and mean error, share that ended within the estimate."""
    errors = [abs(math.log(max(e, SHORTEST_S) / max(r, SHORTEST_S))) for e, r in pairs]
    within = sum(run <= estimate for estimate, run in pairs) / len(pairs)
    middle, mean = statistics.median(errors), statistics.fmean(errors)
    return f"{len(pairs):7d} jobs, error {middle:.3f} (mean {mean:.3f}), {within:.0%} within"


def main() -> None:
    """Print the figures of each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    for file in parser.parse_args().files:
        jobs = swf_jobs(file) if file.suffix == ".swf" else list(read_trace(file).jobs)
        pairs, each_s = estimates(jobs)
        print(f"{file.name}: {len(jobs)} jobs, {1e6 * each_s:.0f} us each")
        for source in sorted(pairs):
            print(f"  {source:10s} {row(pairs[source])}")
        every = [pair for some in pairs.values() for pair in some]
        if every:
            limits = [(j.time_limit_s, j.duration_s) for j in jobs if math.isfinite(j.time_limit_s)]
            print(f"  {'all':10s} {row(every)}")
            print(f"  {'limit only':10s} {row(limits)}")


if __name__ == "__main__":
    main()
