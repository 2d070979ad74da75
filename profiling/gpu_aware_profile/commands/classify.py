"""``gpu-aware-profile classify`` and ``pattern``: what an application does, from its own runs."""

import getpass
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import click

from gpu_aware_profile.cli import store_options
from gpu_aware_profile.commands.options import count
from gpu_aware_profile.counter_tools import (
    centres_of_file,
    centres_of_store,
    check_names,
    fitted_centres,
)
from slurm_gpu_aware.bounds import MAX_JOB_NAME
from slurm_gpu_aware.cli.options import SOME_SECONDS, options_with
from slurm_gpu_aware.cli.output import json_option, print_json, say, table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.text_file import name_of, read_text
from slurm_gpu_aware.topology.communication_log import Communication, read_communication
from slurm_gpu_aware.variability import scores as classes
from slurm_gpu_aware.variability.counters import is_dcgm, read_dcgm, read_ncu
from slurm_gpu_aware.variability.scores import Centres, Utilisation

_GPUS = "0123456789,"
_SOURCES = {
    "algorithms": "by the algorithms that NCCL took, in bytes",
    "calls": "by the calls, in bytes; with NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING NCCL names its "
    "algorithms",
    "kernels": "by the time of NCCL's kernels",
    "connections": "by what NCCL connected, used or not; NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING "
    "tells what ran",
}


_HELP = {
    "--run": "Run this command and count what it does.",
    "--tool": "What counts: Nsight Compute, or DCGM beside the command. Default: the first that "
    "is installed.",
    "--gpus": "GPUs that DCGM watches, by its numbers: 0,1. Default: all.",
    "--time-limit": "Seconds after which the command is stopped.",
    "--applications": "Applications to group into classes by K-means: application,dram,peak_fu, "
    "in percent.",
    "--centres": "Class centres that --write-centres wrote: class,dram,peak_fu. Default: the "
    "stored ones.",
    "--write-centres": "Write the class centres, for --centres.",
    "--save-centres": "Store the class centres as the site's.",
    "--name": "Job name of the application.",
    "--save": "Store the class for --name: jobs with class=auto get it.",
    "--user": "User that --save stores the class of. Default: you.",
}
_option = options_with(_HELP)


@click.command()
@store_options
@click.argument("files", nargs=-1, type=click.File("rb"))
@_option("--run", "command", metavar="CMD")
@_option("--tool", type=click.Choice(["ncu", "dcgm"]))
@count("--kernels", default=1000, most=1_000_000, text="Kernels that Nsight Compute measures.")
@_option("--gpus", metavar="LIST")
@_option("--time-limit", "limit_s", type=SOME_SECONDS, default=3600.0, show_default=True)
@_option("--applications", type=click.File("rb"), metavar="CSV")
@_option("--centres", type=click.File("rb"), metavar="CSV")
@_option("--write-centres", type=click.File("w", encoding="utf-8", lazy=True), metavar="CSV")
@_option("--save-centres", is_flag=True)
@_option("--name", metavar="NAME")
@_option("--save", is_flag=True)
@_option("--user", metavar="NAME")
@json_option
def classify(
    path: Path,
    config: Config,
    files: tuple[BinaryIO, ...],
    command: str | None,
    applications: BinaryIO | None,
    centres: BinaryIO | None,
    write_centres: IO[str] | None,
    save_centres: bool,
    name: str | None,
    save: bool,
    user: str | None,
    as_json: bool,
    **counting: Any,
) -> None:
    """Determine the class of an application from counters of its utilisation.

    --run counts while the command runs: under Nsight Compute (ncu), which measures each kernel
    exactly but slows the command down, or beside DCGM (dcgmi dmon), which samples all GPUs of the
    node, so the node or the --gpus must have no other jobs. The command is split like a shell line
    but run without a shell. FILE is what one of these tools has written for one application (-
    reads stdin):

    \b
      ncu --csv --metrics gpu__time_duration.sum,\\
        dram__throughput.avg.pct_of_peak_sustained_elapsed,\\
        regex:sm__inst_executed_pipe_.*.avg.pct_of_peak_sustained_active APP > app.csv
      dcgmi dmon -e 1002,1004,1005,1006,1007,1008 -d 1000 > app.txt   # beside the running APP

    The class is that of the nearest centre in the plane of DRAM and busiest functional unit, both
    in percent of peak. The centres come from a CSV of measured applications, which K-means groups
    (the most compute-bound class first), from a file of centres, or from the store, where an
    administrator has put them with --save-centres. Distances are in percentage points.

    --save, of those who may write the store, keeps the class for the user's jobs of this name.

    \b
      gpu-aware-profile classify --applications known.csv --save-centres
      gpu-aware-profile classify --run 'python train.py short'
      gpu-aware-profile classify --run ./cfd.sh --tool dcgm --name cfd --user ada --save
      gpu-aware-profile classify --centres centres.csv app.csv
    """
    if applications is not None and centres is not None:
        raise click.UsageError("give one of --applications and --centres")
    if applications is None and centres is None and (save_centres or write_centres):
        raise click.UsageError("new centres come from --applications or --centres")
    if applications is None and not (files or command or save_centres or write_centres):
        raise click.UsageError("give --run CMD, or name a FILE with the counters of an application")
    if save and (name is None or len(files) + (command is not None) != 1):
        raise click.UsageError("--save needs --name and one application: --run CMD, or one FILE")
    argv = _argv(command)
    owner = _owner(user, name)
    known: dict[str, Utilisation] = {}
    if applications is not None:
        found, known = fitted_centres(applications, config)
    elif centres is not None:
        found = centres_of_file(centres)
    else:
        found = centres_of_store(path, config)
    if save or save_centres:
        check_names(found, config, "the centres")
    uses = [(Path(name_of(f)).stem, _counters(f)) for f in files]
    if argv is not None:
        uses.append((Path(argv[0]).name, _counted(argv, **counting)))
    if write_centres is not None:
        _write_centres(write_centres, found)
    if save_centres:
        _save_centres(path, config, found)
    classed = {name: classes.classify(found, use) for name, use in uses}
    if save:
        _save(path, config, owner, name or "", *classed.values())
    line = _submit(next(iter(classed.values())), name) if len(classed) == 1 else None
    if as_json:
        print_json(_classes_record(found, [*known.items(), *uses]) | {"submit": line})
    else:
        click.echo(_classes_table(found, [*known.items(), *uses]))
        if line is not None:
            click.echo(f"\nSubmit it with: {line}")


def _argv(command: str | None) -> list[str] | None:
    """The words of a command. Raises click.UsageError."""
    if command is None:
        return None
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise click.UsageError(f"--run: {exc}") from None
    if not words:
        raise click.UsageError("--run: no command")
    return words


def _owner(user: str | None, name: str | None) -> str:
    """The user whose jobs --save means. Raises click.UsageError."""
    if name is not None and not (0 < len(name) <= MAX_JOB_NAME and name.isprintable()):
        raise click.UsageError(f"--name: expected a job name of at most {MAX_JOB_NAME} characters")
    if user is None:
        user = os.environ.get("SUDO_USER") if os.geteuid() == 0 else None
    owner = user or getpass.getuser()
    if not (0 < len(owner) <= MAX_JOB_NAME and owner.isprintable()):
        raise click.UsageError("--user: expected a user name")
    return owner


def _counted(
    argv: Sequence[str], tool: str | None, kernels: int, gpus: str | None, limit_s: float
) -> Utilisation:
    from gpu_aware_profile.counter_tools import counted, tool_of

    if gpus is not None and (not gpus or gpus.strip(_GPUS)):
        raise click.UsageError("--gpus: expected numbers such as 0,1")
    chosen = tool_of(tool)
    if gpus is not None and chosen != "dcgm":
        raise click.UsageError("--gpus goes with --tool dcgm")
    return counted(chosen, argv, kernels=kernels, gpus=gpus, limit_s=limit_s)


def _write_centres(file: IO[str], centres: Centres) -> None:
    file.write("class,dram,peak_fu\n")
    for name, centre in centres.items():
        file.write(f"{name},{centre.dram:.4f},{centre.peak_fu:.4f}\n")


def _save_centres(path: Path, config: Config, centres: Centres) -> None:
    from gpu_aware_profile.store_writer import writable_store
    from slurm_gpu_aware.features.classes.store import put_centres

    with writable_store(path, config) as store:
        put_centres(store, {name: (c.dram, c.peak_fu) for name, c in centres.items()})
    say(f"stored the centres of the classes {', '.join(centres)} in {path}")


def _save(path: Path, config: Config, user: str, name: str, app_class: str) -> None:
    from gpu_aware_profile.store_writer import writable_store
    from slurm_gpu_aware.features.classes.store import SavedClass, put_saved_class

    try:
        with writable_store(path, config) as store:
            put_saved_class(store, SavedClass(user, name, app_class, time.time()))
    except StoreError as exc:
        raise StoreError(
            f"class {app_class} of {name} is not stored; submit it once with"
            f" --comment=class={app_class}, and class=auto finds it from then on"
        ) from exc
    say(f"stored class {app_class} for the jobs of {user} named {name}")


def _submit(app_class: str, name: str | None) -> str:
    named = f" --job-name={shlex.quote(name)}" if name is not None else ""
    return f"sbatch --comment=class={app_class}{named} ..."


def _counters(file: BinaryIO) -> Utilisation:
    """Utilisation of an application from a file of Nsight Compute or DCGM."""
    lines = read_text(file, errors="replace").splitlines()
    try:
        return read_dcgm(lines) if is_dcgm(lines) else read_ncu(lines)
    except SourceError as exc:
        raise SourceError(name_of(file)) from exc


def _classes_record(centres: Centres, uses: Sequence[tuple[str, Utilisation]]) -> dict[str, Any]:
    return {
        "centres": [{"class": name, **_rounded(vars(c))} for name, c in centres.items()],
        "applications": [
            {
                "application": name,
                **_rounded(vars(use)),
                "class": classes.classify(centres, use),
                "distance": _rounded(classes.distances(centres, use)),
            }
            for name, use in uses
        ],
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _classes_table(centres: Centres, uses: Sequence[tuple[str, Utilisation]]) -> str:
    headers = ["application", "DRAM %", "unit %", *(f"to {name}" for name in centres), "class"]
    rows = []
    for name, use in uses:
        far = classes.distances(centres, use).values()
        numbers = [f"{value:.1f}" for value in (use.dram, use.peak_fu, *far)]
        rows.append([name, *numbers, classes.classify(centres, use)])
    for name, centre in centres.items():
        numbers = [f"{centre.dram:.1f}", f"{centre.peak_fu:.1f}"]
        rows.append([f"(centre of {name})", *numbers, *[""] * len(centres), name])
    return table(headers, rows, right=headers[1:-1])


@click.command()
@click.argument("file", type=click.File("rb"))
@json_option
def pattern(file: BinaryIO, as_json: bool) -> None:
    """Read the communication pattern of an application from its own run.

    FILE is NCCL's debug output of all ranks, or the kernels of Nsight Systems (- reads stdin):

    \b
      export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING
      srun APP > app.log; gpu-aware-profile pattern app.log
      nsys stats --report cuda_gpu_kern_sum --format csv app.nsys-rep | gpu-aware-profile pattern -

    A few steps of the application are enough. The pattern is ring, tree, ring+tree, all-to-all or
    none; what carries less than a tenth of the traffic does not count.
    """
    try:
        found = read_communication(read_text(file, errors="replace").splitlines())
    except SourceError as exc:
        raise SourceError(f"{name_of(file)}: {exc}") from None
    if as_json:
        print_json({**vars(found), "comment": _comment(found)})
        return
    click.echo(f"pattern: {found.pattern} ({_SOURCES[found.source]})")
    if found.traffic:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found.traffic.items())
        click.echo(f"traffic: {shares}")
    if found.ranks:
        click.echo(f"ranks:   {found.ranks}")
    click.echo(f"type:    --comment={_comment(found)}")


def _comment(found: Communication) -> str:
    return f"pattern={found.pattern}"
