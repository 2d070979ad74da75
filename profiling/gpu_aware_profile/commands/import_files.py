"""``gpu-aware-profile import``, ``collect`` and ``forget``: rows into the store, and out of it."""

import re
import time
from pathlib import Path
from typing import Any, BinaryIO

import click

from gpu_aware_profile.cli import PARTLY, store_options
from gpu_aware_profile.imports.formats.reader import ReadOptions
from gpu_aware_profile.imports.formats.registry import FORMATS, cut_name, read_measured
from slurm_gpu_aware.bounds import NODE_NAME
from slurm_gpu_aware.cli.options import SECONDS, options_with
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.database import open_store, upgrade
from slurm_gpu_aware.store.measurements import forget_gpus, forget_levels, seen_gpus
from slurm_gpu_aware.store.profiles import put_effbw
from slurm_gpu_aware.time_text import counted

_HELP = {
    "--format": "Format of the files. Default: recognised from each file.",
    "--class": "For files without a column class.",
    "--node": "For files that do not name their node. Default: from the file's name.",
    "--value": "Which value: a test of DCGM (default: diagnostic), or a performance variable of "
    "ReFrame, in which {gpu} stands for Slurm's index, {nvml} for nvidia-smi's, {node} for the "
    "node; or the operation of older nccl-tests.",
    "--unit": "Unit of ReFrame's values, in place of the recorded one.",
    "--skip-bad": "Store the good rows, report the bad ones.",
    "--new-gpus": "Accept GPUs and nodes that no sweep has seen.",
    "--accept-outliers": "Accept times far from the median as measured.",
    "--taken-at": "Time of the measurement. Default: that of the row, else now.",
}
_option = options_with(_HELP)


@click.command("import")
@store_options
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.File("rb"))
@_option("--format", "format_name", type=click.Choice(list(FORMATS)))
@_option("--class", "app_class", metavar="NAME")
@_option("--node", metavar="NAME")
@_option("--value", metavar="NAME")
@_option("--unit", metavar="UNIT")
@_option("--skip-bad", is_flag=True)
@_option("--new-gpus", "--new-nodes", "new_gpus", is_flag=True)
@_option("--accept-outliers", is_flag=True)
@_option("--taken-at", type=SECONDS, metavar="UNIX_S")
def import_command(
    path: Path,
    config: Config,
    files: tuple[BinaryIO, ...],
    format_name: str | None,
    node: str | None,
    value: str | None,
    unit: str | None,
    app_class: str | None,
    taken_at: float | None,
    **options: Any,
) -> None:
    """Import what was measured: CSV, DCGM, ReFrame, nvbandwidth, nccl-tests, nvidia-smi topo.

    - reads stdin.

    All files are stored in one transaction. A CSV file has the columns gpu,node,class,value_ms,
    and if you like taken_at, the Unix time of the measurement. gpu is Slurm's index on the node,
    the UUID or PCI address of a probed GPU, or nvml:N, its number in nvidia-smi and DCGM. Several
    rows of one GPU, class and time are repeated runs: their median counts. If a row is bad, all
    bad rows are reported with their line numbers and nothing is imported, unless --skip-bad is
    given. Once a sweep has seen GPUs, rows of other GPUs are bad, unless --new-gpus is given:
    their times then wait for the sweep that sees them.

    A GPU with a time below half or above twice the median of its model on other nodes is an
    outlier: it is reported, and nothing is imported, because such a file often mixes seconds and
    milliseconds. If the time is correct, give --accept-outliers; the next import accepts a similar
    time of this GPU.

    A file with the columns class,level,value_ms has times per locality level: one program on the
    same number of GPUs, once inside a node (nvlink, socket, node) and once at each looser level
    (switch, rack, row, cluster). L of a level is its median time over that of the innermost level.
    The optional column model is the GPU model. The stored level times of these classes are
    replaced.

    A file with the columns application,gpu_model,gpus,time_s has times of iterations of named
    applications, for 'gpu-aware models fit'. Optional columns: nodes (1), batch_size (of a GPU, 1),
    clock_mhz (empty: not locked), limit_w (power limit of each GPU), power_w (of all GPUs
    together), class, taken_at.

    \b
      gpu-aware-profile import timings.csv
      gpu-aware-profile import resnet.csv --class A --skip-bad
      gpu-aware-profile import levels.csv
      gpu-aware-profile import --class A n1.json n2.json   # dcgmi diag -r 3 -v -j
      gpu-aware-profile import --class A --value gpu{gpu}_perf gemm.log   # of ReFrame
      gpu-aware-profile import n1.txt n2.txt               # of nvbandwidth or nccl-tests
      gpu-aware-profile import --new-nodes n1.txt          # of nvidia-smi topo -m
    """
    from gpu_aware_profile.imports.import_rows import Given  # imports NumPy
    from gpu_aware_profile.imports.importing import Import

    if node is not None and len(files) > 1:
        raise click.UsageError("--node is for one FILE; name several files after their nodes")
    wanted = ReadOptions(node, value, unit, _nodes(path))
    measured = [one for file in files for one in read_measured(file, wanted, format_name)]
    for sentence in filter(None, (cut_name(one, wanted) for one in measured)):
        say(sentence)
    given = Given(config.site.classes, time.time(), taken_at, app_class)
    if not Import(measured, path, config, given, **options).run():
        raise click.exceptions.Exit(PARTLY)


def _nodes(path: Path) -> frozenset[str]:
    """Nodes that a sweep has seen; empty: there is no store yet."""
    if not path.exists():
        return frozenset()
    upgrade(path)
    with open_store(path, readonly=True) as store:
        return frozenset(seen_gpus(store))


@click.command()
@store_options
@click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, readable=False, path_type=Path)
)
def collect(path: Path, config: Config, folder: Path) -> None:
    """Store the records of measured jobs in FOLDER, and delete them there.

    Users' jobs write them: gpu-aware-profile job --out FOLDER (mode 1733, on a shared file system).
    Rows of ada's files for resnet50 become ada/resnet50, which only ada's jobs with model=resnet50
    look up. Files that changed in the last 5 minutes are left, as their job may still run. A file
    that is wrong is reported and deleted, one that may not be read is reported; then the exit code
    is 3. Run it as root or as the owner of FOLDER, who must be able to write the store.

    \b
      gpu-aware-profile collect /shared/gpu-aware-records; gpu-aware models fit
    """
    from gpu_aware_profile.imports import collecting
    from gpu_aware_profile.store_writer import writable_store

    with writable_store(path, config) as store:
        found = collecting.collect(store, folder, config.site.classes, time.time())
    for sentence in found.refused:
        say(sentence)
    say(f"{found.stored} rows of measured jobs in {path}")
    if found.refused:
        raise click.exceptions.Exit(PARTLY)


_GPU = re.compile(rf"({NODE_NAME})(?::([0-9]{{1,4}}))?\Z")


def _parsed(
    ctx: click.Context, param: click.Parameter, value: Any
) -> tuple[tuple[str, int | None], ...]:
    """Callback: ``n9`` -> (n9, None), ``n1:9`` -> (n1, 9)."""
    gpus = []
    for text in value:
        match = _GPU.match(text)
        if match is None:
            raise click.BadParameter(f"{text!r} does not name a GPU; expected NODE or NODE:INDEX")
        gpus.append((match[1], None if match[2] is None else int(match[2])))
    return tuple(dict.fromkeys(gpus))


@click.command()
@store_options
@click.argument("gpus", metavar="[NODE[:INDEX]]...", nargs=-1, callback=_parsed)
@click.option(
    "--levels", "classes", multiple=True, metavar="CLASS", help="Level times of this class."
)
@click.option(
    "--effbw", "models", multiple=True, metavar="MODEL", help="Fitted EffBW of this GPU model."
)
def forget(
    path: Path,
    config: Config,
    gpus: tuple[tuple[str, int | None], ...],
    classes: tuple[str, ...],
    models: tuple[str, ...],
) -> None:
    """Remove a node or one GPU with its times from the store, and recompute the scores.

    Use it for GPUs that were imported by mistake or have been removed. Slurm's files stay
    unchanged. The next sweep adds the GPUs that it sees again. --levels removes the times per
    locality level of a class, --effbw what 'fit-effbw --save' stored. If a name is not known,
    nothing is removed.

    \b
      gpu-aware-profile forget n9
      gpu-aware-profile forget n1:9 n9:0
      gpu-aware-profile forget --levels C
      gpu-aware-profile forget --effbw v100
    """
    if not (gpus or classes or models):
        raise click.UsageError("name a NODE, a GPU as NODE:INDEX, --levels CLASS or --effbw MODEL")
    from gpu_aware_profile.store_writer import recompute_scores, writable_store  # imports NumPy

    with writable_store(path, config, create=False) as store:
        with store.write():
            removed = sum(forget_gpus(store, node, slot) for node, slot in gpus)
            times = sum(forget_levels(store, name) for name in dict.fromkeys(classes))
            for name in dict.fromkeys(models):
                if not put_effbw(store, name, None):
                    raise StoreError(f"no EffBW of GPU model {name!r} is stored")
        if gpus:
            recompute_scores(store, config.site.classes)
    if gpus:
        say(f"forgot {counted(removed, 'GPU')} in {path}")
    if classes:
        say(f"forgot {times} level times of {', '.join(dict.fromkeys(classes))} in {path}")
    if models:
        say(f"forgot EffBW of {', '.join(dict.fromkeys(models))} in {path}")
