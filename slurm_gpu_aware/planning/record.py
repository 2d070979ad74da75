"""Record of a round: its input and its decisions as plain values, for a replay.

The values are JSON values, except that times without a limit are infinite. A request's own options
must be plain values. An interference profile in a policy's options is written as its tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel, PreemptionOrder, RunningJob
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.penalties import Penalty
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.model.sockets import Sockets
from slurm_gpu_aware.placement.drb.interference import InterferenceProfile
from slurm_gpu_aware.planning.plan import Plan, PlanSettings

__all__ = ["RecordedRound", "read_round", "record_round"]

Placed = dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]
"""Job -> node names, and slots on each node."""


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """The input of a round, and the placements of its plan."""

    queue: tuple[Request, ...]
    cluster: Cluster
    settings: PlanSettings
    now: float
    placed: Placed
    policy_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def record_round(
    queue: Sequence[Request],
    cluster: Cluster,
    settings: PlanSettings,
    now: float,
    plan: Plan,
    policy_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Plain values of a round; :func:`read_round` turns them back.

    It has the ``policy_options`` of the policies that the queue uses.
    """
    used = {request.policy or settings.policy for request in queue}
    given = (policy_options or {}).items()
    masks: dict[bytes, int] = {}
    groups: dict[NodeGroups, int] = {}
    rows = [_request(request, masks, groups) for request in queue]
    return {
        "now": now,
        "settings": asdict(settings),
        "policy_options": {name: _options(options) for name, options in given if name in used},
        "queue": rows,
        "eligible": [np.flatnonzero(np.frombuffer(m, dtype=np.bool_)).tolist() for m in masks],
        "node_groups": [[one.name, one.of.tolist()] for one in groups],
        "cluster": _cluster(cluster),
        "placed": {
            a.job_id: [[cluster.nodes[n] for n in a.nodes], [list(s) for s in a.slots]]
            for a in plan.assignments
        },
    }


def read_round(content: Mapping[str, Any]) -> RecordedRound:
    """Build the round again. Raises ValueError if a value is missing or wrong."""
    try:
        settings = dict(content["settings"])
        settings["classes"] = tuple(settings["classes"])
        cluster = _read_cluster(content["cluster"])
        masks = [_mask(nodes, cluster.nodes) for nodes in content["eligible"]]
        groups = [
            NodeGroups(np.array(of, dtype=np.int64), str(name))
            for name, of in content["node_groups"]
        ]
        return RecordedRound(
            queue=tuple(_read_request(row, masks, groups) for row in content["queue"]),
            cluster=cluster,
            settings=PlanSettings(**settings),
            now=float(content["now"]),
            policy_options={
                name: _read_options(options) for name, options in content["policy_options"].items()
            },
            placed={
                job: (tuple(nodes), tuple(tuple(s) for s in slots))
                for job, (nodes, slots) in content["placed"].items()
            },
        )
    except (KeyError, IndexError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a recorded round: {exc!r}") from exc


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Plain options of a policy; an interference profile as its two tables."""
    plain = dict(options)
    profile = plain.get("interference")
    if isinstance(profile, InterferenceProfile):
        solo = [[*job, seconds] for job, seconds in profile.solo.items()]
        together = [[*job, *other, s] for (job, other), s in profile.together.items()]
        plain["interference"] = {"solo": solo, "together": together}
    return plain


def _read_options(row: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(row)
    if values.get("interference") is not None:
        tables = values["interference"]
        values["interference"] = InterferenceProfile(
            {(name, int(gpus)): float(s) for name, gpus, s in tables["solo"]},
            {((a, int(n)), (b, int(m))): float(s) for a, n, b, m, s in tables["together"]},
        )
    return values


def _request(
    request: Request, masks: dict[bytes, int], groups: dict[NodeGroups, int]
) -> dict[str, Any]:
    """Fields that differ from their default; eligible nodes and groups by number."""
    plain = {f.name: getattr(request, f.name) for f in fields(request)}
    plain = {
        name: value
        for name, value in plain.items()
        if name in ("job_id", "gpus", "eligible") or value != _DEFAULT[name]
    }
    for name in _NAMES & plain.keys():
        plain[name] = sorted(plain[name])
    if (mask := plain.pop("eligible")) is not None:
        plain["eligible"] = masks.setdefault(mask.astype(np.bool_).tobytes(), len(masks))
    if request.node_groups is not None:
        plain["node_groups"] = groups.setdefault(request.node_groups, len(groups))
    return plain


_DEFAULT = {f.name: getattr(Request("", 1), f.name) for f in fields(Request)}
_NAMES = {"preempts", "preempts_lower"}
"""Fields that are sets of names."""
_TRUTHS = ("exists", "free", "indexed", "asleep")
_NUMBERS = ("free_cpus", "free_memory_mb", "cpus")
"""Arrays of a cluster."""


def _mask(nodes: Sequence[int], names: Sequence[str]) -> BoolArray:
    mask = np.zeros(len(names), dtype=np.bool_)
    mask[list(nodes)] = True
    return mask


def _read_request(
    row: Mapping[str, Any], masks: Sequence[BoolArray], groups: Sequence[NodeGroups]
) -> Request:
    values = dict(row)
    if "eligible" in values:
        values["eligible"] = masks[values["eligible"]]
    if "node_groups" in values:
        values["node_groups"] = groups[values["node_groups"]]
    if "required" in values:
        values["required"] = tuple(values["required"])
    for name in _NAMES & values.keys():
        values[name] = frozenset(values[name])
    return Request(**values)


def _cluster(cluster: Cluster) -> dict[str, Any]:
    kinds = list(dict.fromkeys(g for g in cluster.graphs if g is not None))
    number = {graph: i for i, graph in enumerate(kinds)}
    arrays = {name: getattr(cluster, name) for name in (*_TRUTHS, *_NUMBERS)}
    return {
        **{n: None if a is None else a.astype(np.int64).tolist() for n, a in arrays.items()},
        "nodes": list(cluster.nodes),
        "scores": {name: values.tolist() for name, values in cluster.scores.items()},
        "levels": [_level(level) for level in cluster.levels],
        "model": list(cluster.model),
        "kinds": [[g.gbps.tolist(), [list(r) for r in g.classes], list(g.groups)] for g in kinds],
        "graphs": [None if g is None else number[g] for g in cluster.graphs],
        "running": [_running(job) for job in cluster.running],
        "same_indices": cluster.same_indices,
        "sockets": None if cluster.sockets is None else _sockets(cluster.sockets),
        "preemption": asdict(cluster.preemption),
    }


def _read_cluster(row: Mapping[str, Any]) -> Cluster:
    kinds = [HardwareGraph.build(gbps, classes, groups) for gbps, classes, groups in row["kinds"]]
    types = {**dict.fromkeys(_TRUTHS, np.bool_), **dict.fromkeys(_NUMBERS, np.int64)}
    arrays = {name: _array(row[name], kind) for name, kind in types.items()}
    return Cluster.build(
        row["nodes"],
        arrays.pop("exists"),
        **arrays,
        scores={name: np.array(v, dtype=np.float64) for name, v in row["scores"].items()},
        levels=tuple(_read_level(*level) for level in row["levels"]),
        model=tuple(row["model"]),
        graphs=tuple(None if i is None else kinds[i] for i in row["graphs"]),
        running=tuple(_read_running(job) for job in row["running"]),
        same_indices=bool(row["same_indices"]),
        sockets=row["sockets"]
        and Sockets(
            **{name: _array(values, np.int64) for name, values in row["sockets"].items()}
            | {"quiet": _array(row["sockets"]["quiet"], np.bool_)}
        ),
        preemption=PreemptionOrder(**row["preemption"]),
    )


def _array(values: Sequence[Any] | None, kind: type[np.generic]) -> Any:
    return None if values is None else np.array(values, dtype=kind)


def _running(job: RunningJob) -> dict[str, Any]:
    row = asdict(job)
    for name in ("cpus", "memory_mb", "socket_cpus"):
        row[name] = [[node, amount] for node, amount in row[name].items()]
    return row


def _read_running(row: Mapping[str, Any]) -> RunningJob:
    values = dict(row)
    values["gpus"] = tuple((node, tuple(slots)) for node, slots in values["gpus"])
    for name in ("cpus", "memory_mb"):
        values[name] = {int(node): int(amount) for node, amount in values[name]}
    values["socket_cpus"] = {node: tuple(cpus) for node, cpus in values["socket_cpus"]}
    return RunningJob(**values)


def _sockets(sockets: Sockets) -> dict[str, Any]:
    return {f.name: getattr(sockets, f.name).astype(int).tolist() for f in fields(Sockets)}


def _level(level: LocalityLevel) -> list[Any]:
    own = {name: [*penalty] for name, penalty in level.by_class.items()}
    return [level.name, level.penalty, level.group.tolist(), level.source, own]


def _read_level(
    name: str,
    penalty: float,
    group: Sequence[Any],
    source: str,
    by_class: Mapping[str, Sequence[Any]],
) -> LocalityLevel:
    own = {c: Penalty(float(value), str(word)) for c, (value, word) in by_class.items()}
    return LocalityLevel(name, float(penalty), np.array(group, dtype=np.int64), source, own)
