"""``gpu-aware-profile watch``: slow, drifted and ill GPUs, and what a site does about them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_aware_profile.cli import PARTLY, store_options
from gpu_aware_profile.commands.options import (
    bench_options,
    classes_option,
    count,
    nodes_option,
    seconds,
    site_command,
    srun_options,
    stopped_by_signals,
    this_node,
)
from slurm_gpu_aware.cli.options import Number, options_with
from slurm_gpu_aware.cli.output import clean, json_option, print_json, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError

if TYPE_CHECKING:
    from gpu_aware_profile.watch.one_pass import Passed, Site

_LOCK = "watch.lock"
_HARDWARE_S = 600.0  # Time limit of a probe that measures no times.


_HELP = {
    "--state": "State of the GPUs. Default: watch.json beside the store.",
    "--once": "One pass, then end (the default).",
    "--local": "Only this host, without Slurm.",
    "--no-sweep": "Measure nothing; judge what is known, and jobs.",
    "--hardware": "Read the hardware only, which takes seconds.",
    "--older-than": "Measure idle nodes whose last times are older.",
    "--check": "Only say whether this node is well, for NHC and HealthCheckProgram: exit code 3 "
    "if it is not. Reads the state, and is quick.",
    "--hostlist": "Only print the nodes with GPUs that are not well, for --exclude. Reads the "
    "state.",
    "--all": "Show well GPUs of a large fleet, too.",
    "--on-change": "Command that gets the news on its standard input: GPUs that are not well, and "
    "those that are well again.",
    "--drain": "Drain nodes with ill or slow GPUs, and resume them when they are well again.",
    "--most-percent": "With --drain: share of the nodes of each partition.",
    "--extra": "Write scores into the nodes' Extra, for --extra.",
    "--backend": "Timing backend. Default: one that works there.",
}
_option = options_with(_HELP)


@click.command()
@store_options
@_option("--state", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@_option("--once", is_flag=True)
@seconds("--interval", least=10, text="A pass every so many seconds, until it is interrupted.")
@_option("--local", is_flag=True)
@_option("--no-sweep", is_flag=True)
@_option("--hardware", is_flag=True)
@nodes_option
@_option("--older-than", type=Number(0, 10**5), default=20.0, show_default=True, metavar="HOURS")
@count("--jobs", default=8, most=256, text="Nodes at a time.")
@seconds("--time-limit", default=3600.0, text="Time limit of the probe of a node, in seconds.")
@_option("--check", is_flag=True)
@seconds("--max-age", default=259_200.0, text="With --check: an older state says nothing.")
@_option("--hostlist", is_flag=True)
@_option("--all", "every", is_flag=True)
@_option("--on-change", metavar="CMD")
@_option("--drain", is_flag=True)
@count("--most-nodes", default=2, most=65_536, text="With --drain: nodes of the site.")
@_option("--most-percent", type=Number(0, 100), default=10.0, show_default=True, metavar="P")
@_option("--extra", is_flag=True)
@classes_option
@bench_options
@_option("--backend", metavar="NAME")
@count("--runs", default=1, most=100, text="Runs per GPU and class in a pass.")
@srun_options
@json_option
@click.pass_context
def watch(
    context: click.Context, /, path: Path, config: Config, as_json: bool, **given: Any
) -> None:
    """Name GPUs that are slow, drifted or ill. Nothing of Slurm's configuration changes.

    A pass measures the idle nodes with the lowest priority, compares each GPU with its peers and
    with itself over its sweeps, reads PCIe, NVLink, memory errors and throttling, and, where the
    clock agents run, names GPUs that throttle while jobs run. A GPU is slow after three sweeps.

    By default it only reports. The reason of a node that it drains begins with 'gpu-aware: '; it
    touches no node that another has drained.

    Exit code 3: a GPU is slow, drifted or ill.

    \b
    Examples:
      gpu-aware-profile watch
      gpu-aware-profile watch --hardware --store ~/watch/store.db
      gpu-aware-profile watch --local
      gpu-aware-profile watch --on-change 'mail -s GPUs ops@example.org' --drain --most-nodes 4
      sbatch --exclude="$(gpu-aware-profile watch --hostlist)" job.sh
      gpu-aware-profile watch --check
    """
    from slurm_gpu_aware.store.watch_state import FILE

    file = given["state"] or path.with_name(FILE)
    if given["check"] or given["hostlist"]:
        context.exit(_from_state(file, given))
    from gpu_aware_profile.watch.one_pass import Pass
    from slurm_gpu_aware.files import InstanceLock

    site = _site(path, file, config, given)
    file.parent.mkdir(parents=True, exist_ok=True)
    with InstanceLock(file.with_name(_LOCK), "watch", of_folder=True):
        while True:
            began = time.monotonic()
            ended = threading.Event()
            running = Pass(site)

            def stop(running: Pass = running, ended: threading.Event = ended) -> None:
                running.stop()
                ended.set()

            with stopped_by_signals(stop):
                passed = running.run()
                _show(passed, as_json=as_json, every=given["every"])
                if given["interval"] and not given["once"]:
                    ended.wait(max(0.0, given["interval"] - (time.monotonic() - began)))
            if given["once"] or not given["interval"]:
                break
    if passed.state.bad():
        context.exit(PARTLY)


def _site(path: Path, file: Path, config: Config, given: Mapping[str, Any]) -> Site:
    """What the options say. Raises UsageError."""
    from gpu_aware_profile.commands.options import node_arguments
    from gpu_aware_profile.watch.draining import Budget
    from gpu_aware_profile.watch.measuring import Wanted
    from gpu_aware_profile.watch.one_pass import Acting, Site

    if given["local"] and (given["drain"] or given["extra"] or given["nodes"]):
        raise click.UsageError("--local excludes --drain, --extra and --node, which need Slurm")
    command = given["on_change"]
    words = [] if command is None else site_command("--on-change", command)
    limit_s = min(given["time_limit"], _HARDWARE_S) if given["hardware"] else given["time_limit"]
    arguments = [f"--runs={given['runs']}", f"--time-limit={0.8 * limit_s:g}", "--no-loaded"]
    qos = [f"--qos={config.profiling.qos}"] if config.profiling.qos else []
    wanted = Wanted(
        given["command"],
        [*arguments, *node_arguments({**given, "clocks": 0, "links": False})],
        [*qos, *given["srun_option"]],
        given["nodes"],
        given["older_than"],
        given["jobs"],
        limit_s,
        given["hardware"],
    )
    budget = Budget(given["most_nodes"], given["most_percent"]) if given["drain"] else None
    acting = Acting(words, budget, given["extra"])
    local = this_node() if given["local"] else ""
    return Site(path, file, config, wanted, acting, local, not given["no_sweep"])


def _from_state(file: Path, given: Mapping[str, Any]) -> int:
    """Answer from the state alone; return the exit code. Raises SourceError, not for a check."""
    from gpu_aware_profile.watch.actions import bad_nodes, check_line
    from slurm_gpu_aware.store.watch_state import WatchState, read_state

    try:
        state = read_state(file)
    except SourceError as exc:
        if not given["check"]:
            raise
        click.echo(clean(f"OK {this_node()}: unknown: {exc}"))  # a lost file drains no cluster
        return 0
    if given["check"]:
        well, line = check_line(state, this_node(), time.time(), given["max_age"])
        click.echo(line)
        return 0 if well else PARTLY
    if state is None:
        say(f"{file}: there is no state yet")
    click.echo(bad_nodes(state or WatchState()))
    return 0


def _show(passed: Passed, *, as_json: bool, every: bool) -> None:
    from gpu_aware_profile.watch.actions import state_records, state_table, summary

    done = passed.done
    if as_json:
        answer = {
            "at": passed.state.at,
            "gpus": state_records(passed.state),
            "drained": [{"node": node, "reason": reason} for node, reason in done.drain],
            "resumed": list(done.resume),
            "held_back": [{"node": node, "why": why} for node, why in done.held_back],
            "notes": passed.said,
        }
        print_json(answer)
    else:
        click.echo(state_table(passed.state, time.time(), every=every))
        click.echo(summary(passed.state))
    for node, reason in done.drain:
        say(f"drained {node}: {reason}")
    for node in done.resume:
        say(f"resumed {node}")
    for node, why in done.held_back:
        say(f"not drained {node}: {why}")
    for sentence in passed.said:
        say(sentence)
