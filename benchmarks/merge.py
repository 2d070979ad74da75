"""Merge of a whole sweep into the store, against bare INSERTs of the same rows.

    python benchmarks/merge.py [--nodes 1250] [--gpus 8] [--history 3]

Each node's report has the runs of 3 classes, 3 with idle and 3 with loaded neighbours, and the
links of all pairs of GPUs. Merged as ``gpu-aware-profile sweep`` does: parse, check, one
transaction per node, then the scores of all GPUs, their drift, and the deletion of old
measurements. ``--history``: sweeps that the store holds before. Exit code 1: the last sweep took
30 s or more.
"""

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.ingest import ingest_report
from slurm_gpu_aware.store.profiles import measured_pairs, prune
from slurm_gpu_aware.store.report import parse_report
from slurm_gpu_aware.variability.drift import drift

CLASSES = {"A": 100.0, "B": 80.0, "C": 60.0}
RUNS = 3
DAY_S = 86_400.0
LIMIT_S = 30.0


def report(node: str, gpus: int, taken_at: float, draw: random.Random) -> str:
    """The report of one node as the probe prints it."""
    timings = [
        {
            "index": slot,
            "class": name,
            "neighbours": neighbours,
            "samples": 40,
            "value_ms": round(draw.lognormvariate(0.0, 0.03) * base_ms, 4),
            "spread": 0.004,
            "sm_mhz": 1380.0,
            "memory_mhz": 877.0,
            "power_w": 281.5,
            "energy_j": 28.4,
            "temperature_c": 61.0,
            "throttle": "",
        }
        for slot in range(gpus)
        for name, base_ms in CLASSES.items()
        for neighbours in ("idle", "loaded")
        for _ in range(RUNS)
    ]
    records = [
        {
            "index": slot,
            "uuid": f"GPU-{node}-{slot}",
            "name": "Tesla V100-SXM2-16GB",
            "model": "v100",
            "pci": f"00000000:{slot:02x}:00.0",
            "numa": slot // 4,
            "cpus": "0-15",
            "memory_mb": 16160,
            "clocks_mhz": list(range(1530, 135, -8)),
            "max_clock_mhz": 1530,
            "default_clock_mhz": 1312,
            "power_limit_w": 300.0,
            "temperature_c": 61.0,
            "ecc_corrected": 0,
            "ecc_uncorrected": 0,
        }
        for slot in range(gpus)
    ]
    links = [{"a": a, "b": b, "class": "NV2", "gbps": 50.0} for b in range(gpus) for a in range(b)]
    return json.dumps(
        {
            "schema": "gpu-aware-probe/2",
            "node": node,
            "taken_at": taken_at,
            "driver": "550.54",
            "backend": "fake",
            "gpus": records,
            "links": links,
            "timings": timings,
            "errors": [],
        }
    )


def merge(store: Store, texts: list[str], since: float, keep: int) -> dict[str, float]:
    """Merge the reports of one sweep; return the seconds of each part."""
    start = time.perf_counter()
    for text in texts:
        ingest_report(store, parse_report(json.loads(text)))
    merged = time.perf_counter()
    recompute_scores(store, tuple(CLASSES))
    scored = time.perf_counter()
    drift(measured_pairs(store, since))
    compared = time.perf_counter()
    prune(store, keep)
    return {
        "reports": merged - start,
        "scores": scored - merged,
        "drift": compared - scored,
        "old ones": time.perf_counter() - compared,
    }


def bare_inserts(store: Store, folder: Path) -> float:
    """Seconds to insert the rows of the last sweep, ready made, into a bare table."""
    rows = [
        tuple(row)
        for row in store.query(
            "SELECT * FROM timings WHERE taken_at_unix = (SELECT max(taken_at_unix) FROM timings)"
        )
    ]
    with sqlite3.connect(folder / "bare.db") as bare:
        bare.execute(f"CREATE TABLE t ({', '.join(f'c{i}' for i in range(len(rows[0])))})")
        start = time.perf_counter()
        bare.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
        bare.commit()
        return time.perf_counter() - start


def main() -> int:
    """Merge ``--history`` + 1 sweeps, and print the times of the last one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--history", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_store(folder / "store.db") as store:
            for sweep in range(given.history + 1):
                draw = random.Random(sweep)
                at = DAY_S * (sweep + 1)
                nodes = [f"n{i}" for i in range(given.nodes)]
                parts = merge(
                    store, [report(n, given.gpus, at, draw) for n in nodes], at - 1.0, given.history
                )
            total = sum(parts.values())
            bare = bare_inserts(store, folder)
        size = (folder / "store.db").stat().st_size / (given.history + 1)
    split = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
    gpus = given.nodes * given.gpus
    print(f"merge of {gpus} GPUs after {given.history} sweeps: {total:.1f} s ({split})")
    print(f"  {total / bare:.0f} x bare INSERTs of its runs; {size / 1e6:.0f} MB a sweep")
    return int(total >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
