"""``gpu-aware release``: release of jobs by hand."""

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
@click.option("--all", "everything", is_flag=True, help="All parked and placed jobs that wait.")
@pass_context
def command(context: Context, job_ids: tuple[str, ...], everything: bool) -> None:
    """Open the gate for parked jobs; Slurm then places and starts them as usual.

    SlurmUser, root and operators may run it. The jobs keep their requests. Running jobs stay
    unchanged. Prints the ids of the released jobs.

    --all also restores the requests of placed jobs that have not started or were requeued. For
    this, run it as root or SlurmUser on the controller, with the selector stopped.

    \b
    Examples:
      gpu-aware release 1234 1235_7
      gpu-aware release --all
    """
    if bool(job_ids) == everything:
        raise click.UsageError("name one or more jobs, or --all")
    from slurm_gpu_aware.gate.manual_release import release_by_hand
    from slurm_gpu_aware.slurm.client import open_client

    config = context.config()
    chosen = None if everything else list(job_ids)
    client = open_client(config.selector.command_timeout_s)
    opened: list[str] = []
    try:
        opened = release_by_hand(client, config, chosen)
    finally:  # also if Slurm refuses the release of a job
        if everything:
            opened += _placed(client, config)
        for job_id in opened:
            click.echo(job_id)
    say(f"opened the gate for {len(opened)} {'job' if len(opened) == 1 else 'jobs'}")


def _placed(client: SlurmClient, config: Config) -> list[str]:
    """Restore placed jobs that wait and leave them to Slurm; return their ids."""
    from slurm_gpu_aware.deploy.restore_all import restore_all

    restored = restore_all(client, config)
    if restored.kept:
        kept = ", ".join(restored.kept)
        say(f"placed jobs that wait stay unchanged ({kept}): {restored.kept_why}")
    for job_id, why in restored.wrong.items():
        say(f"the request of job {job_id} could not be restored: {why}")
    return restored.opened
