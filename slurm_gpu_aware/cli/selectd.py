"""``gpu-aware selectd``: the selector daemon."""

from __future__ import annotations

import click

from slurm_gpu_aware.cli.context import Context, pass_context

__all__ = ["command"]


@click.command("selectd")
@click.option("--once", is_flag=True, help="Run one round and exit.")
@pass_context
def command(context: Context, once: bool) -> None:
    """Run the selector: plan and release parked jobs, in rounds, until it is stopped.

    A cluster has one selector, on the controller, as SlurmUser; systemd starts it. The log goes to
    stderr. While the selector runs, it renews the gate's reservation. If it stops, Slurm starts the
    parked jobs as usual within two minutes.

    \b
    Examples:
      gpu-aware selectd
      gpu-aware selectd --once
    """
    from slurm_gpu_aware.selector.daemon import run

    code = run(context.config(check_policies=True), once=once)
    raise click.exceptions.Exit(code or 0)
