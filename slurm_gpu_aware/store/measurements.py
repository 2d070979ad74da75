"""Measured GPUs, NICs, links, and times of classes: in, out, and removed.

An import may name GPUs that no probe has seen; a wrong line of it must not become hardware. A row
of a probe has a list of clocks, which may be empty; a row of an import has NULL. A GPU that the
newest probe of its node failed to read counts as seen.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.hardware_graph import Collective, Nic, PairBandwidth
from slurm_gpu_aware.model.penalties import LEVELS, LevelTime
from slurm_gpu_aware.model.profile import Gpu, RunConditions
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.tables import RecordTable

T = TypeVar("T")

_BANDWIDTHS = RecordTable("bandwidths", PairBandwidth)
_COLLECTIVES = RecordTable("collectives", Collective, gpus=tuple[int, ...])
_LEVEL_TIMES = RecordTable("level_times", LevelTime)
_NICS = RecordTable("nics", Nic, gpus=dict[int, str], nics=dict[str, str])


class Run(NamedTuple):
    """One measured time of a GPU for a class."""

    node: str
    slot: int
    app_class: str
    taken_at: float  # Unix time. Several values of one moment are runs of one measurement.
    value_ms: float
    conditions: RunConditions = RunConditions()


def put_timings(store: Store, runs: Sequence[Run]) -> None:
    """Store imported times in place of stored ones of the same GPU, class and moment.

    Nodes and GPUs that the store lacks are added without identity. The caller recomputes the
    scores. Raises StoreError.
    """
    with store.write():
        for node, slot, app_class, taken_at in dict.fromkeys(run[:4] for run in runs):
            put_node(store, node, taken_at)
            store.execute(
                "INSERT INTO gpus (node, slot) VALUES (?, ?) ON CONFLICT DO NOTHING", (node, slot)
            )
            store.execute(
                "DELETE FROM timings WHERE node = ? AND slot = ? AND class = ?"
                " AND taken_at_unix = ?",
                (node, slot, app_class, taken_at),
            )
        add_runs(store, runs, source="import")


def put_node(store: Store, node: str, taken_at: float) -> None:
    """Add a node, or note that something of it was measured at Unix time ``taken_at``."""
    store.execute(
        "INSERT INTO nodes (node, taken_at_unix) VALUES (?, ?) ON CONFLICT (node)"
        " DO UPDATE SET taken_at_unix = max(taken_at_unix, excluded.taken_at_unix)",
        (node, taken_at),
    )


def put_addresses(store: Store, node: str, pci: Sequence[str | None], taken_at: float) -> None:
    """Add a node with GPUs of which at most the PCI addresses are known, by slot. StoreError."""
    put_node(store, node, taken_at)
    store.executemany(
        "INSERT INTO gpus (node, slot, pci) VALUES (?, ?, ?)"
        " ON CONFLICT (node, slot) DO UPDATE SET pci = excluded.pci",
        [(node, slot, address) for slot, address in enumerate(pci)],
    )


def add_runs(store: Store, runs: Sequence[Run], *, source: str) -> None:
    """Add times of GPUs that the store knows. ``source``: backend of the probe, or ``import``."""
    keys = [(*run[:4], *run.conditions[:3]) for run in runs]
    columns = ("node", "slot", "class", "taken_at_unix", "value_ms", *RunConditions._fields)
    store.executemany(
        f"INSERT INTO timings ({', '.join(columns)}, run, source)"  # noqa: S608
        f" VALUES ({', '.join('?' * len(columns))}, ?, ?)",
        [(*run[:5], *run.conditions, n, source) for run, n in _numbered(runs, keys)],
    )


def put_level_times(store: Store, times: Sequence[LevelTime], taken_at: float) -> None:
    """Replace all times of the classes of ``times``, measured at ``taken_at`` (Unix s).

    Times before and after a change of the site or of the program are thus not compared.
    """
    keys = [(time.app_class, time.model, time.level) for time in times]
    with store.write():
        classes = {(time.app_class,) for time in times}
        store.executemany("DELETE FROM level_times WHERE class = ?", sorted(classes))
        for time, run in _numbered(times, keys):
            _LEVEL_TIMES.put(store, [time], run=run, taken_at_unix=taken_at)


def level_times(store: Store) -> list[LevelTime]:
    """All times per level, by class and model, tightest level first, in the order of the import."""
    found = _LEVEL_TIMES.read(store, "ORDER BY class, model, run")
    known = [time for time in found if time.level in LEVELS]
    return sorted(known, key=lambda t: (t.app_class, t.model, LEVELS.index(t.level)))


def _numbered(items: Sequence[T], keys: Sequence[tuple[object, ...]]) -> Iterator[tuple[T, int]]:
    """Each item with the number of earlier ones with the same key."""
    seen: Counter[tuple[object, ...]] = Counter()
    for item, key in zip(items, keys, strict=True):
        yield item, seen[key]
        seen[key] += 1


def gpus_by_uuid(store: Store) -> dict[str, Gpu]:
    """UUID -> GPU, of all GPUs that a probe has read."""
    rows = store.query("SELECT uuid, node, slot FROM gpus WHERE uuid IS NOT NULL")
    return {row["uuid"]: (row["node"], row["slot"]) for row in rows}


def pci_addresses(store: Store) -> dict[str, dict[int, str]]:
    """Node -> slot -> PCI address as NVML writes it, of all GPUs that a probe has read."""
    found: dict[str, dict[int, str]] = {}
    for row in store.query("SELECT node, slot, pci FROM gpus WHERE pci IS NOT NULL"):
        found.setdefault(row["node"], {})[row["slot"]] = row["pci"]
    return found


def counted_gpus(store: Store) -> dict[str, int]:
    """Node that no probe has read -> number of its GPUs, by an output that lists all of them."""
    seen = seen_gpus(store)
    rows = store.query(
        "SELECT node, count(*) AS count FROM gpus GROUP BY node"
        " HAVING count(pci) = count(*) OR node IN (SELECT node FROM links)"
        " OR node IN (SELECT node FROM bandwidths)"
    )
    return {row["node"]: int(row["count"]) for row in rows if row["node"] not in seen}


def unseen_gpus(store: Store, gpus: Iterable[Gpu]) -> frozenset[Gpu]:
    """The ``gpus`` that no probe has seen; empty if no GPU of the site was probed."""
    seen = seen_gpus(store)
    return frozenset((node, slot) for node, slot in gpus if seen and slot not in seen.get(node, ()))


def seen_gpus(store: Store) -> dict[str, set[int]]:
    """Probed node -> GPUs that a probe has read or failed to read; empty: no GPU was probed."""
    seen: dict[str, set[int]] = {}
    for row in store.query(
        "SELECT node, slot FROM gpus WHERE clocks_mhz IS NOT NULL"
        " UNION SELECT node, slot FROM probe_errors WHERE slot IS NOT NULL"
    ):
        seen.setdefault(row["node"], set()).add(int(row["slot"]))
    return seen


def forget_gpus(store: Store, node: str, slot: int | None = None) -> int:
    """Delete a GPU, or a node with its GPUs, with all measurements; return the number of GPUs.

    The caller recomputes the scores of the other GPUs. A later sweep adds the GPUs that it sees
    again. Raises StoreError that names the known nodes or GPUs.
    """
    with store.write():
        rows = store.query("SELECT slot FROM gpus WHERE node = ? ORDER BY slot", (node,))
        slots = [int(row["slot"]) for row in rows]
        nodes = [str(row["node"]) for row in store.query("SELECT node FROM nodes ORDER BY node")]
        if node not in nodes:
            raise StoreError(f"no node {node!r} in the store; known: {listed(nodes)}")
        if slot is None:
            store.execute("DELETE FROM nodes WHERE node = ?", (node,))
            return len(slots)
        if slot not in slots:
            raise StoreError(f"no GPU {slot} of node {node} in the store; known: {listed(slots)}")
        store.execute("DELETE FROM gpus WHERE node = ? AND slot = ?", (node, slot))
        store.execute("DELETE FROM links WHERE node = ?1 AND (a = ?2 OR b = ?2)", (node, slot))
        store.execute("DELETE FROM probe_errors WHERE node = ? AND slot = ?", (node, slot))
        # A node that no probe has seen is deleted with its last GPU.
        store.execute(
            "DELETE FROM nodes WHERE node = ?1 AND probed_at_unix IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM gpus WHERE node = ?1)",
            (node,),
        )
    return 1


def forget_levels(store: Store, app_class: str) -> int:
    """Delete the times per locality level of a class; return their number.

    Raises StoreError that names the classes with level times.
    """
    with store.write():
        rows = store.query("SELECT DISTINCT class FROM level_times ORDER BY class")
        known = [str(row["class"]) for row in rows]
        if app_class not in known:
            raise StoreError(f"no level times of class {app_class!r}; known: {listed(known)}")
        return store.execute("DELETE FROM level_times WHERE class = ?", (app_class,)).rowcount


def listed(names: Sequence[object], most: int = 10) -> str:
    """Names for a sentence, at most ``most`` of them."""
    shown = ", ".join(str(name) for name in names[:most])
    return (shown + (", ..." if len(names) > most else "")) or "none"


def put_nics(store: Store, node: str, nics: Sequence[Nic]) -> None:
    """Replace the NICs of a node that the store knows."""
    with store.write():
        store.execute("DELETE FROM nics WHERE node = ?", (node,))
        _NICS.put(store, nics, node=node)


def nics_of(store: Store, node: str) -> list[Nic]:
    """NICs of a node by PCI address."""
    return _NICS.read(store, "WHERE node = ? ORDER BY pci, name", (node,))


def put_bandwidths(store: Store, pairs: Sequence[PairBandwidth], *, source: str) -> None:
    """Store measurements in place of those of the same pair and moment.

    ``source``: backend of the probe, or ``import``. The store must know the GPUs (a foreign key
    refuses others). Raises StoreError.
    """
    _BANDWIDTHS.put(store, pairs, "INSERT OR REPLACE", source=source)


def newest_bandwidths(store: Store, node: str | None = None) -> list[PairBandwidth]:
    """The newest measurement of each pair, by node and pair. ``node``: only of this node."""
    rows = store.query(
        "SELECT *, max(taken_at_unix) FROM bandwidths WHERE ?1 IS NULL OR node = ?1"
        " GROUP BY node, a, b ORDER BY node, a, b",
        (node,),
    )
    return list(map(_BANDWIDTHS.record, rows))


def put_collectives(store: Store, collectives: Sequence[Collective], *, source: str) -> None:
    """Store measurements in place of those of the same GPUs, operation and moment.

    ``source``: as in :func:`put_bandwidths`. The store must know the node. Raises StoreError.
    """
    _COLLECTIVES.put(store, collectives, "INSERT OR REPLACE", source=source)


def newest_collectives(store: Store, operation: str, node: str | None = None) -> list[Collective]:
    """The newest measurement of an operation on each set of GPUs, by node, size and set.

    ``node``: only of this node.
    """
    rows = store.query(
        "SELECT *, max(taken_at_unix) FROM collectives"
        " WHERE operation = ?1 AND (?2 IS NULL OR node = ?2) GROUP BY node, gpus",
        (operation, node),
    )
    found = map(_COLLECTIVES.record, rows)
    return sorted(found, key=lambda one: (one.node, len(one.gpus), one.gpus))
