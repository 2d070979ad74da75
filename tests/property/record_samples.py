"""A valid plain value of each kind of record, and the places inside a value."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
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


TUNED: dict[str, Any] = {
    "policy": "pal",
    "options": {"depth": 0.2, "wait": 1},
    "set_at": 1_790_000_000.0,
    "gain_percent": 4.1,
    "low_percent": -2.0,
    "high_percent": 6.3,
}
SET_LIMIT: dict[str, Any] = {"limit": "eta=0.7", "set_at": 1.0, "until": 2.0}
ROLLOUT: dict[str, Any] = {"direction": "undo", "scope": ["n1", "n2"], "in_hand": "n1"}
MODEL: dict[str, Any] = {
    "format": 1,
    "name": "bert",
    "gpu_model": "a100",
    "throughput": {
        "io_s": 0.01,
        "io_sample_s": 0.0002,
        "grad_s": 0.02,
        "grad_sample_s": 0.008,
        "grad_clock_share": 0.8,
        "sync_local_s": 0.03,
        "sync_local_gpu_s": 0.001,
        "sync_node_s": 0.08,
        "sync_node_gpu_s": 0.0005,
        "sync_clock_share": 0.2,
        "gamma1": 1.5,
        "gamma2": 3.0,
        "sustained": 1.0,
        "reference_mhz": 1400.0,
    },
    "power": {
        "static_w": 100.0,
        "grad_w": 200.0,
        "sync_w": 60.0,
        "knee": 0.7,
        "slope": 1.0,
        "batch_offset": 8.0,
        "reference_batch": 32.0,
    },
    "quality": {
        "time_samples": 10,
        "power_samples": 10,
        "time_error": 0.01,
        "power_error": 0.02,
        "energy_error": 0.03,
    },
    "measured": {
        "least_gpus": 1,
        "most_gpus": 32,
        "low_mhz": 700.0,
        "high_mhz": 1400.0,
        "batch_size": 32.0,
        "global_batch": 128.0,
    },
}
CONFIG: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[2] / "etc" / "config.toml").read_text()
) | {"classes": {"A": {"clock_mhz": 1200, "application": "resnet", "restart_s": 30.0}}}


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
