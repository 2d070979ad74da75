"""``gpu-aware explain``: the reasons for the GPUs of a job, or for its wait."""

from __future__ import annotations

import re
from typing import Any

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.output import json_option, print_json, say

__all__ = ["check_job_id", "command"]

_JOB_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?\Z")
_TASKS = re.compile(r"([0-9]{1,10})_\[([0-9]{1,10})[0-9,:%.-]*\]\Z")
"""Waiting tasks of an array as in ``queue`` and ``squeue``: ``44_[3-9]``."""


def check_job_id(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of arguments with one job id or several."""
    for job_id in value if isinstance(value, tuple) else (value,):
        if not _JOB_ID.match(job_id):
            raise click.BadParameter(
                f"{job_id!r} is not a job id; expected 123, or 123_4 for a task"
            )
    return value


def _job_id(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback: one job id; the first one of several tasks."""
    tasks = _TASKS.match(value)
    if tasks is None:
        return check_job_id(ctx, param, value)
    first = f"{tasks[1]}_{tasks[2]}"
    say(f"This is task {first}, the first of {value}.")
    return first


@click.command("explain")
@click.argument("job_id", metavar="JOBID", callback=_job_id)
@json_option
@pass_context
def command(context: Context, job_id: str, as_json: bool) -> None:
    """Explain why a job got its GPUs, or why it waits.

    Shows the request, the cells of the locality x variability matrix that were tried, the sets that
    were considered, the chosen one, its predicted slowdown, the time of the decision, and the
    events since. Every user may run it. The exit code is 1 if the job is unknown.

    \b
    Examples:
      gpu-aware explain 1234
      gpu-aware explain 1234_7 --json
    """
    from slurm_gpu_aware.cli.explain_text import explain_text
    from slurm_gpu_aware.selector.explanation import explain_job
    from slurm_gpu_aware.selector.ledger_reader import open_reader

    config = context.config()
    with open_reader(config) as reader:
        answer = explain_job(reader, config, job_id)
        note = reader.note()
    if as_json:
        print_json({k: v for k, v in answer.items() if k != "away"})
    else:
        click.echo(explain_text(answer))
        if note:
            say(note)
    if answer["state"] == "unknown":
        raise click.exceptions.Exit(1)
