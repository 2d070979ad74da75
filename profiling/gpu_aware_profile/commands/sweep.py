"""``gpu-aware-profile sweep``: the probe on all GPU nodes, and the resumption of a sweep."""

import math
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpu_aware_profile import store_writer
from gpu_aware_profile.cli import PARTLY, store_options
from gpu_aware_profile.commands.options import (
    bench_options,
    check_clocks,
    classes_option,
    clock_options,
    count,
    links_options,
    node_arguments,
    nodes_option,
    runs_option,
    seconds,
    site_command,
    srun_options,
    stopped_by_signals,
)
from gpu_aware_profile.report.report_data import stored_drift
from gpu_aware_profile.sweeps.sweep import BACKGROUND, Sweep
from gpu_aware_profile.sweeps.sweep_output import Found, print_found, raise_alarm, shown
from gpu_aware_profile.sweeps.sweep_plan import (
    Plan,
    SweepProgress,
    fresh_plan,
    new_id,
    resumed_plan,
)
from slurm_gpu_aware.cli.options import Number, options_with
from slurm_gpu_aware.cli.output import json_option, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.files import user_name
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.database import Store, open_store, upgrade
from slurm_gpu_aware.store.ingest import ingest_report
from slurm_gpu_aware.store.profiles import probed_at
from slurm_gpu_aware.time_text import counted

_IDLE_WAIT_S = 30.0
"""Longest time in the queue with --idle-only; Slurm may take some seconds to start a job."""
_ALARM_SINCE_S = 30 * 86_400.0


_HELP = {
    "--resume": "Resume an unfinished sweep.",
    "--older-than": "Only nodes whose last probe is older, longest ago first.",
    "--idle-only": "Only nodes that are idle now.",
    "--budget": "Begin no probe later than this many seconds after the start.",
    "--background": "Probe with the lowest priority, in the QOS profiling.qos of the "
    "configuration.",
    "--on-slow": "Command to run if GPUs became slower that were not reported before.",
    "--backend": "Timing backend. Default: one that works there.",
}
_option = options_with(_HELP)


@click.command()
@store_options
@nodes_option
@_option("--resume", metavar="ID")
@count("--jobs", default=8, most=256, text="Nodes at a time.")
@seconds(
    "--time-limit",
    default=7200.0,
    text="Time limit of the probe of a node, in seconds; no run begins after 80% of it.",
)
@seconds("--wait", default=300.0, text="Seconds to wait for a busy node before it is skipped.")
@_option("--older-than", type=Number(0, 10**5), metavar="DAYS")
@_option("--idle-only", is_flag=True)
@_option("--budget", type=Number(0, 10**7, min_open=True), metavar="S")
@_option("--background", is_flag=True)
@_option("--on-slow", metavar="CMD")
@classes_option
@bench_options
@_option("--backend", metavar="NAME")
@runs_option
@clock_options
@links_options
@srun_options
@json_option
@click.pass_context
def sweep(
    context: click.Context,
    /,
    path: Path,
    config: Config,
    nodes: tuple[str, ...],
    resume: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Probe every GPU node through Slurm; store the results and the new scores.

    A sweep stores GPUs, links and clocks, and times where CuPy is installed on the nodes, or with a
    program of your own (--bench). Other times are imported.

    The probe is one exclusive job per node. A node that fails, hangs, stays busy or is preempted is
    reported and skipped; then the exit code is 3, and the sweep may be resumed for these nodes. It
    is 3, too, if clocks of --clocks could not be locked: the nodes allow that to root, so run the
    sweep as root.
    --resume uses the nodes and options of the sweep, except for options that are given again.

    A GPU with a time below half or above twice the median of its model is reported; one below half
    gets no score, as no GPU is that fast. GPUs that became slower in the last 30 days are reported,
    too (see 'drift'). CMD of --on-slow hears of each of them once: on stdin as JSON, and in
    $GPU_AWARE_SLOW_GPUS, _NODES and _REASON.

    \b
    Examples:
      gpu-aware-profile sweep
      gpu-aware-profile sweep --jobs 32 --srun-option=--account=ops
      gpu-aware-profile sweep --older-than 7 --idle-only --background --budget 3600
      gpu-aware-profile sweep --on-slow 'mail -s "slow GPUs" ops@example.org'
      gpu-aware-profile sweep --resume 20260102T030405.4711
    """
    progress = SweepProgress(path.parent / "sweeps", resume or new_id())
    unfinished = progress.unfinished()
    if resume is not None:
        if resume not in unfinished:
            listed = ", ".join(unfinished) or "none"
            raise SourceError(f"no unfinished sweep {resume!r}; unfinished: {listed}")
        given = _as_before(context, progress.scope()[1], given)
    check_clocks(given)
    if given["on_slow"] is not None:
        site_command("--on-slow", given["on_slow"])
    done = progress.done()
    if resume is None:
        plan = fresh_plan(nodes, given, _probe_times(path), time.time())
    else:
        plan = resumed_plan(resume, progress.scope()[0], frozenset(done), nodes, given)
    already = f", {len(done)} done before" if done else ""
    already += f", {plan.recent} probed recently" if plan.recent else ""
    say(f"sweep {progress.sweep_id}: {counted(len(plan.targets), 'node')} to probe{already}")
    if unfinished and resume is None:
        say(f"unfinished: {', '.join(unfinished)} (--resume ID resumes one)")
    again = _resume_command(progress.sweep_id, context.params)
    found = _probe(progress, path, config, plan, given, again)
    complete = set(plan.whole) <= progress.done()
    if complete:
        progress.finish()
    found.outcomes += plan.outcomes
    print_found(progress.sweep_id, found, complete=complete, as_json=as_json)
    if not complete:
        say(f"for the other nodes: {again}")
    unlocked = [one.node for one in found.outcomes if one.unlocked] if given["clocks"] else []
    if unlocked and os.geteuid() != 0:
        names, user = hostlist(unlocked), user_name(os.geteuid())
        say(f"no clocks were locked on {names} as user {user}: run the sweep as root")
    if not complete or not found.scored or unlocked:
        context.exit(PARTLY)


def _probe_times(path: Path) -> dict[str, float]:
    """Node -> Unix time of its last probe; empty if there is no store yet."""
    if not path.exists():
        return {}
    upgrade(path)
    with open_store(path, readonly=True) as store:
        return probed_at(store)


def _probe(
    progress: SweepProgress,
    path: Path,
    config: Config,
    plan: Plan,
    given: Mapping[str, Any],
    again: str,
) -> Found:
    """Run the probes, store their reports, compute the scores, raise the alarm."""
    found = Found()
    with store_writer.writable_store(path, config) as store:
        running = _sweep(progress.sweep_id, store, config, given)
        progress.begin(plan.whole, given)
        with stopped_by_signals(running.stop, f"resume with: {again}"):
            try:
                for outcome in shown(running, plan.targets):
                    found.outcomes.append(outcome)
                    if outcome.state == "done":
                        _note(progress, outcome.node)
            finally:
                if running.ingested or progress.done():
                    found.scored = _scored(store, config)
        done = progress.done()
        found.far = [one for one in store_writer.stored_outliers(store) if one.node in done]
        _drifted(found, store, config, given["on_slow"])
    return found


def _note(progress: SweepProgress, node: str) -> None:
    """Record a node as done. A node without the record is probed again by a resumption."""
    try:
        progress.note(node)
    except SourceError as exc:
        say(f"{node}: stored, but {exc}")


def _scored(store: Store, config: Config) -> bool:
    """Compute the scores; return whether they could be stored."""
    try:
        store_writer.recompute_scores(store, config.site.classes)
    except StoreError as exc:
        say(f"the scores are those of before: {exc}; afterwards: gpu-aware-profile rescore")
        return False
    return True


def _drifted(found: Found, store: Store, config: Config, command: str | None) -> None:
    """Name the GPUs of the probed nodes that became slower; report new ones to the site."""
    drift = stored_drift(store, config, time.time() - _ALARM_SINCE_S)
    measured = {outcome.node for outcome in found.outcomes if outcome.timings}
    found.slower = tuple(change for change in drift.slower if change.node in measured)
    if command is None:
        return
    try:
        new, failure = raise_alarm(store, drift, shlex.split(command))
    except StoreError as exc:
        new, failure = [], str(exc)
    if failure:
        say(f"--on-slow failed, the next sweep tries again: {failure}")
    found.reported = () if failure else tuple(new)


def _as_before(
    context: click.Context, before: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a resumed sweep; options on the command line replace them."""
    default = click.core.ParameterSource.DEFAULT
    return {
        name: before[name]
        if name in before and context.get_parameter_source(name) is default
        else value
        for name, value in given.items()
    }


def _sweep(sweep_id: str, store: Store, config: Config, given: Mapping[str, Any]) -> Sweep:
    # A probe that runs into its limit is lost with all that it measured.
    arguments = [f"--runs={given['runs']}", f"--time-limit={0.8 * given['time_limit']:g}"]
    options: list[str] = []
    if given["background"]:
        options += BACKGROUND
        options += [f"--qos={config.profiling.qos}"] if config.profiling.qos else []
    wait_s = min(given["wait"], _IDLE_WAIT_S) if given["idle_only"] else given["wait"]
    try:
        return Sweep(
            sweep_id,
            lambda report: ingest_report(store, report),
            command=given["command"],
            arguments=arguments + node_arguments(given),
            concurrency=given["jobs"],
            probe_s=given["time_limit"],
            queue_s=wait_s,
            srun_options=[*options, *given["srun_option"]],  # of two equal ones the last holds
            budget_s=math.inf if given["budget"] is None else given["budget"],
        )
    except (TypeError, ValueError) as exc:  # from the notes of the sweep
        raise click.UsageError(str(exc)) from None


def _resume_command(sweep_id: str, given: Mapping[str, Any]) -> str:
    """The command that resumes a sweep."""
    words = ["gpu-aware-profile", "sweep", "--resume", sweep_id]
    for option in ("store", "config"):
        if given[f"{option}_path"] is not None:
            words += [f"--{option}", str(given[f"{option}_path"])]
    return shlex.join(words)
