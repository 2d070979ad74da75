"""``gpu-aware release``: open the gate by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.explain import check_job_id
from slurm_gpu_aware.cli.output import say

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.slurm.client import SlurmClient

__all__ = ["command"]


@click.command("release")
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1, callback=check_job_id)
@click.option("--all", "everything", is_flag=True, help="Every parked or placed job that waits.")
@pass_context
def command(context: Context, job_ids: tuple[str, ...], everything: bool) -> None:
    """Open the gate for parked jobs; Slurm then starts them as if we were not installed.

    For SlurmUser, root and operators. The jobs keep what their users asked for; no GPUs are
    chosen. Running jobs are not touched. Prints the ids of the jobs whose gate was opened.

    With --all, as root or SlurmUser on the controller and with the selector stopped, also placed
    jobs that have not started, and those that ran and were requeued: they get back what their
    users asked for.

    \b
    Examples:
      gpu-aware release 1234 1235_7
      gpu-aware release --all
    """
    if bool(job_ids) == everything:
        raise click.UsageError("name one or more jobs, or --all")
    from slurm_gpu_aware.gate.manual_release import release_by_hand
    from slurm_gpu_aware.slurm.connect import open_client

    config = context.config()
    chosen = None if everything else list(job_ids)
    client = open_client(config.selector.command_timeout_s)
    opened: list[str] = []
    try:
        opened = release_by_hand(client, config, chosen)
    finally:  # one job that is refused keeps no other from being given back
        if everything:
            opened += _placed(client, config)
        for job_id in opened:
            click.echo(job_id)
    say(f"opened the gate for {len(opened)} {'job' if len(opened) == 1 else 'jobs'}")


def _placed(client: SlurmClient, config: Config) -> list[str]:
    """Give placed jobs that wait back to Slurm; their ids."""
    from slurm_gpu_aware.deploy.restore_all import restore_all

    back = restore_all(client, config)
    if back.kept:
        say(f"placed jobs that wait were left alone ({', '.join(back.kept)}): {back.kept_why}")
    for job_id, why in back.wrong.items():
        say(f"job {job_id} could not be given back its request: {why}")
    return back.opened
