"""``gpu-aware doctor``: checks of a live cluster, with remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.output import json_option, print_json, table

if TYPE_CHECKING:
    from slurm_gpu_aware.deploy.doctor import Check

__all__ = ["SOMETHING_WRONG", "command"]

SOMETHING_WRONG = 3


@click.command("doctor")
@json_option
@pass_context
def command(context: Context, as_json: bool) -> None:
    """Check a live cluster: Slurm's release and settings, gate, filter, selector, store, profile.

    Each failed check names the cure. Run it as root or SlurmUser on the controller. The exit code
    is 3 if a check failed; warnings do not count.

    \b
    Examples:
      gpu-aware doctor
      gpu-aware doctor --json
    """
    from dataclasses import asdict

    from slurm_gpu_aware.deploy import checks_ours, checks_slurm
    from slurm_gpu_aware.deploy.doctor import run_checks

    config = context.config(check_policies=True)
    checks = run_checks(config, (*checks_slurm.CHECKS, *checks_ours.CHECKS))
    wrong = any(check.status == "failed" for check in checks)
    if as_json:
        print_json({"checks": [asdict(c) for c in checks], "ok": not wrong})
    else:
        click.echo(_text(checks))
    if wrong:
        raise click.exceptions.Exit(SOMETHING_WRONG)


def _text(checks: list[Check]) -> str:
    rows: list[tuple[str, str, str]] = []
    for check in checks:
        rows.append((check.status, check.name, check.found))
        if check.cure:
            rows.append((" ", " ", f"cure: {check.cure}"))
    counts = {s: sum(c.status == s for c in checks) for s in ("failed", "warning", "skipped")}
    shown = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    last = f"{len(checks)} checks: {shown}" if shown else f"All {len(checks)} checks are fine."
    return table(["result", "check", "found"], rows) + f"\n\n{last}"
