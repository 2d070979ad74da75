"""A made-up site for tests of tune: a profile with several runs of each GPU, and a history."""

from pathlib import Path

import numpy as np
from store_samples import ingest, report

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import Run, put_timings

DAY_S = 86_400
BEGIN_S = 1_790_000_000
NODES, WIDTH = 4, 4
HEADER = "JobID|User|Submit|Start|ElapsedRaw|TimelimitRaw|State|AllocTRES|ReqTRES|NodeList|Priority"


def write_store(path: Path, slow: float) -> None:
    """Four nodes of four GPUs; two GPUs of each node take ``slow`` times as long, in three runs."""
    rng = np.random.default_rng(1)
    runs = [
        Run(f"n{node}", slot, "B", 2000.0, 100.0 * (slow if slot < 2 else 1.0) * noise)
        for node in range(1, NODES + 1)
        for slot in range(WIDTH)
        for noise in 1 + 0.01 * rng.standard_normal(3)
    ]
    with open_store(path) as store:
        for node in range(1, NODES + 1):
            ingest(store, report(f"n{node}"))
        put_timings(store, runs)
        recompute_scores(store, ["B"])


def write_history(
    path: Path, days: int = 28, per_day: int = 24, *, seed: int = 0, shortest_h: float = 1.0
) -> None:
    """Jobs of one and two GPUs, each of one to four times the shortest."""
    rng = np.random.default_rng(seed)
    lines = [HEADER]
    for number in range(days * per_day):
        submit = BEGIN_S + int((number + rng.random()) * DAY_S / per_day)
        gpus = int(rng.choice([1, 2], p=[0.7, 0.3]))
        run = int(3600 * rng.uniform(shortest_h, 4 * shortest_h))
        node = f"n{rng.integers(NODES) + 1}"
        tres = f"gres/gpu={gpus}"
        cells = (number + 1, "alice", submit, submit + 60, run, 1440, "COMPLETED", tres, tres, node)
        lines.append("|".join(map(str, (*cells, 1))))
    path.write_text("\n".join(lines) + "\n")


def write_config(folder: Path, tune: str = "") -> Path:
    """A configuration with its store in this folder; ``tune``: keys of ``[tune]``."""
    file = folder / "config.toml"
    file.write_text(
        f'[store]\npath = "{folder}/store.db"\n[placement]\npolicy = "packed"\n[tune]\n{tune}\n'
    )
    return file
