"""``gpu-aware release``: open the gate by hand."""

from __future__ import annotations

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.explain import check_job_id

__all__ = ["command"]


@click.command("release")
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1, callback=check_job_id)
@click.option("--all", "everything", is_flag=True, help="Every parked job.")
@pass_context
def command(context: Context, job_ids: tuple[str, ...], everything: bool) -> None:
    """Open the gate for parked jobs; Slurm then starts them as if we were not installed.

    For SlurmUser, root and operators. The jobs keep what their users asked for; no GPUs are
    chosen. Running jobs are not touched.

    \b
    Examples:
      gpu-aware release 1234 1235_7
      gpu-aware release --all
    """
    if bool(job_ids) == everything:
        raise click.UsageError("name one or more jobs, or --all")
