"""``gpu-aware-profile``: measure GPUs, and look at what was measured.

Exit codes: 0 done; 1 failed (one line on stderr says why, nothing was stored); 2 wrong usage;
3 ``import --skip-bad`` stored the good rows and skipped others; 130 interrupted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from slurm_gpu_aware import __version__
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.cli.run import LateGroup, run
from slurm_gpu_aware.errors import StoreError

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.model.profile import GpuScore
    from slurm_gpu_aware.store.database import Store

__all__ = ["cli", "main", "store_options"]

SKIPPED = 3
BAD_SHOWN = 20
"""Bad rows that ``import`` names before it only counts them."""

F = TypeVar("F", bound=Callable[..., Any])

_ELSEWHERE = {
    "classify": "gpu_aware_profile.commands_fit:classify",
    "forget": "gpu_aware_profile.commands_forget:forget",
    "fit-effbw": "gpu_aware_profile.commands_fit:fit_effbw",
    "import": "gpu_aware_profile.commands_import:import_command",
    "node": "gpu_aware_profile.commands_probe:node",
    "sweep": "gpu_aware_profile.commands_sweep:sweep",
}
"""Commands that touch hardware, Slurm or files, or are rare. Imported when asked for, because
``node`` runs on every compute node and pays for each import."""


def store_options(command: F) -> F:
    """Add ``--store`` and ``--config``; the parameters are ``store_path`` and ``config_path``."""
    for option in (
        click.option(
            "--config",
            "config_path",
            metavar="FILE",
            help="Configuration file. Default: $GPU_AWARE_CONFIG, then"
            " /etc/slurm-gpu-aware/config.toml.",
        ),
        click.option(
            "--store",
            "store_path",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="SQLite file. Default: store.path of the configuration.",
        ),
    ):
        command = option(command)
    return command


@click.group(
    cls=LateGroup, elsewhere=_ELSEWHERE, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="gpu-aware-profile")
def cli() -> None:
    """Measure how GPUs differ, and look at what was measured.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 import skipped bad rows.
    """


@cli.command()
@store_options
@click.option("--class", "classes", multiple=True, metavar="NAME", help="Only this class.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node.")
@click.option(
    "--sort",
    type=click.Choice(["score", "node"]),
    default="score",
    show_default=True,
    help="Best GPU first, or by node and GPU.",
)
@click.option("--summary", "only_summary", is_flag=True, help="Only the spread per class.")
@click.option("--levels", "only_levels", is_flag=True, help="Only the locality penalties.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
def show(
    store_path: Path | None,
    config_path: str | None,
    classes: tuple[str, ...],
    nodes: tuple[str, ...],
    sort: str,
    only_summary: bool,
    only_levels: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show the PM score of every GPU for every class, and how far classes spread.

    PM score: time divided by that of the median GPU of the model; 1.1 = 10% slower. Score: the
    same after binning, which is what placement uses. The spread is the geometric mean of time
    over best time, minus 1.

    Locality penalties are shown where they were measured; --levels shows those of all classes. L is
    what placement uses, "from" where it comes from: a value of the configuration wins over a
    measured one, which wins over the default.

    \b
      gpu-aware-profile show
      gpu-aware-profile show --class A --node n1 --json
      gpu-aware-profile show --levels
    """
    if as_json and as_csv:
        raise click.UsageError("give one of --json and --csv, not both")
    if only_summary and as_csv:
        raise click.UsageError("--summary has no CSV form; use --json")
    if only_levels and (only_summary or nodes):
        raise click.UsageError("--levels goes with neither --summary nor --node")
    from gpu_aware_profile import level_tables, tables
    from gpu_aware_profile.level_work import penalties_of, show_levels
    from slurm_gpu_aware.store.profiles import load_profile, score_rows

    config = _config(config_path)
    with _open(store_path, config_path) as store:
        penalties = penalties_of(store, config, classes if only_levels else ())
        if only_levels:
            show_levels(store.path, penalties, as_json=as_json, as_csv=as_csv)
            return
        rows = _selected(score_rows(store), classes, nodes)
        faults = {
            node: found
            for node, found in load_profile(store).faults.items()
            if not nodes or node in nodes
        }
        penalties = [row for row in penalties if not classes or row.app_class in classes]
        path = store.path
    if sort == "node":
        rows = sorted(rows, key=lambda r: (r.node, r.slot, r.app_class))
    summaries = tables.summarise(rows)
    if as_json:
        answer: dict[str, Any] = {
            "store": str(path),
            "summary": tables.summary_records(summaries),
            "penalties": level_tables.penalty_records(penalties),
            "faults": [
                {"node": node, "gpu": f.slot, "call": f.call, "error": f.error}
                for node, found in faults.items()
                for f in found
            ],
        }
        if not only_summary:
            answer["gpus"] = tables.score_records(rows)
        print_json(answer)
    elif as_csv:
        tables.write_scores_csv(sys.stdout, rows)
    else:
        if not rows:
            say("no scores yet: 'gpu-aware-profile sweep', then 'gpu-aware-profile import FILE'")
        now = time.time()
        parts = [tables.summary_table(summaries, now)]
        timed = {r.app_class for r in penalties if r.runs}
        if timed:
            shown = [r for r in penalties if r.app_class in timed]
            parts.append("Locality penalties:\n" + level_tables.penalty_table(shown))
        if not only_summary:
            parts.append(tables.score_table(rows, now))
        if faults:
            parts.append("Could not be read:\n" + tables.fault_table(faults))
        click.echo("\n\n".join(parts))


@cli.command()
@store_options
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@click.option("--levels", "only_levels", is_flag=True, help="Times per locality level instead.")
@json_option
def export(
    store_path: Path | None,
    config_path: str | None,
    file: IO[str],
    only_levels: bool,
    as_json: bool,
) -> None:
    """Export the newest timings as CSV that import reads (default: to stdout).

    --levels exports the times per locality level, which import reads, too. --json exports the whole
    profile instead: GPUs, links, timings, scores and times per level.

    \b
      gpu-aware-profile export timings.csv
      gpu-aware-profile export --levels levels.csv
      gpu-aware-profile export --json > profile.json
    """
    if only_levels and as_json:
        raise click.UsageError("--json exports everything; leave --levels out")
    from gpu_aware_profile import level_tables, tables
    from gpu_aware_profile.scoring import newest_timings
    from slurm_gpu_aware.store.levels import level_times

    with _open(store_path, config_path) as store:
        if only_levels:
            level_tables.write_levels_csv(file, level_times(store))
        elif as_json:
            import json

            whole = tables.everything(store)
            file.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
        else:
            tables.write_timings_csv(file, newest_timings(store))


@cli.command()
@store_options
@click.option(
    "--reference",
    type=click.Choice(["model", "cluster"]),
    help="Median to compare with: that of the GPU model (default), or of all GPUs, so that scores"
    " rank the models too. Remembered.",
)
def rescore(store_path: Path | None, config_path: str | None, reference: str | None) -> None:
    """Compute scores and bins again from the stored timings (after changing site.classes).

    \b
      gpu-aware-profile rescore
      gpu-aware-profile rescore --reference cluster
    """
    from gpu_aware_profile.opening import written
    from gpu_aware_profile.scoring import recompute_scores

    config = _config(config_path)
    with written(store_path or config.store.path, config) as store:
        count = recompute_scores(store, config.site.classes, reference=reference)
        say(f"{count} scores in {store.path}")


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(cli, "gpu-aware-profile", args)


def _config(config_path: str | None) -> Config:
    from slurm_gpu_aware.config.load import load_config

    return load_config(config_path)


def _open(store_path: Path | None, config_path: str | None) -> Store:
    """For reading."""
    from slurm_gpu_aware.store.database import open_store

    path = store_path if store_path is not None else _config(config_path).store.path
    return open_store(path, readonly=True)


def _selected(rows: list[GpuScore], classes: Sequence[str], nodes: Sequence[str]) -> list[GpuScore]:
    """Rows of these classes and nodes. Raises StoreError naming the known ones if one is not."""
    for what, wanted, known in (
        ("class", classes, sorted({r.app_class for r in rows})),
        ("node", nodes, sorted({r.node for r in rows})),
    ):
        for name in wanted:
            if name not in known:
                listed = ", ".join(known[:BAD_SHOWN]) + (", ..." if len(known) > BAD_SHOWN else "")
                raise StoreError(f"no scores of {what} {name!r}; known: {listed or 'none yet'}")
    return [
        r
        for r in rows
        if (not classes or r.app_class in classes) and (not nodes or r.node in nodes)
    ]


if __name__ == "__main__":
    main()
