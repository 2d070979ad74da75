"""What a pass says and does: tables, the site's command, drains, resumes, scores in nodes' Extra.

No action is on by default. One that fails is said, is tried again by the next pass, and stops no
other.

What watch asks of Slurm's nodes, and the few things that it changes, by Slurm's commands.

Any user may ask; nodes are changed by root, SlurmUser and users with ``AdminLevel=Administrator``
(operators are refused: "Invalid user id", 24.11). Nothing of Slurm's configuration changes, and no
command is a shell: names are checked, texts are single arguments.
"""

import getpass
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from gpu_aware_profile.child import run_command_of_site
from gpu_aware_profile.tables import View
from gpu_aware_profile.watch.draining import Budget, DrainPlan, Node, parse_nodes, plan_drains
from slurm_gpu_aware.cli.output import clean
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import clean_environment, run_command
from slurm_gpu_aware.slurm.words import by_number, check_node_names, expand_hostlist, hostlist
from slurm_gpu_aware.store.watch_state import (
    BAD,
    STATES,
    UNKNOWN,
    WELL,
    Drained,
    GpuState,
    WatchState,
)
from slurm_gpu_aware.time_text import counted, stamp

STATE = ("node", "gpu", "state", "by", "since", "why")
_STATES = View("node, >GPU=gpu, state, >slower=by:+.1%, since=since:ago, why")
_ALL = 64  # Up to so many GPUs all are shown, of more only those that are not well.
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
    return f"{counted(len(state.gpus), 'GPU')}: {said or 'none'}"


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


_EXACT = 1e-3  # Scores in Extra are rounded to this, or each pass would write each node.


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
    nodes = read_nodes()
    plan = plan_drains(state.gpus, nodes, state.drained, budget, now, state.on_trial)
    remembered = dict(plan.drained)
    drained, resumed, failed, on_trial = [], [], [], []
    for node in plan.resume:
        try:
            resume(node)
            resumed.append(node)
        except SourceError as exc:
            failed.append(f"{node}: not resumed: {exc}")
            remembered[node] = state.drained.get(node, Drained(now))
    for node, reason in plan.drain:
        try:
            drain(node, reason)
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


TRIAL = "gpu-aware-watch"  # Reservation of drained nodes while they are measured again.
_ANSWER_S = 30.0
_OURS = ("gpu_aware_state", "gpu_aware_worst")  # Keys of a node's Extra.
_JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?\Z")
_NODES = re.compile(r" Nodes=(\S+)")
_MOST_JOBS = 3


def read_nodes() -> list[Node]:
    """All nodes with their partitions. Raises SourceError."""
    text, _ = run_command(["sinfo", "-a", "-N", "-h", "-o", "%N|%P|%T|%l|%E"], _ANSWER_S)
    return parse_nodes(text)


def drain(node: str, reason: str) -> None:
    """Drain a node: no new jobs, running ones go on. Raises SourceError."""
    _update(node, "state=drain", f"reason={reason}")


def resume(node: str) -> None:
    """Let a node take jobs again. Raises SourceError."""
    _update(node, "state=resume")


def _update(node: str, *fields: str) -> None:
    (name,) = check_node_names([node])
    run_command(["scontrol", "update", f"nodename={name}", *fields], _ANSWER_S)


def reserve(nodes: Sequence[str], seconds: float) -> None:
    """Reserve nodes for this user: no other job starts there. Raises SourceError."""
    run_command(
        [
            *("scontrol", "create", "reservation", f"reservationname={TRIAL}"),
            f"nodes={','.join(check_node_names(nodes))}",
            f"users={getpass.getuser()}",
            *("starttime=now", f"duration={max(1, round(seconds / 60))}"),
            "flags=maint,ignore_jobs",
        ],
        _ANSWER_S,
    )


def on_trial() -> frozenset[str]:
    """Nodes of the reservation: a pass that was killed has left it. Raises SourceError."""
    text, _ = run_command(["scontrol", "-o", "show", "reservation"], _ANSWER_S)
    for line in text.splitlines():
        if line.startswith(f"ReservationName={TRIAL} ") and (found := _NODES.search(line)):
            return frozenset(expand_hostlist(found[1]))
    return frozenset()


def unreserve() -> None:
    """Delete the reservation, if there is one. Raises SourceError."""
    if on_trial():
        run_command(["scontrol", "delete", f"reservationname={TRIAL}"], _ANSWER_S)


def jobs_on(node: str) -> str:
    """Running jobs of a node, ``12,13``, at most three of them; empty: none, or no answer."""
    try:
        argv = ["squeue", "-h", "-t", "RUNNING", "-o", "%A", "-w", *check_node_names([node])]
        text, _ = run_command(argv, _ANSWER_S)
    except (SourceError, ValueError):
        return ""
    jobs = [word for word in dict.fromkeys(text.split()) if _JOB.match(word)]
    return ",".join(jobs[:_MOST_JOBS]) + (",..." if len(jobs) > _MOST_JOBS else "")


def put_extra(wanted: Mapping[str, Mapping[str, float | str]]) -> list[str]:
    """Write keys of ours into the nodes' Extra; return why some were left out.

    ``wanted``: node -> key -> value. Other keys of a JSON object stay; a text that is none stays
    untouched. Raises SourceError if Slurm does not tell the nodes as JSON.
    """
    text, _ = run_command(["scontrol", "show", "nodes", "--json"], _ANSWER_S)
    try:
        raw = json.loads(text)["nodes"]
        extras = {str(node["name"]): str(node.get("extra") or "") for node in raw}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SourceError("scontrol show nodes --json: not understood") from None
    foreign, failed = [], []
    for node, ours in sorted(wanted.items()):
        if node not in extras:
            continue
        merged = merged_extra(extras[node], ours)
        if merged is None:
            foreign.append(node)
        elif merged != extras[node]:
            try:
                _update(node, f"extra={merged}")
            except SourceError as exc:
                failed.append(f"{node}: Extra is not written: {exc}")
    if foreign:
        failed.append(f"{hostlist(foreign)}: Extra has another text, which stays")
    return failed


def merged_extra(before: str, ours: Mapping[str, float | str]) -> str | None:
    """The Extra of a node with our keys; None: it is a text of another that is no JSON object."""
    try:
        kept = json.loads(before or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(kept, dict):
        return None
    rest = {key: value for key, value in kept.items() if key not in _OURS}
    return json.dumps(rest | dict(ours), separators=(",", ":"))
