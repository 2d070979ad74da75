"""MAPA (Ranganath et al., SC'21): 300 jobs of 1 to 5 GPUs on five machines, four policies.

python benchmarks/reproduce/mapa.py [--quick] [--write]     about 2 minutes on 2 cores, quick: 20 s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from common import arguments, finish, run, table

from slurm_gpu_aware.cluster import FloatArray
from slurm_gpu_aware.simulator.clusters import SimCluster, synthetic_cluster
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import MEASURED_SHARE, SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, PAPER, EffBwModel
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import parse_pattern

MACHINES = ("mapa-dgx-v", "mapa-dgx-p", "mapa-summit", "mapa-torus-2d", "mapa-cubemesh-16")
POLICIES = ("mapa-baseline", "mapa-topo-aware", "mapa-greedy", "mapa-preserve")
COMPOSED = ("mapa-baseline", "mapa-preserve", "pal+mapa")
SENSITIVE = ("alexnet", "inception-v3", "vgg-16", "resnet-50")
OTHERS = ("caffenet", "googlenet", "cusimann", "gmm", "jacobi")
JOBS = 300
PAPER_TABLE = {
    "mapa-topo-aware": "1.002 1.029 1.385 1.014 1.075; 1.07",
    "mapa-greedy": "0.997 1.059 1.519 1.048 1.319; 1.08",
    "mapa-preserve": "1.006 1.057 1.119 1.124 1.352; 1.12",
}
SETTINGS = SimSettings(communication_share=MEASURED_SHARE, limit_factor=1.5)


def jobs(seed: int) -> Trace:
    """300 jobs in a queue: 1..5 GPUs, one of nine applications, 5 to 30 minutes of work."""
    rng = np.random.default_rng(seed)
    names = (*SENSITIVE, *OTHERS)
    made = []
    for i in range(JOBS):
        name = names[int(rng.integers(len(names)))]
        made.append(
            TraceJob(
                job_id=str(i),
                submit_s=float(i),
                gpus=int(rng.integers(1, 6)),
                duration_s=float(rng.uniform(300, 1800)),
                model=name,
                bandwidth_sensitive=name in SENSITIVE,
                nodes=1,
            )
        )
    return Trace.of(f"MAPA-like, seed {seed}", made)


def chosen(result: Result) -> list[int]:
    """Positions of the sensitive jobs of two GPUs and more."""
    return [
        i for i, job in enumerate(result.trace.jobs) if job.bandwidth_sensitive and job.gpus > 1
    ]


def slowdowns(results: Sequence[Result]) -> FloatArray:
    """Time on GPUs / time on the best GPUs, of the sensitive jobs of two GPUs and more."""
    return np.concatenate(
        [[r.run_s[i] / r.trace.jobs[i].duration_s for i in chosen(r)] for r in results]
    )


def bandwidths(results: Sequence[Result], site: SimCluster, model: EffBwModel) -> FloatArray:
    """EffBW of the same jobs where they ran, GB/s."""
    graph = site.cluster.graphs[0]
    assert graph is not None
    ring = parse_pattern("ring")
    values = []
    for result in results:
        wanted = {result.trace.jobs[i].job_id for i in chosen(result)}
        values += [
            match(graph, tuple(p["slots"][0]), ring, model).eff_gbps
            for p in result.placements
            if p["job_id"] in wanted
        ]
    return np.array(values)


def quartiles(values: FloatArray) -> FloatArray:
    """Minimum, quartiles, maximum."""
    return np.asarray(np.percentile(values, [0, 25, 50, 75, 100]))


def machine_tables(seeds: Sequence[int], processes: int | None) -> str:
    """Speed-ups on each machine, and EffBW."""
    traces = [jobs(seed) for seed in seeds]
    speed, band = [], []
    for name in MACHINES:
        site = synthetic_cluster(1, machine_name=name)
        runs = [
            Run(t, site.cluster, {}, replace(SETTINGS, policy=p), keep_placements=True)
            for p in POLICIES
            for t in traces
        ]
        found = iter(run(name, runs, processes))
        results = {p: [next(found) for _ in traces] for p in POLICIES}
        base = quartiles(slowdowns(results[POLICIES[0]]))
        spans = {p: np.mean([r.makespan_s() for r in results[p]]) for p in POLICIES}
        for policy in POLICIES:
            ratio = base / quartiles(slowdowns(results[policy]))
            through = spans[POLICIES[0]] / spans[policy]
            said = PAPER_TABLE.get(policy, "") if name == "mapa-dgx-v" else ""
            if policy != POLICIES[0]:
                cells = " ".join(f"{x:.3f}" for x in ratio)
                speed.append((f"{name}, {policy}", cells, f"{through:.3f}", said))
            row = [
                " ".join(
                    f"{x:.0f}" for x in quartiles(bandwidths(results[policy], site, BOTTLENECK))
                )
            ]
            paper = ""
            if name == "mapa-dgx-v":
                paper = " ".join(
                    f"{x:.0f}" for x in quartiles(bandwidths(results[policy], site, PAPER))
                )
            band.append((f"{name}, {policy}", *row, paper))
    return "\n\n".join(
        [
            table(
                ["machine, policy", "speed-up: min 25% 50% 75% max", "throughput", "paper"], speed
            ),
            "EffBW of the same jobs, GB/s:",
            table(["machine, policy", "bottleneck: min 25% 50% 75% max", "by eq. 2"], band),
        ]
    )


def composed_table(seeds: Sequence[int], processes: int | None) -> str:
    """The same jobs on a DGX-1V with backfill, and with the composed policy."""
    traces = [jobs(seed) for seed in seeds]
    site = synthetic_cluster(1, machine_name="mapa-dgx-v")
    cases = [(p, b) for p in COMPOSED for b in (False, True)]
    runs = [
        Run(t, site.cluster, {}, replace(SETTINGS, policy=p, backfill=b))
        for p, b in cases
        for t in traces
    ]
    found = iter(run("composition", runs, processes))
    results = [[next(found) for _ in traces] for _ in cases]
    first = np.mean([r.makespan_s() for r in results[0]])
    rows = [
        (
            f"{policy}, {'EASY backfill' if backfill else 'no backfill'}",
            f"{first / np.mean([r.makespan_s() for r in own]):.3f}",
            f"{np.mean([r.jct_s().mean() for r in own]) / 3600:.2f}",
            f"{slowdowns(own).mean():.3f}",
        )
        for (policy, backfill), own in zip(cases, results, strict=True)
    ]
    return table(["policy", "throughput", "avg JCT, h", "slowdown of sensitive jobs"], rows)


def main() -> None:
    options = arguments(__doc__ or "")
    seeds = range(1 if options.quick else 5)
    text = f"""## MAPA

{JOBS} jobs of 1 to 5 GPUs (uniform), nine applications of which four are sensitive, all in the
queue at the start, FIFO, {len(seeds)} seeds. The paper's job list is not public: this one is
**synthetic**. A sensitive job runs (1 - c) + c best/have times as long, c = {MEASURED_SHARE:g} as
measured on AlexNet, EffBW by the bottleneck model. Speed-ups are ratios of the quantiles of the
sensitive jobs' run times (two GPUs and more) to those of the baseline, as in the paper's Table 3.

{machine_tables(seeds, options.processes)}

What composing adds, DGX-1V:

{composed_table(seeds, options.processes)}
"""
    finish("mapa", text, write=options.write)


if __name__ == "__main__":
    main()
