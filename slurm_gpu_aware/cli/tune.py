"""``gpu-aware tune``: replay of the site's history with several policies; the best one is named."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import click

from slurm_gpu_aware.cli.options import Context, Number, pass_context
from slurm_gpu_aware.cli.output import json_option, paragraph, print_json
from slurm_gpu_aware.cli.simulate import cluster_options


@click.command("tune")
@click.option("--days", type=click.IntRange(14, 3660), default=30, help="Last days to replay.")
@click.option("--seeds", type=click.IntRange(4, 1000), default=8, help="Drawn histories.")
@click.option(
    "--candidate",
    "-c",
    "candidates",
    multiple=True,
    metavar="NAME[:OPTION=VALUE,...]",
    help="Policy to compare, beside packed and the present one; repeatable. Default: those of"
    " tune.allowed, the ends of tune.ranges, and the longest wait of packed as a bound of waits.",
)
@click.option(
    "--budget",
    "budget_min",
    type=Number(0, 100_000, min_open=True),
    default=120.0,
    metavar="MINUTES",
    help="Time after which no seed goes on.",
)
@click.option(
    "--jobs",
    "-j",
    "processes",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Parallel runs. Default: half the CPUs.",
)
@click.option(
    "--sacct", default="live", metavar="FILE|live", help="A saved history, or this cluster's."
)
@cluster_options
@click.option("--apply", is_flag=True, help="Set the best policy if it is ahead, within [tune].")
@json_option
@pass_context
def tune(context: Context, /, **given: Any) -> None:
    """Replay the last days with several policies, and name the best with its uncertainty.

    Each seed draws the days of the history and the measured runs of the GPUs anew. A policy is
    best only if it is ahead of packed placement beyond the uncertainty; it replaces the present
    one only if it is ahead of that, too, and makes nothing else worse by more than 2%. The runs
    have the lowest priority of the host.

    \b
    Examples:
      gpu-aware tune
      gpu-aware tune --days 60 --seeds 16 -j 4
      gpu-aware tune -c pal -c pm-first --json
      gpu-aware tune --apply
      gpu-aware tune --sacct history --nodes 16 --machine dgx-a100
    """
    if given["nodes"] is None and given["variability"]:
        raise click.UsageError("--variability needs --nodes; the store has times of its own GPUs")
    if given["nodes"] is not None and given["apply"]:
        raise click.UsageError("--apply sets this site's policy, and --nodes is another cluster")
    from slurm_gpu_aware.cli import tuning
    from slurm_gpu_aware.config.load import Candidate
    from slurm_gpu_aware.placement.registry import PACKED
    from slurm_gpu_aware.selector.policy_options import tuned_in_force
    from slurm_gpu_aware.simulator.tuning import verdict

    ends_at = time.monotonic() + 60 * given["budget_min"]
    config = context.config(check_policies=True)
    tuned, _ = tuned_in_force(config)
    present = tuned or Candidate(config.placement.policy)
    candidates = tuning.candidates_of(config, given["candidates"], present)
    if given["apply"]:
        tuning.check_apply(config, candidates, given["candidates"])
    _step_back()
    history = tuning.read_history(config, given)
    if not given["candidates"]:
        candidates |= tuning.bounded_candidates(history, config, ends_at=ends_at)
    found = tuning.replay(
        history, config, candidates, given["seeds"], ends_at=ends_at, processes=given["processes"]
    )
    best = verdict(found, PACKED, present.label)
    text, applied = best.text, False
    if given["apply"] and best.changes:
        applied, words = tuning.apply(config, candidates[best.best], found)
        text += f" {words}"
    if given["as_json"]:
        head = {"trace": history.inputs.trace.name, "jobs": len(history.inputs.trace.jobs)}
        head |= {"days": len(history.days), "present": present.label, "applied": applied}
        print_json({**head, **tuning.as_json(found, best), "summary": text})
    else:
        click.echo(f"{tuning.table_text(found, present.label)}\n\n{paragraph(text)}")


def _step_back() -> None:
    """Take only the time that nothing else on this host wants: slurmctld goes first."""
    with suppress(OSError):
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
