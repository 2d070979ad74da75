"""Small random traces, scores and settings for tests of the simulator."""

import random
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

FLAT = Cluster.uniform(4, 4, locality_penalty=1.0, same_indices=False)


def random_trace(seed, n=30, sizes=(1, 1, 2, 4, 8)):
    dice = random.Random(seed)
    at = 0.0
    jobs = []
    for i in range(n):
        at += dice.expovariate(1 / 100)
        jobs.append(
            TraceJob(str(i), at, dice.choice(sizes), dice.uniform(10, 3000), dice.choice("ABC"))
        )
        late = at + 5000 * (i % 7) if i % 3 else None
        jobs[-1] = replace(jobs[-1], priority=float(i % 5), deadline_s=late)
    return Trace.of("random", jobs)


def random_scores(seed, shape=(4, 4)):
    rng = np.random.default_rng(seed)
    return {c: rng.choice([0.9, 1.0, 1.1, 2.0], size=shape) for c in "ABC"}


SETTINGS = [
    SimSettings(order=order, round_s=round_s, mode=mode, backfill=backfill, policy=policy)
    for order in ("fifo", "las", "srtf")
    for round_s in (None, 300.0)
    for mode in ("sticky", "non-sticky")
    for backfill in (False, True)
    for policy in ("pal",)
]
SETTINGS += [SimSettings(policy=p) for p in ("packed", "random", "pm-first")]
SETTINGS += [SimSettings(order=o, backfill=b) for o in ("priority", "edf") for b in (False, True)]


def name(settings):
    how = f"{settings.label} {settings.order} {settings.round_s} {settings.backfill}"
    return how.replace(" ", "-")
