"""Gain of eft over packed placement, beside sticky PAL: Sia-Philly and Synergy-like traces.

python benchmarks/reproduce/eft.py [--quick] [--write]    about an hour on 2 idle cores

Without backfill and with EASY backfill; scores are single runs of Longhorn, and medians over the
runs of a GPU of Longhorn and of Frontera.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import SYNTHETIC, arguments, finish, paragraph, run, standard_error, table
from pal_bench import CLASSES, Bench, Size, average, of_several_gpus, penalised, spread

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import SimulatedSite
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

PACKED = "packed"
EXACT, HISTORY, LIMIT = "run times", "earlier runs", "time limits"
ESTIMATES = {EXACT: "exact", HISTORY: "history", LIMIT: "limit"}
POLICIES = (("pal", EXACT), ("eft", EXACT), ("eft:moves", EXACT), ("eft", HISTORY), ("eft", LIMIT))
"""Policy, and what the planner knows."""
BASE = SimSettings(round_s=300.0, migration_s=60.0, classes=CLASSES)
SCORES = {
    "Longhorn, single runs": ("longhorn", True),
    "Longhorn, medians": ("longhorn", False),
    "Frontera, medians": ("frontera", False),
}
SYNERGY_PENALTY = 1.7
SYNERGY_NODES = 64
SHIFT_S = 1200.0
LOOSE = (1.8, 5.4)
SPREAD = 0.1


@dataclass(frozen=True)
class Count:
    """Number of traces and draws."""

    traces: int = 8
    draws: int = 4
    copies: int = 3
    """Copies of each trace of Sia-Philly with other times."""
    loads: tuple[int, ...] = (10, 12)
    synergy_draws: int = 5
    sia_jobs: int = 160
    synergy_jobs: int = 4000
    """Of synthetic traces, where the data are not there."""
    more_draws: int = 16
    """Of Sia-Philly with EASY, whose gains scatter most."""


FULL = Count()
QUICK = Count(2, 1, 1, (), 1, more_draws=2)


@dataclass(frozen=True)
class Load:
    """Traces on drawn sites."""

    name: str
    traces: Sequence[Trace]
    draws: int
    nodes: int = 16
    penalty: float | None = None
    medians: str = "gpus"
    """How medians are drawn: each GPU once, or with repetition (``repeat``)."""
    policies: Sequence[tuple[str, str]] = POLICIES
    backfills: Sequence[bool] = (False, True)

    def site(self, bench: Bench, scores: str, seed: int) -> SimulatedSite:
        """A cluster with drawn scores."""
        name, runs = SCORES[scores]
        how = "runs" if runs else self.medians
        site = bench.site(bench.profile(name, runs=runs), how, seed, self.nodes)
        return site if self.penalty is None else penalised(site, self.penalty)


def other_times(trace: Trace, seed: int) -> Trace:
    """Copy of a trace: submissions moved by up to 20 minutes, durations by 10% (log-normal)."""
    rng = np.random.default_rng(seed)

    def other(job: TraceJob) -> TraceJob:
        submit = max(0.0, job.submit_s + rng.uniform(-SHIFT_S, SHIFT_S))
        factor = float(np.exp(rng.normal(0.0, SPREAD)))
        return replace(job, submit_s=submit, duration_s=job.duration_s * factor)

    jobs = sorted((other(job) for job in trace.jobs), key=lambda job: job.submit_s)
    return replace(trace, jobs=tuple(jobs))


def loose_limits(trace: Trace) -> Trace:
    """The trace with limits of 1.8 to 5.4 times the work, which tell less of it than equal ones."""
    rng = np.random.default_rng(len(trace.jobs))
    least, most = np.log(LOOSE).tolist()
    factors = np.exp(rng.uniform(least, most, len(trace.jobs))).tolist()
    jobs = zip(trace.jobs, factors, strict=True)
    limited = (replace(job, time_limit_s=job.duration_s * factor) for job, factor in jobs)
    return replace(trace, jobs=tuple(limited))


def packed_beside(known: str) -> tuple[str, str]:
    """The case of packed placement with the same limits."""
    return PACKED, EXACT if known == EXACT else LIMIT


Found = Mapping[tuple[str, str], list[Result]]
"""(policy, what is known) -> results by draw and trace."""


def results(
    bench: Bench, load: Load, scores: str, policies: Sequence[tuple[str, str]], *, easy: bool
) -> Found:
    """All runs of a load with these scores."""
    base = replace(BASE, backfill=easy)
    cases = [*dict.fromkeys(packed_beside(known) for _, known in policies), *policies]
    loose = [loose_limits(trace) for trace in load.traces]
    sites = [load.site(bench, scores, seed) for seed in range(1, load.draws + 1)]
    runs = []
    for policy, known in cases:
        settings = parse_policy(policy, base)
        settings = replace(settings, overrun="extend").put(RunEstimates(ESTIMATES[known]))
        traces = load.traces if known == EXACT else loose
        runs += [Run(t, s.cluster, s.truth, settings) for s in sites for t in traces]
    what = f"{load.name}, {scores}{', EASY' if easy else ''}"
    found = iter(run(what, runs, bench.processes))
    each = len(sites) * len(load.traces)
    return {case: [next(found) for _ in range(each)] for case in cases}


def gains(found: Found, case: tuple[str, str], value: Callable[[Result], float]) -> list[float]:
    """Gain over packed of each run."""
    pairs = zip(found[case], found[packed_beside(case[1])], strict=True)
    return [1.0 - value(ours) / value(theirs) for ours, theirs in pairs]


def _slowest(result: Result) -> float:
    """99th percentile of JCT, s."""
    return float(np.nanpercentile(result.jct_s(), 99))


def _longest_wait(result: Result) -> float:
    """Longest wait, s; at least one second, for a ratio."""
    return max(1.0, float(np.nanmax(result.wait_s())))


def _gpu_hours(result: Result) -> float:
    gpus = np.array([job.gpus for job in result.trace.jobs])
    return float(np.nansum(gpus * result.run_s)) / 3600.0


OTHERS: Mapping[str, Callable[[Result], float]] = {
    "jobs of several GPUs": of_several_gpus,
    "99th percentile": _slowest,
    "longest wait": _longest_wait,
    "GPU-hours": _gpu_hours,
}


def _error(shares: Sequence[float], draws: int) -> str:
    """Standard error of the mean of logarithms over traces, each the mean over draws."""
    logs = np.log1p(-np.array(shares)).reshape(draws, -1).mean(axis=0)
    return standard_error(logs)


def section(count: Count, processes: int | None) -> str:
    """Run everything; the section of the page."""
    size = Size(count.traces, loads=count.loads, jobs=count.sia_jobs)
    bench = Bench(replace(size, synergy_jobs=count.synergy_jobs), processes)
    sia = Load("Sia-Philly", bench.traces, count.draws)
    copies = [other_times(t, 1000 * k) for k in range(1, count.copies + 1) for t in bench.traces]
    few = replace(sia, policies=POLICIES[:2])
    name, half = f"Sia-Philly, {count.more_draws} draws", max(1, count.draws // 2)
    more = replace(few, name=name, draws=count.more_draws, backfills=(True,))
    other = replace(few, name="Sia-Philly, other times", traces=copies, draws=half)
    loads = [sia, more, other]
    if count.loads:
        traces = [bench.synergy(load) for load in count.loads]
        draws = count.synergy_draws
        loads.append(Load("Synergy-like", traces, draws, SYNERGY_NODES, SYNERGY_PENALTY, "repeat"))
    rows, beside = [], []
    for load in loads:
        for easy in load.backfills:
            all_found = {s: results(bench, load, s, load.policies, easy=easy) for s in SCORES}
            name = load.name + (" + EASY" if easy else "")
            for case in load.policies:
                shares = [gains(found, case, average) for found in all_found.values()]
                cells = [f"{spread(s)} ± {_error(s, load.draws)}" for s in shares]
                rows.append((name, *case, *cells))
            for known in (known for policy, known in load.policies if policy == "eft"):
                for scores, found in all_found.items():
                    case = ("eft", known)
                    cells = [spread(gains(found, case, value)) for value in OTHERS.values()]
                    beside.append((name, known, scores, *cells))
    part = "" if count == FULL else " (a part of the runs)"
    synergy = (
        f"Synergy-like: loads {' and '.join(map(str, count.loads))} jobs/h, "
        f"{count.synergy_draws} draws of 256 GPUs, L {SYNERGY_PENALTY:g}. "
    )
    return "\n\n".join(
        [
            f"## eft{part}",
            *([SYNTHETIC.strip()] if bench.data is None else []),
            paragraph(
                f"Gain in average JCT over packed placement, both sticky: geometric mean, range "
                f"and standard error over traces. Sia-Philly: {count.traces} traces on "
                f"{count.draws} draws of 64 GPUs, L 1.5; with other times: {count.copies} copies "
                "of each trace with submissions moved by up to 20 minutes and durations by 10%. "
                f"{synergy if count.loads else ''}"
                "FIFO, rounds of 300 s. Known to the planner: the run times on median GPUs, with "
                "limits of three times the work; or earlier runs of the same application on as "
                "many GPUs (the traces name no users), or the limits only, both with limits of "
                "1.8 to 5.4 times the work, log-uniform."
            ),
            table(["workload", "policy", "known", *SCORES], rows),
            "Other gains of eft over packed:",
            table(["workload", "known", "scores", *OTHERS], beside),
            paragraph(
                "A queue is chaotic: with EASY backfill one trace gains or loses tens of percent "
                "when its times change by minutes, whatever the policy. GPU-hours and the row of "
                "other times tell more of a policy than the eight traces as they are."
            ),
        ]
    )


def main() -> None:
    options = arguments(__doc__ or "")
    text = section(QUICK if options.quick else FULL, options.processes)
    finish("eft", text, write=options.write)


if __name__ == "__main__":
    main()
