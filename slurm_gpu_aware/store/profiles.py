"""What was measured: probe reports and timings in; PM scores, link graphs, GPU records out."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.report import (
    MAX_SLOT,
    Fault,
    GpuRecord,
    Link,
    ProbeReport,
    check_name,
    parse_report,
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


@dataclass(frozen=True)
class TimingRow:
    """One timing to import, as typed by a person."""

    gpu: str
    """Slurm's index on the node, or the UUID of a GPU that was probed."""
    node: str
    app_class: str
    value_ms: float
    line: int = 0
    """Where it stands in the file; 0: unknown."""


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


@dataclass(frozen=True)
class NewestTiming:
    """The newest measurement of one GPU for one class."""

    node: str
    slot: int
    app_class: str
    value_ms: float
    """Median over its runs."""
    taken_at: float
    model: str
    """Empty if unknown."""


def merge_report(store: Store, report: Mapping[str, Any]) -> None:
    """Merge one probe report; all of it or nothing, and merging it again changes nothing.

    Scores are not touched: call :func:`recompute_scores` after the last report of a sweep. A slot
    whose UUID changed holds another board now, so the old board's timings are dropped. A GPU that
    the report does not mention is forgotten, unless the report says that reading it (or the
    node) failed. A report older than what is stored adds its timings and changes nothing else.

    Raises
    ------
    SourceError
        The report does not keep to the grammar.
    StoreError
        The store cannot be written.
    """
    probe = parse_report(report)
    with store.write():
        newer = store.query(
            "SELECT 1 FROM nodes WHERE node = ? AND probed_at_unix > ?",
            (probe.node, probe.taken_at),
        )
        if not newer:
            _put_node(store, probe, json.dumps(report, separators=(",", ":")))
            _put_gpus(store, probe)
            _put_links(store, probe)
            _put_faults(store, probe)
        _put_timings(store, probe)


def check_timings(
    store: Store, rows: Iterable[TimingRow], classes: Sequence[str] = ()
) -> tuple[list[tuple[TimingRow, int]], list[tuple[int, str]]]:
    """Sort rows into good ones, each with its slot, and bad ones as (line, what is wrong).

    ``classes`` are the site's; empty: any well-formed name. Reads the store, writes nothing.
    """
    by_uuid = {
        row["uuid"]: (row["node"], int(row["slot"]))
        for row in store.query("SELECT node, slot, uuid FROM gpus WHERE uuid IS NOT NULL")
    }
    good: list[tuple[TimingRow, int]] = []
    bad: list[tuple[int, str]] = []
    for row in rows:
        try:
            good.append((row, _checked_slot(row, by_uuid, classes)))
        except ValueError as exc:
            bad.append((row.line, str(exc)))
    return good, bad


def import_timings(
    store: Store,
    rows: Iterable[TimingRow],
    *,
    taken_at: float,
    classes: Sequence[str] = (),
    source: str = "import",
) -> int:
    """Add timings from elsewhere, measured at ``taken_at`` (Unix s); all or none.

    Nodes and GPUs that were never probed are added without identity. Several rows of one GPU and
    class are runs of one measurement; a timing of the same GPU, class and moment that was stored
    before is replaced. Returns the number of rows. Scores are not touched.

    Raises StoreError naming the first bad row, with nothing imported.
    """
    with store.write():
        good, bad = check_timings(store, rows, classes)
        if bad:
            line, reason = bad[0]
            raise StoreError(f"line {line}: {reason}" if line else reason)
        runs: dict[tuple[str, int, str], int] = {}
        for row, slot in good:
            key = (row.node, slot, row.app_class)
            run = runs.get(key, 0)
            runs[key] = run + 1
            if run == 0:
                _touch(store, row.node, slot, taken_at)
                store.execute(
                    "DELETE FROM timings WHERE node = ? AND slot = ? AND class = ?"
                    " AND taken_at_unix = ?",
                    (*key, float(taken_at)),
                )
            store.execute(
                "INSERT INTO timings (node, slot, class, taken_at_unix, run, value_ms, source)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*key, float(taken_at), run, float(row.value_ms), source),
            )
    return len(good)


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
    The computation holds no lock; only the final writing does.
    """
    chosen = _reference(store, reference)
    rows = newest_timings(store)
    wanted = sorted({r.app_class for r in rows} if classes is None else set(classes))
    results: list[tuple[Any, ...]] = []
    for name in wanted:
        results.extend(_scored(name, [r for r in rows if r.app_class == name], chosen))
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
    return Profile(
        scores=scores,
        raw_scores=raw,
        gpus={
            (row["node"], row["slot"]): _record(row)
            for row in store.query("SELECT * FROM gpus ORDER BY node, slot")
        },
        links={node: tuple(found) for node, found in links.items()},
        taken_at={
            row["node"]: row["taken_at_unix"]
            for row in store.query("SELECT node, taken_at_unix FROM nodes ORDER BY node")
        },
        faults={node: tuple(found) for node, found in faults.items()},
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


def prune_timings(store: Store, before_unix: float) -> int:
    """Delete timings older than ``before_unix`` that a newer one replaced; return how many."""
    return store.execute(
        "DELETE FROM timings AS old WHERE taken_at_unix < ? AND EXISTS (SELECT 1 FROM timings AS"
        " new WHERE new.node = old.node AND new.slot = old.slot AND new.class = old.class"
        " AND new.taken_at_unix > old.taken_at_unix)",
        (before_unix,),
    ).rowcount


def newest_timings(store: Store) -> list[NewestTiming]:
    """The newest measurement of each GPU and class, runs combined by their median."""
    import numpy as np

    from slurm_gpu_aware.variability.scores import combine_runs

    rows = store.query(
        "SELECT t.node, t.slot, t.class, t.value_ms, t.taken_at_unix, g.model"
        " FROM timings t JOIN gpus g USING (node, slot)"
        " JOIN (SELECT node, slot, class, max(taken_at_unix) AS newest FROM timings"
        "       GROUP BY node, slot, class) n"
        " ON n.node = t.node AND n.slot = t.slot AND n.class = t.class"
        " AND n.newest = t.taken_at_unix"
        " ORDER BY t.node, t.slot, t.class"
    )
    number: dict[tuple[str, int, str], int] = {}
    first: list[sqlite3.Row] = []
    which = []
    for row in rows:
        key = (row["node"], row["slot"], row["class"])
        if key not in number:
            number[key] = len(first)
            first.append(row)
        which.append(number[key])
    _, medians = combine_runs(np.array(which, dtype=np.int64), [row["value_ms"] for row in rows])
    return [
        NewestTiming(
            row["node"],
            row["slot"],
            row["class"],
            float(value),
            row["taken_at_unix"],
            row["model"] or "",
        )
        for row, value in zip(first, medians, strict=True)
    ]


def _scored(app_class: str, rows: Sequence[NewestTiming], reference: str) -> list[tuple[Any, ...]]:
    """Rows for the table ``scores``."""
    import numpy as np

    from slurm_gpu_aware.variability.bins import bin_scores
    from slurm_gpu_aware.variability.scores import pm_scores

    if not rows:
        return []
    models = [row.model for row in rows]
    raw = pm_scores([row.value_ms for row in rows], models if reference == "model" else None)
    results: list[tuple[Any, ...]] = []
    for model in sorted(set(models)):
        members = np.flatnonzero([m == model for m in models])
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


def _checked_slot(row: TimingRow, by_uuid: Mapping[str, Gpu], classes: Sequence[str]) -> int:
    check_name("node", row.node)
    check_name("class", row.app_class)
    if classes and row.app_class not in classes:
        raise ValueError(f"class {row.app_class!r} is not one of {', '.join(classes)}")
    if not math.isfinite(row.value_ms) or row.value_ms <= 0.0:
        raise ValueError(f"value_ms must be a time of more than 0 ms, not {row.value_ms!r}")
    if row.gpu.isascii() and row.gpu.isdigit() and int(row.gpu) <= MAX_SLOT:
        return int(row.gpu)
    if row.gpu not in by_uuid:
        raise ValueError(
            f"gpu {row.gpu!r} is neither an index (0, 1, ...) nor the UUID of a GPU that was probed"
        )
    node, slot = by_uuid[row.gpu]
    if node != row.node:
        raise ValueError(f"gpu {row.gpu} was last seen on node {node}, not {row.node}")
    return slot


def _touch(store: Store, node: str, slot: int, taken_at: float) -> None:
    """Make sure that node and GPU have rows, and that the node is at least this new."""
    store.execute(
        "INSERT INTO nodes (node, taken_at_unix) VALUES (?, ?) ON CONFLICT (node)"
        " DO UPDATE SET taken_at_unix = max(taken_at_unix, excluded.taken_at_unix)",
        (node, float(taken_at)),
    )
    store.execute(
        "INSERT INTO gpus (node, slot) VALUES (?, ?) ON CONFLICT DO NOTHING", (node, slot)
    )


def _put_node(store: Store, probe: ProbeReport, text: str) -> None:
    store.execute(
        "INSERT INTO nodes (node, taken_at_unix, probed_at_unix, driver, backend, report)"
        " VALUES (?1, ?2, ?2, ?3, ?4, ?5) ON CONFLICT (node) DO UPDATE SET"
        " taken_at_unix = max(taken_at_unix, excluded.taken_at_unix),"
        " probed_at_unix = excluded.probed_at_unix, driver = excluded.driver,"
        " backend = excluded.backend, report = excluded.report",
        (probe.node, probe.taken_at, probe.driver, probe.backend, text),
    )


def _put_gpus(store: Store, probe: ProbeReport) -> None:
    before = {
        row["slot"]: row["uuid"]
        for row in store.query("SELECT slot, uuid FROM gpus WHERE node = ?", (probe.node,))
    }
    failed = {fault.slot for fault in probe.faults}
    for slot, uuid in before.items():
        gone = slot not in probe.gpus and slot not in failed and None not in failed
        new = probe.gpus.get(slot)
        replaced = new is not None and None not in (uuid, new.uuid) and uuid != new.uuid
        if gone or replaced:
            store.execute("DELETE FROM gpus WHERE node = ? AND slot = ?", (probe.node, slot))
    columns = (
        "node, slot, uuid, name, model, pci, numa, cpus, memory_mb, clocks_mhz, max_clock_mhz,"
        " default_clock_mhz, power_limit_w, temperature_c"
    )
    updates = ", ".join(f"{c} = excluded.{c}" for c in columns.split(", ")[2:])
    store.executemany(
        f"INSERT INTO gpus ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        f" ON CONFLICT (node, slot) DO UPDATE SET {updates}",
        [
            (
                probe.node,
                slot,
                gpu.uuid,
                gpu.name,
                gpu.model,
                gpu.pci,
                gpu.numa,
                gpu.cpus,
                gpu.memory_mb,
                json.dumps(list(gpu.clocks_mhz)),
                gpu.max_clock_mhz,
                gpu.default_clock_mhz,
                gpu.power_limit_w,
                gpu.temperature_c,
            )
            for slot, gpu in probe.gpus.items()
        ],
    )


def _put_links(store: Store, probe: ProbeReport) -> None:
    """Replace the links; those of a GPU that could not be read stay as they were."""
    seen = set(probe.gpus)
    slots = {r["slot"] for r in store.query("SELECT slot FROM gpus WHERE node = ?", (probe.node,))}
    store.executemany(
        "DELETE FROM links WHERE node = ? AND a = ? AND b = ?",
        [
            (probe.node, row["a"], row["b"])
            for row in store.query("SELECT a, b FROM links WHERE node = ?", (probe.node,))
            if seen.issuperset((row["a"], row["b"])) or not slots.issuperset((row["a"], row["b"]))
        ],
    )
    store.executemany(
        "INSERT INTO links (node, a, b, link_class, gbps) VALUES (?, ?, ?, ?, ?)",
        [(probe.node, link.a, link.b, link.link_class, link.gbps) for link in probe.links],
    )


def _put_faults(store: Store, probe: ProbeReport) -> None:
    store.execute("DELETE FROM probe_errors WHERE node = ?", (probe.node,))
    store.executemany(
        "INSERT INTO probe_errors (node, slot, call, error, taken_at_unix) VALUES (?, ?, ?, ?, ?)",
        [(probe.node, f.slot, f.call, f.error, probe.taken_at) for f in probe.faults],
    )


def _put_timings(store: Store, probe: ProbeReport) -> None:
    """Add the timings of GPUs that the store has under the same UUID."""
    uuids = {
        row["slot"]: row["uuid"]
        for row in store.query("SELECT slot, uuid FROM gpus WHERE node = ?", (probe.node,))
    }
    store.execute(
        "DELETE FROM timings WHERE node = ? AND taken_at_unix = ?", (probe.node, probe.taken_at)
    )
    runs: dict[tuple[int, str], int] = {}
    for timing in probe.timings:
        if timing.slot not in uuids or uuids[timing.slot] != probe.gpus[timing.slot].uuid:
            continue  # an old report about a board that is gone
        key = (timing.slot, timing.app_class)
        runs[key] = runs.get(key, -1) + 1
        store.execute(
            "INSERT INTO timings (node, slot, class, taken_at_unix, run, value_ms, repeats, spread,"
            " source) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                probe.node,
                timing.slot,
                timing.app_class,
                probe.taken_at,
                runs[key],
                timing.value_ms,
                timing.repeats,
                timing.spread,
                probe.backend or "probe",
            ),
        )


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
