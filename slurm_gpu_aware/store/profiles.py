"""Profile of the store: scores, links and faults of GPUs; measurements, and reports of slow GPUs.

A measurement is all runs of a GPU for a class of one moment. The newest ones are found by descents
of the index of ``timings``, one per GPU and class, so that a long history costs nothing.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from slurm_gpu_aware.model.hardware_graph import board_of
from slurm_gpu_aware.model.penalties import level_ratios
from slurm_gpu_aware.model.profile import (
    IDLE,
    Alarm,
    Fault,
    Gpu,
    GpuRecord,
    GpuScore,
    GpuTiming,
    Link,
    Pair,
    Profile,
    RunConditions,
)
from slurm_gpu_aware.store.database import EFFBW, SCORE_REFERENCE, Store, put_value, value_of
from slurm_gpu_aware.store.measurements import level_times, unseen_gpus
from slurm_gpu_aware.store.tables import RecordTable

LINKS = RecordTable("links", Link)
FAULTS = RecordTable("probe_errors", Fault)
_ALARMS = RecordTable("alarms", Alarm)
_SCORES = RecordTable("scores", GpuScore, "model", "uuid")
_AS_JOBS = f"neighbours = '{IDLE}' AND clock_mhz = 0"
"""Runs as jobs find the GPU: its clock not locked, its neighbours idle."""
_NEWEST = f"""
WITH RECURSIVE kinds(node, slot, class) AS (
  SELECT node, slot, (SELECT min(class) FROM timings t WHERE t.node = g.node AND t.slot = g.slot)
  FROM gpus g
  UNION ALL
  SELECT node, slot, (SELECT min(class) FROM timings t
                      WHERE t.node = k.node AND t.slot = k.slot AND t.class > k.class)
  FROM kinds k WHERE class IS NOT NULL),
newest(node, slot, class, at) AS MATERIALIZED (
  SELECT * FROM (
    SELECT node, slot, class,
           (SELECT taken_at_unix FROM timings t
            WHERE t.node = k.node AND t.slot = k.slot AND t.class = k.class AND {_AS_JOBS}
            ORDER BY taken_at_unix DESC LIMIT 1) AS at
    FROM kinds k WHERE class IS NOT NULL)
  WHERE at IS NOT NULL)"""  # noqa: S608 - constants

_HISTORIES: Mapping[str, tuple[str, ...]] = {
    "timings": ("node", "slot", "class"),
    "bandwidths": ("node", "a", "b"),
    "collectives": ("node", "gpus", "operation"),
}
"""Table with ``taken_at_unix`` -> what is measured."""


def newest_runs(store: Store, neighbours: str = IDLE) -> list[GpuTiming]:
    """All runs of the newest measurement of each GPU and class, as jobs find the GPU.

    ``neighbours`` LOADED: the runs of the same measurements while the other GPUs worked.
    """
    rows = store.query(
        f"{_NEWEST} SELECT node, slot, class, value_ms, taken_at_unix, ifnull(model, ''), name"  # noqa: S608
        " FROM newest JOIN timings t USING (node, slot, class) JOIN gpus USING (node, slot)"
        " WHERE taken_at_unix = at AND neighbours = ? AND clock_mhz = 0"
        " ORDER BY node, slot, class, run",
        (neighbours,),
    )
    boards = {row["name"]: board_of(row["name"]) for row in rows}
    return [GpuTiming(*row[:6])._replace(board=boards[row["name"]]) for row in rows]


class TimingRun(NamedTuple):
    """One run of a GPU for a class, as jobs find the GPU."""

    node: str
    slot: int
    app_class: str
    taken_at: float  # Unix time. Runs of one moment are one measurement.
    source: str  # Backend of the probe, or ``import``.
    value_ms: float
    model: str  # Empty: not known.
    name: str  # Product name; empty: not known.


def timing_runs(store: Store) -> Iterator[TimingRun]:
    """All kept runs of GPUs as jobs find them, by GPU and class, oldest first."""
    rows = store.query(
        "SELECT node, slot, class, taken_at_unix, source, value_ms, ifnull(model, ''),"  # noqa: S608
        " ifnull(name, '') FROM timings JOIN gpus USING (node, slot)"
        f" WHERE {_AS_JOBS} ORDER BY node, slot, class, taken_at_unix, run"
    )
    return (TimingRun(*row) for row in rows)


def newest_spreads(store: Store) -> dict[tuple[str, int, str], float]:
    """(node, slot, class) -> largest spread of the runs of the newest measurement, as jobs find
    the GPU; without those whose spread is not known.
    """
    rows = store.query(
        f"{_NEWEST} SELECT node, slot, class, max(spread) AS spread"  # noqa: S608
        " FROM newest JOIN timings t USING (node, slot, class)"
        f" WHERE taken_at_unix = at AND {_AS_JOBS} GROUP BY node, slot, class"
        " HAVING max(spread) IS NOT NULL"
    )
    return {(row["node"], row["slot"], row["class"]): row["spread"] for row in rows}


def newest_run_records(store: Store) -> list[dict[str, Any]]:
    """The newest runs of each GPU, class, neighbours, clock and power limit, with conditions."""
    fields = ", ".join(RunConditions._fields)
    rows = store.query(
        "SELECT node, slot AS gpu, class, taken_at_unix AS taken_at, run, value_ms, source,"  # noqa: S608
        f" {fields} FROM (SELECT *, max(taken_at_unix) OVER kinds AS newest FROM timings"
        "  WINDOW kinds AS (PARTITION BY node, slot, class, neighbours, clock_mhz, limit_w))"
        " WHERE taken_at_unix = newest"
        " ORDER BY node, slot, class, neighbours, clock_mhz, limit_w, run"
    )
    return [dict(row) for row in rows]


def node_records(store: Store) -> list[dict[str, Any]]:
    """The nodes: Unix time of the newest measurement, versions of driver and CUDA."""
    rows = store.query(
        "SELECT node, taken_at_unix AS taken_at, driver, cuda FROM nodes ORDER BY node"
    )
    return [dict(row) for row in rows]


def measured_pairs(store: Store, since: float) -> list[Pair]:
    """The newest measurement of each GPU and class, and one that it is compared with.

    That is the newest one up to ``since`` (Unix s), else the oldest one, of the same benchmark
    (``source``). A GPU without a measurement after ``since``, or with only one, is left out.
    """
    rows = store.query(
        f"{_NEWEST}, "  # noqa: S608
        "sourced AS MATERIALIZED (SELECT n.*, (SELECT source FROM timings t WHERE t.node = n.node"
        f"  AND t.slot = n.slot AND t.class = n.class AND taken_at_unix = at AND {_AS_JOBS}"
        "  LIMIT 1) AS source FROM newest n WHERE at > :since),"
        "compared AS MATERIALIZED (SELECT s.*, ifnull("
        "  (SELECT taken_at_unix FROM timings t WHERE t.node = s.node AND t.slot = s.slot"
        f"   AND t.class = s.class AND taken_at_unix <= :since AND {_AS_JOBS}"
        "   AND t.source = s.source ORDER BY taken_at_unix DESC LIMIT 1),"
        "  (SELECT taken_at_unix FROM timings t WHERE t.node = s.node AND t.slot = s.slot"
        f"   AND t.class = s.class AND taken_at_unix < at AND {_AS_JOBS}"
        "   AND t.source = s.source ORDER BY taken_at_unix LIMIT 1)) AS before FROM sourced s)"
        "SELECT node, slot, class, ifnull(model, '') AS model, taken_at_unix, value_ms"
        " FROM compared JOIN timings t USING (node, slot, class) JOIN gpus USING (node, slot)"
        f" WHERE before IS NOT NULL AND taken_at_unix IN (before, at) AND {_AS_JOBS}"
        " ORDER BY node, slot, class, taken_at_unix, run",
        {"since": since},
    )
    pairs = []
    for (node, slot, app_class, model), own in groupby(rows, key=itemgetter(0, 1, 2, 3)):
        times: dict[float, list[float]] = {}
        for row in own:
            times.setdefault(row["taken_at_unix"], []).append(row["value_ms"])
        (before_at, before_ms), (now_at, now_ms) = times.items()
        pairs.append(Pair(node, slot, app_class, model, before_ms, now_ms, before_at, now_at))
    return pairs


def judged_pairs(store: Store, since: float, classes: Collection[str]) -> list[Pair]:
    """Those of some classes, and of GPUs that a probe has seen."""
    pairs = [pair for pair in measured_pairs(store, since) if pair.app_class in classes]
    unseen = unseen_gpus(store, (pair[:2] for pair in pairs))
    return [pair for pair in pairs if pair[:2] not in unseen]


def gpu_history(store: Store, node: str, slot: int, since: float) -> list[tuple[str, float, float]]:
    """(class, Unix time, time in ms) of a GPU's runs since then, as jobs find it, oldest first.

    Runs of one moment are one measurement.
    """
    rows = store.query(
        "SELECT class, taken_at_unix, value_ms FROM timings WHERE node = ? AND slot = ?"  # noqa: S608
        f" AND taken_at_unix >= ? AND {_AS_JOBS} ORDER BY taken_at_unix, run",
        (node, slot, since),
    )
    return [(str(row[0]), float(row[1]), float(row[2])) for row in rows]


def classes_of_gpu(store: Store, node: str, slot: int) -> set[str]:
    """Classes with times of a GPU."""
    rows = store.query(
        "WITH RECURSIVE k(class) AS ("
        " SELECT min(class) FROM timings WHERE node = ?1 AND slot = ?2 UNION ALL"
        " SELECT (SELECT min(class) FROM timings t WHERE node = ?1 AND slot = ?2"
        "  AND t.class > k.class) FROM k WHERE class IS NOT NULL)"
        "SELECT class FROM k WHERE class IS NOT NULL",
        (node, slot),
    )
    return {str(row["class"]) for row in rows}


def probed_at(store: Store) -> dict[str, float]:
    """Node -> Unix time of its newest probe."""
    rows = store.query("SELECT node, probed_at_unix FROM nodes WHERE probed_at_unix IS NOT NULL")
    return {row["node"]: row["probed_at_unix"] for row in rows}


def timed_at(store: Store) -> dict[str, float]:
    """Node -> Unix time of its newest measured time."""
    rows = store.query("SELECT node, max(taken_at_unix) AS at FROM timings GROUP BY node")
    return {row["node"]: row["at"] for row in rows}


def prune(store: Store, keep: int) -> None:
    """Delete all but the newest ``keep`` measurements of each GPU and class, pair, collective."""
    with store.write():
        for table, key in _HISTORIES.items():
            same = " AND ".join(f"t.{column} = k.{column}" for column in key)
            store.execute(
                f"WITH k AS (SELECT DISTINCT {', '.join(key)} FROM {table}),"  # noqa: S608
                # GROUP BY: SQLite 3.40 counts the OFFSET of a DISTINCT across rows of k.
                f" gone AS (SELECT k.*, (SELECT taken_at_unix FROM {table} t WHERE {same}"
                "  GROUP BY taken_at_unix ORDER BY taken_at_unix DESC LIMIT 1 OFFSET ?)"
                "  AS newest FROM k)"
                f" DELETE FROM {table} WHERE rowid IN (SELECT t.rowid FROM gone k"
                f"  JOIN {table} t ON {same} AND taken_at_unix <= newest)",
                (keep,),
            )


def alarms(store: Store) -> list[Alarm]:
    """Slow GPUs that were reported and have not recovered."""
    return _ALARMS.read(store, "ORDER BY node, slot, class")


def put_alarms(store: Store, known: Sequence[Alarm]) -> None:
    """Replace all alarms; those of GPUs that the store no longer has are dropped."""
    _ALARMS.put_all(store, known)


def load_profile(store: Store) -> Profile:
    """Read the profile for placement; that of an empty store is empty. Raises StoreError.

    A missing GPU or class counts as 1.0.
    """
    scores: dict[str, dict[Gpu, float]] = {}
    raw: dict[str, dict[Gpu, float]] = {}
    for row in store.query("SELECT node, slot, class, raw, binned FROM scores"):
        gpu = (row["node"], row["slot"])
        scores.setdefault(row["class"], {})[gpu] = row["binned"]
        raw.setdefault(row["class"], {})[gpu] = row["raw"]
    links: dict[str, list[Link]] = {}
    for row in store.query("SELECT * FROM links ORDER BY node, a, b"):
        links.setdefault(row["node"], []).append(LINKS.record(row))
    faults: dict[str, list[Fault]] = {}
    for row in store.query("SELECT * FROM probe_errors ORDER BY id"):
        faults.setdefault(row["node"], []).append(FAULTS.record(row))
    rows = store.query("SELECT * FROM gpus ORDER BY node, slot")
    return Profile(
        scores=scores,
        raw_scores=raw,
        gpus={(row["node"], row["slot"]): _record(row) for row in rows},
        links={node: tuple(found) for node, found in links.items()},
        taken_at={
            row["node"]: row["taken_at_unix"]
            for row in store.query("SELECT node, taken_at_unix FROM nodes ORDER BY node")
        },
        faults={node: tuple(found) for node, found in faults.items()},
        level_ratios=level_ratios(level_times(store)),
        effbw=_effbw(store),
        unseen=unseen_gpus(store, ((row["node"], row["slot"]) for row in rows)),
    )


def put_effbw(store: Store, gpu_model: str, coefficients: Sequence[float] | None) -> bool:
    """Keep the EffBW of a GPU model; None: remove it. Return whether one was there. StoreError."""
    with store.write():
        kept = _effbw(store)
        found = kept.pop(gpu_model, None) is not None
        if coefficients is not None:
            kept[gpu_model] = tuple(coefficients)
        put_value(store, EFFBW, json.dumps(kept))
    return found


def _effbw(store: Store) -> dict[str, tuple[float, ...]]:
    kept = json.loads(value_of(store, EFFBW) or "{}")
    return {gpu_model: tuple(values) for gpu_model, values in kept.items()}


def score_rows(store: Store) -> list[GpuScore]:
    """All scores with model and UUID, by class, then best first, then node and slot."""
    rows = store.query(
        "SELECT scores.*, model, uuid FROM scores JOIN gpus USING (node, slot)"
        " ORDER BY class, raw, node, slot"
    )
    return list(map(_SCORES.record, rows))


def put_scores(store: Store, scores: Sequence[GpuScore], reference: str | None = None) -> None:
    """Replace all scores in one transaction. ``reference``: stored unless None."""
    with store.write():
        # Another process may have deleted a GPU while the scores were computed.
        _SCORES.put_all(store, scores)
        if reference is not None:
            put_value(store, SCORE_REFERENCE, reference)


def score_reference(store: Store) -> str | None:
    """The last ``reference`` of :func:`put_scores`; None: not set."""
    return value_of(store, SCORE_REFERENCE)


def _record(row: sqlite3.Row) -> GpuRecord:
    values = {field.name: row[field.name] for field in fields(GpuRecord)}
    return GpuRecord(**values | {"clocks_mhz": tuple(json.loads(row["clocks_mhz"] or "[]"))})
