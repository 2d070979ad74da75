"""What orders of the queue gain and cost: Sia-Philly and Synergy-like traces, packed and eft.

python benchmarks/reproduce/queue_order.py [--quick] [--write]    about two hours on 2 idle cores
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import (
    SYNTHETIC,
    arguments,
    finish,
    geomean,
    paragraph,
    percent,
    run,
    standard_error,
    table,
)
from eft import BASE, SYNERGY_NODES, SYNERGY_PENALTY, Load, loose_limits
from pal_bench import Bench, Size

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy

FIRST = "packed"
CASES = (
    *("packed@equal", "packed@backfill", "packed@expected=0.1", "packed@expected=0.3"),
    *("packed@expected=1", "eft", "eft@backfill", "eft@expected=0.1", "eft@expected=0.3"),
    *("eft@expected=1", "eft:moves@expected=0.3"),
)
OFF = "off by a factor of 2.7"
KNOWN: Mapping[str, tuple[str, float]] = {
    "run times": ("exact", 0.0),
    OFF: ("exact", 1.0),
    "earlier runs": ("history", 0.0),
    "time limits": ("limit", 0.0),
}
"""What is known -> (kind of estimate, standard deviation of ln(estimate / work))."""
WIDE = 8
"""GPUs of a wide job."""


def _jct(how: Callable[[np.ndarray], float]) -> Callable[[Result], float]:
    return lambda result: float(how(result.jct_s()[result.done]))


def _longest(result: Result) -> float:
    return max(1.0, float(np.nanmax(result.wait_s())))


def _wide(result: Result) -> float:
    wide = np.array([job.gpus >= WIDE for job in result.trace.jobs])
    return float(result.jct_s()[wide & result.done].mean())


def _gpu_hours(result: Result) -> float:
    gpus = np.array([job.gpus for job in result.trace.jobs])
    return float(np.nansum(gpus * result.run_s))


VALUES: Mapping[str, Callable[[Result], float]] = {
    "average": _jct(np.mean),
    "median": _jct(np.median),
    "bounded slowdown": lambda result: float(result.bounded_slowdown().mean()),
    "99th percentile": _jct(lambda jct: float(np.percentile(jct, 99))),
    "longest wait": _longest,
    f"jobs of {WIDE} GPUs or more": _wide,
    "GPU-hours": _gpu_hours,
}


@dataclass(frozen=True)
class Count:
    """Number of traces and draws, and what is known."""

    traces: int = 8
    draws: int = 2
    loads: tuple[int, ...] = (10, 12)
    synergy_draws: int = 2
    known: tuple[str, ...] = tuple(KNOWN)
    cases: tuple[str, ...] = CASES


QUICK = Count(2, 1, (), 1, (OFF,), ("packed@backfill", "packed@expected=0.3"))


def rows_of(
    bench: Bench,
    load: Load,
    scores: str,
    known: str,
    cases: Sequence[str],
    settings: SimSettings = BASE,
) -> list[tuple[str, ...]]:
    """A row per case: gains over packed placement in Slurm's order, of the same traces."""
    kind, error = KNOWN[known]
    base = replace(settings, backfill=True, overrun="extend").put(RunEstimates(kind, error))
    exact = kind == "exact"
    traces = load.traces if exact else [loose_limits(trace) for trace in load.traces]
    sites = [load.site(bench, scores, seed) for seed in range(1, load.draws + 1)]
    all_settings: list[SimSettings] = [parse_policy(case, base) for case in (FIRST, *cases)]
    runs = [
        Run(trace, site.cluster, site.truth, settings)
        for settings in all_settings
        for site in sites
        for trace in traces
    ]
    found = iter(run(f"{load.name}, {scores}, {known}", runs, bench.processes))
    each = len(sites) * len(traces)
    results = [[next(found) for _ in range(each)] for _ in all_settings]
    rows = []
    for case, ours in zip(cases, results[1:], strict=True):
        cells = []
        for value in VALUES.values():
            ratios = [value(a) / value(b) for a, b in zip(ours, results[0], strict=True)]
            logs = np.log(ratios).reshape(load.draws, -1).mean(axis=0)
            logs = logs if len(logs) > 1 else np.log(ratios)
            cells.append(f"{percent(1.0 - geomean(ratios))} ± {standard_error(logs)}")
        rows.append((load.name, scores, known, case, *cells))
    return rows


def _percents(cell: str) -> float:
    return float(cell.partition("%")[0])


def costs_of(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """What each case costs where it costs most, GPU-hours aside; and what that means."""
    loads = [*dict.fromkeys(row[0] for row in rows)]
    names = [name for name in VALUES if name != "GPU-hours"]
    cells, kept = [], []
    for case in dict.fromkeys(row[3] for row in rows):
        own = [row for row in rows if row[3] == case]
        least = [min(_percents(row[4]) for row in own if row[0] == load) for load in loads]
        found = [
            (_percents(cell), f"{name}, {row[0]}")
            for row in own
            for name, cell in zip(names, row[4:], strict=False)
        ]
        worst, where = min(found)
        others = min(gain for gain, text in found if not text.startswith("longest wait"))
        kept += [case] if worst >= -1.0 else []
        cells.append((case, *(f"{one:.1f}%" for one in least), f"{worst:.1f}%", where))
        cells[-1] += (f"{others:.1f}%",)
    heads = ["case", *(f"average, {load}, least" for load in loads)]
    heads += ["worst column", "which", "worst but for the longest wait"]
    each = "each case makes some column more than 1% worse"
    lossless = f"only {', '.join(kept)} makes no column more than 1% worse" if kept else each
    remark = paragraph(
        f"Least and worst over all rows of a case; {lossless}. The last column leaves out the "
        "longest wait of a single job. GPU-hours are not counted."
    )
    return ["What each case costs where it costs most:", table(heads, cells), remark]


def section(count: Count, processes: int | None) -> str:
    """Run everything; the section of the page."""
    bench = Bench(Size(count.traces, loads=count.loads), processes)
    loads = [Load("Sia-Philly", bench.traces, count.draws)]
    loads += [
        Load(
            f"Synergy-like, {load}/h",
            [bench.synergy(load)],
            count.synergy_draws,
            SYNERGY_NODES,
            SYNERGY_PENALTY,
            "repeat",
        )
        for load in count.loads
    ]
    rows = [
        row
        for load in loads
        for scores in ("Longhorn, medians", "Frontera, medians")
        for known in count.known
        for row in rows_of(bench, load, scores, known, count.cases)
    ]
    part = "" if count == Count() else " (a part of the runs)"
    return "\n\n".join(
        [
            f"## Order of the queue{part}",
            *([SYNTHETIC.strip()] if bench.data is None else []),
            paragraph(
                "Gains over packed placement in Slurm's order (here: of submission), with EASY "
                "backfill: geometric mean and standard error over traces, of one trace over draws. "
                f"Sia-Philly: {count.traces} traces on {count.draws} draws of 64 GPUs, L 1.5. "
                f"Synergy-like: {count.synergy_draws} draws of 256 GPUs, L {SYNERGY_PENALTY:g}. "
                "`@expected=c`: submission + c x expected run time; `@backfill`: shortest first "
                "behind the head; `@equal`: among jobs submitted at the same second. A job is "
                "passed for four times its expected run time, and a day, at most. Known are run "
                "times, the same off by a log-normal factor of one sigma e, earlier runs of the "
                "same application on as many GPUs, or limits of 1.8 to 5.4 times the work."
            ),
            table(["workload", "scores", "known", "case", *VALUES], rows),
            *costs_of(rows),
        ]
    )


def main() -> None:
    options = arguments(__doc__ or "")
    text = section(QUICK if options.quick else Count(), options.processes)
    finish("queue_order", text, write=options.write)


if __name__ == "__main__":
    main()
