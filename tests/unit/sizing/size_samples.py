"""Size tables and jobs of the tests."""

import numpy as np

from slurm_gpu_aware.features.power.menu import SizingJob
from slurm_gpu_aware.model.size_table import SizeTable


def table(time_s, power_w, gpus=(1, 2, 4), clocks=(1000, 1200, 1400)):
    """Table of these rows, one per size."""
    times, powers = np.array(time_s, dtype=float), np.array(power_w, dtype=float)
    return SizeTable(np.array(gpus[: len(times)]), np.array(clocks), times, powers)


SCALES = table(
    [[13, 11, 10], [6.5, 5.5, 5], [3.25, 2.75, 2.5]],
    [[100, 130, 200], [200, 260, 400], [400, 520, 800]],
)
"""Linear in GPUs; the most efficient clock is 1000 MHz."""
ONE_GPU = table([[13, 11, 10]], [[100, 130, 200]])


def job(name="1", sizes=(1, 2, 4), of=SCALES, **more):
    return SizingJob(name, sizes, more.pop("max_w", 300.0), of, **more)
