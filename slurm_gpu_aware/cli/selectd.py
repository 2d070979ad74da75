"""``gpu-aware selectd``: the selector daemon."""

from __future__ import annotations

import click

from slurm_gpu_aware.cli.context import Context, pass_context

__all__ = ["command"]


@click.command("selectd")
@click.option("--once", is_flag=True, help="Run one round and exit.")
@pass_context
def command(context: Context, once: bool) -> None:
    """Run the selector: park, plan, place, open the gate, in rounds, until it is told to stop.

    One per cluster, on the controller, as SlurmUser; systemd starts it. Log lines go to stderr.
    While it runs it keeps the gate's reservation alive; when it stops for good, Slurm starts the
    parked jobs by itself within two minutes.

    \b
    Examples:
      gpu-aware selectd
      gpu-aware selectd --once
    """
    from slurm_gpu_aware.selector.daemon import run

    code = run(context.config(check_policies=True), once=once)
    raise click.exceptions.Exit(code or 0)
