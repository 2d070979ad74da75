"""A valid plain value of each kind of record, and the places inside a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

REPORT: dict[str, Any] = {
    "schema": "gpu-aware-probe/2",
    "node": "n1",
    "taken_at": 1000.0,
    "driver": "550",
    "backend": "fake",
    "gpus": [
        {"index": 0, "uuid": "GPU-0", "clocks_mhz": [1530], "power_limit_w": 300.0},
        {"index": 1, "uuid": "GPU-1", "numa": None, "nvlink_version": "2.0", "nvlinks": 2},
    ],
    "links": [{"a": 0, "b": 1, "class": "NV2", "gbps": 50.0}],
    "nics": [
        {
            "name": "mlx5_0",
            "pci": "0000:1a:00.0",
            "numa": 0,
            "gpus": [{"index": 0, "class": "PIX"}, {"index": 1, "class": "SYS"}],
            "nics": [{"name": "eth0", "class": "NODE"}],
        },
        {"name": "eth0", "pci": "0000:3b:00.0"},
    ],
    "link_backend": "nccl",
    "bandwidths": [{"a": 1, "b": 0, "ab_gbps": 47.0, "ba_gbps": 46.5, "latency_us": 1.9}],
    "collectives": [{"gpus": [1, 0], "operation": "all_reduce", "gbps": 44.5}],
    "timings": [{"index": 0, "class": "A", "value_ms": 103.2, "samples": 5, "spread": 0.004}],
    "errors": [{"index": None, "call": "nvmlInit", "error": "no"}],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    if isinstance(value, dict):
        entries: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    else:
        return
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))
