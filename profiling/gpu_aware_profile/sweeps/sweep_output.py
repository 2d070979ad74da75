"""Output of a sweep: progress, the outcome of each node, outliers, and the alarm of slower GPUs."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import click

from gpu_aware_profile.child import run_command_of_site
from gpu_aware_profile.sweeps.sweep import Sweep
from gpu_aware_profile.sweeps.sweep_plan import Outcome, Target
from gpu_aware_profile.tables import CHANGE, OUTLIER, View, records
from slurm_gpu_aware.cli.output import print_json, say
from slurm_gpu_aware.model.profile import gpu_names
from slurm_gpu_aware.slurm.commands import clean_environment
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.profiles import alarms, put_alarms
from slurm_gpu_aware.variability.drift import Change, Drift, Outlier, outlier_sentences, slow_again

_OUTCOMES = View("node, state, >GPUs=gpus, >timings, >faults, >s=took_s:.1f, reason")
_MOST_CAUSES = 8
_NAMED = 8
_MOST = 500  # GPUs in the environment, whose size Linux bounds; the JSON has all.


@dataclass
class Found:
    """What a sweep found."""

    outcomes: list[Outcome] = field(default_factory=list)
    far: list[Outlier] = field(default_factory=list)
    slower: tuple[Change, ...] = ()
    reported: tuple[Change, ...] = ()
    """Those of ``slower`` that the command of the site heard of for the first time."""
    scored: bool = True


def shown(running: Sweep, pending: Sequence[Target]) -> Iterator[Outcome]:
    """Run the probes, yield the outcomes; show progress as a bar on a terminal, else as lines."""
    total = len(pending)
    if not sys.stderr.isatty():
        running.busy = lambda nodes: say(_busy_text(nodes, running.queue_s)) if nodes else None
        for number, outcome in enumerate(running.run(pending), 1):
            say(f"[{number}/{total}] {_line(outcome)}")
            yield outcome
        return
    with click.progressbar(length=total, label="Probing", file=sys.stderr) as bar:

        def show(nodes: list[str]) -> None:
            bar.label = _busy_text(nodes, running.queue_s)
            bar.render_progress()

        running.busy = show
        for outcome in running.run(pending):
            bar.label = "Probing"
            bar.update(1)
            yield outcome


def _busy_text(nodes: list[str], wait_s: float) -> str:
    """What the sweep waits for."""
    if not nodes:
        return "Probing"
    busy = f"busy nodes are skipped after {wait_s:g} s"
    return f"waiting for Slurm to start the probes of {hostlist(nodes)} ({busy})"


def _line(outcome: Outcome) -> str:
    if outcome.state != "done":
        return f"{outcome.node}: {outcome.state}: {outcome.reason}"
    faults = f", {outcome.faults} calls failed" if outcome.faults else ""
    return (
        f"{outcome.node}: {outcome.gpus} GPUs, {outcome.timings} timings{faults},"
        f" {outcome.took_s:.1f} s"
    )


def print_found(sweep_id: str, found: Found, *, complete: bool, as_json: bool) -> None:
    outcomes = sorted(found.outcomes, key=lambda outcome: outcome.node)
    if as_json:
        answer = {
            "sweep": sweep_id,
            "complete": complete,
            "scored": found.scored,
            "nodes": [vars(outcome) for outcome in outcomes],
            "outliers": records(found.far, OUTLIER),
            "slower": records(found.slower, CHANGE),
            "reported": records(found.reported, CHANGE),
        }
        print_json(answer)
    else:
        click.echo(_OUTCOMES.text(map(vars, outcomes)))
    done = [outcome for outcome in outcomes if outcome.state == "done"]
    if done and not any(outcome.timings for outcome in done):
        say("no times were measured: they need the extra 'gpu' on the nodes, --bench, or an import")
    causes: dict[str, list[str]] = {}
    for outcome in outcomes:
        for cause in outcome.causes:
            causes.setdefault(cause, []).append(outcome.node)
    for cause, nodes in list(causes.items())[:_MOST_CAUSES]:
        say(f"{hostlist(nodes)}: {cause}")
    if len(causes) > _MOST_CAUSES:
        say(
            f"and {len(causes) - _MOST_CAUSES} other causes of failed calls: gpu-aware-profile show"
        )
    for sentence in outlier_sentences([one for one in found.far if one.ratio > 1.0]):
        say(f"stored as measured: {sentence}")
    for sentence in outlier_sentences([one for one in found.far if one.ratio < 1.0]):
        say(f"no score, too fast to be true: {sentence}")
    if found.slower:
        names = gpu_names(dict.fromkeys((c.node, c.slot) for c in found.slower))
        say(f"became slower: {names} ('gpu-aware-profile drift' says how much)")


def raise_alarm(store: Store, found: Drift, argv: Sequence[str]) -> tuple[list[Change], str]:
    """Run the command once for the GPUs that became slower and were not reported yet.

    Returns (these, why the command failed or empty). They are remembered if it succeeded; after a
    failure the next sweep tries again. Raises StoreError.
    """
    before = alarms(store)
    new, after = slow_again(found.changes, before)
    failure = _run(argv, new) if new else ""
    if failure:
        keys = {(change.node, change.slot, change.app_class) for change in new}
        after = [alarm for alarm in after if alarm[:3] not in keys]
        after += [alarm for alarm in before if alarm[:3] in keys]
    put_alarms(store, after)
    return new, failure


def _run(argv: Sequence[str], slow: Sequence[Change]) -> str:
    """Run the command; return why it failed. Its output goes to stderr."""
    said = [f"{c.node}:{c.slot} ({c.app_class} {c.rise:+.0%})" for c in slow]
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    gpus = list(dict.fromkeys((c.node, c.slot) for c in slow))[:_MOST]
    environment = {
        **clean_environment(),
        "GPU_AWARE_SLOW_GPUS": " ".join(f"{node}:{slot}" for node, slot in gpus),
        "GPU_AWARE_SLOW_NODES": hostlist(sorted({node for node, _ in gpus})),
        "GPU_AWARE_SLOW_REASON": f"slow GPUs: {', '.join(said[:_NAMED])}{more}",
    }
    given = json.dumps({"gpus": records(slow, CHANGE)}).encode()
    return run_command_of_site(argv, environment, given)
