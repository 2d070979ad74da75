"""Profile of the store, and reading and writing of scores."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter

from slurm_gpu_aware.model.penalties import level_ratios
from slurm_gpu_aware.model.profile import Fault, Gpu, GpuRecord, GpuScore, Link, Profile
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import level_times, unseen_gpus
from slurm_gpu_aware.store.settings_table import EFFBW, SCORE_REFERENCE, put_value, value_of

_SCORE_COLUMNS = attrgetter(
    *("node", "slot", "app_class", "value_ms", "raw", "binned", "bin", "outlier", "taken_at")
)


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
        links.setdefault(row["node"], []).append(
            Link(row["a"], row["b"], row["link_class"], row["gbps"])
        )
    faults: dict[str, list[Fault]] = {}
    for row in store.query("SELECT node, slot, call, error FROM probe_errors ORDER BY id"):
        faults.setdefault(row["node"], []).append(Fault(row["slot"], row["call"], row["error"]))
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
        "SELECT node, slot, class, value_ms, raw, binned, bin, outlier, taken_at_unix, model, uuid"
        " FROM scores JOIN gpus USING (node, slot) ORDER BY class, raw, node, slot"
    )
    return [GpuScore(*row) for row in rows]


def put_scores(store: Store, scores: Sequence[GpuScore], reference: str | None = None) -> None:
    """Replace all scores in one transaction. ``reference``: stored unless None."""
    with store.write():
        store.execute("DELETE FROM scores")
        # Another process may have deleted a GPU while the scores were computed.
        store.executemany(
            "INSERT INTO scores (node, slot, class, value_ms, raw, binned, bin, outlier,"
            " taken_at_unix) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9"
            " WHERE EXISTS (SELECT 1 FROM gpus WHERE node = ?1 AND slot = ?2)",
            [_SCORE_COLUMNS(score) for score in scores],
        )
        if reference is not None:
            put_value(store, SCORE_REFERENCE, reference)


def score_reference(store: Store) -> str | None:
    """The last ``reference`` of :func:`put_scores`; None: not set."""
    return value_of(store, SCORE_REFERENCE)


def _record(row: sqlite3.Row) -> GpuRecord:
    values = {field.name: row[field.name] for field in fields(GpuRecord)}
    return GpuRecord(**values | {"clocks_mhz": tuple(json.loads(row["clocks_mhz"] or "[]"))})
