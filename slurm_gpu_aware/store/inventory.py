"""Which GPUs a probe has seen, and forgetting what is not there.

Times can be imported for GPUs that no probe has seen; a wrong line in such a file must not become
hardware. A row of a probe has its list of clocks, be it empty; that of an import has none.
A GPU that the newest probe of its node failed to read counts as seen: it is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.levels import level_times
from slurm_gpu_aware.store.profiles import Profile
from slurm_gpu_aware.store.timings import listed

__all__ = ["forget_gpus", "forget_levels", "gpu_names", "seen_only"]

Gpu = tuple[str, int]


def seen_only(profile: Profile) -> tuple[Profile, tuple[Gpu, ...]]:
    """The profile without the GPUs that no probe has seen, and these.

    Where no GPU was probed at all the profile is what somebody imported on purpose: it stays.
    """
    left_out = profile.unseen
    if not left_out:
        return profile, ()
    gpus = {gpu: record for gpu, record in profile.gpus.items() if gpu not in left_out}
    return replace(profile, gpus=gpus), tuple(sorted(left_out))


def gpu_names(gpus: Iterable[Gpu], most: int = 8) -> str:
    """``n1:9, n9:0``; what is over ``most`` is counted."""
    names = [f"{node}:{slot}" for node, slot in gpus]
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def forget_gpus(store: Store, node: str, slot: int | None = None) -> int:
    """Delete a GPU, or a node with all of its GPUs, and whatever was measured of them.

    Returns the number of GPUs. Scores of the others are not touched: call ``recompute_scores``.
    A later sweep brings back what it sees. Raises StoreError naming what is known.
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
        # A node that only an import named goes with its last GPU.
        store.execute(
            "DELETE FROM nodes WHERE node = ?1 AND probed_at_unix IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM gpus WHERE node = ?1)",
            (node,),
        )
    return 1


def forget_levels(store: Store, app_class: str) -> int:
    """Delete the times per locality level of a class; return their number.

    Raises StoreError naming the classes that have some.
    """
    with store.write():
        known = sorted({time.app_class for time in level_times(store)})
        if app_class not in known:
            raise StoreError(f"no level times of class {app_class!r}; known: {listed(known)}")
        return store.execute("DELETE FROM level_times WHERE class = ?", (app_class,)).rowcount
