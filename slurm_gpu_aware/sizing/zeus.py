"""Zeus: for a job alone, the clock with the least weighted cost of energy and time."""

import numpy as np

from slurm_gpu_aware.model.size_table import SizeTable, least_energy


def zeus_clock(table: SizeTable, gpus: int, max_w: float, eta: float = 0.5) -> int | None:
    """SM clock of a job of ``gpus`` GPUs, MHz; None, the default clock, where nothing is known.

    Zeus (You et al., NSDI'23) chooses a power limit and a batch size; here the clock takes the
    place of the power limit, and the batch size stays. The cost of a unit of work is
    ``eta * energy + (1 - eta) * max_w * time``.

    Parameters: ``max_w``, power limits of all its GPUs together; ``eta``, weight of energy against
    time, 0 to 1 (0.5 is Zeus' own default).
    """
    row = table.row(gpus)
    if row is None:
        return None
    time_s, power_w = table.time_s[row], table.power_w[row]
    weighted_w = np.where(power_w > 0, eta * power_w + (1 - eta) * max_w, np.nan)
    best = least_energy(time_s, weighted_w)
    return None if best is None else int(table.clocks_mhz[best])
