"""PowerFlow in the planner's own rounds: what it brings that running jobs shrink, not only grow.

Then what each limit of moves costs, and what is beyond them: all jobs sized anew in each round.

Run ``python benchmarks/reproduce/powerflow_moves.py [--quick] [--write]``: 17 minutes of CPU time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from common import arguments, finish, geomean, measured_data, paragraph, run, table
from powerflow import (
    EASY,
    LIVE,
    PLACED,
    Bench,
    Count,
    Point,
    at_equal_energy,
    cell,
    point,
    schedulers,
)
from powerflow_bench import NEEDED, Load, trace

from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.simulator.parallel import Run

FULL = Count(seeds=8, etas=(0.55, 0.7))
QUICK = Count(1, (1.2,), (0.7,), 100)
LOOSE_SEEDS = 4
"""Seeds of the runs with looser limits."""
VARIANTS = {
    "they grow (`shrink = false`)": MovesConfig(shrink=False),
    "they grow and shrink": MovesConfig(),
}
GROW, BOTH = VARIANTS
ANY_RATE = MovesConfig(per_round=1_000_000, per_hour=1_000_000)
LOOSER = {
    "`again_s = 0`": MovesConfig(again_s=0.0),
    "`first_s = 0`": MovesConfig(first_s=0.0),
    "`last_s = 0`": MovesConfig(last_s=0.0),
    "`margin_s = 0`": MovesConfig(margin_s=0.0),
    "`per_round`, `per_hour` without limit": ANY_RATE,
    "all of these": replace(ANY_RATE, again_s=0.0, first_s=0.0, last_s=0.0, margin_s=0.0),
}
Found = Mapping[tuple[str, float, int], tuple[Point, int]]
"""(variant, eta, seed) -> its run, and the number of moves; of eft with EASY at eta 0."""


def runs(bench: Bench, demand: float, count: Count) -> Found:
    """All runs of a demand."""
    base, site = schedulers(bench.power, bench.known), bench.site(0, differ=False)
    load = Load(demand, count.jobs)
    live = {
        name: replace(base[LIVE], mode="moves").put(moves)
        for name, moves in (VARIANTS | LOOSER).items()
    }
    cases = {}
    for seed in range(count.seeds):
        jobs = trace(bench.data, bench.tables, load, seed)
        cases[EASY, 0.0, seed] = Run(jobs, site.cluster, site.truth, base[EASY])
        for (name, own), eta in product((live | {PLACED: base[PLACED]}).items(), count.etas):
            if name not in LOOSER or seed < LOOSE_SEEDS:
                settings = own.put(replace(bench.power, eta=eta))
                cases[name, eta, seed] = Run(jobs, site.cluster, site.truth, settings)
    results = run(f"demand {demand:g}", list(cases.values()), bench.processes)
    found = zip(cases, results, strict=True)
    return {case: (point(one), int(one.migrations.sum())) for case, one in found}


def equal_energy(found: Mapping[float, Found], count: Count) -> str:
    """JCT against eft with EASY at its energy."""
    seeds = range(count.seeds)
    rows = [
        (name, *(_at_its_energy(of, name, count.etas, seeds) for of in found.values()))
        for name in (*VARIANTS, PLACED)
    ]
    return table(["running jobs", *(f"demand {demand:g}" for demand in found)], rows)


def _at_its_energy(of: Found, name: str, etas: Sequence[float], seeds: Sequence[int]) -> str:
    return cell(
        [
            at_equal_energy(
                [of[name, eta, seed][0] for eta in etas],
                of[EASY, 0.0, seed][0],
                lambda q: q.energy_kwh,
            )
            for seed in seeds
        ]
    )


def looser(found: Mapping[float, Found], count: Count) -> str:
    """What remains with looser limits, one at a time."""
    seeds = range(min(count.seeds, LOOSE_SEEDS))
    rows = []
    for name in (BOTH, *LOOSER, PLACED):
        cells = []
        for of in found.values():
            cases = [(of[name, *at], of[BOTH, *at]) for at in product(count.etas, seeds)]
            jct = geomean(one[0].jct_s / usual[0].jct_s for one, usual in cases)
            energy = geomean(one[0].energy_kwh / usual[0].energy_kwh for one, usual in cases)
            same = f"{jct:.2f} / {energy:.2f}, {_mean(one[1] for one, _ in cases):.0f}"
            cells += [_at_its_energy(of, name, count.etas, seeds), same]
        rows.append(("default limits" if name == BOTH else name, *cells))
    heads = ((f"demand {d:g}: at the energy of eft", "same limit") for d in found)
    return table(["limits of moves", *(head for pair in heads for head in pair)], rows)


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
            paragraph(
                f"The limits of moves, one looser at a time, on {LOOSE_SEEDS} seeds, and again"
                " PowerFlow placed by eft, which sizes all jobs anew in each round. For each demand"
                " the ratio of JCTs at the energy of eft with EASY, as above, and under the same"
                " limit JCT / energy as multiples of those with the default limits, and the moves"
                " or restarts in a trace:"
            ),
            looser(found, count),
            paragraph(
                "No limit by itself costs more than a few percent, in either direction, and all"
                " together make up less than half of the difference at demand 0.8 and little of it"
                " at 1.2. Half of these jobs take less than 20 minutes on the GPUs that they ask"
                " for, so that `first_s` and `last_s` leave them alone. PowerFlow starts each job"
                " when it comes, on GPUs that it takes from others at once, and restarts jobs of"
                " any age about ten times as often. The selector stops a job only if that pays by"
                " itself."
            ),
        ]
    )


def main() -> None:
    options = arguments(__doc__ or "")
    data = measured_data(*NEEDED)
    text = section(QUICK if options.quick else FULL, data, options.processes)
    finish("powerflow_moves", text, write=options.write)


if __name__ == "__main__":
    main()
