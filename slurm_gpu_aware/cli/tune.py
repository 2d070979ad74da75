"""``gpu-aware tune``: replay of the site's history with several policies; the best one is named."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.options import Context, Number, options_with, pass_context
from slurm_gpu_aware.cli.output import json_option, paragraph, print_json
from slurm_gpu_aware.cli.simulate import cluster_options

if TYPE_CHECKING:
    from slurm_gpu_aware.cli.tuning import Replay
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.features.queue_order.stage import OrderRule


LEAST_DAYS = 14


_HELP = {
    "--days": "Last days to replay.",
    "--seeds": "Drawn histories.",
    "--candidate": "Policy to compare, beside packed and the present one; repeatable. Default: "
    "those of tune.allowed, the ends of tune.ranges, and the longest wait of packed as a bound of "
    "waits.",
    "--order": "Order of the queue to compare with Slurm's, beside the present one; repeatable. "
    "Without --candidate only orders are compared. Default: equal, backfill, expected=0.1, 0.3 "
    "and 1.",
    "--slowdown": "Compare clocks that save energy at these bounds on time, such as 0.02,0.05, "
    "with default clocks, under the present policy and by the store's models; nothing else.",
    "--budget": "Time after which no seed goes on.",
    "--jobs": "Parallel runs. Default: half the CPUs.",
    "--sacct": "A saved history, or this cluster's.",
    "--apply": "Set the best policy if it is ahead, within [tune].",
}
_option = options_with(_HELP)


@click.command("tune")
@_option("--days", type=click.IntRange(LEAST_DAYS, 3660), default=30)
@_option("--seeds", type=click.IntRange(4, 1000), default=8)
@_option("--candidate", "-c", "candidates", multiple=True, metavar="NAME[:OPTION=VALUE,...]")
@_option("--order", "orders", multiple=True, metavar="ORDER")
@_option("--slowdown", metavar="SHARES")
@_option(
    "--budget",
    "budget_min",
    type=Number(0, 100_000, min_open=True),
    default=120.0,
    metavar="MINUTES",
)
@_option("--jobs", "-j", "processes", type=click.IntRange(1, 1024), metavar="N")
@_option("--sacct", default="live", metavar="FILE|live")
@cluster_options
@_option("--apply", is_flag=True)
@json_option
@pass_context
def tune(context: Context, /, **given: Any) -> None:
    """Replay the last days with several policies and orders of the queue; name the best.

    Each seed draws the days of the history and the measured runs of the GPUs anew. A policy is
    best only if it is ahead of packed placement beyond the uncertainty; it replaces the present
    one only if it is ahead of that, too, and makes nothing else worse by more than 2%. An order of
    the queue is proposed by the same rule against Slurm's, and never set. The runs have the lowest
    priority of the host.

    \b
    Examples:
      gpu-aware tune
      gpu-aware tune --days 60 --seeds 16 -j 4
      gpu-aware tune -c pal -c pm-first --json
      gpu-aware tune --order backfill --order expected=0.2
      gpu-aware tune --slowdown 0.02,0.03,0.05
      gpu-aware tune --apply
      gpu-aware tune --sacct history --nodes 16 --machine dgx-a100
    """
    if given["nodes"] is None and given["variability"]:
        raise click.UsageError("--variability needs --nodes; the store has times of its own GPUs")
    if given["nodes"] is not None and given["apply"]:
        raise click.UsageError("--apply sets this site's policy, and --nodes is another cluster")
    if given["orders"] and not given["candidates"] and given["apply"]:
        raise click.UsageError("--apply sets a policy, and only orders are compared")
    beside = [n for n in ("candidates", "orders", "nodes", "apply") if given[n]]
    if given["slowdown"] is not None and beside:
        raise click.UsageError("--slowdown is compared alone, on the store's cluster")
    told, texts = compared(context.config(check_policies=True), given)
    if given["as_json"]:
        print_json(told)
    else:
        click.echo("\n\n".join(texts))


def compared(config: Config, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values and texts of a comparison; ``given``: the options of `tune`.

    Raises RequestError, PolicyError or SourceError.
    """
    from slurm_gpu_aware.cli import tuning
    from slurm_gpu_aware.config.load import Candidate
    from slurm_gpu_aware.features.energy.simulate_options import parse_bounds
    from slurm_gpu_aware.placement.policy import PACKED
    from slurm_gpu_aware.selector.policy_options import tuned_in_force
    from slurm_gpu_aware.simulator.tuning import verdict

    ends_at = time.monotonic() + 60 * given["budget_min"]
    tuned, _ = tuned_in_force(config)
    present = tuned or Candidate(config.placement.policy)
    named, orders = given["candidates"], given["orders"]
    bounds = None if given["slowdown"] is None else parse_bounds(given["slowdown"])
    rules = tuning.orders_of(config, orders) if orders or not (named or bounds) else {}
    placements = bool(named or not (orders or bounds))
    candidates = tuning.candidates_of(config, named, present) if placements else {}
    if given["apply"]:
        tuning.check_apply(config, candidates, named)
    _step_back()
    history = tuning.read_history(config, given, placements=placements)
    if placements and not named:
        candidates |= tuning.bounded_candidates(history, config, ends_at=ends_at)
    runs = tuning.settings_of(history, config, candidates, rules, present)
    if bounds:
        runs = tuning.bounds_of(history, config, present, bounds), {}
    found = tuning.replay(
        history,
        runs,
        given["seeds"],
        ends_at=ends_at,
        processes=given["processes"],
    )
    told: dict[str, Any] = {"trace": history.inputs.trace.name}
    told |= {"jobs": len(history.inputs.trace.jobs), "days": len(history.days)}
    told |= {"present": present.label, "applied": False}
    texts = []
    if bounds:
        texts += _energy(found, told)
    if rules:
        texts += _orders(found, rules, tuning.present_order(config), told)
    if placements:
        best = verdict(found.placements, PACKED, present.label)
        text = best.text
        if given["apply"] and best.changes:
            told["applied"], words = tuning.apply(config, candidates[best.best], found.placements)
            text += f" {words}"
        told |= {**tuning.as_json(found.placements, best), "summary": text}
        texts += [tuning.table_text(found.placements, present.label), paragraph(text)]
    return told, texts


def compared_orders(config: Config, days: int) -> tuple[dict[str, Any], list[str]]:
    """The part of `compared` on orders of the queue, over the last ``days`` and at least 14."""
    from slurm_gpu_aware.features.queue_order.view import COMPARED

    words = [f"--days={max(days, LEAST_DAYS)}", *(f"--order={name}" for name in COMPARED)]
    told, texts = compared(config, tune.make_context("tune", words).params)
    return told["order"], texts


def _energy(found: Replay, told: dict[str, Any]) -> list[str]:
    """Texts on clocks that save energy; their values are put into ``told``."""
    from slurm_gpu_aware.cli import tuning

    reference = tuning.DEFAULT_CLOCKS
    told["clocks"] = tuning.entries_of(found.placements, reference)
    what = (
        "Energy is that of the jobs' GPUs by the models; a gain below 0 is a longer wait and run."
    )
    return [tuning.table_text(found.placements, reference, reference), paragraph(what)]


def _orders(
    found: Replay, rules: Mapping[str, OrderRule], present: str, told: dict[str, Any]
) -> list[str]:
    """Texts on the orders of the queue; their values are put into ``told``."""
    from slurm_gpu_aware.cli import tuning
    from slurm_gpu_aware.features.queue_order.view import SLURM, order_text, order_values, proposal

    best = proposal(found.orders, present)
    values = tuning.as_json(found.orders, best, SLURM)
    told["order"] = {"present": present, **values, **order_values(best, found.payers, rules)}
    shown = tuning.table_text(found.orders, present, SLURM)
    return [shown, order_text(best, found.orders, found.payers, rules)]


def _step_back() -> None:
    """Take only the time that nothing else on this host wants: slurmctld goes first."""
    with suppress(OSError):
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
