"""Timings: imported ones in, the newest runs of each GPU and class out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.bounds import check_time_ms
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import Gpu, GpuTiming
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.inventory import listed, seen_gpus
from slurm_gpu_aware.store.report import MAX_SLOT, check_name
from slurm_gpu_aware.text_file import BadRow

__all__ = ["TimingRow", "check_timings", "import_timings", "newest_runs"]


@dataclass(frozen=True)
class TimingRow:
    """One timing to import."""

    gpu: str
    """Slurm's index on the node, or the UUID of a probed GPU."""
    node: str
    app_class: str
    value_ms: float
    line: int = 0
    """Line of the file; 0: unknown."""


def check_timings(
    store: Store,
    rows: Iterable[TimingRow],
    classes: Sequence[str] = (),
    *,
    new_gpus: bool = False,
) -> tuple[list[tuple[TimingRow, int]], list[BadRow]]:
    """Split rows into good ones, each with its slot, and bad ones.

    ``classes``: those of the site; empty: any well-formed name. Once a GPU was probed, rows of GPUs
    that no probe has seen are bad unless ``new_gpus``. Only reads the store.
    """
    seen = {} if new_gpus else seen_gpus(store)
    by_uuid = {
        row["uuid"]: (row["node"], int(row["slot"]))
        for row in store.query("SELECT node, slot, uuid FROM gpus WHERE uuid IS NOT NULL")
    }
    good: list[tuple[TimingRow, int]] = []
    bad: list[BadRow] = []
    for row in rows:
        try:
            slot = _checked_slot(row, by_uuid, classes)
            if seen:
                _check_seen(row.node, slot, seen)
            good.append((row, slot))
        except ValueError as exc:
            bad.append(BadRow(row.line, str(exc)))
    return good, bad


def import_timings(
    store: Store,
    rows: Iterable[TimingRow],
    *,
    taken_at: float,
    classes: Sequence[str] = (),
    new_gpus: bool = False,
) -> int:
    """Import timings measured at ``taken_at`` (Unix s), all or none; return the number of rows.

    Nodes and GPUs that no probe has seen are added without identity if ``new_gpus``, or if no GPU
    was probed yet; otherwise a wrong line would become hardware. Several rows of one GPU and class
    are runs of one measurement. They replace stored timings of the same GPU, class and time. The
    caller recomputes the scores.

    Raises StoreError that names the first bad row, with nothing imported.
    """
    with store.write():
        good, bad = check_timings(store, rows, classes, new_gpus=new_gpus)
        if bad:
            line, reason, _ = bad[0]
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
                " VALUES (?, ?, ?, ?, ?, ?, 'import')",
                (*key, float(taken_at), run, float(row.value_ms)),
            )
    return len(good)


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


def _checked_slot(row: TimingRow, by_uuid: Mapping[str, Gpu], classes: Sequence[str]) -> int:
    check_name("node", row.node)
    check_name("class", row.app_class)
    if classes and row.app_class not in classes:
        raise ValueError(f"class {row.app_class!r} is not one of {', '.join(classes)}")
    check_time_ms(row.value_ms)
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


def _check_seen(node: str, slot: int, seen: Mapping[str, set[int]]) -> None:
    """Raise ValueError that names the known GPUs, unless a probe has seen this one."""
    cure = "sweep first, or give --new-gpus"
    if node not in seen:
        raise ValueError(f"no sweep has seen node {node}, only {listed(sorted(seen))}; {cure}")
    if slot not in seen[node]:
        has = listed(sorted(seen[node]))
        raise ValueError(f"no sweep has seen GPU {slot} of node {node}, only {has}; {cure}")


def _touch(store: Store, node: str, slot: int, taken_at: float) -> None:
    """Add missing rows of node and GPU, and raise the node's ``taken_at`` to at least this."""
    store.execute(
        "INSERT INTO nodes (node, taken_at_unix) VALUES (?, ?) ON CONFLICT (node)"
        " DO UPDATE SET taken_at_unix = max(taken_at_unix, excluded.taken_at_unix)",
        (node, float(taken_at)),
    )
    store.execute(
        "INSERT INTO gpus (node, slot) VALUES (?, ?) ON CONFLICT DO NOTHING", (node, slot)
    )
