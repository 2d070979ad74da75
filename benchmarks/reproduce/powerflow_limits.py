"""What limits the prediction of step times: their roughness, synchronisation, nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from slurm_gpu_aware.model.performance_sample import PerformanceSample

JUMP = 0.05
"""Change of the time from one condition to the next beyond what the next one explains."""
_WANTED = 0.06


def reasons(
    series: Mapping[str, Sequence[PerformanceSample]], rough: Mapping[str, tuple[float, float]]
) -> Iterator[str]:
    """Sentences on why the worst sets are not predicted better."""
    count = sum(one > _WANTED for one, _ in rough.values())
    yield (
        f"The data do not allow {_WANTED:.0%} where the time is no smooth function of the batch"
        f" size: in {count} sets neighbours miss the time between them by more."
    )
    if {"yolov3/dgx", "imagenet/azure", "ncf/azure"} <= set(series):
        yield (
            "Times of yolov3 fall and rise from one batch size to the next. The synchronisation of"
            " imagenet/azure grows many times with the batch size, while the gradients that it adds"
            " up stay as large; the rest of the step is predicted well. In ncf/azure the equations"
            " fail, not the data: on fewer nodes the same number of GPUs takes up to"
            f" {_by_nodes(series['ncf/azure']):.1f} times as long, and eq 4 does not know how many"
            " GPUs share the links of a node."
        )


def sync_range(steps: Sequence[PerformanceSample], computing: Sequence[PerformanceSample]) -> float:
    """Longest over shortest synchronisation on the same GPUs, median; NaN: on one GPU only."""
    found: dict[tuple[int, int], list[float]] = {}
    for step, without in zip(steps, computing, strict=True):
        if step.gpus > 1:
            found.setdefault(step[:2], []).append(step.time_s - without.time_s)
    return float(np.median([max(s) / min(s) for s in found.values()])) if found else np.nan


def _by_nodes(samples: Sequence[PerformanceSample]) -> float:
    """Longest over shortest time of a number of GPUs and a batch size on several nodes."""
    found: dict[tuple[int, float], list[float]] = {}
    for sample in samples:
        if sample.nodes > 1:
            found.setdefault((sample.gpus, sample.batch_size), []).append(sample.time_s)
    return max(max(times) / min(times) for times in found.values())


def roughness(samples: Sequence[PerformanceSample]) -> tuple[float, float]:
    """(error between neighbours, share of falls) of the time over the batch size; NaN: no data."""
    errors, falls = [], []
    by_gpus = sorted(samples, key=lambda s: (s.gpus, s.nodes, s.batch_size))
    for _, own in groupby(by_gpus, key=lambda s: (s.gpus, s.nodes)):
        found = list(own)
        falls += [b.time_s < (1 - JUMP) * a.time_s for a, b in pairwise(found)]
        for a, b, c in zip(found, found[1:], found[2:], strict=False):
            share = (b.batch_size - a.batch_size) / (c.batch_size - a.batch_size)
            errors.append(abs((a.time_s + share * (c.time_s - a.time_s)) / b.time_s - 1))
    return (
        float(np.mean(errors)) if errors else np.nan,
        float(np.mean(falls)) if falls else np.nan,
    )
