"""PAL (Jain et al., SC'24): the Sia-Philly and Synergy-like simulations.

python benchmarks/reproduce/pal.py [--quick] [--write]   about 20 minutes on 2 idle cores, quick: 1
"""

from __future__ import annotations

from common import SYNTHETIC, arguments, finish, paragraph
from pal_bench import FULL, PENALTY, QUICK, Bench, Size
from pal_synergy import COMPOSED, COMPOSED_SYNERGY, Composed, synergy_site, synergy_table
from pal_tables import Main, draws_table, main_table, places_table, sweep_table

from slurm_gpu_aware.simulator.settings import MEASURED_SHARE


def section(size: Size, processes: int | None) -> str:
    """Run everything; the section of the page, each remark made from the numbers above it."""
    bench = Bench(size, processes)
    profile = bench.profile("longhorn", runs=True)
    seed, site = bench.like_theirs(profile)
    runs = Main.of(bench, site)
    part = "" if size == FULL else " (a part of the runs)"
    parts = [
        f"## PAL{part}\n\n{SYNTHETIC if bench.data is None else ''}"
        + paragraph(
            f"Sia-Philly, {len(bench.traces)} traces of {len(bench.traces[0].jobs)} jobs, 64 GPUs "
            f"on nodes of 4, FIFO, rounds of 300 s, L {PENALTY:g}. Scores are single runs of "
            f"Longhorn drawn with replacement, seed {seed}: the first draw that, like the authors' "
            "own, has exactly one GPU above 1.5x and that one near 2.83x. Gains are geometric "
            "means over traces; a loss has a minus."
        ),
        *main_table(runs),
        "The same scores with the slow GPU's node at another place in the order of nodes:",
        *places_table(bench, runs),
        paragraph(
            f"What the gain rests on: {size.draws} other draws of single runs (on every second "
            "trace: median and range over draws), per-GPU medians and the control (on all traces)."
        ),
        *draws_table(bench, profile, seed),
        "Locality penalty:",
        *sweep_table(bench, site),
        paragraph(
            "Synergy-like traces, 256 GPUs, L 1.7, jobs 2000 to 3000 of 4000, gain in average JCT "
            "over packed. Jobs keep their GPUs, but for the column where all jobs are placed anew "
            "in each round."
        ),
    ]
    large = synergy_site(bench, profile)
    parts += synergy_table(bench, large)
    composed = Composed.of("Sia-Philly", bench, site, bench.traces, COMPOSED)
    parts += [
        paragraph(
            "What composing adds: Sia-Philly with links (AC922 nodes; classes A and B are "
            f"sensitive, with a communication share of {MEASURED_SHARE:g}), moves at 60 s, time "
            "limits of 1.5 times the run time:"
        ),
        composed.table(),
        composed.said(),
    ]
    for load in size.composed:
        trace = bench.synergy(load)
        own = Composed.of(f"{load} jobs/h", bench, large, [trace], COMPOSED_SYNERGY)
        parts += [
            f"The same for the Synergy-like trace of {load} jobs/h (JCT of jobs 2000 to 3000):",
            own.table(),
            own.said(),
        ]
    return "\n\n".join(parts)


def main() -> None:
    options = arguments(__doc__ or "")
    text = section(QUICK if options.quick else FULL, options.processes)
    finish("pal", text, write=options.write)


if __name__ == "__main__":
    main()
