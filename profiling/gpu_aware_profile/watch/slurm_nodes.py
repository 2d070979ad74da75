"""What watch asks of Slurm's nodes, and the few things that it changes, by Slurm's commands.

Any user may ask; nodes are changed by root, SlurmUser and users with ``AdminLevel=Administrator``
(operators are refused: "Invalid user id", 24.11). Nothing of Slurm's configuration changes, and no
command is a shell: names are checked, texts are single arguments.
"""

import getpass
import json
import re
from collections.abc import Mapping, Sequence

from gpu_aware_profile.watch.draining import Node, parse_nodes
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.words import check_node_names, expand_hostlist, hostlist

TRIAL = "gpu-aware-watch"
"""Reservation of drained nodes while they are measured again."""
_ANSWER_S = 30.0
_OURS = ("gpu_aware_state", "gpu_aware_worst")
"""Keys of a node's Extra."""
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
