"""Metrics of measured GPUs: PM scores, spread, faults."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_gpu_aware.metric import (
    GPU_LABELS,
    MOST_GPU_SERIES,
    Fact,
    Metric,
    Sample,
    by_label,
    one,
)
from slurm_gpu_aware.model.profile import Gpu
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import unseen_gpus
from slurm_gpu_aware.store.profiles import newest_spreads

GpuLabels = tuple[str, ...]  # Values of `GPU_LABELS`.


class ScoredGpu(NamedTuple):
    """Newest measurement of a GPU for a class."""

    labels: GpuLabels
    app_class: str
    score: float  # PM score before binning.
    spread: float | None  # Largest relative spread of its runs' iterations; None: not known.
    taken_at: float


class Fleet(NamedTuple):
    """Measured GPUs."""

    scored: Sequence[ScoredGpu]
    gpus: Mapping[str, int]  # Product name -> number.
    unseen: int
    nodes: int


def gpu_labels(store: Store) -> dict[Gpu, GpuLabels]:
    """GPU -> its labels. Raises StoreError.

    NVML, and so DCGM, counts the GPUs of a node in the order of their PCI addresses. Where one is
    not known, ``gpu`` is Slurm's index.
    """
    rows = store.query("SELECT node, slot, uuid, name, pci FROM gpus ORDER BY node, slot")
    by_node: dict[str, list[tuple[int, str | None]]] = {}
    for row in rows:
        by_node.setdefault(row["node"], []).append((row["slot"], row["pci"]))
    order = {
        (node, slot): number
        for node, gpus in by_node.items()
        for number, (slot, _) in enumerate(sorted(gpus, key=lambda gpu: gpu[1] or ""))
        if all(pci for _, pci in gpus)
    }
    found: dict[Gpu, GpuLabels] = {}
    for node, slot, uuid, name, _ in rows:
        number = order.get((node, slot), slot)
        found[node, slot] = (node, str(number), uuid or "", name or "", str(slot))
    return found


def unmeasured(gpu: Gpu) -> GpuLabels:
    """Labels of a GPU that the store does not have."""
    return gpu[0], str(gpu[1]), "", "", str(gpu[1])


def sweeps(store: Store) -> object:
    """A value that changes with every sweep, import and removal."""
    rows = store.query(
        "SELECT (SELECT count(*) FROM gpus), (SELECT count(*) FROM nodes),"
        " (SELECT total(taken_at_unix) + total(probed_at_unix) FROM nodes),"
        " (SELECT count(*) FROM scores), (SELECT total(raw) FROM scores),"
        " (SELECT total(taken_at_unix) FROM scores)"
    )
    return tuple(rows[0])


def _read_fleet(store: Store) -> Fleet:
    labels, spreads = gpu_labels(store), newest_spreads(store)
    rows = store.query(
        "SELECT node, slot, class, raw, taken_at_unix FROM scores ORDER BY class, node, slot"
    )
    scored = [
        ScoredGpu(
            labels.get((node, slot)) or unmeasured((node, slot)),
            app_class,
            raw,
            spreads.get((node, slot, app_class)),
            taken_at,
        )
        for node, slot, app_class, raw, taken_at in rows
    ]
    names = Counter(own[3] for own in labels.values())
    return Fleet(scored, names, len(unseen_gpus(store, labels)), len({own[0] for own in labels}))


def _read_faults(store: Store) -> dict[GpuLabels, int]:
    """GPU, or node with empty other labels -> failed calls of its newest probe."""
    labels = gpu_labels(store)
    found: dict[GpuLabels, int] = {}
    for node, slot, count in store.query(
        "SELECT node, slot, count(*) FROM probe_errors GROUP BY node, slot ORDER BY node, slot"
    ):
        gpu = (node, slot)
        own = (node, "", "", "", "") if slot is None else labels.get(gpu) or unmeasured(gpu)
        found[own] = count
    return found


FLEET = Fact("measured GPUs", ("store",), _read_fleet, sweeps)
FAULTS = Fact("faults", ("store",), _read_faults)
OF_CLASS = (*GPU_LABELS, "class")  # Labels of a GPU for a class.

METRICS: tuple[Metric[Any], ...] = (
    Metric(
        "gpu_aware_gpu_pm_score_ratio",
        "PM score: time of the GPU for the class divided by that of the median GPU of its model.",
        "gauge",
        FLEET,
        lambda fleet: [Sample((*g.labels, g.app_class), g.score) for g in fleet.scored],
        OF_CLASS,
        MOST_GPU_SERIES,
    ),
    Metric(
        "gpu_aware_gpu_spread_ratio",
        "Relative spread (1.4826 MAD / median) of the iterations of the newest measurement.",
        "gauge",
        FLEET,
        lambda fleet: [
            Sample((*g.labels, g.app_class), g.spread) for g in fleet.scored if g.spread is not None
        ],
        OF_CLASS,
        MOST_GPU_SERIES,
    ),
    Metric(
        "gpu_aware_gpu_measured_timestamp_seconds",
        "Unix time of the newest measurement of the GPU for the class.",
        "gauge",
        FLEET,
        lambda fleet: [Sample((*g.labels, g.app_class), g.taken_at) for g in fleet.scored],
        OF_CLASS,
        MOST_GPU_SERIES,
    ),
    Metric(
        "gpu_aware_measured_gpus",
        "GPUs in the store, by product name.",
        "gauge",
        FLEET,
        lambda fleet: by_label(fleet.gpus),
        ("modelName",),
    ),
    Metric(
        "gpu_aware_measured_nodes",
        "Nodes in the store.",
        "gauge",
        FLEET,
        lambda fleet: one(fleet.nodes),
    ),
    Metric(
        "gpu_aware_unseen_gpus",
        "GPUs in the store that no sweep has seen.",
        "gauge",
        FLEET,
        lambda fleet: one(fleet.unseen),
    ),
    Metric(
        "gpu_aware_faulty_gpus",
        "GPUs with failed calls in the newest probe of their node.",
        "gauge",
        FAULTS,
        lambda faults: one(sum(bool(own[1]) for own in faults)),
    ),
    Metric(
        "gpu_aware_gpu_faults",
        "Failed calls in the newest probe: of a GPU, or (empty gpu) of the node.",
        "gauge",
        FAULTS,
        lambda faults: [Sample(own, count) for own, count in faults.items()],
        GPU_LABELS,
    ),
)
