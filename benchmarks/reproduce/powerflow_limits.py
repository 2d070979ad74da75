"""What limits the prediction of step times: their roughness, synchronisation, nodes."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np
from common import percent

from slurm_gpu_aware.features.models.performance_model import PerformanceSample

JUMP = 0.05
"""Change of the time from one condition to the next beyond what the next one explains."""
WANTED = 0.06
"""Error of the time that is asked for."""


def reasons(
    series: Mapping[str, Sequence[PerformanceSample]],
    rough: Mapping[str, tuple[float, float]],
    errors: Mapping[str, float],
) -> Iterator[str]:
    """Sentences on why the sets that are predicted worst are not predicted better.

    ``rough``, ``errors``: `roughness` and error of these sets.
    """
    uneven = [name for name in errors if rough[name][0] > WANTED]
    smooth = [name for name in errors if name not in uneven]
    apart = [name for name in smooth if 2 * node_spread(series[name]) >= errors[name]]
    yield (
        f"The data do not allow {WANTED:.0%} where the time is no smooth function of the batch"
        f" size: in {len(uneven)} of these {len(errors)} sets neighbours miss the time between them"
        " by more. Eq 4 tells one node from several, but not how many they are: in"
        f" {len(apart)} others that makes up half of the error or more."
    )
    if left := [f"{name} ({percent(errors[name])})" for name in smooth if name not in apart]:
        yield f"Neither is so in {len(left)}: {', '.join(left)}."
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


def node_spread(samples: Sequence[PerformanceSample]) -> float:
    """Mean relative distance of a time from those on the same GPUs with the same batch size.

    From their geometric mean on several nodes, however many; 0 where there is one such number.
    """
    groups = [np.array(times) for times in _on_nodes(samples).values()]
    means = [np.exp(np.log(times).mean()) for times in groups]
    apart = [np.abs(times / mean - 1).sum() for times, mean in zip(groups, means, strict=True)]
    return float(sum(apart)) / len(samples)


def _by_nodes(samples: Sequence[PerformanceSample]) -> float:
    """Longest over shortest time of a number of GPUs and a batch size on several nodes."""
    return max(max(times) / min(times) for times in _on_nodes(samples).values())


def _on_nodes(samples: Sequence[PerformanceSample]) -> dict[tuple[int, float], list[float]]:
    """(GPUs, batch size) -> times on several nodes."""
    found: dict[tuple[int, float], list[float]] = {}
    for sample in samples:
        if sample.nodes > 1:
            found.setdefault((sample.gpus, sample.batch_size), []).append(sample.time_s)
    return found


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
