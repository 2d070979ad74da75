"""What watch prints: the table of GPUs, the text for the site's command, the line of the check."""

from collections.abc import Iterable, Sequence
from typing import Any

from gpu_aware_profile.tables import View
from slurm_gpu_aware.cli.output import clean
from slurm_gpu_aware.slurm.words import by_number, hostlist
from slurm_gpu_aware.store.watch_state import BAD, STATES, UNKNOWN, WELL, GpuState, WatchState
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
