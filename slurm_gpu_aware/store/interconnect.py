"""NICs, and measured bandwidths of pairs of GPUs and of collectives: in and out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from slurm_gpu_aware.model.hardware_graph import Collective, Nic, PairBandwidth
from slurm_gpu_aware.store.database import Store


def put_nics(store: Store, node: str, nics: Sequence[Nic]) -> None:
    """Replace the NICs of a node that the store knows."""
    with store.write():
        store.execute("DELETE FROM nics WHERE node = ?", (node,))
        store.executemany(
            "INSERT INTO nics (node, name, pci, numa, gpus, nics) VALUES (?, ?, ?, ?, ?, ?)",
            [(node, *nic[:3], json.dumps(nic.gpus), json.dumps(nic.nics)) for nic in nics],
        )


def nics_of(store: Store, node: str) -> list[Nic]:
    """NICs of a node by PCI address."""
    rows = store.query("SELECT * FROM nics WHERE node = ? ORDER BY pci, name", (node,))
    return [
        Nic(
            row["name"],
            row["pci"],
            row["numa"],
            {int(slot): word for slot, word in json.loads(row["gpus"]).items()},
            json.loads(row["nics"]),
        )
        for row in rows
    ]


def put_bandwidths(store: Store, pairs: Sequence[PairBandwidth], *, source: str) -> None:
    """Store measurements in place of those of the same pair and moment.

    ``source``: backend of the probe, or ``import``. The store must know the GPUs (a foreign key
    refuses others). Raises StoreError.
    """
    store.executemany(
        "INSERT OR REPLACE INTO bandwidths (node, a, b, taken_at_unix, ab_gbps, ba_gbps, both_gbps,"
        " latency_us, source) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(*pair, source) for pair in pairs],
    )


def newest_bandwidths(store: Store, node: str | None = None) -> list[PairBandwidth]:
    """The newest measurement of each pair, by node and pair. ``node``: only of this node."""
    rows = store.query(
        "SELECT node, a, b, max(taken_at_unix), ab_gbps, ba_gbps, both_gbps, latency_us"
        " FROM bandwidths WHERE ?1 IS NULL OR node = ?1 GROUP BY node, a, b ORDER BY node, a, b",
        (node,),
    )
    return [PairBandwidth(*row) for row in rows]


def put_collectives(store: Store, collectives: Sequence[Collective], *, source: str) -> None:
    """Store measurements in place of those of the same GPUs, operation and moment.

    ``source``: as in :func:`put_bandwidths`. The store must know the node. Raises StoreError.
    """
    store.executemany(
        "INSERT OR REPLACE INTO collectives (node, gpus, operation, taken_at_unix, gbps,"
        " size_bytes, source) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(one.node, json.dumps(one.gpus), *one[2:], source) for one in collectives],
    )


def newest_collectives(store: Store, operation: str, node: str | None = None) -> list[Collective]:
    """The newest measurement of an operation on each set of GPUs, by node, size and set.

    ``node``: only of this node.
    """
    rows = store.query(
        "SELECT node, gpus, operation, max(taken_at_unix), gbps, size_bytes FROM collectives"
        " WHERE operation = ?1 AND (?2 IS NULL OR node = ?2) GROUP BY node, gpus",
        (operation, node),
    )
    found = [Collective(row[0], tuple(json.loads(row[1])), *row[2:]) for row in rows]
    return sorted(found, key=lambda one: (one.node, len(one.gpus), one.gpus))
