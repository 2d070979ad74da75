"""Snapshots: the last recorded rounds, compressed, for replay."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.database import Store

__all__ = ["KEEP", "KEEP_BYTES", "add_snapshot", "snapshots"]

KEEP = 200
"""Number of rounds to keep; older ones are deleted."""
KEEP_BYTES = 16 << 20
"""Limit of the size of all rounds; the newest is always kept."""


def add_snapshot(store: Store, at: float, content: Mapping[str, Any]) -> None:
    """Store the record (``planning.record.record_round``) of a round at Unix time ``at``.

    Raises TypeError if it has values other than plain ones.
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
    rounds = []
    for row in reversed(rows):
        try:
            rounds.append((float(row["at_unix"]), json.loads(zlib.decompress(row["content"]))))
        except (zlib.error, ValueError) as exc:
            raise StoreError(f"snapshot {row['id']} is damaged") from exc
    return rounds
