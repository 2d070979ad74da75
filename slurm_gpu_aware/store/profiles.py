"""What was measured, as placement wants it: PM scores, link graphs, GPU records.

The way in is beside it, in ``merging`` (probe reports) and ``timings`` (imports); their functions
can be had from here, too.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.model.penalties import level_ratios
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ingest import merge_report
from slurm_gpu_aware.store.levels import level_times
from slurm_gpu_aware.store.report import Fault, GpuRecord, Link
from slurm_gpu_aware.store.timings import (
    NewestTiming,
    TimingRow,
    check_timings,
    import_timings,
    newest_timings,
    prune_timings,
    unseen_gpus,
    warn_of_bad_timings,
)

__all__ = [
    "Fault",
    "GpuRecord",
    "Link",
    "NewestTiming",
    "Profile",
    "ScoreRow",
    "TimingRow",
    "check_timings",
    "import_timings",
    "load_profile",
    "merge_report",
    "newest_timings",
    "prune_timings",
    "recompute_scores",
    "score_rows",
]

Gpu = tuple[str, int]
REFERENCES = ("model", "cluster")


@dataclass(frozen=True)
class Profile:
    """What placement knows about the cluster. GPUs are (node, Slurm's index)."""

    scores: Mapping[str, Mapping[Gpu, float]]
    """Class -> GPU -> binned PM score (lower is better); what policies use."""
    raw_scores: Mapping[str, Mapping[Gpu, float]]
    """Class -> GPU -> PM score before binning."""
    gpus: Mapping[Gpu, GpuRecord]
    links: Mapping[str, tuple[Link, ...]]
    """Node -> links; a node without any is absent."""
    taken_at: Mapping[str, float]
    """Node -> Unix time of its newest measurement."""
    faults: Mapping[str, tuple[Fault, ...]]
    """Node -> what failed in its newest probe; a node without faults is absent."""
    level_ratios: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Class -> locality level -> time over that of the innermost level (`penalties`)."""
    unseen: frozenset[Gpu] = frozenset()
    """GPUs of ``gpus`` that no probe has seen, in a store where one has seen others. One that a
    probe failed to read is there: it was seen."""


@dataclass(frozen=True)
class ScoreRow:
    """One GPU's score for one class, as tables show it."""

    node: str
    slot: int
    app_class: str
    value_ms: float
    raw: float
    binned: float
    bin: int
    """Bin number of its class and model, counted from the best (0)."""
    outlier: int
    """0 no, 1 binned among outliers, 2 keeps its own score."""
    taken_at: float
    model: str | None
    uuid: str | None


def recompute_scores(
    store: Store, classes: Sequence[str] | None = None, *, reference: str | None = None
) -> None:
    """Compute PM scores and bins of ``classes`` (None: all measured ones) from the newest timings.

    For each GPU and class the newest measurement counts (the median if it has several runs); older
    ones stay stored as history. Bins are made per class and GPU model.

    Parameters
    ----------
    classes : the site's classes; scores of other classes are deleted. None: every class that has
        timings.
    reference : ``model`` (the default): score against the median GPU of the same model, so 1.0
        means "as good as this model gets". ``cluster``: against the median over all models, so
        that scores rank the models too. Remembered in the store; None keeps what was said last.

    Notes
    -----
    GPUs that no probe has seen, where one has seen others, are scored against the median of those
    that were seen and have bins of their own: they change no score of another GPU.

    The computation holds no lock, unless the caller has begun to write; only the final writing
    does. Timings that cannot be times are left out, with a warning.
    """
    chosen = _reference(store, reference)
    warn_of_bad_timings(store)
    rows = newest_timings(store)
    unseen = unseen_gpus(store, ((row.node, row.slot) for row in rows))
    wanted = sorted({r.app_class for r in rows} if classes is None else set(classes))
    results: list[tuple[Any, ...]] = []
    for name in wanted:
        results.extend(_scored(name, [r for r in rows if r.app_class == name], chosen, unseen))
    with store.write():
        store.execute("DELETE FROM scores")
        # A GPU may have been forgotten while this was computed, so take those that still exist.
        store.executemany(
            "INSERT INTO scores (node, slot, class, value_ms, raw, binned, bin, outlier,"
            " taken_at_unix) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9"
            " WHERE EXISTS (SELECT 1 FROM gpus WHERE node = ?1 AND slot = ?2)",
            results,
        )
        if reference is not None:
            store.execute(
                "INSERT INTO settings (key, value) VALUES ('score_reference', ?)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (reference,),
            )


def load_profile(store: Store) -> Profile:
    """Read everything that placement needs. Raises StoreError; an empty store gives an empty one.

    A GPU or class that is absent counts as 1.0 for callers.
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
        unseen=unseen_gpus(store, ((row["node"], row["slot"]) for row in rows)),
    )


def score_rows(store: Store) -> list[ScoreRow]:
    """All scores with what identifies the GPU, by class, then best first, then node and slot."""
    return [
        ScoreRow(
            node=row["node"],
            slot=row["slot"],
            app_class=row["class"],
            value_ms=row["value_ms"],
            raw=row["raw"],
            binned=row["binned"],
            bin=row["bin"],
            outlier=row["outlier"],
            taken_at=row["taken_at_unix"],
            model=row["model"],
            uuid=row["uuid"],
        )
        for row in store.query(
            "SELECT s.*, g.model, g.uuid FROM scores s JOIN gpus g USING (node, slot)"
            " ORDER BY s.class, s.raw, s.node, s.slot"
        )
    ]


def _scored(
    app_class: str, rows: Sequence[NewestTiming], reference: str, unseen: Set[Gpu]
) -> list[tuple[Any, ...]]:
    """Rows for the table ``scores``."""
    import numpy as np

    from slurm_gpu_aware.variability.bins import bin_scores
    from slurm_gpu_aware.variability.scores import pm_scores

    if not rows:
        return []
    models = [row.model for row in rows]
    seen = [(row.node, row.slot) not in unseen for row in rows]
    groups = models if reference == "model" else None
    raw = pm_scores([row.value_ms for row in rows], groups, seen)
    kinds = list(zip(models, seen, strict=True))
    results: list[tuple[Any, ...]] = []
    for kind in sorted(set(kinds)):
        members = np.flatnonzero([k == kind for k in kinds])
        binning = bin_scores(raw[members])
        for position, i in enumerate(members.tolist()):
            row = rows[i]
            results.append(
                (
                    row.node,
                    row.slot,
                    app_class,
                    row.value_ms,
                    float(raw[i]),
                    float(binning.scores[position]),
                    int(binning.labels[position]),
                    int(binning.outlier[position]),
                    row.taken_at,
                )
            )
    return results


def _reference(store: Store, reference: str | None) -> str:
    if reference is None:
        rows = store.query("SELECT value FROM settings WHERE key = 'score_reference'")
        return str(rows[0]["value"]) if rows else REFERENCES[0]
    if reference not in REFERENCES:
        raise ValueError(f"unknown reference {reference!r}; known: {', '.join(REFERENCES)}")
    return reference


def _record(row: sqlite3.Row) -> GpuRecord:
    return GpuRecord(
        uuid=row["uuid"],
        name=row["name"],
        model=row["model"],
        pci=row["pci"],
        numa=row["numa"],
        cpus=row["cpus"],
        memory_mb=row["memory_mb"],
        clocks_mhz=tuple(json.loads(row["clocks_mhz"] or "[]")),
        max_clock_mhz=row["max_clock_mhz"],
        default_clock_mhz=row["default_clock_mhz"],
        power_limit_w=row["power_limit_w"],
        temperature_c=row["temperature_c"],
    )
