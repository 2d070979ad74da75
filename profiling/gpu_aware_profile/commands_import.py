"""``gpu-aware-profile import``: times that were measured elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from gpu_aware_profile.cli import BAD_SHOWN, SKIPPED, store_options
from slurm_gpu_aware.cli.options import SECONDS
from slurm_gpu_aware.cli.output import paragraph, say
from slurm_gpu_aware.errors import StoreError

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.store.database import Store
    from slurm_gpu_aware.store.timings import TimingRow
    from slurm_gpu_aware.text_file import BadRow

__all__ = ["import_command"]


@click.command("import")
@store_options
@click.argument("file", type=click.File("rb"))
@click.option("--class", "app_class", metavar="NAME", help="For a file without a column class.")
@click.option("--skip-bad", is_flag=True, help="Store the good rows, report the bad ones.")
@click.option("--new-gpus", is_flag=True, help="Take rows of GPUs that no sweep has seen, too.")
@click.option(
    "--accept-outliers",
    is_flag=True,
    help="Take times far from the median, too: they were measured so.",
)
@click.option(
    "--taken-at",
    type=SECONDS,
    metavar="UNIX_S",
    help="When it was measured. Default: now.",
)
def import_command(
    store_path: Path | None,
    config_path: str | None,
    file: BinaryIO,
    app_class: str | None,
    skip_bad: bool,
    new_gpus: bool,
    accept_outliers: bool,
    taken_at: float | None,
) -> None:
    """Import timings from a CSV with the columns gpu,node,class,value_ms (- reads stdin).

    gpu is the index that Slurm uses on the node, or the UUID of a GPU that was probed. Several
    rows of one GPU and class are repeated runs: their median counts. If any row is bad, each is
    named with its line number and nothing is imported, unless --skip-bad is given. Once a sweep
    has seen GPUs, rows of others are bad, too, unless --new-gpus is given: their times are then
    kept for the sweep that will see them.

    A GPU whose time is less than half or more than twice the median of its model is named, and
    nothing is imported: often a file mixes seconds and milliseconds. If it was measured so, give
    --accept-outliers; the next import does not ask again for a GPU that is about as far off.

    A file with the columns class,level,value_ms has times per locality level: one program on the
    same number of GPUs, once inside a node (nvlink, socket, node) and once at each looser level
    (switch, rack, row, cluster). L of a level is the median time there over that at the innermost
    level. A column model (GPU model) keeps models apart. What was stored of these classes is
    replaced.

    \b
      gpu-aware-profile import timings.csv
      gpu-aware-profile import resnet.csv --class A --skip-bad
      gpu-aware-profile import levels.csv
    """
    from gpu_aware_profile.import_file import holds_levels, read_timings
    from gpu_aware_profile.level_work import checked_levels, store_levels
    from gpu_aware_profile.opening import written
    from slurm_gpu_aware.config.load import load_config
    from slurm_gpu_aware.model.profile import gpu_names
    from slurm_gpu_aware.store.profiles import load_profile
    from slurm_gpu_aware.store.timings import check_timings
    from slurm_gpu_aware.text_file import read_table

    config = load_config(config_path)
    taken_at = time.time() if taken_at is None else taken_at
    table = read_table(file)
    path = store_path or config.store.path
    if holds_levels(table):
        times, bad = checked_levels(table, app_class, config)
        _refuse_bad(table.name, bad, skip_bad, some=bool(times))
        store_levels(path, config, times, taken_at, accept_outliers=accept_outliers)
        if bad:
            raise click.exceptions.Exit(SKIPPED)
        return
    rows, bad = read_timings(table, app_class)
    with written(path, config) as store, store.write():
        good, unknown = check_timings(store, rows, config.site.classes, new_gpus=new_gpus)
        bad = sorted([*bad, *unknown])
        _refuse_bad(table.name, bad, skip_bad, some=bool(good))
        _store(store, [row for row, _ in good], config, taken_at, new_gpus, accept_outliers)
        unseen = load_profile(store).unseen if new_gpus else frozenset()
        path = store.path
    gpus = len({(row.node, slot) for row, slot in good})
    say(f"imported {len(good)} timing{_s(good)} of {gpus} GPUs into {path}")
    if new := sorted(unseen & {(row.node, slot) for row, slot in good}):
        say(
            paragraph(
                "note: place, setup and simulations over the store leave these GPUs out until a"
                f" sweep has seen them: {gpu_names(new)}."
            )
        )
    if bad:
        raise click.exceptions.Exit(SKIPPED)


def _store(
    store: Store,
    rows: Sequence[TimingRow],
    config: Config,
    taken_at: float,
    new_gpus: bool,
    accept_outliers: bool,
) -> None:
    """Times and scores, or neither: the caller's transaction. Raises StoreError."""
    from gpu_aware_profile.scoring import recompute_scores, stored_outliers
    from slurm_gpu_aware.store.timings import import_timings
    from slurm_gpu_aware.variability.outliers import new_outliers, outlier_sentences

    classes = config.site.classes
    before = stored_outliers(store)
    import_timings(store, rows, taken_at=taken_at, classes=classes, new_gpus=new_gpus)
    found = outlier_sentences(new_outliers(before, stored_outliers(store)))
    if found and not accept_outliers:
        raise StoreError(
            f"{'; '.join(found)}. Nothing was imported; correct the file, or give"
            " --accept-outliers if it was measured so"
        )
    for sentence in found:
        say(f"accepted: {sentence}")
    recompute_scores(store, classes)


def _refuse_bad(name: str, bad: Sequence[BadRow], skip_bad: bool, *, some: bool) -> None:
    """Name the bad rows. Raises StoreError unless there are none or they may be skipped."""
    _report_bad(name, bad)
    if bad and not skip_bad:
        raise StoreError(
            f"{len(bad)} bad row{_s(bad)}, nothing was imported; correct the file or give"
            " --skip-bad"
        )
    if not some:
        raise StoreError(f"{name}: no row to import")


def _report_bad(name: str, bad: Sequence[BadRow]) -> None:
    for line, reason, _ in bad[:BAD_SHOWN]:
        say(f"{name}: line {line}: {reason}")
    if len(bad) > BAD_SHOWN:
        say(f"{name}: and {len(bad) - BAD_SHOWN} more bad rows")


def _s(things: Sequence[object]) -> str:
    return "" if len(things) == 1 else "s"
