"""Recorded rounds beside the ledger: the last few, compressed, so that they can be replayed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.database import Store

__all__ = ["KEEP", "KEEP_BYTES", "add_snapshot", "snapshots"]

KEEP = 200
"""Rounds that are kept; older ones make room."""
KEEP_BYTES = 16 << 20
"""Limit of all rounds together; the newest is kept in any case."""


def add_snapshot(store: Store, at: float, content: Mapping[str, Any]) -> None:
    """Store what ``planning.record.record_round`` made of a round at Unix time ``at``.

    Raises TypeError if it holds anything but plain values.
    """
    text = json.dumps(content, separators=(",", ":"))
    with store.write():
        store.execute(
            "INSERT INTO snapshots (at_unix, content) VALUES (?, ?)",
            (float(at), zlib.compress(text.encode("utf-8"), 6)),
        )
        store.execute(
            "DELETE FROM snapshots WHERE id <= (SELECT max(id) FROM snapshots) - ?"
            " OR id IN (SELECT id FROM ("
            "SELECT id, sum(length(content)) OVER (ORDER BY id DESC) AS upto FROM snapshots)"
            " WHERE upto > ? AND id < (SELECT max(id) FROM snapshots))",
            (KEEP, KEEP_BYTES),
        )


def snapshots(store: Store, limit: int = KEEP) -> list[tuple[float, dict[str, Any]]]:
    """The newest recorded rounds with their Unix times, oldest first.

    Raises StoreError if one is damaged.
    """
    rows = store.query(
        "SELECT id, at_unix, content FROM snapshots ORDER BY id DESC LIMIT ?", (limit,)
    )
    found = []
    for row in reversed(rows):
        try:
            found.append((float(row["at_unix"]), json.loads(zlib.decompress(row["content"]))))
        except (zlib.error, ValueError) as exc:
            raise StoreError(f"snapshot {row['id']} is damaged") from exc
    return found
