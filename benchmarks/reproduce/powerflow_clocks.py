"""PowerFlow against baselines that run at lower clocks, too, and what profiling of clocks costs.

Run ``python benchmarks/reproduce/powerflow_clocks.py [--quick] [--write]``: 3 minutes of CPU time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from common import arguments, finish, measured_data, paragraph, run, table
from powerflow import (
    AFS,
    GANDIVA,
    POWERFLOW,
    TIRESIAS,
    Bench,
    Count,
    Point,
    at_equal_energy,
    cell,
    jct_and_energy,
    limited,
    point,
    schedulers,
)
from powerflow_bench import NEEDED, Load, trace

from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

FULL = Count(seeds=3, etas=(0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 1.0))
QUICK = Count(1, (1.2,), (0.45, 0.7), 100)
BASELINES = (GANDIVA, TIRESIAS, AFS)
SHARES = (1.0, 0.85, 0.75, 0.65)
"""Clock of all jobs of a baseline, as a share of the highest one."""
PROFILED_CLOCKS, PROFILED_S = 4, 30.0
"""Each job first runs so long at so many clocks."""
PROFILED = f"{POWERFLOW}, clocks profiled"
Case = tuple[str, float]
"""Scheduler and its share of the clock, or its eta."""


def at_clock(jobs: Trace, share: float) -> Trace:
    """The jobs on GPUs whose highest clock is a share of what it is; their work stays."""
    return replace(jobs, jobs=tuple(_at_clock(job, share) for job in jobs.jobs))


def _at_clock(job: TraceJob, share: float) -> TraceJob:
    known = job.table
    row = None if known is None else known.row(job.gpus)
    if known is None or row is None:
        return job
    most = share * float(known.clocks_mhz[-1]) * (1 + 1e-9)
    kept = slice(0, max(int(np.searchsorted(known.clocks_mhz, most, side="right")), 1))
    columns = known.clocks_mhz[kept], known.time_s[:, kept], known.power_w[:, kept]
    lower = SizeTable(known.gpus, *columns, known.source)
    slower = lower.time_s[row, -1] / known.time_s[row, known.column(None)]
    return replace(job, duration_s=job.duration_s * float(slower), table=lower)


def profiled(jobs: Trace) -> Trace:
    """The jobs with the time in which their clocks are measured; none of it counts as work."""
    more_s = PROFILED_CLOCKS * PROFILED_S
    each = (replace(job, duration_s=job.duration_s + more_s) for job in jobs.jobs)
    return replace(jobs, jobs=tuple(each))


def points(bench: Bench, demand: float, count: Count) -> dict[Case, list[Point]]:
    """All runs of a demand: the point of each seed."""
    own, site = schedulers(bench.power, bench.known), bench.site(0, differ=False)
    cases: dict[tuple[str, float, int], Run] = {}
    for seed in range(count.seeds):
        jobs = trace(bench.data, bench.tables, Load(demand, count.jobs), seed)
        for share in SHARES:
            for name in BASELINES:
                lower = at_clock(jobs, share)
                cases[name, share, seed] = Run(lower, site.cluster, site.truth, own[name])
        for eta in count.etas:
            settings = limited(own[POWERFLOW], eta)
            for name, some in ((POWERFLOW, jobs), (PROFILED, profiled(jobs))):
                cases[name, eta, seed] = Run(some, site.cluster, site.truth, settings)
    results = run(f"demand {demand:g}", list(cases.values()), bench.processes)
    found: dict[Case, list[Point]] = {}
    for (name, at, _), result in zip(cases, results, strict=True):
        found.setdefault((name, at), []).append(point(result))
    return found


def ratios(found: Mapping[Case, Sequence[Point]], ours: str, theirs: Case) -> list[float | None]:
    """JCT of a baseline over that of ours with no more energy, for each seed."""
    runs = [own for (name, _), own in found.items() if name == ours]
    return [
        at_equal_energy([own[seed] for own in runs], of, lambda one: one.energy_kwh)
        for seed, of in enumerate(found[theirs])
    ]


def section(count: Count, bench: Bench) -> str:
    """Run everything; the section of the page."""
    found = {demand: points(bench, demand, count) for demand in count.demands}
    rows = [
        (
            name,
            f"{share:.0%}",
            *(
                text
                for of in found.values()
                for text in (
                    jct_and_energy(of[name, share]),
                    *(cell(ratios(of, ours, (name, share))) for ours in (POWERFLOW, PROFILED)),
                )
            ),
        )
        for name in BASELINES
        for share in SHARES
    ]
    heads = [
        f"demand {demand:g}: {what}"
        for demand in found
        for what in ("JCT, energy (of jobs)", "JCT / PowerFlow's", "with profiling")
    ]
    costs = [
        (
            f"{eta:g}",
            *(
                jct_and_energy(of[name, eta])
                for of in found.values()
                for name in (POWERFLOW, PROFILED)
            ),
        )
        for eta in count.etas
    ]
    cost_heads = [f"demand {demand:g}: {n}" for demand in found for n in (POWERFLOW, PROFILED)]
    return "\n\n".join(
        [
            "## PowerFlow: lower clocks and profiling",
            paragraph(
                f"Traces and cluster as [above](#powerflow), {count.seeds} seeds. All jobs of a"
                " baseline run at one clock, a share of the highest one, as in the paper's Fig. 7:"
                " average JCT and energy, and the JCT over that of PowerFlow with the best eta that"
                " needs no more energy (geometric mean and range over seeds). Then the same against"
                f" PowerFlow whose jobs first run {PROFILED_S:g} s at each of {PROFILED_CLOCKS}"
                " clocks, which counts as no work."
            ),
            table(["baseline", "clock", *heads], rows),
            remark(found),
            "What profiling costs, under the same limit:",
            table(["eta", *cost_heads], costs),
        ]
    )


def remark(found: Mapping[float, Mapping[Case, Sequence[Point]]]) -> str:
    """Who is ahead at lower clocks."""
    known = {
        (demand, share): [r for r in ratios(of, POWERFLOW, (AFS, share)) if r is not None]
        for demand, of in found.items()
        for share in SHARES
    }
    mean = {case: float(np.exp(np.log(some).mean())) for case, some in known.items() if some}
    lower = {case: value for case, value in mean.items() if case[1] < 1}
    behind = [f"{share:.0%} at demand {demand:g}" for (demand, share), v in lower.items() if v > 1]
    return paragraph(
        "AFS at lower clocks takes"
        f" {min(lower.values(), default=np.nan):.2f} to {max(lower.values(), default=np.nan):.2f}"
        " times as long as PowerFlow with as much energy (below 1: AFS is ahead); it is behind with"
        f" {', '.join(behind) or 'none of these clocks'}. A lower clock for all jobs is a choice"
        " that every scheduler has, so what PowerFlow's clocks bring over AFS is only what they"
        " bring over one clock for all. The values of the paper's Figs. 7 and 10 are not at hand as"
        " numbers: there is no column for them."
    )


def main() -> None:
    options = arguments(__doc__ or "")
    data = measured_data(*NEEDED)
    count = QUICK if options.quick else FULL
    finish(
        "powerflow_clocks",
        section(count, Bench(data, count, options.processes)),
        write=options.write,
    )


if __name__ == "__main__":
    main()
