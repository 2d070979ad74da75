"""Reports and decisions for the store's tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from click.testing import Result
from commands import gpu_aware

from slurm_gpu_aware.features.models.performance_model import NamedSample, PerformanceSample
from slurm_gpu_aware.features.models.store import put_samples
from slurm_gpu_aware.model.profile import Profile, RunConditions
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.ingest import ingest_report
from slurm_gpu_aware.store.ledger import Decision, Event
from slurm_gpu_aware.store.measurements import Run, add_runs
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.store.report import parse_report


def report(
    node: str = "n1",
    taken_at: float = 1000.0,
    times: Mapping[int, float] | None = None,
    *,
    uuid: str = "GPU-{node}-{slot}",
    model: str = "v100",
    errors: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A probe report with one class A timing per GPU (default: GPUs 0..3, 100 ms each)."""
    slots = times if times is not None else dict.fromkeys(range(4), 100.0)
    return {
        "schema": "gpu-aware-probe/2",
        "node": node,
        "taken_at": taken_at,
        "driver": "550.54",
        "backend": "fake",
        "gpus": [
            {
                "index": slot,
                "uuid": uuid.format(node=node, slot=slot),
                "name": "Tesla V100-SXM2-16GB",
                "model": model,
                "pci": f"00000000:0{slot}:00.0",
                "numa": slot // 2,
                "cpus": "0-3",
                "memory_mb": 16160,
                "clocks_mhz": [1530, 1312, 135],
                "max_clock_mhz": 1530,
                "default_clock_mhz": 1312,
                "power_limit_w": 300.0,
                "temperature_c": 40,
            }
            for slot in slots
        ],
        "links": [
            {"a": a, "b": b, "class": "NV2", "gbps": 50.0} for a in slots for b in slots if a < b
        ],
        "timings": [
            {"index": slot, "class": "A", "value_ms": value, "samples": 5, "spread": 0.004}
            for slot, value in slots.items()
        ],
        "errors": errors or [],
    }


def watts(clock_mhz: float, dynamic_w: float = 0.12) -> float:
    """Power of a busy GPU whose voltage rises with its clock, above a floor."""
    volts = max(1.0, 0.3 + 0.7 * clock_mhz / 1000)
    return 60.0 * volts + dynamic_w * volts**2 * clock_mhz


def profile_of(path: Path) -> Profile:
    """What placement loads of a store."""
    with open_store(path, readonly=True) as store:
        return load_profile(store)


def ingest(store: Store, raw: object) -> None:
    """Check and store a report."""
    ingest_report(store, parse_report(raw))


def put_net(store: Store, model: str = "v100", *, speed: float = 1.0, each_w: float = 0.1) -> None:
    """Samples of ``net``: each doubling of its GPUs almost halves its time.

    ``speed``: of a GPU of the model; ``each_w``: its power for each MHz.
    """
    samples = [
        PerformanceSample(
            n, -(-n // 4), 64 / n, clock, (100 / clock / n + 0.001) / speed, n * clock * each_w
        )
        for n in (1, 2, 4, 8)
        for clock in (135.0, 1312.0, 1530.0)
    ]
    put_samples(
        store, [NamedSample("net", model, 1000.0, one, "A") for one in samples], source="csv"
    )


def ingest_sweep(
    store: Store,
    clocks_mhz: Sequence[int],
    node: str = "n1",
    slots: Sequence[int] = (0,),
    dynamic_w: float = 0.12,
    limited: Mapping[int, tuple[float, float]] = MappingProxyType({}),
) -> None:
    """A node with these clocks, and runs of class A at each: compute bound, 10 ms at 1530 MHz.

    ``limited``: power limit, W -> time and power over those at the highest clock without one.
    """
    raw = report(node)
    for gpu in raw["gpus"]:
        gpu["clocks_mhz"] = sorted(clocks_mhz, reverse=True)
    ingest(store, raw)
    at = {f: RunConditions(clock_mhz=f, power_w=watts(f, dynamic_w)) for f in clocks_mhz}
    runs = [Run(node, k, "A", 5.0, 15300.0 / f, at[f]) for k in slots for f in clocks_mhz]
    top = max(clocks_mhz)
    for limit_w, (slower, power) in limited.items():
        limit = at[top]._replace(limit_w=limit_w, power_w=power * watts(top, dynamic_w))
        runs += [Run(node, k, "A", 5.0, slower * 15300.0 / top, limit) for k in slots]
    add_runs(store, runs, source="probe")


def decision(job_id: str = "98", **changes: Any) -> Decision:
    """A decision for two GPUs on each of two nodes."""
    values: dict[str, Any] = {
        "job_id": job_id,
        "user": "alice",
        "submitted_at": 100.0,
        "decided_at": 101.5,
        "asked": {"gpus": 4, "class": "A"},
        "policy": "pal",
        "nodes": ["n1", "n2"],
        "slots": [[0, 3], [0, 3]],
        "score": 1.06,
        "level": "cluster",
        "slowdown": 1.59,
        "clock_mhz": 1312,
        "why": {"summary": "cell 1.59"},
        "took_ms": 0.4,
    }
    return Decision(**{**values, **changes})


def started(*nodes: str, run: int = 0) -> Event:
    """Job 7 started with two GPUs of each node."""
    detail = {"restarts": run, "gpus": {node: [0, 1] for node in nodes}}
    return Event("7", "started", detail, 90.0)


def fit_models(store_path: Path) -> Result:
    """``gpu-aware models fit`` on a store. It takes a second: fit once, and copy the store."""
    config = store_path.with_name("fit.toml")
    config.write_text(f'[store]\npath = "{store_path}"\n')
    done = gpu_aware("models", "fit", config=config)
    assert done.exit_code == 0, done.stderr
    return done
