"""``gpu-aware release``: open the gate by hand."""

from __future__ import annotations

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.explain import check_job_id
from slurm_gpu_aware.cli.output import say

__all__ = ["command"]


@click.command("release")
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1, callback=check_job_id)
@click.option("--all", "everything", is_flag=True, help="Every parked job.")
@pass_context
def command(context: Context, job_ids: tuple[str, ...], everything: bool) -> None:
    """Open the gate for parked jobs; Slurm then starts them as if we were not installed.

    For SlurmUser, root and operators. The jobs keep what their users asked for; no GPUs are
    chosen. Running jobs are not touched. Prints the ids of the jobs whose gate was opened.

    \b
    Examples:
      gpu-aware release 1234 1235_7
      gpu-aware release --all
    """
    if bool(job_ids) == everything:
        raise click.UsageError("name one or more jobs, or --all")
    from slurm_gpu_aware.cli.live import open_gateway
    from slurm_gpu_aware.slurm.gate import release_by_hand

    config = context.config()
    chosen = None if everything else list(job_ids)
    opened = release_by_hand(open_gateway(config), config, chosen)
    for job_id in opened:
        click.echo(job_id)
    say(f"opened the gate for {len(opened)} {'job' if len(opened) == 1 else 'jobs'}")
