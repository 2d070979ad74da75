"""``gpu-aware report --shadow``: what Slurm's choices cost, as text or JSON."""

import time
from typing import Any

import click

from slurm_gpu_aware.cli.options import Context
from slurm_gpu_aware.cli.output import blocks_text, print_json
from slurm_gpu_aware.cli.tune import compared_orders
from slurm_gpu_aware.features.shadow.losses import EXAMPLES, KINDS, Group, Loss
from slurm_gpu_aware.features.shadow.page import (
    ShadowFacts,
    read_shadow,
    sentence,
    shadow_blocks,
    unwatched,
)
from slurm_gpu_aware.store.database import open_for_reading


def report_shadow(context: Context, days: int, *, orders: bool, as_json: bool) -> None:
    """Print what Slurm's choices of the last days cost; ``orders``: and its order of the queue."""
    config = context.config(check_policies=orders)
    with open_for_reading(config.store) as store:
        facts = read_shadow(store, time.time(), days)
    order, texts = compared_orders(config, days) if orders else ({}, [])
    if as_json:
        print_json({**as_values(facts), **({"order": order} if orders else {})})
    else:
        click.echo("\n\n".join([blocks_text(shadow_blocks(facts)), *texts]))


def as_values(facts: ShadowFacts) -> dict[str, Any]:
    """Plain values of the report; times in s, energy in J; None: not known."""
    found, watches = facts.found, facts.watches
    return {
        "days": facts.days,
        "since": watches[0].since_at if watches else None,
        "until": watches[-1].until_at if watches else None,
        "not_running_s": unwatched(watches),
        "jobs": found.total.jobs,
        "compared": len(found.total.losses),
        "not_compared": dict(found.reasons),
        "nothing_to_gain": found.nothing_lost,
        "missing": found.missing(),
        "weeks": [_group_values(group) for group in found.groups],
        "total": _group_values(found.total),
    }


def _group_values(group: Group) -> dict[str, Any]:
    kinds = {
        kind: {
            "jobs": len(found := group.of(kind)),
            "examples": [_example(one, kind) for one in found[:EXAMPLES]],
        }
        for kind in KINDS
    }
    return {
        "week": group.week,
        "partition": group.partition,
        "jobs": group.jobs,
        "compared": len(group.losses),
        "unlinked": group.unlinked,
        "waited_s": group.waited_s,
        "time_s": group.time_s,
        "energy_j": group.energy_j,
        "clocks": {"spent_j": group.spent_j, "saved_j": group.saved_j},
        "faster_on_slurms": len(group.better),
        **kinds,
    }


def _example(loss: Loss, kind: str) -> dict[str, Any]:
    return {
        "job_id": loss.job.job_id,
        "user": loss.job.user,
        "class": loss.job.app_class,
        "started_at": loss.job.started_at,
        "ran_s": loss.ran_s,
        "given": {node: list(slots) for node, slots in loss.given.gpus},
        "ours": {node: list(slots) for node, slots in loss.ours.gpus},
        "loss": sentence(loss, kind),
        "look_up": f"sacct -j {loss.job.job_id}",
    }
