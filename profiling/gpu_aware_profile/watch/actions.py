"""What a pass says and does: tables, the site's command, drains, resumes, scores in nodes' Extra.

No action is on by default. One that fails is said, is tried again by the next pass, and stops no
other.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from gpu_aware_profile.child import run_command_of_site
from gpu_aware_profile.tables import View
from gpu_aware_profile.watch import slurm_nodes
from gpu_aware_profile.watch.draining import Budget, DrainPlan, plan_drains
from slurm_gpu_aware.cli.output import clean
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import clean_environment
from slurm_gpu_aware.slurm.words import by_number, hostlist
from slurm_gpu_aware.store.watch_state import (
    BAD,
    STATES,
    UNKNOWN,
    WELL,
    Drained,
    GpuState,
    WatchState,
)
from slurm_gpu_aware.time_text import stamp

STATE = ("node", "gpu", "state", "by", "since", "why")
_STATES = View("node, >GPU=gpu, state, >slower=by:+.1%, since=since:ago, why")
_ALL = 64
"""Up to so many GPUs all are shown, of more only those that are not well."""
_NAMED = 20


def state_records(state: WatchState) -> list[dict[str, Any]]:
    """One record per GPU, by node and index."""
    ordered = sorted(state.gpus, key=lambda one: (by_number(one.node), one.gpu))
    return _records(ordered)


def state_table(state: WatchState, now: float, *, every: bool) -> str:
    """The table; ``every``: also well GPUs of a large fleet."""
    shown = state.gpus if every or len(state.gpus) <= _ALL else state.bad()
    ordered = sorted(shown, key=lambda g: (STATES.index(g.state), by_number(g.node), g.gpu))
    return _STATES.text(_records(ordered), now)


def _records(states: Iterable[GpuState]) -> list[dict[str, Any]]:
    return [{name: getattr(one, name) for name in STATE} for one in states]


def summary(state: WatchState) -> str:
    """``16 GPUs: 1 slow, 15 well``"""
    counts = {word: sum(one.state == word for one in state.gpus) for word in STATES}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{len(state.gpus)} GPU{'' if len(state.gpus) == 1 else 's'}: {said or 'none'}"


def bad_nodes(state: WatchState) -> str:
    """Host list of the nodes with a GPU that is not well, for ``--exclude``; empty: none."""
    return hostlist({one.node for one in state.gpus if one.state in BAD})


def changed(state: WatchState) -> list[GpuState]:
    """GPUs of whose state the site's command has not heard: bad ones, and ones well again."""
    return [
        one
        for one in state.gpus
        if one.state != one.told and (one.state in BAD or (one.told in BAD and one.state == WELL))
    ]


def message(news: Sequence[GpuState]) -> str:
    """The text for a mail or a chat, a line per GPU, worst first."""
    ordered = sorted(news, key=lambda g: (STATES.index(g.state), by_number(g.node), g.gpu))
    lines = []
    for one in ordered:
        since = f" since {stamp(one.since)}" if one.since is not None else ""
        if one.state in BAD:
            lines.append(f"{one.node} GPU {one.gpu} is {one.state}{since}: {one.why}")
        else:
            lines.append(f"{one.node} GPU {one.gpu} is well again")
    return "\n".join(map(clean, lines)) + "\n"


def check_line(state: WatchState | None, node: str, now: float, stale_s: float) -> tuple[bool, str]:
    """(whether the node is to be taken as well, one line), for NHC and HealthCheckProgram.

    What is not known is said, and fails no node. Throttling under a job alone does not either: a
    user's program may be its cause.
    """
    if state is None or not state.at:
        return True, f"OK {node}: nothing is known of its GPUs: watch has not run"
    own = [one for one in state.gpus if one.node == node]
    if not own:
        return True, f"OK {node}: nothing is known of its GPUs"
    if now - state.at > stale_s:
        return True, f"OK {node}: the last pass is older than {stale_s / 3600:g} h, so unknown"
    bad = sorted(
        (g for g in own if g.state in BAD and not g.only_under_jobs),
        key=lambda g: STATES.index(g.state),
    )
    if bad:
        said = "; ".join(f"GPU {one.gpu} {one.state}: {one.why}" for one in bad[:_NAMED])
        return False, clean(f"ERROR {node}: {said}")
    unknown = sum(one.state == UNKNOWN for one in own)
    hot = sum(one.only_under_jobs for one in own)
    more = [
        f", {unknown} unknown" if unknown else "",
        f", {hot} throttled under jobs" if hot else "",
    ]
    return True, f"OK {node}: {len(own)} GPUs" + "".join(more)


_EXACT = 1e-3
"""Scores in Extra are rounded to this, or each pass would write each node."""


def tell(state: WatchState, argv: Sequence[str]) -> tuple[WatchState, str]:
    """Give the site's command the news on its standard input, once.

    Returns (state that remembers it, why the command failed or empty).
    """
    news = changed(state)
    if not news:
        return state, ""
    failure = run_command_of_site(argv, clean_environment(), message(news).encode())
    if failure:
        return state, failure
    told = {(one.node, one.gpu) for one in news}
    gpus = [
        structs.replace(one, told=one.state) if (one.node, one.gpu) in told else one
        for one in state.gpus
    ]
    return structs.replace(state, gpus=gpus), ""


def drain_and_resume(
    state: WatchState, budget: Budget, now: float
) -> tuple[WatchState, DrainPlan, list[str]]:
    """Drain nodes with ill or slow GPUs, resume those that are well again.

    Returns (state that remembers it, what was done, what failed). Raises SourceError if Slurm does
    not tell its nodes.
    """
    nodes = slurm_nodes.read_nodes()
    plan = plan_drains(state.gpus, nodes, state.drained, budget, now, state.on_trial)
    remembered = dict(plan.drained)
    drained, resumed, failed, on_trial = [], [], [], []
    for node in plan.resume:
        try:
            slurm_nodes.resume(node)
            resumed.append(node)
        except SourceError as exc:
            failed.append(f"{node}: not resumed: {exc}")
            remembered[node] = state.drained.get(node, Drained(now))
    for node, reason in plan.drain:
        try:
            slurm_nodes.drain(node, reason)
            drained.append((node, reason))
        except SourceError as exc:
            failed.append(f"{node}: not drained: {exc}")
            if node in state.on_trial:
                on_trial.append(node)
            else:
                del remembered[node]
    done = DrainPlan(tuple(drained), tuple(resumed), plan.held_back, remembered)
    after = structs.replace(state, drained=remembered, on_trial=tuple(on_trial))
    return after, done, failed


def node_extras(states: Iterable[GpuState]) -> dict[str, dict[str, float | str]]:
    """Node -> the worst state and slowness of its GPUs, for ``--extra`` of users' jobs."""
    worst: dict[str, dict[str, float | str]] = {}
    for one in states:
        own = worst.setdefault(one.node, {"gpu_aware_state": one.state, "gpu_aware_worst": 1.0})
        if STATES.index(one.state) < STATES.index(str(own["gpu_aware_state"])):
            own["gpu_aware_state"] = one.state
        slowness = round((1.0 + (one.by or 0.0)) / _EXACT) * _EXACT
        own["gpu_aware_worst"] = round(max(float(own["gpu_aware_worst"]), slowness), 3)
    return worst
