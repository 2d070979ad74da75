"""Synergy-like traces, and the effect of composition on them and on Sia-Philly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import between, gain, paragraph, percent, run, table
from pal_bench import BASE, PAL, STICKY, Bench, penalised, together

from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import MEASURED_SHARE, parse_policy
from slurm_gpu_aware.simulator.simulated_site import SimulatedSite, synthetic_site
from slurm_gpu_aware.simulator.timings import Timings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

NODES, PENALTY = 64, 1.7
STAY = (STICKY, "pm-first", "pal")
PAPER = {"fifo": "4..9%", "las": "up to 15%", "srtf": "up to 10%"}
COMPOSED = (STICKY, PAL, "pal+mapa:non-sticky")
COMPOSED_SYNERGY = (STICKY, "pal", "pal+mapa")
SENSITIVE = ("A", "B")


def synergy_site(bench: Bench, profile: Mapping[str, Timings]) -> SimulatedSite:
    """256 GPUs with single runs drawn with seed 1, L 1.7."""
    return penalised(bench.site(profile, "runs", 1, nodes=NODES), PENALTY)


def middle(result: Result) -> float:
    """Average JCT of jobs 2000 to 3000 of 4000, s."""
    count = len(result.trace.jobs)
    submit = np.array([job.submit_s for job in result.trace.jobs])
    return float(np.nanmean((result.end_s - submit)[count // 2 : 3 * count // 4 + 1]))


def synergy_table(bench: Bench, site: SimulatedSite) -> tuple[str, str]:
    """Loads and orders, and remarks on the numbers; jobs 2000 to 3000 count."""
    size = bench.size
    traces = {load: bench.synergy(load) for load in size.loads}
    cases = [(order, load, p) for order in size.orders for load in size.loads for p in STAY]
    cases += [("fifo", load, PAL) for load in size.anew]
    runs = [
        Run(traces[load], site.cluster, site.truth, parse_policy(p, replace(BASE, order=order)))
        for order, load, p in cases
    ]
    results = run("Synergy-like", runs, bench.processes)
    jct = {case: middle(result) for case, result in zip(cases, results, strict=True)}
    gains = {
        (order, load, p): gain(value, jct[order, load, STICKY])
        for (order, load, p), value in jct.items()
    }
    rows = [
        (
            f"{order}, {load} jobs/h",
            f"{jct[order, load, STICKY] / 3600:.1f}",
            percent(gains[order, load, "pal"]),
            percent(gains[order, load, "pm-first"]),
            percent(gains[order, load, PAL]) if (order, load, PAL) in gains else "",
            PAPER[order],
        )
        for order in size.orders
        for load in size.loads
    ]
    own = [
        f"{order} {between(gains[order, load, 'pal'] for load in size.loads)} (published: "
        f"{PAPER[order]})"
        for order in size.orders
    ]
    anew = [
        f"{percent(gains['fifo', load, PAL])} instead of {percent(gains['fifo', load, 'pal'])} at "
        f"{load} jobs/h"
        for load in size.anew
    ]
    sizes = [job.gpus for trace in traces.values() for job in trace.jobs]
    said = paragraph(
        f"{percent(sizes.count(1) / len(sizes))} of these jobs want one GPU. PAL that lets jobs "
        f"keep their GPUs gains {'; '.join(own)}.",
        f"Placing all jobs anew, FIFO: {'; '.join(anew)}." if anew else "",
        "The authors' job log is not public: these traces are made by the same recipe.",
    )
    heads = ["order, load", "packed, avg JCT h", "PAL", "PM-First", "PAL non-sticky", "paper: PAL"]
    return table(heads, rows), said


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
        # of a long trace the middle counts, as in the paper
        take = middle if nodes == NODES else _all
        jct = {case: [take(r) for r in own] for case, own in results.items()}
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


def _all(result: Result) -> float:
    return float(result.jct_s().mean())


def _sensitive(job: TraceJob) -> TraceJob:
    return replace(job, bandwidth_sensitive=job.app_class in SENSITIVE)
