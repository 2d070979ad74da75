"""PowerFlow in the planner's own rounds: what it brings that running jobs shrink, not only grow.

Run ``python benchmarks/reproduce/powerflow_moves.py [--quick] [--write]``: 5 minutes of CPU time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from common import arguments, finish, geomean, paragraph, run, shared, table
from powerflow import EASY, LIVE, Bench, Count, Point, at_equal_energy, cell, point, schedulers
from powerflow_bench import NEEDED, Load, trace

from slurm_gpu_aware.model.move_settings import MoveSettings
from slurm_gpu_aware.simulator.parallel import Run

FULL = Count(seeds=8, etas=(0.55, 0.7))
QUICK = Count(1, (1.2,), (0.7,), 100)
VARIANTS = {
    "they grow (`shrink = false`)": MoveSettings(shrink=False),
    "they grow and shrink": MoveSettings(),
}
GROW, BOTH = VARIANTS
Found = Mapping[tuple[str, float, int], tuple[Point, int]]
"""(variant, eta, seed) -> its run, and the number of moves; of eft with EASY at eta 0."""


def runs(bench: Bench, demand: float, count: Count) -> Found:
    """All runs of a demand."""
    base, site = schedulers(bench.power, bench.known), bench.site(0, differ=False)
    load = Load(demand, count.jobs)
    cases = {}
    for seed in range(count.seeds):
        jobs = trace(bench.data, bench.tables, load, seed)
        cases[EASY, 0.0, seed] = Run(jobs, site.cluster, site.truth, base[EASY])
        for name, moves in VARIANTS.items():
            for eta in count.etas:
                power = replace(bench.power, eta=eta)
                settings = replace(base[LIVE], power=power, moves=moves)
                cases[name, eta, seed] = Run(jobs, site.cluster, site.truth, settings)
    results = run(f"demand {demand:g}", list(cases.values()), bench.processes)
    found = zip(cases, results, strict=True)
    return {case: (point(one), int(one.migrations.sum())) for case, one in found}


def equal_energy(found: Mapping[float, Found], count: Count) -> str:
    """JCT against eft with EASY at its energy."""
    rows = []
    for name in VARIANTS:
        cells = []
        for of in found.values():
            ratios = [
                at_equal_energy(
                    [of[name, eta, seed][0] for eta in count.etas],
                    of[EASY, 0.0, seed][0],
                    lambda q: q.energy_kwh,
                )
                for seed in range(count.seeds)
            ]
            cells.append(cell(ratios))
        rows.append((name, *cells))
    return table(["running jobs", *(f"demand {demand:g}" for demand in found)], rows)


def same_limit(found: Mapping[float, Found], count: Count) -> str:
    """What shrinking changes under each limit."""
    rows = []
    for demand, of in found.items():
        for eta in count.etas:
            pairs = [[of[name, eta, seed] for name in (GROW, BOTH)] for seed in range(count.seeds)]
            jct = [both[0].jct_s / grow[0].jct_s for grow, both in pairs]
            energy = geomean(both[0].energy_kwh / grow[0].energy_kwh for grow, both in pairs)
            moves = " / ".join(f"{_mean(pair[i][1] for pair in pairs):.0f}" for i in (0, 1))
            rows.append((f"demand {demand:g}, eta {eta:g}", cell(jct), f"{energy:.3f}", moves))
    return table(["", "average JCT", "energy", "moves in a trace"], rows)


def _mean(numbers: Iterable[int]) -> float:
    values = list(numbers)
    return sum(values) / len(values)


def section(count: Count, data: Path, processes: int | None) -> str:
    """Run everything; the section of the page."""
    bench = Bench(data, count, processes)
    found = {demand: runs(bench, demand, count) for demand in count.demands}
    etas = ", ".join(f"{eta:g}" for eta in count.etas)
    return "\n\n".join(
        [
            "## PowerFlow: moves of elastic jobs" + " (a part of the runs)" * (count != FULL),
            paragraph(
                f"Traces and cluster as [above](#powerflow), {count.seeds} seeds, eta {etas},"
                " default settings of moves. Average JCT of eft with EASY, sizes as asked and"
                " default clocks / that of eft + PowerFlow with the best eta that needs no more"
                " energy (geometric mean and range):"
            ),
            equal_energy(found, count),
            paragraph(
                "Growing and shrinking / growing alone, under the same limit (geometric means, of"
                " the JCT with its range; moves: grow / both):"
            ),
            same_limit(found, count),
            paragraph(
                "A job that grew while the queue was empty else keeps its GPUs when jobs come. A"
                " job counts as if it stayed small to its end, and one that starts as if it stayed"
                " at its least size, so single traces may lose."
            ),
        ]
    )


def main() -> None:
    options = arguments(__doc__ or "")
    data = shared(*NEEDED)
    if data is None:
        sys.exit("this reproduction needs the measured data; synthetic tables would say nothing")
    text = section(QUICK if options.quick else FULL, data, options.processes)
    finish("powerflow_moves", text, write=options.write)


if __name__ == "__main__":
    main()
