"""PAL (Jain et al., SC'24): the Sia-Philly and Synergy-like simulations.

python benchmarks/reproduce/pal.py [--quick] [--write]    about 25 minutes on 2 idle cores
"""

from common import SYNTHETIC, arguments, finish, paragraph
from pal_bench import FULL, PENALTY, QUICK, Bench, Size
from pal_synergy import (
    COMPOSED,
    Composed,
    anew_table,
    synergy_site,
    synergy_table,
)
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
            f"What the gain rests on: {size.draws} other draws of single runs (on every fourth "
            "trace: geometric mean and range over draws), per-GPU medians and the control "
            "(range over all traces)."
        ),
        *draws_table(bench, profile, seed),
        "Locality penalty:",
        *sweep_table(bench, site),
        paragraph(
            f"Synergy-like traces, 256 GPUs, L 1.7, {size.clusters} draws of single runs, gain in "
            "average JCT over packed, sticky (Tiresias): geometric mean and range over draws. Jobs "
            "2000 to 3000 of 4000 count."
        ),
    ]
    larges = [synergy_site(bench, profile, seed) for seed in range(1, size.clusters + 1)]
    parts += synergy_table(bench, larges)
    parts += anew_table(bench, larges)
    composed = Composed.of("Sia-Philly", bench, site, bench.traces, COMPOSED)
    parts += [
        paragraph(
            "What composing adds: Sia-Philly with links (AC922 nodes; classes A and B are "
            f"sensitive, with a communication share of {MEASURED_SHARE:g}), moves at 60 s, time "
            "limits of three times the work or 1.5 times the slowest possible run:"
        ),
        composed.table(),
        composed.said(),
    ]
    return "\n\n".join(parts)


def main() -> None:
    options = arguments(__doc__ or "")
    text = section(QUICK if options.quick else FULL, options.processes)
    finish("pal", text, write=options.write)


if __name__ == "__main__":
    main()
