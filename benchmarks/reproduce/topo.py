"""Topology-aware placement (Amaral et al., SC'17): the prototype's jobs and the larger job files.

python benchmarks/reproduce/topo.py [--quick] [--long] [--write]    some minutes on 2 cores
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import SYNTHETIC, arguments, finish, paragraph, percent, run, shared, table
from topo_jobs import ProfileFile, read_profile, read_workload

from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.simulated_site import synthetic_site
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

MACHINE = "ibm-minsky-4xp100"
BANDWIDTHS = 40.0 / 12.0
"""Best over worst pair of GPUs of that machine: NVLink inside a socket, host across."""
POLICIES = ("best-fit", "lowest-index", "topo-aware", "topo-aware-p")
WORDS = {
    "best-fit": "best-fit (BF)",
    "lowest-index": "lowest-index (FCFS)",
    "topo-aware": "topo-aware",
    "topo-aware-p": "topo-aware-p",
    "pal+mapa": "pal+mapa",
}
PROTOTYPE = {
    "best-fit": 461.7, "lowest-index": 456.2, "topo-aware": 454.2, "topo-aware-p": 356.9,
}  # fmt: skip
TABLE_1 = (
    # arrival s, GPUs, application, minimal utility; job 5's CaffeRef has no profile: AlexNet
    (0.51, 1, "bvlc_googlenet/4", 0.3),
    (15.03, 1, "bvlc_alexnet/4", 0.3),
    (24.36, 1, "bvlc_alexnet/1", 0.3),
    (25.33, 2, "bvlc_alexnet/1", 0.5),
    (29.33, 2, "bvlc_alexnet/4", 0.5),
    (29.89, 2, "bvlc_alexnet/1", 0.5),
)
TOLERATED = 1.05
LARGE = ((100, 5), (1000, 60), (10_000, 15))
"""Job files and machines: about as many as keep the load below 1."""
SCENARIO_2 = (10_000, 1000)
"""Jobs and machines of the paper's second scenario; with arrivals as published the load is 1%."""
FASTER = 100.0
"""Arrivals of scenario 2 are this many times as fast, too: load 0.9."""
SCOPES = ("socket", "machine")


@dataclass(frozen=True)
class Size:
    """Size of a run."""

    files: Sequence[tuple[int, int]]
    """Jobs and machines."""
    second: bool
    """Whether scenario 2 runs."""


def with_links(trace: Trace, profile: ProfileFile) -> Trace:
    """Give every job the communication share that its two measured placements imply."""

    def own(job: TraceJob) -> TraceJob:
        solo = profile.profile.solo.get((job.model or "", job.gpus))
        across = profile.across.get((job.model or "", job.gpus))
        if solo is None or across is None:
            return job
        share = max(0.0, (across / solo - 1.0) / (BANDWIDTHS - 1.0))
        return replace(job, bandwidth_sensitive=share > 0.01, communication_share=share)

    return replace(trace, jobs=tuple(own(job) for job in trace.jobs))


def settings(
    policy: str, profile: ProfileFile, *, backfill: bool, scope: str = "socket", depth: int = 20
) -> SimSettings:
    """FIFO; links and neighbours slow jobs as measured."""
    options: dict[str, object] = {}
    if policy.startswith("topo-aware"):
        options |= {"interference": profile.profile, "interference_scope": scope}
    return SimSettings(
        policy=policy,
        policy_options=options,
        backfill=backfill,
        backfill_depth=depth,
        communication_share=0.0,
        interference=profile.profile,
        interference_scope=scope,
    )


def row(name: str, result: Result, base: Result, *extra: str) -> tuple[str, ...]:
    """Numbers of one run, makespan also as a ratio to best-fit."""
    slow = result.slowdown()
    own = result.summary()["placement_ms"]
    return (
        name,
        f"{result.makespan_s():.0f}",
        f"{base.makespan_s() / result.makespan_s():.3f}",
        f"{result.wait_s().mean():.1f}",
        f"{slow.mean():.3f}",
        f"{100 * float((slow > TOLERATED).mean()):.0f}%",
        f"{own['median']:.1f} / {own['max']:.0f}",
        *extra,
    )


HEADERS = (
    "policy", "makespan, s", "speed-up on BF", "avg wait, s", "avg slowdown", "slowed by > 5%",
    "round, ms: median / max",
)  # fmt: skip


def prototype(trace: Trace, profile: ProfileFile, processes: int | None) -> tuple[str, str]:
    """One machine. topo-aware-p lets jobs behind a postponed one start: backfill."""
    site = synthetic_site(1, machine_name=MACHINE)
    cases = [(p, p == "topo-aware-p") for p in POLICIES] + [("pal+mapa", True)]
    runs = [Run(trace, site.cluster, {}, settings(p, profile, backfill=b)) for p, b in cases]
    results = dict(zip(cases, run("prototype", runs, processes), strict=True))
    base = results[POLICIES[0], False]
    rows = []
    for (policy, _), result in results.items():
        paper = PROTOTYPE.get(policy)
        said = "" if paper is None else f"{paper:g} ({PROTOTYPE['best-fit'] / paper:.2f}x)"
        name = WORDS[policy] + (", backfill" if policy == "pal+mapa" else "")
        rows.append(row(name, result, base, said))
    ratio = {
        p: (base.makespan_s() / r.makespan_s(), PROTOTYPE["best-fit"] / PROTOTYPE[p])
        for (p, _), r in results.items()
        if p in PROTOTYPE
    }
    remark = paragraph(
        "Speed-up of the makespan over BF, and published: "
        + ", ".join(f"{WORDS[p]} {ours:.2f} ({paper:.2f})" for p, (ours, paper) in ratio.items())
        + ".",
        "BF and FCFS look at every machine and every free GPU here, the authors' versions at the "
        "first machine's free GPUs. Run times beside a neighbour are measured for pairs only, and "
        "CaffeRef is replaced by AlexNet, for want of its times.",
    )
    return table([*HEADERS, "paper: makespan, s"], rows), remark


def larger(
    cases: Sequence[tuple[Trace, int]], profile: ProfileFile, processes: int | None
) -> list[str]:
    """The job files on as many machines as they need: a table and a remark for each."""
    kinds = [(p, False) for p in POLICIES[:3]]
    kinds += [(p, True) for p in ("best-fit", "topo-aware-p", "pal+mapa")]
    parts = []
    for trace, machines in cases:
        site = synthetic_site(machines, machine_name=MACHINE)
        runs = [Run(trace, site.cluster, {}, settings(p, profile, backfill=b)) for p, b in kinds]
        results = dict(zip(kinds, run(trace.name, runs, processes), strict=True))
        base = results[kinds[0]]
        rows = [
            row(f"{WORDS[p]}{', backfill' if b else ''}", result, base)
            for (p, b), result in results.items()
        ]
        parts += [
            f"{trace.name}: {len(trace.jobs)} jobs, {machines} machines",
            table(HEADERS, rows),
            larger_remark(results),
        ]
    return parts


def larger_remark(results: Mapping[tuple[str, bool], Result]) -> str:
    """Effects of placement and of backfill, against BF."""
    base = results["best-fit", False]
    jobs = base.trace.jobs
    last = max(job.submit_s + job.duration_s for job in jobs) - min(job.submit_s for job in jobs)

    def faster(result: Result) -> float:
        return base.makespan_s() / result.makespan_s() - 1.0

    placing = max(faster(r) for (_, backfill), r in results.items() if not backfill)
    filling = faster(results["best-fit", True])
    slow = {
        WORDS[policy]: percent(float((r.slowdown() > TOLERATED).mean()))
        for (policy, backfill), r in results.items()
        if not backfill or policy == "topo-aware-p"
    }
    return paragraph(
        f"The last job's arrival and its run time alone take {percent(last / base.makespan_s())} "
        f"of BF's makespan. Without backfill placement shortens it by at most "
        f"{percent(placing)}, backfill alone by {percent(filling)}. Slowed by more than a "
        f"twentieth: {', '.join(f'{name} {share}' for name, share in slow.items())}."
    )


def scopes(trace: Trace, profile: ProfileFile, processes: int | None) -> tuple[str, str]:
    """Interference by socket and by machine, in policy and simulator alike."""
    site = synthetic_site(LARGE[0][1], machine_name=MACHINE)
    kinds = [("best-fit", False), ("topo-aware", False), ("topo-aware-p", True)]
    cases = [(scope, *kind) for scope in SCOPES for kind in kinds]
    runs = [
        Run(trace, site.cluster, {}, settings(p, profile, backfill=b, scope=scope))
        for scope, p, b in cases
    ]
    results = dict(zip(cases, run("scopes", runs, processes), strict=True))
    rows = [
        (
            scope,
            *(f"{results[scope, *kind].makespan_s():.0f}" for kind in kinds),
            *(percent(float((results[scope, *k].slowdown() > TOLERATED).mean())) for k in kinds),
        )
        for scope in SCOPES
    ]
    names = [WORDS[p] + (", backfill" if b else "") for p, b in kinds]
    heads = [
        "neighbours share", *(f"{n}: makespan, s" for n in names),
        *(f"{n}: slowed by > 5%" for n in names),
    ]  # fmt: skip
    said = paragraph(
        "The paper has both scopes: jobs on one machine (section 3.3), jobs on one socket (section "
        "5.2.2). The authors' code, corrected, ends after 1396 s with topo-aware by socket; its "
        "postponed jobs are overtaken without a reservation.",
    )
    return table(heads, rows), said


def second_scenario(trace: Trace, profile: ProfileFile, processes: int | None) -> list[str]:
    """1,000 machines: the published arrivals, and arrivals that fill the machines."""
    machines = SCENARIO_2[1]
    site = synthetic_site(machines, machine_name=MACHINE)
    slow, fast = (
        Trace.of("", [replace(job, submit_s=job.submit_s / factor) for job in trace.jobs])
        for factor in (1.0, FASTER)
    )
    parts = []
    for what, own in (("as published", slow), (f"{FASTER:g} times as fast", fast)):
        runs = [Run(own, site.cluster, {}, settings(p, profile, backfill=False)) for p in POLICIES]
        results = dict(zip(POLICIES, run(f"scenario 2, {what}", runs, processes), strict=True))
        base = results[POLICIES[0]]
        load = sum(j.gpus * j.duration_s for j in own.jobs) / (
            base.total_gpus * (own.jobs[-1].submit_s - own.jobs[0].submit_s)
        )
        parts += [
            f"Scenario 2: {len(own.jobs)} jobs, {machines} machines, arrivals {what} (load "
            f"{load:.2f})",
            table(HEADERS, [row(WORDS[p], result, base) for p, result in results.items()]),
        ]
    said = "Published time of a decision at this size: topo-aware 3 s, BF and FCFS 0.45 s, mean."
    return [*parts, paragraph(said)]


def synthetic_profile() -> ProfileFile:
    """Two applications, two batch sizes, similar to the measured ones."""
    solo, across, together = {}, {}, {}
    for name, base, cost in (("bvlc_alexnet", 70.0, 0.25), ("bvlc_googlenet", 110.0, 0.03)):
        for size, factor in (("1", 1.0), ("4", 1.6)):
            for gpus in (1, 2, 3):
                job = (f"{name}/{size}", gpus)
                solo[job] = base * factor * (1 + 0.4 * (gpus - 1))
                if gpus == 2:
                    across[job] = solo[job] * (1 + cost / factor)
    for job, alone in solo.items():
        for other in solo:
            together[job, other] = alone * 1.2
    return ProfileFile(InterferenceProfile(solo, together), across)


def synthetic_jobs(count: int, gap: float, profile: ProfileFile) -> Trace:
    """Jobs of known applications at about regular times."""
    rng = np.random.default_rng(count)
    kinds = [k for k in profile.profile.solo if k[1] < 3]
    at = np.cumsum(rng.poisson(gap, count))
    jobs = []
    for i in range(count):
        name, gpus = kinds[int(rng.integers(len(kinds)))]
        jobs.append(_job(str(i), float(at[i]), gpus, name, 0.4, profile))
    return Trace.of(f"synthetic-{count}", jobs)


def _job(
    name: str, at: float, gpus: int, application: str, utility: float, profile: ProfileFile
) -> TraceJob:
    options = {"minimal_utility": utility, "single_node": True}
    solo = profile.profile.solo[application, gpus]
    return TraceJob(name, at, gpus, solo, model=application, nodes=1, options=options)


def section(size: Size, processes: int | None) -> str:
    """Run everything; the section of the page, each remark made from the numbers above it."""
    measured = "topo-aware/profiles/prof_from_experiments.json"
    counts = {*(count for count, _ in size.files), *([SCENARIO_2[0]] if size.second else [])}
    files = {count: f"topo-aware/workloads/workloads-{count}.json" for count in counts}
    data = shared(measured, *files.values())
    profile = synthetic_profile() if data is None else read_profile(data / measured)
    first = Trace.of("Table 1", [_job(str(i), *row, profile) for i, row in enumerate(TABLE_1)])
    traces = {
        count: with_links(
            synthetic_jobs(count, 1.0 if count == 1000 else 10.0, profile)
            if data is None
            else read_workload(data / files[count], profile),
            profile,
        )
        for count in counts
    }
    cases = [(traces[count], machines) for count, machines in size.files]
    origin = "the authors' measurements" if data is not None else "made up"
    intro = paragraph(
        "Machines with two sockets of two P100. Run times alone, across sockets and beside another "
        f"job are {origin}; several neighbours add up. Across sockets a job loses what was "
        "measured for it. Neighbours share a socket. FCFS and BF look at every machine, which the "
        "authors' versions do not. Each table is one job file, as it is published: no draw, no "
        "range. Differences of a few percent say nothing of other files."
    )
    parts = [
        f"## Topology-aware placement\n\n{SYNTHETIC if data is None else ''}{intro}",
        f"Prototype, one machine, the {len(first.jobs)} jobs of Table 1 (CaffeRef is AlexNet):",
        *prototype(with_links(first, profile), profile, processes),
        "Job files:",
        *larger(cases, profile, processes),
        f"Interference by socket and by machine, {cases[0][0].name}, {LARGE[0][1]} machines:",
        *scopes(cases[0][0], profile, processes),
    ]
    if size.second:
        parts += second_scenario(traces[SCENARIO_2[0]], profile, processes)
    return "\n\n".join(parts)


def main() -> None:
    options = arguments(__doc__ or "", long="all job files")
    size = Size(LARGE if options.long else LARGE[:1], second=not options.quick)
    text = section(size, options.processes)
    finish("topo", text, write=options.write)


if __name__ == "__main__":
    main()
