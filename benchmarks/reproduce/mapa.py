"""MAPA (Ranganath et al., SC'21): 300 jobs of 1 to 5 GPUs on five machines, four policies.

python benchmarks/reproduce/mapa.py [--quick] [--long] [--write]    a minute on 2 idle cores
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import arguments, finish, geomean, paragraph, run, table

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import MEASURED_SHARE, SimSettings, share_of
from slurm_gpu_aware.simulator.simulated_site import SimulatedSite, synthetic_site
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, PAPER, EffBwModel
from slurm_gpu_aware.topology.matching import match
from slurm_gpu_aware.topology.patterns import parse_pattern

MACHINES = ("mapa-dgx-v", "mapa-dgx-p", "mapa-summit", "mapa-torus-2d", "mapa-cubemesh-16")
POLICIES = ("mapa-baseline", "mapa-topo-aware", "mapa-greedy", "mapa-preserve")
COMPOSED = ("mapa-baseline", "pal+mapa")
SENSITIVE = ("alexnet", "inception-v3", "vgg-16", "resnet-50")
OTHERS = ("caffenet", "googlenet", "cusimann", "gmm", "jacobi")
JOBS = 300
PAPER_TABLE = {
    "mapa-topo-aware": (1.002, 1.029, 1.385, 1.014, 1.075, 1.07),
    "mapa-greedy": (0.997, 1.059, 1.519, 1.048, 1.319, 1.08),
    "mapa-preserve": (1.006, 1.057, 1.119, 1.124, 1.352, 1.12),
}
"""Speed-up at the minimum, the quartiles and the maximum, and throughput: Table 3, DGX-V."""
FITTED = "mapa-dgx-v"
"""Eq. 2 was fitted on this machine, and Table 3 is of it."""
SETTINGS = SimSettings(backfill_depth=100, communication_share=MEASURED_SHARE)


def jobs(seed: int) -> Trace:
    """300 jobs, one per second: 1..5 GPUs, one of nine applications, 5 to 30 minutes of work."""
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


def bandwidths(results: Sequence[Result], site: SimulatedSite, model: EffBwModel) -> FloatArray:
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


def quantiles(values: FloatArray) -> FloatArray:
    """Minimum, quartiles, maximum."""
    return np.asarray(np.percentile(values, [0, 25, 50, 75, 100]))


@dataclass(frozen=True)
class Machine:
    """Results of the four policies on one machine, one per trace."""

    name: str
    site: SimulatedSite
    results: dict[str, list[Result]]

    @classmethod
    def of(cls, name: str, traces: Sequence[Trace], processes: int | None) -> Machine:
        """Run them."""
        site = synthetic_site(1, machine_name=name)
        runs = [
            Run(t, site.cluster, {}, replace(SETTINGS, policy=p), keep_placements=True)
            for p in POLICIES
            for t in traces
        ]
        found = iter(run(name, runs, processes))
        return cls(name, site, {p: [next(found) for _ in traces] for p in POLICIES})

    def speed_ups(self, policy: str) -> FloatArray:
        """Quantiles of the baseline's slowdowns / those of the policy."""
        base = quantiles(slowdowns(self.results[POLICIES[0]]))
        return np.asarray(base / quantiles(slowdowns(self.results[policy])))

    def throughputs(self, policy: str) -> list[float]:
        """Makespan of the baseline / that of the policy, of each trace."""
        pairs = zip(self.results[POLICIES[0]], self.results[policy], strict=True)
        return [first.makespan_s() / own.makespan_s() for first, own in pairs]

    def throughput(self, policy: str) -> float:
        """Their geometric mean."""
        return geomean(self.throughputs(policy))

    def bandwidths(self, policy: str, model: EffBwModel) -> str:
        """Quantiles of EffBW, GB/s."""
        values = bandwidths(self.results[policy], self.site, model)
        return " ".join(f"{x:.0f}" for x in quantiles(values))


def machine_tables(machines: Sequence[Machine]) -> str:
    """Speed-ups on each machine, and EffBW."""
    speed, band = [], []
    for own in machines:
        measured = own.name == FITTED
        for policy in POLICIES:
            if policy != POLICIES[0]:
                cells = " ".join(f"{x:.3f}" for x in own.speed_ups(policy))
                said = PAPER_TABLE[policy] if measured else ()
                speed.append(
                    (
                        f"{own.name}, {policy}",
                        cells,
                        f"{own.throughput(policy):.3f} ({_range(own.throughputs(policy))})",
                        " ".join(f"{x:.3f}" for x in said[:-1]),
                        "".join(f"{x:.2f}" for x in said[-1:]),
                    )
                )
            paper = own.bandwidths(policy, PAPER) if measured else ""
            band.append((f"{own.name}, {policy}", own.bandwidths(policy, BOTTLENECK), paper))
    speed_heads = [
        "machine, policy", "speed-up: min 25% 50% 75% max", "throughput", "paper: speed-up",
        "paper: throughput",
    ]  # fmt: skip
    return "\n\n".join(
        [
            table(speed_heads, speed),
            "EffBW of the same jobs, GB/s:",
            table(["machine, policy", "bottleneck: min 25% 50% 75% max", "by eq. 2"], band),
        ]
    )


def remarks(machines: Sequence[Machine]) -> str:
    """Comparison of the numbers with the paper's."""
    (own,) = (m for m in machines if m.name == FITTED)
    through = {p: own.throughput(p) for p in POLICIES[1:]}
    theirs = {p: values[-1] for p, values in PAPER_TABLE.items()}
    distinct = np.unique(np.round(slowdowns([r for rs in own.results.values() for r in rs]), 3))
    same = [
        f"{m.name} ({', '.join(f'{m.throughput(p):.3f}' for p in POLICIES[1:])})"
        for m in machines
        if all(np.allclose(m.speed_ups(p), 1.0, atol=5e-4) for p in POLICIES[1:])
    ]
    return paragraph(
        f"On {FITTED} throughput over the baseline is {_list(through)}; published: "
        f"{_list(theirs)}. By throughput the order is {_order(through)}, in the paper "
        f"{_order(theirs)}.",
        "How much a sensitive job gains from bandwidth is one number per application, the largest "
        f"for VGG-16; by this model the slowdowns of all sensitive jobs there take {len(distinct)} "
        "values, so that a quantile either stays or jumps.",
        f"Speed-ups are 1 at all these quantiles on {'; '.join(same)}: in brackets throughput, in "
        "the order of the table."
        if same
        else "",
        "The values of the paper's Figure 18 (EffBW) are not at hand as numbers: there is no "
        "column for them.",
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def _list(values: Mapping[str, float]) -> str:
    return ", ".join(f"{policy} {value:.3f}" for policy, value in values.items())


def _order(values: Mapping[str, float]) -> str:
    ordered = sorted(values, key=lambda policy: -values[policy])
    return " > ".join(policy.removeprefix("mapa-") for policy in ordered)


def composed_table(seeds: Sequence[int], processes: int | None) -> tuple[str, str]:
    """The same jobs on each machine with backfill, and with the composed policy."""
    traces = [jobs(seed) for seed in seeds]
    cases = [(m, p, b) for m in MACHINES for p in COMPOSED for b in (False, True)]
    runs = []
    for name in MACHINES:
        cluster = synthetic_site(1, machine_name=name).cluster
        runs += [
            Run(t, cluster, {}, replace(SETTINGS, policy=p, backfill=b))
            for m, p, b in cases
            for t in traces
            if m == name
        ]
    found = iter(run("composition", runs, processes))
    results = {case: [next(found) for _ in traces] for case in cases}
    spans = {case: float(np.mean([r.makespan_s() for r in own])) for case, own in results.items()}
    through = {case: spans[case[0], COMPOSED[0], False] / span for case, span in spans.items()}
    rows = [
        (
            f"{name}, {policy}, {'EASY backfill' if backfill else 'no backfill'}",
            f"{through[name, policy, backfill]:.3f}",
            f"{np.mean([r.jct_s().mean() for r in own]) / 3600:.2f}",
            f"{slowdowns(own).mean():.3f}",
        )
        for (name, policy, backfill), own in results.items()
    ]
    ours = COMPOSED[-1]
    changes = {
        "backfill alone": [through[m, COMPOSED[0], True] for m in MACHINES],
        f"{ours} alone": [through[m, ours, False] for m in MACHINES],
        "both": [through[m, ours, True] for m in MACHINES],
        f"{ours} against the baseline, both with backfill": [
            through[m, ours, True] / through[m, COMPOSED[0], True] for m in MACHINES
        ],
    }
    said = [f"{what} {min(v):.3f} to {max(v):.3f}" for what, v in changes.items()]
    heads = ["machine, policy", "throughput", "avg JCT, h", "slowdown of sensitive jobs"]
    return table(heads, rows), paragraph(f"Throughput over machines: {'; '.join(said)}.")


def _count(seeds: Sequence[int]) -> str:
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"


def section(seeds: Sequence[int], processes: int | None, *, composed: bool) -> str:
    """Run everything, with composed policies or without; the section of the page.

    Each remark is made from the numbers above it.
    """
    traces = [jobs(seed) for seed in seeds]
    machines = [Machine.of(name, traces, processes) for name in MACHINES]
    shares = ", ".join(f"{name} {share_of(name):g}" for name in SENSITIVE)
    intro = paragraph(
        f"{JOBS} jobs of 1 to 5 GPUs (uniform), nine applications of which four are sensitive, one "
        f"job per second, so that a queue stands almost at once; FIFO, {_count(seeds)}: geometric "
        "mean and range of the throughput. The "
        "paper's job list is not public: this one is **synthetic**. A sensitive job runs (1 - c) + "
        f"c best/have times as long, EffBW by the bottleneck model, c by application: {shares}. "
        "Speed-ups are ratios of the quantiles of the sensitive jobs' run times "
        "(two GPUs and more) to those of the baseline, as in the paper's Table 3."
    )
    parts = ["## MAPA", intro, machine_tables(machines), remarks(machines)]
    if composed:
        parts.append("What composing adds on the same jobs:")
        parts += composed_table(seeds, processes)
    return "\n\n".join(parts)


def main() -> None:
    options = arguments(__doc__ or "", long="composed policies with backfill, too: an hour")
    text = section(range(1 if options.quick else 8), options.processes, composed=options.long)
    finish("mapa", text, write=options.write)


if __name__ == "__main__":
    main()
