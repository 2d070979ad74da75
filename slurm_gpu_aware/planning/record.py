"""Record of a round: its whole input and its decisions as plain values, and their replay.

The values are JSON values, except that times without a limit are infinite, and are read by the
types of the round (`records`). What many requests share is written once and named by number. A
request's own options must be plain values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain
from typing import Any

import numpy as np

from slurm_gpu_aware import records
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import (
    Cluster,
)
from slurm_gpu_aware.model.facets import Facet, named
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import NodeGroups, Request
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan
from slurm_gpu_aware.planning.stages import Stage, plan_stages

Placed = dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]
"""Job -> node names, and slots on each node."""
Clocks = dict[str, int | None]
"""Job that starts, or running job with a new clock -> SM clock, MHz; None: the default clock."""
_DEFAULT = Request("", 1)
_SHARED = {"eligible": "masks", "allowed": "masks", "groups": "groups", "table": "tables"}
"""Field or facet -> where its value stands, if that is an array, groups of nodes or a table."""


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """The input of a round, and the decisions of its plan."""

    asked: Round
    placed: Placed
    clocks: Clocks = field(default_factory=dict)
    moved: Placed = field(default_factory=dict)  # Running job that begins to move -> its new GPUs.


def record_round(asked: Round, plan: Plan, stages: Sequence[Stage]) -> dict[str, Any]:
    """Plain values of a round, with the options of the policies that its queue uses.

    Of its facets those that are inputs of ``stages``.
    """
    used = {request.policy.name or asked.settings.policy for request in asked.queue}
    shared, names = _Shared(_of_requests(stages)), asked.cluster.nodes
    content = {
        "asked": {
            "now": asked.now,
            "settings": asked.settings,
            "options": {n: _options(o) for n, o in asked.options.items() if n in used},
            "queue": [_request(request, shared) for request in asked.queue],
            "cluster": _cluster(asked.cluster, shared),
            **{facet.name: _facet(asked.get(facet), shared) for facet in _inputs(stages)},
        },
        "placed": _places(plan.assignments, names),
        "clocks": _clocks(plan),
        "moved": _places(plan.moved, names),
        "shared": shared.content(),
    }
    plain: dict[str, Any] = records.plain(content, _plain_array)
    return plain


@dataclass
class _Shared:
    """What several requests or nodes share, and its number."""

    facets: Sequence[Facet[Any]]  # Those of requests that the record holds.
    masks: dict[bytes, int] = field(default_factory=dict)
    groups: dict[NodeGroups, int] = field(default_factory=dict)
    tables: dict[SizeTable, int] = field(default_factory=dict)
    graphs: dict[HardwareGraph, int] = field(default_factory=dict)

    def numbered(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The same fields with numbers for what is shared."""
        found = dict(values)
        for name in found.keys() & _SHARED:
            if isinstance(value := found[name], np.ndarray | NodeGroups | SizeTable):
                mask = isinstance(value, np.ndarray)
                key = np.asarray(value, np.bool_).tobytes() if mask else value
                numbers = getattr(self, _SHARED[name])
                found[name] = numbers.setdefault(key, len(numbers))
        return found

    def content(self) -> dict[str, list[Any]]:
        """All of it by number; of a mask the nodes."""
        return {
            "masks": [np.flatnonzero(np.frombuffer(mask, np.bool_)) for mask in self.masks],
            "groups": list(self.groups),
            "tables": list(self.tables),
            "graphs": list(self.graphs),
        }


def _plain_array(value: Any) -> Any:
    """The plain value of an array or a NumPy scalar; truth values as 0 and 1."""
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{type(value).__name__} is not a plain value")
    return (value.astype(np.int64) if value.dtype == np.bool_ else value).tolist()


def _places(assignments: Iterable[Assignment], names: Sequence[str]) -> Placed:
    return {a.job_id: (tuple(names[n] for n in a.nodes), a.slots) for a in assignments}


def _inputs(stages: Iterable[Stage]) -> Iterator[Facet[Any]]:
    """The facets of a round that a record holds."""
    return chain.from_iterable(stage.inputs for stage in stages)


def _of_requests(stages: Iterable[Stage]) -> list[Facet[Any]]:
    """The facets of requests that a record holds."""
    return list(dict.fromkeys(chain.from_iterable(stage.reads for stage in stages)))


def _facet(value: Any, shared: _Shared) -> Any:
    """A value whose requests and tables are numbers of what is shared."""
    if isinstance(value, Request):
        return _request(value, shared)
    if isinstance(value, Facts):
        return value.plain()
    if is_dataclass(value):
        named = {one.name: getattr(value, one.name) for one in fields(value)}
        return _facet(shared.numbered(named), shared)
    if isinstance(value, Mapping):
        return {key: _facet(one, shared) for key, one in value.items()}
    if isinstance(value, list | tuple) and value and is_dataclass(value[0]):
        return [_facet(one, shared) for one in value]
    return value


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Plain options of a policy; an interference profile as its two tables."""
    profile = options.get("interference")
    if not isinstance(profile, InterferenceProfile):
        return dict(options)
    solo = [[*job, seconds] for job, seconds in profile.solo.items()]
    together = [[*job, *other, s] for (job, other), s in profile.together.items()]
    return {**options, "interference": {"solo": solo, "together": together}}


def _request(request: Request, shared: _Shared) -> dict[str, Any]:
    """Fields that differ from their default."""
    row = {"job_id": request.job_id, "gpus": request.gpus, **_changed(request, _DEFAULT, shared)}
    facets = {
        facet.name: request.get(facet)
        for facet in shared.facets
        if named(facet, request.get(facet))
    }
    return {**row, "facets": _facet(shared.numbered(facets), shared)} if facets else row


def _changed(value: Any, default: Any, shared: _Shared) -> dict[str, Any]:
    """Fields of a record, and of those inside it, that differ from their default."""
    found: dict[str, Any] = {}
    names = (one.name for one in fields(value) if one.name != "facets")
    for name, own in shared.numbered({name: getattr(value, name) for name in names}).items():
        usual = getattr(default, name)
        if is_dataclass(usual):
            own, usual = _changed(own, usual, shared), {}
        if own != usual:
            found[name] = own
    return found


def _clocks(plan: Plan) -> Clocks:
    changes = {change.job_id: change.clock_mhz for change in plan.clocks}
    return {a.job_id: a.clock_mhz for a in plan.assignments} | changes


def _cluster(cluster: Cluster, shared: _Shared) -> dict[str, Any]:
    values = {f.name: getattr(cluster, f.name) for f in fields(cluster)}
    graphs = [
        None if graph is None else shared.graphs.setdefault(graph, len(shared.graphs))
        for graph in cluster.graphs
    ]
    return {**values, "graphs": graphs, "power_w": None}  # a round under a limit finds the power


def read_round(content: Mapping[str, Any], stages: Sequence[Stage]) -> RecordedRound:
    """Build the round again. Raises ValueError if a value is missing or wrong."""
    try:
        asked, shared = dict(content["asked"]), _read_shared(content, _of_requests(stages))
        asked["queue"] = [shared.in_place(row) for row in asked["queue"]]
        numbers = asked["cluster"]["graphs"]
        graphs = [None if i is None else shared.values["graphs"][i] for i in numbers]
        asked["cluster"] = {**asked["cluster"], "graphs": graphs}
        asked["options"] = {name: _read_options(row) for name, row in asked["options"].items()}
        asked["facets"] = {
            facet.name: records.read(shared.in_place(value), facet.kind, _array)
            for facet in _inputs(stages)
            if (value := asked.get(facet.name)) is not None
        }
        return records.read({**content, "asked": asked}, RecordedRound, _array)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as exc:
        why = exc if isinstance(exc, ValueError) else repr(exc)
        raise ValueError(f"not a recorded round: {why}") from exc


@dataclass(frozen=True)
class _Stored:
    """What stands once in a record for several requests or nodes."""

    values: Mapping[str, Sequence[Any]]
    kinds: Mapping[str, Any]  # Facet of requests -> its type.

    def in_place(self, value: Any) -> Any:
        """A value with what is shared in the place of its numbers, and with facets of requests."""
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return [self.in_place(one) for one in value]
        if not isinstance(value, Mapping):
            return value
        row = {key: self.in_place(one) for key, one in value.items()}
        there = {name: kind for name, kind in _SHARED.items() if isinstance(row.get(name), int)}
        row |= {name: self.values[kind][row[name]] for name, kind in there.items()}
        if "facets" in row:
            facets = row["facets"].items()
            row["facets"] = {n: records.read(one, self.kinds[n], _array) for n, one in facets}
        return row


def _read_shared(content: Mapping[str, Any], facets: Iterable[Facet[Any]]) -> _Stored:
    shared, n = content["shared"], len(content["asked"]["cluster"]["nodes"])
    values: dict[str, Sequence[Any]] = {
        "masks": [np.isin(np.arange(n), nodes) for nodes in shared["masks"]],
        "groups": records.read(shared["groups"], list[NodeGroups], _array),
        "tables": records.read(shared["tables"], list[SizeTable], _array),
        "graphs": [
            HardwareGraph.build(row["gbps"], row["classes"], row["groups"], row["effbw"])
            for row in shared["graphs"]
        ],
    }
    return _Stored(values, {facet.name: facet.kind for facet in facets})


def _read_options(row: Mapping[str, Any]) -> dict[str, Any]:
    tables = row.get("interference")
    if tables is None:
        return dict(row)
    profile = InterferenceProfile(
        {(name, int(gpus)): float(s) for name, gpus, s in tables["solo"]},
        {((a, int(n)), (b, int(m))): float(s) for a, n, b, m, s in tables["together"]},
    )
    return {**row, "interference": profile}


def _array(kind: Any, value: Any) -> Any:
    """An array of the type in its annotation, or facts."""
    if kind is Facts:
        return Facts.read(value)
    found = np.array(value)
    if found.size and found.dtype.kind not in "biuf":
        raise ValueError("expected numbers")
    return found.astype(kind.__args__[1].__args__[0])


@dataclass(frozen=True)
class Difference:
    """A job with another placement or clock in the replay; a placement of None: it waits."""

    now: float
    job_id: str
    then: object  # (node names, slots), or the clock, in the recorded round.
    again: object


def replay(recorded: RecordedRound, stages: Sequence[Stage]) -> list[Difference]:
    """Plan a round again by its stages; return every job with another placement or clock."""
    asked = recorded.asked
    plan = plan_stages(asked, stages)
    names = asked.cluster.nodes
    pairs: list[tuple[Mapping[str, object], Mapping[str, object]]] = [
        (recorded.placed, _places(plan.assignments, names)),
        (recorded.moved, _places(plan.moved, names)),
    ]
    if recorded.clocks:
        pairs.append((recorded.clocks, _clocks(plan)))
    return [
        Difference(asked.now, job, then.get(job), there.get(job))
        for then, there in pairs
        for job in sorted(then.keys() | there.keys())
        if then.get(job) != there.get(job)
    ]
