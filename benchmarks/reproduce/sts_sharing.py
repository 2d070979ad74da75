"""What sharing of GPUs saves the stochastic scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from common import geomean, paragraph, percent, table
from sts_instances import ARRIVALS, CLUSTERS, MEMORY_GB, Setting
from sts_runs import Case, Results, cases_of, reduction

MEMORY = {"2 to 12 GB": MEMORY_GB, "12 GB": (12.0, 12.0), "2 to 24 GB": (2.0, 24.0)}
"""Memory of jobs that share GPUs."""


def sharing(size: tuple[int, int], results: Results) -> list[str]:
    """The same jobs with shares of GPUs and without, by the memory that they need."""
    rows = []
    saved: dict[tuple[str, str], list[list[float]]] = {}
    for cluster in CLUSTERS:
        apart = Setting(sharing="off")
        alone = [cases_of(size, [cluster], [a], setting=apart) for a in ARRIVALS]
        for memory, between_gb in MEMORY.items():
            together = Setting(sharing="on", memory_gb=between_gb)
            shares = [[replace(case, setting=together) for case in cases] for cases in alone]
            every = [case for cases in alone + shares for case in cases]
            results.run(f"sharing, {cluster}, {memory}", every)
            pairs = list(zip(alone, shares, strict=True))
            saved[cluster, memory] = [
                [_saved_by_sharing(results, off, on, what) for off, on in pairs]
                for what in ("energy", "total")
            ]
            late = [" / ".join(percent(results.late(c)) for c in pair) for pair in pairs]
            energy = map(percent, saved[cluster, memory][0])
            rows.append([cluster, memory, *energy, *late])
    heads = [
        "cluster",
        "memory of a job",
        *(f"energy saved, {a}" for a in ARRIVALS),
        *(f"late without / with, {a}" for a in ARRIVALS),
    ]
    return [table(heads, rows), _sharing_remark(saved)]


def _saved_by_sharing(
    results: Results, alone: Sequence[Case], shares: Sequence[Case], what: str
) -> float:
    costs = [[getattr(results.known[case], what) for case in cases] for cases in (alone, shares)]
    return reduction(geomean(off / on for off, on in zip(*costs, strict=True)))


def _sharing_remark(saved: Mapping[tuple[str, str], Sequence[Sequence[float]]]) -> str:
    published = {"K80 and M60": 17, "A100": 29}

    def mean(cluster: str, memory: str, which: int) -> str:
        return percent(float(np.mean(saved[cluster, memory][which])))

    by_memory = (
        f"on {cluster} (published: {share}%) "
        + ", ".join(f"{mean(cluster, memory, 0)} with {memory}" for memory in MEMORY)
        for cluster, share in published.items()
    )
    inside = []
    for cluster, share in published.items():
        ours = [100 * float(np.mean(saved[cluster, memory][0])) for memory in MEMORY]
        if min(ours) <= share <= max(ours):
            inside.append(f"on {cluster}")
    first = next(iter(MEMORY))
    return paragraph(
        f"Energy that sharing saves on average: {'; '.join(by_memory)}. Total cost, {first}: "
        + ", ".join(f"{mean(cluster, first, 1)} on {cluster}" for cluster in published)
        + ". The due dates are those with the longer interval in both. A share has nearly the "
        "speed of a whole GPU at a part of its price, so that what is saved depends on how many "
        "jobs fit into one, and on how much of their work they do on one GPU. The paper gives "
        "neither the memory of its jobs nor their speeds by number of GPUs, which decide on these. "
        f"Its savings lie between those of the memories above {' and '.join(inside) or 'nowhere'}."
    )
