"""Gain of a policy over packed placement by variability, load, job mix and share of multi-GPU jobs.

python benchmarks/reproduce/when_it_pays.py [--quick] [--write]    15 minutes on 2 idle cores
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import (
    SYNTHETIC,
    arguments,
    between,
    finish,
    gain,
    geomean,
    paragraph,
    percent,
    run,
    shared,
    standard_error,
    synthetic_timings,
    table,
)

from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result, each_job, ended_in_all
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import (
    SimulatedSite,
    Timings,
    draw_scores,
    read_timings,
    synthetic_site,
    with_scores,
)
from slurm_gpu_aware.simulator.trace import Trace, poisson_trace, read_csv

PACKED, POLICY = "packed", "eft"
APPS = {"A": "resnet", "B": "bert", "C": "pagerank"}
SIA = "traces/sia-philly/pal/workload-{}.csv"
SIA_CLASSES = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
"""Profile of each class of these traces, as in the authors' simulator."""
NODES, WIDTH = 16, 4
PENALTY = 1.5
JOBS = 200
SEEDS = 24
LONGEST_S = 2 * 86_400.0
"""No job is longer: a few very long ones would decide a trace."""
LARGER = {2: 0.3, 4: 0.4, 8: 0.2, 16: 0.1}
"""GPUs of a multi-GPU job -> share of these jobs."""
SETTINGS = SimSettings(backfill=True, classes=("A", "B", "C", "D"))


@dataclass(frozen=True)
class Case:
    """One site. The defaults are the site that the others differ from in one respect."""

    variability: str = "Longhorn, per-GPU medians"
    load: float = 0.9
    """Work of the jobs on median GPUs / GPU time between first and last submission."""
    several: float = 0.25
    """Share of jobs of several GPUs."""
    classes: str = "ABC"
    """Classes of the jobs, equally likely."""
    sia: bool = False
    """The eight traces of Sia-Philly instead of synthetic jobs."""


BASE = Case()
SWEEPS: Mapping[str, Sequence[tuple[str, Case]]] = {
    "variability": [
        (name, replace(BASE, variability=name))
        for name in (
            "none",
            "Frontera, per-GPU medians",
            "Longhorn, per-GPU medians",
            "Longhorn, single runs",
        )
    ],
    "load": [(f"{load:g}", replace(BASE, load=load)) for load in (0.6, 0.9, 1.2, 2.0)],
    "jobs of several GPUs": [
        (f"{share:.0%}", replace(BASE, several=share)) for share in (0.0, 0.25, 0.5)
    ],
    "Sia-Philly": [
        (name, replace(BASE, variability=name, sia=True))
        for name in ("none", "Frontera, per-GPU medians", "Longhorn, per-GPU medians")
    ],
    "job mix": [
        ("all compute bound (A)", replace(BASE, classes="A")),
        ("A, B and C alike", BASE),
        ("all memory bound (C)", replace(BASE, classes="C")),
    ],
}


def profile(case: Case) -> tuple[dict[str, Timings] | None, str]:
    """Class -> measured times of GPUs (None: all equal), and how they are drawn."""
    if case.variability == "none":
        return None, "gpus"
    site, runs = case.variability.split(",")[0].lower(), case.variability.endswith("runs")
    names = {
        app: f"variability/runs/{site}_{app}_runs.csv" if runs else f"variability/{site}_{app}.csv"
        for app in APPS.values()
    }
    data = shared(*names.values())
    how = "runs" if runs else "gpus"
    apps = SIA_CLASSES if case.sia else APPS
    if data is None:
        return {k: synthetic_timings(k, 0.03, 0.01 if runs else 0.0, 1) for k in apps}, how
    return {name: read_timings(data / names[app]) for name, app in apps.items()}, how


def site_of(case: Case, seed: int) -> SimulatedSite:
    """64 GPUs, 4 per node, the same indices on every node of a job, as on Slurm."""
    base = synthetic_site(NODES, WIDTH, penalties={"node": 1.0, "cluster": PENALTY})
    timings, how = profile(case)
    if timings is None:
        return base
    return with_scores(base, draw_scores(timings, base.cluster.exists, how, seed))


def trace_of(case: Case, seed: int) -> Trace:
    """Poisson arrivals, Synergy's durations up to two days; the times are scaled to the load."""
    if case.sia and (data := shared(*(SIA.format(n) for n in range(1, 9)))) is not None:
        return read_csv(data / SIA.format(seed % 8 + 1), class_column="class_code")
    sizes = {1: 1.0 - case.several} | {k: case.several * v for k, v in LARGER.items()}
    sizes = {gpus: share for gpus, share in sizes.items() if share > 0}
    trace = poisson_trace(JOBS, 10.0, seed=seed, sizes=sizes, classes=tuple(case.classes))
    jobs = [replace(job, duration_s=min(job.duration_s, LONGEST_S)) for job in trace.jobs]
    work = sum(job.gpus * job.duration_s for job in jobs)
    span = jobs[-1].submit_s - jobs[0].submit_s
    factor = work / (span * NODES * WIDTH * case.load)
    return replace(trace, jobs=tuple(replace(job, submit_s=job.submit_s * factor) for job in jobs))


@dataclass(frozen=True)
class Outcome:
    """Packed and another policy on one case, one result per seed."""

    packed: Sequence[Result]
    other: Sequence[Result]

    def gains(self, *, several: bool = False) -> list[float]:
        """Gain in average JCT per seed; ``several``: of the jobs of several GPUs."""
        found = []
        for a, b in zip(self.packed, self.other, strict=True):
            mask = ended_in_all([a, b])
            if several:
                mask = mask & np.array([job.gpus > 1 for job in a.trace.jobs])
            if mask.any():
                found.append(gain(float(b.jct_s(mask).mean()), float(a.jct_s(mask).mean())))
        return found

    def slower(self) -> float:
        """Share of the jobs that take longer."""
        masks = [ended_in_all(pair) for pair in zip(self.packed, self.other, strict=True)]
        return each_job(self.packed, self.other, masks)["slower"]

    def row(self, name: str, gpus: tuple[str, str]) -> tuple[str, ...]:
        """The row of a case."""
        several = self.gains(several=True)
        wait = np.mean([r.wait_s().mean() for r in self.packed])
        ran = np.mean([r.run_s[r.done].mean() for r in self.packed])
        return (
            name,
            *gpus,
            f"{wait / ran:.1f}",
            spread_of(self.gains()),
            spread_of(several) if several else "",
            percent(self.slower()),
        )


def spread_of(shares: Sequence[float]) -> str:
    """``4.0% ± 0.8% (1.2% to 7.9%)``: geometric mean, standard error, range."""
    error = standard_error(np.log1p(-np.array(shares)))
    return f"{percent(gain(geomean(1.0 - s for s in shares), 1.0))} ± {error} ({between(shares)})"


def differences(sites: Sequence[SimulatedSite], classes: str) -> tuple[str, str]:
    """Spread and worst score of the most sensitive class, as `gpu-aware-profile show` has them.

    Means over the draws.
    """
    scores = [s.truth[classes[0]] for s in sites if s.truth]
    if not scores:
        return "0.0%", "1.00"
    spread = np.mean([np.exp(np.log(s / s.min()).mean()) - 1.0 for s in scores])
    return percent(float(spread)), f"{np.mean([s.max() for s in scores]):.2f}"


def section(seeds: Sequence[int], processes: int | None, policy: str = POLICY) -> str:
    """Run everything; the section of the page."""
    cases = list(dict.fromkeys(case for sweep in SWEEPS.values() for _, case in sweep))
    sites = {case: [site_of(case, seed) for seed in seeds] for case in cases}
    traces = {case: [trace_of(case, seed) for seed in seeds] for case in cases}
    runs = [
        Run(trace, site.cluster, site.truth, parse_policy(name, SETTINGS))
        for case in cases
        for name in (PACKED, policy)
        for trace, site in zip(traces[case], sites[case], strict=True)
    ]
    results = iter(run("when it pays", runs, processes))
    outcomes = {
        case: Outcome([next(results) for _ in seeds], [next(results) for _ in seeds])
        for case in cases
    }
    parts = [
        "## When it pays",
        paragraph(
            f"Gain of {policy} over packed in average completion time (JCT): geometric mean, "
            f"standard error and range over {len(seeds)} seeds, which draw GPUs and jobs. "
            f"{JOBS} jobs, {NODES * WIDTH} GPUs on nodes of {WIDTH}, the same indices on each "
            f"node of a job, L {PENALTY:g}, FIFO with EASY backfill, run times from half an hour "
            "to two days, time limits of three times the work. If not said otherwise: "
            f"{BASE.variability}, load {BASE.load:g}, {BASE.several:.0%} of the jobs on several "
            "GPUs, classes A, B and C alike. Each seed has one of the eight traces of Sia-Philly. "
            "Wait / run is that of packed."
        ),
    ]
    if shared("variability/longhorn_resnet.csv") is None:
        parts.insert(1, SYNTHETIC.strip())
    heads = [
        "spread of the GPUs", "worst GPU", "wait / run", "gain", "jobs of several GPUs",
        "jobs that take longer",
    ]  # fmt: skip
    for what, sweep in SWEEPS.items():
        rows = [
            outcomes[case].row(name, differences(sites[case], case.classes)) for name, case in sweep
        ]
        parts.append(table([what, *heads], rows))
    return "\n\n".join(parts)


def main() -> None:
    options = arguments(__doc__ or "")
    text = section(range(2 if options.quick else SEEDS), options.processes)
    finish("when_it_pays", text, write=options.write)


if __name__ == "__main__":
    main()
