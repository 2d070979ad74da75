"""Topology-aware placement (Amaral et al., SC'17): the prototype's jobs and the larger job files.

python benchmarks/reproduce/topo.py [--quick] [--write]     about 3 minutes on 2 cores, quick: 20 s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import SYNTHETIC, arguments, finish, run, shared, table

from slurm_gpu_aware.placement.interference import InterferenceProfile
from slurm_gpu_aware.simulator.clusters import synthetic_cluster
from slurm_gpu_aware.simulator.interference import Interference
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.topo_jobs import ProfileFile, read_profile, read_workload
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
LARGE = ((100, 5), (1000, 60), (10_000, 15))
"""Job files and machines: about as many as keep the load below 1."""


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


def settings(policy: str, profile: ProfileFile, *, backfill: bool) -> SimSettings:
    """FIFO; links and neighbours slow jobs as measured."""
    options: dict[str, object] = {}
    if policy.startswith("topo-aware"):
        options["interference"] = profile.profile
    return SimSettings(
        policy=policy,
        policy_options=options,
        backfill=backfill,
        communication_share=0.0,
        interference=Interference.of(profile.profile),
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
        f"{100 * float((slow > 1.05).mean()):.0f}%",
        f"{own['median']:.1f} / {own['max']:.0f}",
        *extra,
    )


HEADERS = (
    "policy", "makespan, s", "speed-up on BF", "avg wait, s", "avg slowdown", "slowed by > 5%",
    "round, ms: median / max",
)  # fmt: skip


def prototype(trace: Trace, profile: ProfileFile, processes: int | None) -> str:
    """One machine. topo-aware-p lets jobs behind a postponed one start: backfill."""
    site = synthetic_cluster(1, machine_name=MACHINE)
    cases = [(p, p == "topo-aware-p") for p in POLICIES] + [("pal+mapa", True)]
    runs = [Run(trace, site.cluster, {}, settings(p, profile, backfill=b)) for p, b in cases]
    results = run("prototype", runs, processes)
    rows = []
    for (policy, _), result in zip(cases, results, strict=True):
        paper = PROTOTYPE.get(policy)
        said = "" if paper is None else f"{paper:g} ({PROTOTYPE['best-fit'] / paper:.2f}x)"
        name = WORDS[policy] + (", backfill" if policy == "pal+mapa" else "")
        rows.append(row(name, result, results[0], said))
    return table([*HEADERS, "paper: makespan, s"], rows)


def larger(cases: Sequence[tuple[Trace, int]], profile: ProfileFile, processes: int | None) -> str:
    """The job files on as many machines as they need."""
    kinds = [(p, False) for p in POLICIES[:3]]
    kinds += [(p, True) for p in ("best-fit", "topo-aware-p", "pal+mapa")]
    parts = []
    for trace, machines in cases:
        site = synthetic_cluster(machines, machine_name=MACHINE)
        runs = [Run(trace, site.cluster, {}, settings(p, profile, backfill=b)) for p, b in kinds]
        results = run(trace.name, runs, processes)
        rows = [
            row(f"{WORDS[p]}{', backfill' if b else ''}", result, results[0])
            for (p, b), result in zip(kinds, results, strict=True)
        ]
        parts.append(
            f"{trace.name}: {len(trace.jobs)} jobs, {machines} machines\n\n{table(HEADERS, rows)}"
        )
    return "\n\n".join(parts)


def synthetic_profile() -> ProfileFile:
    """Two applications, two batch sizes, like the measured ones in kind."""
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
    return ProfileFile(InterferenceProfile(solo, together), across, 0, ())


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
    options = {"application": application, "minimal_utility": utility, "single_node": True}
    solo = profile.profile.solo[application, gpus]
    return TraceJob(name, at, gpus, solo, model=application, nodes=1, options=options)


def main() -> None:
    options = arguments(__doc__ or "")
    data = shared()
    folder = Path() if data is None else data / "topo-aware"
    profile = (
        synthetic_profile()
        if data is None
        else read_profile(folder / "profiles" / "prof_from_experiments.json")
    )
    first = Trace.of("Table 1", [_job(str(i), *row, profile) for i, row in enumerate(TABLE_1)])
    sizes = LARGE[:1] if options.quick else LARGE
    cases = [
        (
            with_links(
                synthetic_jobs(count, 1.0 if count == 1000 else 10.0, profile)
                if data is None
                else read_workload(folder / "workloads" / f"workloads-{count}.json", profile),
                profile,
            ),
            machines,
        )
        for count, machines in sizes
    ]
    text = f"""## Topology-aware placement

{SYNTHETIC if data is None else ""}

Machines with two sockets of two P100. Run times alone, across sockets and beside another job are
the authors' measurements; several neighbours add up. Across sockets a job loses what was measured
for it. FCFS and BF look at every machine, which the authors' versions do not.

Prototype, one machine, the {len(first.jobs)} jobs of Table 1 (CaffeRef is AlexNet):

{prototype(with_links(first, profile), profile, options.processes)}

Job files:

{larger(cases, profile, options.processes)}
"""
    finish("topo", text, write=options.write)


if __name__ == "__main__":
    main()
