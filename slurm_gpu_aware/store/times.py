"""Measured times in the store: those of GPUs, and those of classes per locality level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from slurm_gpu_aware.model.penalties import LEVELS, LevelTime
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.store.database import Store

__all__ = ["Run", "add_runs", "level_times", "newest_runs", "put_level_times", "put_timings"]

T = TypeVar("T")


class Run(NamedTuple):
    """One measured time of a GPU for a class."""

    node: str
    slot: int
    app_class: str
    taken_at: float
    """Unix time. Several values of one moment are runs of one measurement."""
    value_ms: float


def put_timings(store: Store, runs: Sequence[Run]) -> None:
    """Store imported times in place of stored ones of the same GPU, class and moment.

    Nodes and GPUs that the store lacks are added without identity. The caller recomputes the
    scores. Raises StoreError.
    """
    with store.write():
        for node, slot, app_class, taken_at in dict.fromkeys(run[:4] for run in runs):
            store.execute(
                "INSERT INTO nodes (node, taken_at_unix) VALUES (?, ?) ON CONFLICT (node)"
                " DO UPDATE SET taken_at_unix = max(taken_at_unix, excluded.taken_at_unix)",
                (node, taken_at),
            )
            store.execute(
                "INSERT INTO gpus (node, slot) VALUES (?, ?) ON CONFLICT DO NOTHING", (node, slot)
            )
            store.execute(
                "DELETE FROM timings WHERE node = ? AND slot = ? AND class = ?"
                " AND taken_at_unix = ?",
                (node, slot, app_class, taken_at),
            )
        add_runs(store, runs, source="import")


def add_runs(store: Store, runs: Sequence[Run], *, source: str) -> None:
    """Add times of GPUs that the store knows. ``source``: backend of the probe, or ``import``."""
    store.executemany(
        "INSERT INTO timings (node, slot, class, taken_at_unix, value_ms, run, source)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*run, number, source) for run, number in _numbered(runs, [run[:4] for run in runs])],
    )


def newest_runs(store: Store) -> list[GpuTiming]:
    """All runs of the newest measurement of each GPU and class."""
    rows = store.query(
        "SELECT t.node, t.slot, t.class, t.value_ms, t.taken_at_unix, ifnull(g.model, '')"
        " FROM timings t JOIN gpus g USING (node, slot)"
        " JOIN (SELECT node, slot, class, max(taken_at_unix) AS newest FROM timings"
        "       GROUP BY node, slot, class) n"
        " ON n.node = t.node AND n.slot = t.slot AND n.class = t.class"
        " AND n.newest = t.taken_at_unix ORDER BY t.node, t.slot, t.class"
    )
    return [GpuTiming(*row) for row in rows]


def put_level_times(store: Store, times: Sequence[LevelTime], taken_at: float) -> None:
    """Replace all times of the classes of ``times``, measured at ``taken_at`` (Unix s).

    Times before and after a change of the site or of the program are thus not compared.
    """
    keys = [(time.app_class, time.model, time.level) for time in times]
    with store.write():
        classes = {(time.app_class,) for time in times}
        store.executemany("DELETE FROM level_times WHERE class = ?", sorted(classes))
        store.executemany(
            "INSERT INTO level_times (class, model, level, run, value_ms, taken_at_unix)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            [
                (time.app_class, time.model, time.level, number, time.value_ms, taken_at)
                for time, number in _numbered(times, keys)
            ],
        )


def level_times(store: Store) -> list[LevelTime]:
    """All times per level, by class and model, tightest level first, in the order of the import."""
    rows = store.query(
        "SELECT class, level, value_ms, model FROM level_times ORDER BY class, model, run"
    )
    known = [time for time in (LevelTime(*row) for row in rows) if time.level in LEVELS]
    return sorted(known, key=lambda t: (t.app_class, t.model, LEVELS.index(t.level)))


def _numbered(items: Sequence[T], keys: Sequence[tuple[object, ...]]) -> Iterator[tuple[T, int]]:
    """Each item with the number of earlier ones with the same key."""
    seen: Counter[tuple[object, ...]] = Counter()
    for item, key in zip(items, keys, strict=True):
        yield item, seen[key]
        seen[key] += 1
