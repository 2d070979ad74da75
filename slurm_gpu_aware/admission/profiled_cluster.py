"""Idle cluster of the profiled nodes, without Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from slurm_gpu_aware.admission.profile_arrays import profile_arrays
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.penalties import LevelPenalties
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.topology.locality import build_levels

__all__ = ["profiled_cluster"]


def profiled_cluster(
    profile: Profile,
    penalties: LevelPenalties,
    network: Mapping[str, Mapping[str, str]],
) -> Cluster:
    """The nodes of the profile in natural order (n2 before n10), all GPUs free.

    ``penalties`` and ``network`` give the locality levels (`build_levels`).
    """
    names = sorted({node for node, _ in profile.gpus}, key=_natural)
    slots_of = {name: [slot for node, slot in profile.gpus if node == name] for name in names}
    widths = [1 + max(slots_of[name]) for name in names]
    exists = np.zeros((len(names), max(widths)), dtype=np.bool_)
    for row, name in enumerate(names):
        exists[row, slots_of[name]] = True
    arrays = profile_arrays(profile, names, widths, tuple(profile.scores))
    models = [{profile.gpus[name, slot].model for slot in slots_of[name]} for name in names]
    return Cluster.build(
        names,
        exists,
        scores=arrays.scores,
        levels=build_levels(
            penalties,
            names,
            max(widths),
            numa=arrays.numa,
            graphs=arrays.graphs,
            network=network,
        ),
        model=tuple(names.pop() if len(names) == 1 else None for names in models),
        graphs=arrays.graphs,
    )


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that takes digits as numbers."""
    parts = (p for p in re.split(r"(\d+)", name) if p)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]
