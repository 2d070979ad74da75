"""Running jobs that a simulation keeps sorted are those that a snapshot finds anew."""

import random

import numpy as np

from slurm_gpu_aware.model.assignment import RunningJobs
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.simulator.cluster_state import Holders

SHAPE = (5, 4)


def random_job(position, now, rng):
    """A job on the GPU of its position, with one of few ends, so that many are equal."""
    expected = rng.choice([None, now + 1.0, now + 2.0, now + 30.0])
    gpus = ((position // 4, (position % 4,)),)
    return RunningJob(f"j{position}", gpus, now + rng.choice([2.0, 20.0]), expected_end_s=expected)


def test_holders_stay_as_a_new_list_would_be():
    rng = random.Random(1)
    holders, listed = Holders(SHAPE), {}
    for step in range(400):
        now, position = step / 10, rng.randrange(20)
        if rng.random() < 0.3:
            holders.discard(position)
            listed.pop(position, None)
        else:
            listed[position] = random_job(position, now, rng)
            holders.put(position, listed[position])
        anew, kept = RunningJobs(listed.values()), holders.all()
        assert kept == anew
        assert list(kept.by_end) == list(anew.by_end)
        assert list(kept.beside_gpus) == list(anew.beside_gpus)
        assert np.array_equal(kept.until(SHAPE), anew.until(SHAPE), equal_nan=True)
        late = [at for at, one in listed.items() if one.until_s < now]
        assert sorted(holders.overdue(now)) == sorted(late)
        assert holders.of(sorted(listed)) == tuple(listed[at] for at in sorted(listed))
