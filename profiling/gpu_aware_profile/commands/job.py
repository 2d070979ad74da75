"""``gpu-aware-profile job``: runs a job's program, and measures it for a performance model."""

from __future__ import annotations

import csv
import os
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_aware_profile.commands.options import seconds
from slurm_gpu_aware.bounds import MARKS, is_name
from slurm_gpu_aware.cli.options import Number, options_with
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.errors import FileFault, SourceError
from slurm_gpu_aware.files import ReplacedFile

if TYPE_CHECKING:
    from gpu_aware_profile.job_watch import Allocation, Watched

_COLUMNS = ["application", "batch_size", "class", "gpu_model", "gpus", "nodes", "clock_mhz"]
_COLUMNS += ["time_s", "power_w"]
_PATIENCE = 6  # Slices without a mark after which the user is told.


_HELP = {
    "--model": "Name of the performance model.",
    "--batch-size": "Samples that each GPU processes in an iteration.",
    "--class": "Class of the program.",
    "--out": "CSV to write, or the folder of gpu-aware-job-JOBID-RANDOM.csv. Default: this folder.",
}
_option = options_with(_HELP)


@click.command(context_settings={"ignore_unknown_options": True})
@_option("--model", "name", required=True, metavar="NAME")
@_option("--batch-size", type=Number(1, 10**9), default=1.0, metavar="N")
@_option("--class", "app_class", default="", metavar="NAME")
@seconds(
    "--slice", "length_s", default=10.0, most=86_400, text="Least length of a slice, in seconds."
)
@_option("--out", type=click.Path(path_type=Path, readable=False), default=Path(), metavar="PATH")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def job(
    name: str,
    batch_size: float,
    app_class: str,
    length_s: float,
    out: Path,
    command: tuple[str, ...],
) -> None:
    """Run the program of a job, and measure time, power and energy of its iterations.

    COMMAND runs as it would without us: signals, output and exit code are its own. The program
    marks the end of each iteration by appending one byte to the file named in $GPU_AWARE_MARKS.
    Without marks its power is measured, but not its time. Of several tasks the first one marks and
    is measured, with all GPUs of the job on its node.

    The file has one row per SM clock, and is written anew after each slice. In the folder that the
    site collects (see 'collect') it becomes a model for your own jobs with model=NAME; an operator
    can also import it for all users.

    \b
    Examples:
      srun gpu-aware-profile job --model resnet50 --batch-size 64 -- python train.py
      # in train.py, at the end of an iteration:
      with open(os.environ["GPU_AWARE_MARKS"], "ab") as marks: marks.write(b".")
    """
    from gpu_aware_profile.job_watch import allocation, run_watched

    if not is_name(name):
        raise click.UsageError(f"--model: {name[:40]!r} is not a name")
    if os.environ.get("SLURM_PROCID", "0") != "0":
        _become(command)
    try:
        own = allocation(os.environ)
    except SourceError as exc:
        say(f"the job runs, but is not measured: {exc}")
        _become(command)
    # In a folder of all users another one could create a name that is foreseen, and so keep it.
    own_file = f"gpu-aware-job-{own.job_id}-{secrets.token_hex(4)}.csv"
    file = (out / own_file if out.is_dir() else out).absolute()
    labels = (name, f"{batch_size:g}", app_class)
    run_watched(command, own.gpus, length_s, partial(_keep, file, labels, own), say)


def _become(command: Sequence[str]) -> None:
    """Raises SourceError if the program cannot be run."""
    with FileFault(command[0], "run"):
        os.execvp(command[0], list(command))  # noqa: S606


def _keep(file: Path, labels: Sequence[str], own: Allocation, seen: Watched) -> None:
    """Write what was measured so far; the power is that of all GPUs of the job.

    ``labels``: application, batch size, class.
    """
    from gpu_aware_profile.job_watch import by_clock

    if len(seen.models) != 1:
        raise SourceError(f"GPUs of several models: {', '.join(sorted(seen.models))}")
    found = by_clock(seen.slices)
    if len(seen.slices) == _PATIENCE and not any(at.iterations for at in found):
        say(f"no iteration was marked yet (a byte in ${MARKS}): power is measured, but no time")
    share = own.total / len(own.gpus)
    rows = [
        [
            *(*labels, *seen.models, own.total, own.nodes, at.clock_mhz),
            "" if at.time_s is None else f"{at.time_s:.6g}",
            "" if at.power_w is None else f"{at.power_w * share:.6g}",
        ]
        for at in found
    ]
    with ReplacedFile(file) as stream:
        os.fchmod(stream.fileno(), 0o644)
        csv.writer(stream, lineterminator="\n").writerows([_COLUMNS, *rows])
