"""Ingest of probe reports: one report, one transaction."""

import json
from collections.abc import Sequence
from dataclasses import fields

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import GpuRecord
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import (
    Run,
    add_runs,
    put_bandwidths,
    put_collectives,
    put_nics,
    put_node,
    seen_gpus,
)
from slurm_gpu_aware.store.profiles import FAULTS, LINKS, classes_of_gpu
from slurm_gpu_aware.store.report import MAX_CLASSES, ProbeReport


def ingest_report(store: Store, probe: ProbeReport) -> None:
    """Store one probe report, all of it or nothing. Storing it again changes nothing.

    The caller recomputes the scores after the last report of a sweep. A slot with another UUID
    (if none was known: with another PCI address) holds another board, so the timings of the old
    board are deleted. A GPU that the report does not mention is deleted, unless the report has an
    error of this GPU or of the node. A report older than the stored one only adds its timings and
    bandwidths. Raises StoreError.
    """
    with store.write():
        newer = store.query(
            "SELECT 1 FROM nodes WHERE node = ? AND probed_at_unix > ?",
            (probe.node, probe.taken_at),
        )
        if not newer:
            _put_node(store, probe)
            _put_gpus(store, probe)
            _put_links(store, probe)
            put_nics(store, probe.node, probe.nics)
            _put_faults(store, probe)
        same = _same_boards(store, probe)
        _put_timings(store, probe, same)
        _put_bandwidths(store, probe, same)


def add_matrix(store: Store, matrix: ProbeReport, taken_at: float) -> None:
    """Add the GPUs and links of a node that no probe has read, at Unix time ``taken_at``.

    GPUs that were imported before get their names. Raises StoreError if a probe has read the node,
    or if it is known with other GPUs.
    """
    node, known = matrix.node, _uuids(store, matrix.node)
    if node in seen_gpus(store):
        raise StoreError(f"a sweep has read {node} and its links; there is nothing to import")
    now = {slot: gpu.uuid for slot, gpu in matrix.gpus.items()}
    pairs = [(known[slot], now[slot]) for slot in known.keys() & now]
    same = sum(None in pair or pair[0] == pair[1] for pair in pairs)
    if known and not len(known) == len(now) == same:
        raise StoreError(
            f"{node} is known with {len(known)} GPUs, the matrix has {len(now)}, {same} of them"
            f" the same; 'gpu-aware-profile forget {node}' if that is right"
        )
    put_node(store, node, taken_at)
    store.executemany(
        "INSERT INTO gpus (node, slot, uuid, name, model, numa, cpus) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (node, slot) DO UPDATE SET"
        " uuid = coalesce(excluded.uuid, uuid), name = coalesce(excluded.name, name),"
        " model = coalesce(excluded.model, model), numa = excluded.numa, cpus = excluded.cpus",
        [
            (node, slot, gpu.uuid, gpu.name, gpu.model, gpu.numa, gpu.cpus)
            for slot, gpu in matrix.gpus.items()
        ],
    )
    _put_links(store, matrix)


def check_uuids(store: Store, node: str) -> None:
    """Raise StoreError if a GPU of the node has the UUID of another GPU of the store."""
    for row in store.query(
        "SELECT uuid, a.slot, b.node AS other, b.slot AS place FROM gpus AS a"
        " JOIN gpus AS b USING (uuid) WHERE a.node = ?1 AND (b.node != ?1 OR b.slot > a.slot)",
        (node,),
    ):
        other = row["other"]
        cure = f"; 'gpu-aware-profile forget {other}' if it has moved" if other != node else ""
        raise StoreError(
            f"{quoted(row['uuid'])} is GPU {row['slot']} of {node} and GPU {row['place']} of"
            f" {other}, but a UUID belongs to one GPU{cure}"
        )


def _put_node(store: Store, probe: ProbeReport) -> None:
    put_node(store, probe.node, probe.taken_at)
    store.execute(
        "UPDATE nodes SET probed_at_unix = ?, driver = ?, cuda = ? WHERE node = ?",
        (probe.taken_at, probe.driver, probe.cuda, probe.node),
    )


def _uuids(store: Store, node: str) -> dict[int, str | None]:
    rows = store.query("SELECT slot, uuid FROM gpus WHERE node = ?", (node,))
    return {row["slot"]: row["uuid"] for row in rows}


def _moved(store: Store, probe: ProbeReport) -> set[int]:
    """Slots that were imported by PCI address or place only, and are other GPUs in the report."""
    rows = store.query(
        "SELECT slot, pci FROM gpus WHERE node = ?1 AND uuid IS NULL"
        " AND (pci IS NOT NULL OR node IN (SELECT node FROM bandwidths))",
        (probe.node,),
    )
    now = {slot: (gpu.pci or "").lower() for slot, gpu in probe.gpus.items()}
    places = dict(zip(sorted(now), sorted(now, key=lambda slot: now[slot]), strict=True))
    return {
        slot
        for slot, pci in map(tuple, rows)
        if (places.get(slot) != slot if pci is None else now.get(slot, "") != pci.lower())
    }


def _put_gpus(store: Store, probe: ProbeReport) -> None:
    moved = _moved(store, probe)
    failed = {fault.slot for fault in probe.faults}
    for slot, uuid in _uuids(store, probe.node).items():
        gone = slot not in probe.gpus and slot not in failed and None not in failed
        new = probe.gpus.get(slot)
        replaced = new is not None and None not in (uuid, new.uuid) and uuid != new.uuid
        if gone or replaced or (slot in moved and new is not None):
            store.execute("DELETE FROM gpus WHERE node = ? AND slot = ?", (probe.node, slot))
    columns = [field.name for field in fields(GpuRecord)]
    updates = ", ".join(f"{column} = excluded.{column}" for column in columns)
    store.executemany(
        f"INSERT INTO gpus (node, slot, {', '.join(columns)})"  # noqa: S608
        f" VALUES (?, ?{', ?' * len(columns)}) ON CONFLICT (node, slot) DO UPDATE SET {updates}",
        [
            (probe.node, slot, *{**vars(gpu), "clocks_mhz": json.dumps(gpu.clocks_mhz)}.values())
            for slot, gpu in probe.gpus.items()
        ],
    )


def _put_links(store: Store, probe: ProbeReport) -> None:
    """Replace the links; those of a GPU that could not be read stay."""
    seen = probe.gpus.keys()
    slots = _uuids(store, probe.node).keys()
    store.executemany(
        "DELETE FROM links WHERE node = ? AND a = ? AND b = ?",
        [
            (probe.node, row["a"], row["b"])
            for row in store.query("SELECT a, b FROM links WHERE node = ?", (probe.node,))
            if seen >= {row["a"], row["b"]} or not slots >= {row["a"], row["b"]}
        ],
    )
    LINKS.put(store, probe.links, node=probe.node)


def _put_faults(store: Store, probe: ProbeReport) -> None:
    store.execute("DELETE FROM probe_errors WHERE node = ?", (probe.node,))
    FAULTS.put(store, probe.faults, node=probe.node)


def _same_boards(store: Store, probe: ProbeReport) -> set[int]:
    """GPUs of the report that have not been replaced since."""
    stored = _uuids(store, probe.node)
    return {slot for slot, gpu in probe.gpus.items() if stored.get(slot, "") == gpu.uuid}


def _put_timings(store: Store, probe: ProbeReport, same: set[int]) -> None:
    """Replace the report's timings."""
    store.execute(
        "DELETE FROM timings WHERE node = ? AND taken_at_unix = ?", (probe.node, probe.taken_at)
    )
    runs = [run for run in probe.runs if run.slot in same]
    _check_classes(store, runs)
    add_runs(store, runs, source=probe.backend or "probe")


def _check_classes(store: Store, runs: Sequence[Run]) -> None:
    """Raise StoreError if a GPU would have more classes than a report may name.

    Of each class a bounded history is kept, so classes must be bounded, too.
    """
    named: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        named.setdefault(run[:2], set()).add(run.app_class)
    for (node, slot), classes in named.items():
        known = classes_of_gpu(store, node, slot)
        if len(classes | known) > MAX_CLASSES:
            raise StoreError(
                f"GPU {slot} of node {node} has times of {len(known)} classes, and at most"
                f" {MAX_CLASSES} are kept; gpu-aware-profile forget {node} removes them"
            )


def _put_bandwidths(store: Store, probe: ProbeReport, same: set[int]) -> None:
    source = probe.link_backend or "probe"
    put_bandwidths(store, [p for p in probe.bandwidths if {p.a, p.b} <= same], source=source)
    put_collectives(store, [c for c in probe.collectives if same.issuperset(c.gpus)], source=source)
