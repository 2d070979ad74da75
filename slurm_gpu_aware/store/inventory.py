"""Inventory: the GPUs that a probe has seen, and removal of GPUs from the store.

An import may name GPUs that no probe has seen; a wrong line of it must not become hardware. A row
of a probe has a list of clocks, which may be empty; a row of an import has NULL. A GPU that the
newest probe of its node failed to read counts as seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.store.database import Store

__all__ = [
    "forget_gpus",
    "forget_levels",
    "gpus_by_uuid",
    "listed",
    "seen_gpus",
    "unseen_gpus",
]


def gpus_by_uuid(store: Store) -> dict[str, Gpu]:
    """UUID -> GPU, of all GPUs that a probe has read."""
    rows = store.query("SELECT uuid, node, slot FROM gpus WHERE uuid IS NOT NULL")
    return {row["uuid"]: (row["node"], row["slot"]) for row in rows}


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
