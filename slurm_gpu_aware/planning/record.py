"""Record of a round: its whole input and its decisions as plain values, and their replay.

The values are JSON values, except that times without a limit are infinite. A request's own options
must be plain values. An interference profile in a policy's options is written as its tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from slurm_gpu_aware.features.due_dates.facet import DueDate
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.moves.settings import MoveSettings
from slurm_gpu_aware.features.power.size_table import SizeTable
from slurm_gpu_aware.features.power.state import PoweredJob, PowerState
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import (
    Cluster,
    LocalityLevel,
    PreemptionOrder,
    RunningJob,
    Shards,
    Sockets,
)
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.penalties import Penalty
from slurm_gpu_aware.model.request import LeftToSlurm, NodeGroups, Part, Postponement, Request
from slurm_gpu_aware.placement.drb.interference import InterferenceProfile
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.stages import STAGES, Moving, Round, plan_stages

Placed = dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]
"""Job -> node names, and slots on each node."""
Clocks = dict[str, int | None]
"""Job that starts, or running job with a new clock -> SM clock, MHz; None: the default clock."""
_DEFAULT = {f.name: getattr(Request("", 1), f.name) for f in fields(Request)}
_ARRAYS = ("exists", "free", "indexed", "asleep", "free_cpus", "free_memory_mb", "cpus")
_LATER_ARRAYS = ("memory_mb", "installed", "by_slurm", "starting")
"""Arrays that the records of earlier releases do not have."""
_MASKS = ("eligible", "allowed")
_TRUTHS = ("exists", "free", "indexed", "asleep", "quiet", *_LATER_ARRAYS[1:])
"""Arrays of truth values, written as 0 and 1; the other arrays have whole numbers."""


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """The input of a round, and the decisions of its plan."""

    asked: Round
    placed: Placed
    clocks: Clocks = field(default_factory=dict)
    moved: Placed = field(default_factory=dict)
    """Running job that begins to move -> its new GPUs."""
    whole: bool = True
    """False: an earlier release recorded only what the placement found and did."""


def record_round(asked: Round, plan: Plan) -> dict[str, Any]:
    """Plain values of a round, with the options of the policies that its queue uses."""
    used = {request.policy or asked.settings.policy for request in asked.queue}
    tables = _Tables()
    cluster, names = asked.cluster, asked.cluster.nodes
    return {
        "whole": True,
        "now": asked.now,
        "settings": asdict(asked.settings),
        "policy_options": {n: _options(o) for n, o in asked.options.items() if n in used},
        "queue": [_request(request, tables) for request in asked.queue],
        "cluster": _cluster(cluster),
        "power": None if asked.power is None else _power(asked.power, tables.sizes),
        "returning": {job_id: _chosen(one) for job_id, one in asked.returning.items()},
        "moving": None if asked.moving is None else _moving(asked.moving, tables),
        "eligible": [np.flatnonzero(np.frombuffer(m, np.bool_)).tolist() for m in tables.masks],
        "node_groups": [[one.name, one.of.tolist()] for one in tables.groups],
        "tables": [_plain(table) for table in tables.sizes],
        "clocks": _clocks(plan),
        "placed": _places(plan.assignments, names),
        "moved": _places((move.assignment for move in plan.moves), names),
    }


@dataclass
class _Tables:
    """What several requests share, by number."""

    masks: dict[bytes, int] = field(default_factory=dict)
    groups: dict[NodeGroups, int] = field(default_factory=dict)
    sizes: dict[SizeTable, int] = field(default_factory=dict)

    def mask(self, nodes: BoolArray) -> int:
        """Number of a mask of nodes."""
        return self.masks.setdefault(nodes.astype(np.bool_).tobytes(), len(self.masks))


def _places(assignments: Iterable[Assignment], names: Sequence[str]) -> dict[str, Any]:
    return {a.job_id: [[names[n] for n in a.nodes], _plain(a.slots)] for a in assignments}


def _chosen(one: Assignment) -> dict[str, Any]:
    """The GPUs that a move chose, and how many its job had before."""
    return {"nodes": list(one.nodes), "slots": _plain(one.slots), "why": dict(one.why)}


def _moving(moving: Moving, tables: _Tables) -> dict[str, Any]:
    return {
        "settings": asdict(moving.settings),
        "movable": [
            [_request(one.request, tables), _plain(one.job), one.restart_s, one.moved_s]
            for one in moving.movable
        ],
        "recent": [list(one) for one in moving.recent],
        "busy": sorted(moving.busy),
    }


def _plain(value: Any) -> Any:
    """Plain values: a set of names sorted, a mapping of numbers as pairs."""
    if isinstance(value, np.ndarray):
        return (value.astype(np.int64) if value.dtype == np.bool_ else value).tolist()
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(one) for key, one in value.items()}
        value = tuple(value.items())
    if isinstance(value, frozenset):
        return sorted(value)
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Plain options of a policy; an interference profile as its two tables."""
    profile = options.get("interference")
    if not isinstance(profile, InterferenceProfile):
        return dict(options)
    solo = [[*job, seconds] for job, seconds in profile.solo.items()]
    together = [[*job, *other, s] for (job, other), s in profile.together.items()]
    return {**options, "interference": {"solo": solo, "together": together}}


def _request(request: Request, tables: _Tables) -> dict[str, Any]:
    """Fields that differ from their default; masks of nodes, groups and tables by number."""
    values = {name: getattr(request, name) for name in _DEFAULT}
    for name in _MASKS:
        if (mask := values[name]) is not None:
            values[name] = tables.mask(mask)
    if (group := values.pop("node_groups")) is not None:
        group = tables.groups.setdefault(group, len(tables.groups))
    if (table := values.pop("table")) is not None:
        table = tables.sizes.setdefault(table, len(tables.sizes))
    values |= {"node_groups": group, "table": table}
    given = {n: v for n, v in values.items() if n in ("job_id", "gpus") or v != _DEFAULT[n]}
    return {name: _plain(value) for name, value in given.items()}


def _power(power: PowerState, tables: dict[SizeTable, int]) -> dict[str, Any]:
    """The power state; tables by number."""
    running = {}
    for job_id, job in power.running.items():
        row = {f.name: getattr(job, f.name) for f in fields(job)}
        if job.table is not None:
            row["table"] = tables.setdefault(job.table, len(tables))
        running[job_id] = row
    arrays = {"max_w": power.max_w.tolist(), "idle_w": power.idle_w.tolist()}
    return {**arrays, "limit_w": power.limit_w, "running": running}


def _clocks(plan: Plan) -> Clocks:
    changes = {change.job_id: change.clock_mhz for change in plan.clocks}
    return {a.job_id: a.clock_mhz for a in plan.assignments} | changes


def _cluster(cluster: Cluster) -> dict[str, Any]:
    kinds = list(dict.fromkeys(g for g in cluster.graphs if g is not None))
    number = {graph: i for i, graph in enumerate(kinds)}
    values = {f.name: getattr(cluster, f.name) for f in fields(cluster)}
    del values["power_w"]  # a round under a limit finds it
    shards = cluster.shards
    values["shards"] = None if shards is None else (shards.total, shards.free)
    values |= {
        "levels": tuple(tuple(getattr(one, f.name) for f in fields(one)) for one in cluster.levels),
        "kinds": tuple((g.gbps, g.classes, g.groups, g.effbw) for g in kinds),
        "graphs": tuple(None if graph is None else number[graph] for graph in cluster.graphs),
    }
    plain: dict[str, Any] = _plain(values)
    return plain


def read_round(content: Mapping[str, Any]) -> RecordedRound:
    """Build the round again. Raises ValueError if a value is missing or wrong."""
    try:
        cluster = _read_cluster(content["cluster"])
        groups = [
            NodeGroups(np.array(of, dtype=np.int64), str(name))
            for name, of in content["node_groups"]
        ]
        shared = _Shared(
            [np.isin(np.arange(len(cluster.nodes)), nodes) for nodes in content["eligible"]],
            groups,
            [_read_table(row) for row in content.get("tables", ())],
        )
        options, power = content["policy_options"], content.get("power")
        settings, moving = content["settings"], content.get("moving")
        returning = content.get("returning", {})
        asked = Round(
            queue=tuple(_read_request(row, shared) for row in content["queue"]),
            cluster=cluster,
            settings=PlanSettings(**{**settings, "classes": tuple(settings["classes"])}),
            now=float(content["now"]),
            options={name: _read_options(row) for name, row in options.items()},
            power=None if power is None else _read_power(power, shared.tables),
            returning={job: _read_chosen(job, row) for job, row in returning.items()},
            moving=None if moving is None else _read_moving(moving, shared),
        )
        return RecordedRound(
            asked,
            placed=_read_places(content["placed"]),
            clocks=dict(content.get("clocks", {})),
            moved=_read_places(content.get("moved", {})),
            whole=bool(content.get("whole", False)),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a recorded round: {exc!r}") from exc


class _Shared(NamedTuple):
    """What requests name by number."""

    masks: Sequence[BoolArray]
    groups: Sequence[NodeGroups]
    tables: Sequence[SizeTable]


def _read_places(rows: Mapping[str, Any]) -> Placed:
    return {job: (tuple(nodes), tuple(map(tuple, slots))) for job, (nodes, slots) in rows.items()}


def _read_chosen(job_id: str, row: Mapping[str, Any]) -> Assignment:
    slots = tuple(map(tuple, row["slots"]))
    return Assignment(job_id, tuple(row["nodes"]), slots, "", 0.0, "", 0.0, why=row["why"])


def _read_moving(row: Mapping[str, Any], shared: _Shared) -> Moving:
    movable = [
        Movable(_read_request(request, shared), _read_running(job), restart_s, moved_s)
        for request, job, restart_s, moved_s in row["movable"]
    ]
    recent = [(float(at), str(user)) for at, user in row["recent"]]
    return Moving(MoveSettings(**row["settings"]), movable, recent, frozenset(row["busy"]))


def _read_options(row: Mapping[str, Any]) -> dict[str, Any]:
    tables = row.get("interference")
    if tables is None:
        return dict(row)
    profile = InterferenceProfile(
        {(name, int(gpus)): float(s) for name, gpus, s in tables["solo"]},
        {((a, int(n)), (b, int(m))): float(s) for a, n, b, m, s in tables["together"]},
    )
    return {**row, "interference": profile}


def _read_request(row: Mapping[str, Any], shared: _Shared) -> Request:
    read: dict[str, Any] = {
        "table": shared.tables.__getitem__,
        "sizes": tuple,
        "eligible": shared.masks.__getitem__,
        "allowed": shared.masks.__getitem__,
        "node_groups": shared.groups.__getitem__,
        "required": tuple,
        "preempts": frozenset,
        "preempts_lower": frozenset,
        "postponed": _read_wait,
        "due": _read_due,
        "left": _read_left,
    }
    return Request(**{n: read[n](value) if n in read else value for n, value in row.items()})


def _read_wait(row: Mapping[str, Any]) -> Postponement:
    gpus = tuple((str(node), tuple(slots)) for node, slots in row["gpus"])
    return Postponement(**{**row, "gpus": gpus})


def _read_due(row: Mapping[str, Any]) -> DueDate:
    runs = tuple((int(gpus), float(s)) for gpus, s in row["runs"])
    epochs = tuple(row["epochs"]) if row.get("epochs") else None
    return DueDate(**{**row, "runs": runs, "epochs": epochs})


def _read_left(row: Mapping[str, Any]) -> LeftToSlurm:
    return LeftToSlurm(**{**row, "parts": tuple(Part(**part) for part in row["parts"])})


def _read_table(row: Mapping[str, Any]) -> SizeTable:
    sizes, clocks = (np.array(row[name], dtype=np.int64) for name in ("gpus", "clocks_mhz"))
    time_s, power_w = (np.array(row[name], dtype=np.float64) for name in ("time_s", "power_w"))
    return SizeTable(sizes, clocks, time_s, power_w, str(row["source"]))


def _read_power(row: Mapping[str, Any], tables: Sequence[SizeTable]) -> PowerState:
    running = {}
    for job_id, job in row["running"].items():
        table = None if job["table"] is None else tables[job["table"]]
        running[job_id] = PoweredJob(**{**job, "table": table})
    max_w, idle_w = (np.array(row[name], dtype=np.float64) for name in ("max_w", "idle_w"))
    return PowerState(max_w, idle_w, float(row["limit_w"]), running)


def _read_cluster(row: Mapping[str, Any]) -> Cluster:
    kinds = [HardwareGraph.build(*kind) for kind in row["kinds"]]
    arrays = _arrays(row, _ARRAYS) | _arrays(row, [n for n in _LATER_ARRAYS if n in row])
    names = [f.name for f in fields(Sockets)]
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
        shards=_read_shards(row.get("shards")),
        sockets=row["sockets"] and Sockets(**_arrays(row["sockets"], names)),
        preemption=PreemptionOrder(**row["preemption"]),
    )


def _read_shards(row: Sequence[Any] | None) -> Shards | None:
    return None if row is None else Shards(*(np.array(one, dtype=np.int64) for one in row))


def _arrays(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Name -> array, or None where the record has none."""
    types = {name: np.bool_ if name in _TRUTHS else np.int64 for name in names}
    return {n: None if row[n] is None else np.array(row[n], dtype=t) for n, t in types.items()}


def _read_running(row: Mapping[str, Any]) -> RunningJob:
    values = {**row, "gpus": tuple((node, tuple(slots)) for node, slots in row["gpus"])}
    values |= {name: dict(row[name]) for name in ("cpus", "memory_mb")}
    values["socket_cpus"] = {node: tuple(cpus) for node, cpus in row["socket_cpus"]}
    return RunningJob(**values)


def _read_level(
    name: str, penalty: float, group: Sequence[Any], source: str, by_class: Mapping[str, Any]
) -> LocalityLevel:
    own = {c: Penalty(float(value), str(word)) for c, (value, word) in by_class.items()}
    return LocalityLevel(name, float(penalty), np.array(group, dtype=np.int64), source, own)


@dataclass(frozen=True)
class Difference:
    """A job with another placement or clock in the replay; a placement of None: it waits."""

    now: float
    job_id: str
    then: object
    """(node names, slots), or the clock, in the recorded round."""
    again: object


def replay(recorded: RecordedRound) -> list[Difference]:
    """Plan a round again by all its stages; return every job with another placement or clock."""
    asked = recorded.asked
    plan = plan_stages(asked, STAGES if recorded.whole else ())
    names = asked.cluster.nodes
    pairs: list[tuple[Mapping[str, object], Mapping[str, object]]] = [
        (recorded.placed, _read_places(_places(plan.assignments, names))),
        (recorded.moved, _read_places(_places((move.assignment for move in plan.moves), names))),
    ]
    if recorded.clocks:
        pairs.append((recorded.clocks, _clocks(plan)))
    return [
        Difference(asked.now, job, then.get(job), there.get(job))
        for then, there in pairs
        for job in sorted(then.keys() | there.keys())
        if then.get(job) != there.get(job)
    ]


def replay_all(contents: Iterable[Mapping[str, Any]]) -> tuple[int, list[Difference]]:
    """Replay recorded rounds; return their number and all differences. Raises ValueError."""
    rounds = [read_round(content) for content in contents]
    return len(rounds), [difference for one in rounds for difference in replay(one)]
