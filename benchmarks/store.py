"""Cost of the store and of the binning, each beside a comparison in the same run.

    python benchmarks/store.py [--gpus 27648]

Prints one line per measurement: median time, and the ratio to the comparison named there.
"""

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Decision, Ledger
from slurm_gpu_aware.variability.bins import MAX_BINS, bin_scores


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median duration of one call."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def ledger(folder: Path) -> None:
    """One decision in the ledger against one bare INSERT of the same bytes."""
    decision = Decision(
        "98", "alice", 1.0, 2.0, {"gpus": 4}, "pal", ["n1", "n2"], [[0, 3]] * 2, 1.06, "cluster",
        1.59, why={"cells": [[1.0, i / 7, "within"] for i in range(20)]},
    )  # fmt: skip
    with open_store(folder / "store.db") as store:
        book = Ledger(store)
        ours = seconds(lambda: book.add_decision(decision), 2000)
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    bare.execute("PRAGMA journal_mode=wal")
    bare.execute("PRAGMA synchronous=NORMAL")
    bare.execute("CREATE TABLE t (x TEXT)")
    text = json.dumps(decision.why)
    plain = seconds(lambda: bare.execute("INSERT INTO t VALUES (?)", (text,)), 2000)
    bare.close()
    print(f"add_decision       {ours * 1e3:8.3f} ms  {ours / plain:6.2f} x a bare INSERT")


def binning(gpus: int) -> None:
    """The whole binning (K = 2..11, silhouettes) against one scikit-learn fit with K = 11."""
    scores = np.random.default_rng(1).lognormal(0.0, 0.03, gpus)
    ours = seconds(lambda: bin_scores(scores), 3)
    line = f"bins, {gpus:>9} GPUs {ours * 1e3:9.1f} ms"
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        print(line)
        return
    model = KMeans(MAX_BINS, n_init=1, random_state=0)
    theirs = seconds(lambda: model.fit(scores[:, None]), 3)
    print(f"{line}  {ours / theirs:6.2f} x one scikit-learn K-means")


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[400, 27_648, 1_000_000])
    counts = parser.parse_args().gpus
    with tempfile.TemporaryDirectory() as folder:
        ledger(Path(folder))
    for gpus in counts:
        binning(gpus)


if __name__ == "__main__":
    main()
