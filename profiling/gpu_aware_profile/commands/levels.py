"""``gpu-aware-profile levels``: locality penalties, measured through Slurm."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_aware_profile.cli import PARTLY, store_options
from gpu_aware_profile.commands.options import (
    classes_option,
    count,
    seconds,
    srun_options,
    stopped_by_signals,
)
from gpu_aware_profile.levels.level_runs import (
    LevelOutcome,
    LevelRun,
    LevelRuns,
    PlanNode,
    comparable,
    level_plan,
)
from gpu_aware_profile.sweeps.sweep_plan import new_id
from gpu_aware_profile.tables import View
from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.model.penalties import NETWORK_LEVELS, LevelTime

if TYPE_CHECKING:
    from slurm_gpu_aware.model.profile import Profile

_MIB = 1 << 20
_MESSAGE = {"A": 100 * _MIB, "B": 400 * _MIB, "C": 16 * _MIB}
"""Class -> bytes that a step sums over the ranks.

A, B: the gradients of ResNet-50 and of BERT-base in single precision. C: a guess, for what
neighbours exchange.
"""
_OTHER_MESSAGE = 100 * _MIB
_MOST_MESSAGE = 1 << 34


def _messages(unit: int) -> Callable[..., dict[str, int]]:
    """Callback of an option: ``CLASS=NUMBER`` each, the number in ``unit`` bytes."""

    def parsed(
        context: click.Context, option: click.Parameter, values: Sequence[str]
    ) -> dict[str, int]:
        message_bytes = {}
        for value in values:
            name, _, number = value.partition("=")
            if not (name and number.isascii() and number.isdigit() and len(number) <= 12):
                raise click.BadParameter(f"{quoted(value)} is not CLASS=NUMBER")
            message_bytes[name] = int(number) * unit
            if not 4 <= message_bytes[name] <= _MOST_MESSAGE:
                raise click.BadParameter(f"{quoted(value)}: a message has 4 bytes to 16 GiB")
        return message_bytes

    return parsed


@click.command()
@store_options
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only these nodes.")
@classes_option
@click.option(
    "--gpus",
    type=click.IntRange(2, 512),
    metavar="N",
    help="GPUs of each run, even. Default: all of a node.",
)
@count("--pairs", default=1, most=100, text="Pairs of nodes per level and GPU model.")
@click.option(
    "--message",
    "messages",
    multiple=True,
    callback=_messages(_MIB),
    metavar="CLASS=MIB",
    help="Data that a step of the class sums over its GPUs, in MiB. Default: A=100, B=400, C=16.",
)
@seconds("--time-limit", default=300.0, text="Time limit of a run, in seconds.")
@seconds("--wait", default=300.0, text="Seconds to wait for busy nodes before a run is left out.")
@srun_options
@click.option("--plan", "only_plan", is_flag=True, help="Only print the runs.")
@json_option
@click.pass_context
def levels(
    context: click.Context,
    /,
    path: Path,
    config: Config,
    only_plan: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure what spanning nodes costs each class, through Slurm; store it.

    A data-parallel step (kernels of the class, then an all-reduce over the GPUs) is timed on the
    same number of GPUs inside a node, and on two nodes at each locality level of Slurm's topology:
    behind one leaf switch (switch), one switch above it (rack, row), and none (cluster). L of a
    level is its median time over that inside a node.

    The runs are exclusive jobs, one after the other. A run that fails or does not start is reported
    and left out; then the exit code is 3. The times of a class replace its stored ones, also those
    of an import. Sweep first: the models of the GPUs are those of the store.

    \b
    Examples:
      gpu-aware-profile levels --plan
      gpu-aware-profile levels --pairs 3 --message A=350
    """
    classes = given["classes"] or config.site.classes
    message_bytes = _message_bytes(classes, config, given["messages"])
    plan = _plan(path, config, given)
    if only_plan:
        _print_plan(plan, as_json=as_json)
        return
    runs = LevelRuns(
        new_id(),
        message_bytes,
        command=given["command"],
        run_s=given["time_limit"],
        queue_s=given["wait"],
        srun_options=given["srun_option"],
    )
    outcomes = _measured(runs, plan)
    times = comparable([time for outcome in outcomes for time in outcome.times])
    _stored(path, config, times, outcomes, as_json=as_json)
    if any(outcome.reasons for outcome in outcomes):
        context.exit(PARTLY)


def _message_bytes(
    classes: Sequence[str], config: Config, messages: Mapping[str, int]
) -> dict[str, int]:
    """Class -> bytes of its message. Raises RequestError for an unknown class."""
    for name in (*classes, *messages):
        if name not in config.site.classes:
            raise RequestError(f"class {name!r} is not one of {', '.join(config.site.classes)}")
    message_bytes = {**_MESSAGE, **messages}
    return {name: message_bytes.get(name, _OTHER_MESSAGE) for name in classes}


def _plan(path: Path, config: Config, given: Mapping[str, Any]) -> list[LevelRun]:
    """The runs. Raises SourceError if Slurm does not answer or nothing can be compared."""
    from dataclasses import replace

    from gpu_aware_profile.sweeps.sweep_plan import gpu_nodes
    from slurm_gpu_aware.slurm.client import open_client
    from slurm_gpu_aware.slurm.topology import fabric_of, network_groups
    from slurm_gpu_aware.store.database import open_for_reading
    from slurm_gpu_aware.store.profiles import load_profile

    targets, skipped = gpu_nodes(given["time_limit"])
    known = {target.node for target in targets}
    for name in given["nodes"]:
        reason = next((o.reason for o in skipped if o.node == name), "Slurm has no such GPU node")
        if name not in known:
            raise SourceError(f"{name!r} cannot be measured: {reason}")
    with open_for_reading(replace(config.store, path=path)) as store:
        models = _models(load_profile(store))
    switches = open_client(config.selector.command_timeout_s).topology()
    fabric = fabric_of(switches).groups
    nodes = [
        PlanNode(t.node, t.gpus, models.get(t.node, ""), t.partition, fabric.get(t.node, ""))
        for t in targets
        if not given["nodes"] or t.node in given["nodes"]
    ]
    groups = network_groups(switches, NETWORK_LEVELS)
    try:
        plan = level_plan(nodes, groups, given["pairs"], given["gpus"])
    except ValueError as exc:
        raise SourceError(str(exc)) from None
    if not plan:
        raise SourceError(
            "nothing to compare: two usable nodes of one GPU model and partition, with two GPUs or"
            " more each, are needed"
        )
    return plan


def _models(profile: Profile) -> dict[str, str]:
    """Node -> model of all its GPUs."""
    found: dict[str, set[str]] = {}
    for (node, _), gpu in profile.gpus.items():
        found.setdefault(node, set()).add(gpu.model or "")
    return {node: models.pop() for node, models in found.items() if len(models) == 1}


def _measured(runs: LevelRuns, plan: Sequence[LevelRun]) -> list[LevelOutcome]:
    """Run the plan, and say how it goes."""
    outcomes = []
    with stopped_by_signals(runs.stopped.set):
        for number, outcome in enumerate(runs.run(plan), 1):
            outcomes.append(outcome)
            what = f"[{number}/{len(plan)}] {_words(outcome.run)}"
            say("\n".join(f"{what}: {text}" for text in outcome.reasons or ("done",)))
    return outcomes


def _words(run: LevelRun) -> str:
    where = " and ".join(node.name for node in run.nodes)
    return f"{run.level}: {run.gpus} GPUs of {where}"


def _print_plan(plan: Sequence[LevelRun], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "level": run.level,
            "nodes": [node.name for node in run.nodes],
            "gpus": run.gpus,
            "model": run.nodes[0].model or None,
        }
        for run in plan
    ]
    if as_json:
        print_json({"runs": rows})
    else:
        shown = [row | {"nodes": " ".join(row["nodes"])} for row in rows]
        click.echo(View("level, nodes, >GPUs=gpus, model").text(shown))


def _stored(
    path: Path,
    config: Config,
    times: Sequence[LevelTime],
    outcomes: Sequence[LevelOutcome],
    *,
    as_json: bool,
) -> None:
    """Store the times and print the penalties. Raises SourceError if there is nothing to store."""
    from gpu_aware_profile.store_writer import writable_store
    from gpu_aware_profile.tables import penalties_of, penalty_table
    from slurm_gpu_aware.store.measurements import put_level_times

    names = list(dict.fromkeys(time.app_class for time in times))
    if not names:
        raise SourceError("no class was measured inside a node and at another level")
    with writable_store(path, config) as store:
        put_level_times(store, times, time.time())
        penalties = penalties_of(store, config, names)
    say(f"{len(times)} level times of class {', '.join(names)} in {path}")
    if as_json:
        rows = [
            {
                "level": outcome.run.level,
                "nodes": [node.name for node in outcome.run.nodes],
                "times": len(outcome.times),
                "reasons": list(outcome.reasons),
            }
            for outcome in outcomes
        ]
        print_json({"runs": rows, "penalties": penalties})
    else:
        click.echo(penalty_table(penalties))


@click.command("level-step", hidden=True)
@click.option("--level", required=True, metavar="NAME", help="Level of the run.")
@click.option("--gpus", required=True, metavar="0,2", help="GPU of each rank of a node.")
@click.option(
    "--message",
    "messages",
    multiple=True,
    callback=_messages(1),
    required=True,
    metavar="CLASS=BYTES",
    help="A class to measure, and the size of its message.",
)
def level_step(level: str, gpus: str, messages: Mapping[str, int]) -> None:
    """One rank of 'levels'; 'levels' starts it by srun."""
    from gpu_aware_profile.levels.level_step import Rank, run_rank

    words = gpus.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
        raise click.UsageError(f"--gpus: {gpus!r} is not a list of numbers")
    rank = Rank.of_slurm([int(word) for word in words])
    run_rank(rank, level, messages, sys.stdin, sys.stdout)
