"""Synergy-like traces, and the effect of composition on them and on Sia-Philly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from common import gain, paragraph, percent, run, table
from pal_bench import BASE, PAL, PAL_STAYS, STICKY, Bench, average, penalised, spread, together

from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import MEASURED_SHARE, SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import SimulatedSite, Timings, synthetic_site
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

NODES, PENALTY = 64, 1.7
STAY = (STICKY, PAL_STAYS)
PAPER = {"fifo": "4..9%", "las": "up to 15%", "srtf": "up to 10%"}
COMPOSED = (STICKY, PAL, "pal+mapa:non-sticky")
SENSITIVE = ("A", "B")
AGAIN = (("fifo", 0.0), ("las", 0.0), ("las", 60.0))
"""Orders, and what a move costs, s, where PAL places all jobs anew."""


def synergy_site(bench: Bench, profile: Mapping[str, Timings], seed: int = 1) -> SimulatedSite:
    """256 GPUs with single runs drawn with a seed, L 1.7."""
    return penalised(bench.site(profile, "runs", seed, nodes=NODES), PENALTY)


def middle(result: Result, *, several: bool = False) -> float:
    """Average JCT of jobs 2000 to 3000 of 4000, s; ``several``: of those of several GPUs."""
    jobs = result.trace.jobs
    submit, gpus = np.array([[job.submit_s, job.gpus] for job in jobs]).T
    counted = np.zeros(len(jobs), dtype=np.bool_)
    counted[len(jobs) // 2 : 3 * len(jobs) // 4 + 1] = True
    if several:
        counted &= gpus > 1
    return float(np.nanmean((result.end_s - submit)[counted]))


def _several(result: Result) -> float:
    return middle(result, several=True)


def _gains(
    found: Mapping[tuple[Any, ...], list[Result]],
    case: tuple[Any, ...],
    value: Callable[[Result], float] = middle,
) -> list[float]:
    """Gain over packed in the same case, of each draw."""
    pairs = zip(found[case], found[*case[:-1], STICKY], strict=True)
    return [gain(value(a), value(b)) for a, b in pairs]


def synergy_table(bench: Bench, sites: Sequence[SimulatedSite]) -> tuple[str, str]:
    """Loads and orders, and remarks on the numbers; sticky policies."""
    size = bench.size
    traces = {load: bench.synergy(load) for load in size.loads}
    cases = [(order, load, p) for order in size.orders for load in size.loads for p in STAY]
    found = _on_all(bench, "Synergy-like", sites, cases, traces, BASE)
    rows = [
        (
            f"{order}, {load} jobs/h",
            f"{np.mean([middle(r) for r in found[order, load, STICKY]]) / 3600:.1f}",
            spread(_gains(found, (order, load, PAL_STAYS))),
            spread(_gains(found, (order, load, PAL_STAYS), _several)),
            PAPER[order],
        )
        for order in size.orders
        for load in size.loads
    ]
    own = [
        f"{order} {spread(g for load in size.loads for g in _gains(found, (order, load, 'pal')))} "
        f"(published, non-sticky: {PAPER[order]})"
        for order in size.orders
    ]
    sizes = [job.gpus for trace in traces.values() for job in trace.jobs]
    said = paragraph(
        f"{percent(sizes.count(1) / len(sizes))} of these jobs want one GPU. Sticky PAL gains, "
        f"over all loads and draws, {'; '.join(own)}.",
        "The authors' job log is not public: these traces are made by the same recipe. The paper "
        "shows the JCT of jobs of several GPUs in figures 15 and 19, with PAL non-sticky. Their "
        "values were not available, nor are they in the authors' artifact: only its gains over all "
        "jobs stand beside ours, and sticky PAL beside non-sticky PAL.",
    )
    heads = [
        "order, load", "packed, sticky (Tiresias): avg JCT, h", "PAL, sticky",
        "its jobs of several GPUs", "paper: PAL, non-sticky",
    ]  # fmt: skip
    return table(heads, rows), said


def anew_table(bench: Bench, sites: Sequence[SimulatedSite]) -> list[str]:
    """Non-sticky PAL, with free moves as published and with moves that cost 60 s."""
    size = bench.size
    if not size.anew:
        return []
    part = size.anew_jobs
    whole = {load: bench.synergy(load) for load in size.anew}
    traces = {load: replace(trace, jobs=trace.jobs[:part]) for load, trace in whole.items()}
    rows = []
    for order, cost in AGAIN:
        cases = [(order, load, p) for load in size.anew for p in (STICKY, PAL_STAYS, PAL)]
        base = replace(BASE, migration_s=cost)
        found = _on_all(bench, f"non-sticky, {order}, {cost:g} s", sites, cases, traces, base)
        rows += [
            (
                f"{order}, {load} jobs/h, a move costs {cost:g} s",
                f"{np.mean([middle(r) for r in found[order, load, STICKY]]) / 3600:.1f}",
                spread(_gains(found, (order, load, PAL_STAYS))),
                spread(_gains(found, (order, load, PAL))),
                f"{np.mean([r.migrations.sum() for r in found[order, load, PAL]]):,.0f}",
                PAPER[order] if cost == 0.0 else "",
            )
            for load in size.anew
        ]
    heads = [
        "order, load", "packed, sticky (Tiresias): avg JCT, h", "PAL, sticky",
        "PAL, non-sticky, as published", "moves", "paper: PAL, non-sticky",
    ]  # fmt: skip
    said = (
        "The paper's PAL places all jobs anew in each round, and moves are free. Sticky and "
        f"non-sticky on the first {part} jobs (jobs {part // 2} to {3 * part // 4} count):"
    )
    after = (
        "Where packed has the same average JCT in both orders hardly a job waits, and PAL gains by "
        "faster GPUs alone; the published gains are those of longer traces, at 8 to 14 jobs/h."
    )
    return [paragraph(said), table(heads, rows), paragraph(after)]


def _on_all(
    bench: Bench,
    what: str,
    sites: Sequence[SimulatedSite],
    cases: Sequence[tuple[str, int, str]],
    traces: Mapping[int, Trace],
    base: SimSettings,
) -> dict[tuple[Any, ...], list[Result]]:
    """(order, load, policy) -> results, one per draw."""
    runs = [
        Run(traces[load], site.cluster, site.truth, parse_policy(p, replace(base, order=order)))
        for order, load, p in cases
        for site in sites
    ]
    results = iter(run(what, runs, bench.processes))
    return {case: [next(results) for _ in sites] for case in cases}


@dataclass(frozen=True)
class Composed:
    """The runs of policies on traces, with and without backfill."""

    policies: Sequence[str]
    jct_s: Mapping[tuple[str, bool], list[float]]
    results: Mapping[tuple[str, bool], list[Result]]

    @classmethod
    def of(
        cls,
        what: str,
        bench: Bench,
        site: SimulatedSite,
        traces: Sequence[Trace],
        policies: Sequence[str],
    ) -> Composed:
        """Nodes are AC922 (Longhorn's); links count for classes A and B; moves cost 60 s."""
        nodes = len(site.cluster.nodes)
        base = synthetic_site(nodes, machine_name="ibm-ac922-4xv100", same_indices=False)
        cluster = replace(site.cluster, graphs=base.cluster.graphs)
        linked = [replace(t, jobs=tuple(map(_sensitive, t.jobs))) for t in traces]
        cases = [(p, b) for p in policies for b in (False, True)]
        settings = [
            replace(
                parse_policy(p, BASE),
                backfill=b,
                migration_s=60.0,
                communication_share=MEASURED_SHARE,
            )
            for p, b in cases
        ]
        found = iter(
            run(
                f"composition, {what}",
                [Run(t, cluster, site.truth, s) for s in settings for t in linked],
                bench.processes,
            )
        )
        results = {case: [next(found) for _ in linked] for case in cases}
        jct = {case: [average(r) for r in own] for case, own in results.items()}
        return cls(policies, jct, results)

    def gain(self, case: tuple[str, bool], first: tuple[str, bool]) -> float:
        """Gain in average JCT: geometric mean over traces."""
        return together(
            gain(a, b) for a, b in zip(self.jct_s[case], self.jct_s[first], strict=True)
        )

    def table(self) -> str:
        """One row per case."""
        first = (self.policies[0], False)
        rows = []
        for (policy, backfill), own in self.results.items():
            how = "EASY backfill" if backfill else "no backfill"
            rows.append(
                (
                    f"{policy}, {how}",
                    percent(self.gain((policy, backfill), first)),
                    f"{np.mean([r.wait_s().mean() for r in own]) / 3600:.2f}",
                    f"{np.mean([r.slowdown().mean() for r in own]):.3f}",
                )
            )
        heads = ["policy", "JCT vs packed without backfill", "avg wait, h", "avg slowdown"]
        return table(heads, rows)

    def said(self) -> str:
        """Effect of backfill, of the composed policy, and of both."""
        packed, ours = self.policies[0], self.policies[-1]
        plain = (packed, False)
        return paragraph(
            f"Backfill alone makes packed's average JCT {_less(self, (packed, True), plain)}, "
            f"{ours} alone {_less(self, (ours, False), plain)}, both "
            f"{_less(self, (ours, True), plain)}. "
            "With backfill everywhere it is, against packed, "
            f"{_less(self, (ours, True), (packed, True))} with {ours} and "
            f"{_less(self, (self.policies[1], True), (packed, True))} with {self.policies[1]}."
        )


def _less(runs: Composed, case: tuple[str, bool], first: tuple[str, bool]) -> str:
    """``12.3% shorter`` or ``longer``, as the table's gains and losses."""
    gain = round(100 * runs.gain(case, first), 1)
    return f"{abs(gain):.1f}% {'shorter' if gain >= 0 else 'longer'}"


def _sensitive(job: TraceJob) -> TraceJob:
    return replace(job, bandwidth_sensitive=job.app_class in SENSITIVE)
