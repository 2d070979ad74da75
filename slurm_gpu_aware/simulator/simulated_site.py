"""Simulated site: an idle cluster with the planner's scores and the true ones, drawn from a CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, check_time_ms
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.penalties import LevelPenalties
from slurm_gpu_aware.text_file import BadRow, Row, read_table
from slurm_gpu_aware.time_text import counted
from slurm_gpu_aware.topology.locality import with_levels
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.variability.bins import bin_scores
from slurm_gpu_aware.variability.scores import pm_scores, run_medians

DRAWS: Mapping[str, str] = {
    "gpus": "single GPUs, none twice",
    "nodes": "whole nodes, none twice, so that neighbours stay together",
    "repeat": "single GPUs, with repetition",
    "runs": "single runs, with repetition, as in PAL's own simulation",
}
_Medians = tuple[tuple[str, ...], tuple[str, ...], FloatArray]
PENALTIES: Mapping[str, float] = {"node": 1.0, "cluster": 1.5}  # L of the two levels of PAL.


@dataclass(frozen=True, eq=False)
class Timings:
    """Times of the GPUs of one profile, one row per run."""

    name: str
    gpu: tuple[str, ...]
    """Row -> GPU: the ``gpu`` column, prefixed with the node if it is an index."""
    node: tuple[str, ...]  # Row -> node; empty: unknown.
    value_ms: FloatArray
    bad_rows: tuple[BadRow, ...] = ()

    def medians(self) -> tuple[tuple[str, ...], tuple[str, ...], FloatArray]:
        """GPUs in the order of the file, their nodes, and the medians of their runs, ms."""
        medians = run_medians(self.gpu, self.value_ms)
        node = dict(zip(reversed(self.gpu), reversed(self.node), strict=True))  # the first counts
        return tuple(medians), tuple(node[gpu] for gpu in medians), np.array([*medians.values()])


@dataclass(frozen=True, eq=False)
class Draw:
    """Scores of a drawn cluster and their origin."""

    scores: dict[str, FloatArray]
    """Class -> (N, W) PM scores, relative to the median GPU of the profile."""
    how: str  # The origin in words.


def read_timings(path: Path | str) -> Timings:
    """Read columns gpu, node, value_ms; other columns are ignored, rows of one GPU are its runs.

    Raises SourceError if the file cannot be read, lacks a column or has no usable row.
    """
    table = read_table(path)
    table.require("gpu", "value_ms", hint=" and node")
    rows, bad = table.parse(_timing)
    if not rows:
        raise SourceError(f"{table.name}: no usable row; expected gpu,node,value_ms")
    gpus, nodes, values = zip(*rows, strict=True)
    return Timings(Path(path).name, gpus, nodes, np.array(values), tuple(bad))


def _timing(row: Row) -> tuple[str, str, float]:
    gpu, node = row.text("gpu"), row.cells.get("node", "")
    value = check_time_ms(row.number("value_ms"))
    return (f"{node}:{gpu}" if gpu.isdigit() else gpu), node, value


def draw_scores(
    profile: Mapping[str, Timings], exists: BoolArray, how: str = "gpus", seed: int = 0
) -> Draw:
    """Give every GPU of a cluster scores from measured ones.

    All classes get the same GPUs if the files name enough common ones; otherwise each class is
    drawn separately. ``profile``: class -> timings; ``how``: a key of :data:`DRAWS`. Raises
    SourceError if it is unknown, or there are too few GPUs (or whole nodes) for it.
    """
    if how not in DRAWS:
        raise SourceError(f"unknown draw {how!r}; known: {', '.join(DRAWS)}")
    origin, scores = f"{DRAWS[how]}, seed {seed}", {}
    pool = {name: timings.medians() for name, timings in profile.items()}
    if how == "runs":
        for i, (name, timings) in enumerate(profile.items()):
            rng = np.random.default_rng([seed, i])
            drawn = rng.choice(timings.value_ms, size=int(exists.sum()), replace=True)
            scores[name] = on_gpus(drawn / float(np.median(pool[name][2])), exists)
        return Draw(scores, origin)
    joint = _joint(pool, exists, how, seed)
    if joint is not None:
        return Draw(joint, f"{origin}, the same GPUs for all classes")
    for i, (name, timings) in enumerate(profile.items()):
        own = _joint({name: pool[name]}, exists, how, [seed, i])
        if own is None:
            raise SourceError(_too_few(timings, len(pool[name][0]), exists, how))
        scores |= own
    return Draw(scores, f"{origin}, drawn separately for each class")


def _joint(
    pool: Mapping[str, _Medians], exists: BoolArray, how: str, seed: int | list[int]
) -> dict[str, FloatArray] | None:
    """Scores of the same GPUs for all classes in ``pool``; None if too few are common."""
    order, nodes, _ = next(iter(pool.values()))
    common = set(order).intersection(*(set(gpus) for gpus, _, _ in pool.values()))
    places = [(gpu, node) for gpu, node in zip(order, nodes, strict=True) if gpu in common]
    rng, count = np.random.default_rng(seed), int(exists.sum())
    chosen: list[str] | None = None
    if how == "nodes":
        chosen = _whole_nodes(places, exists.sum(axis=1), rng)
    elif places and (how == "repeat" or len(places) >= count):
        picks = rng.choice(len(places), size=count, replace=how == "repeat")
        chosen = [places[pick][0] for pick in picks]
    if chosen is None:
        return None
    scores = {}
    for name, (gpus, _, values) in pool.items():
        by_gpu = dict(zip(gpus, pm_scores(values).tolist(), strict=True))
        scores[name] = on_gpus([by_gpu[gpu] for gpu in chosen], exists)
    return scores


def _whole_nodes(
    places: Sequence[tuple[str, str]], widths: IntArray, rng: np.random.Generator
) -> list[str] | None:
    """GPUs of drawn nodes, row by row; a node with too few GPUs is not drawn."""
    on: dict[str, list[str]] = {}
    for gpu, node in places:
        if node:
            on.setdefault(node, []).append(gpu)
    full = [gpus for gpus in on.values() if len(gpus) >= int(widths.max(initial=0))]
    if len(full) < len(widths):
        return None
    rows = rng.choice(len(full), size=len(widths), replace=False)
    return [gpu for row, width in zip(rows, widths, strict=True) for gpu in full[row][:width]]


def on_gpus(values: npt.ArrayLike, exists: BoolArray) -> FloatArray:
    """(N, W) values of the GPUs that exist; 1 elsewhere."""
    scores = np.ones(exists.shape)
    scores[exists] = values
    return scores


def _too_few(timings: Timings, gpus: int, exists: BoolArray, how: str) -> str:
    lack, instead = f"{gpus} GPUs are too few to draw {int(exists.sum())} without repetition", ""
    if how == "nodes":
        width, instead = int(exists.sum(axis=1).max(initial=0)), "'gpus' or "
        lack = f"fewer than {len(exists)} nodes with {width} GPUs to draw from"
    return f"{timings.name}: {lack}; draw {instead}'repeat' instead"


@dataclass(frozen=True, eq=False)
class SimulatedSite:
    """An idle cluster in two views: binned scores for the planner, exact ones for the jobs."""

    cluster: Cluster
    truth: Mapping[str, FloatArray]  # Class -> (N, W) scores at which jobs run.
    label: str
    variability: str = "none: all GPUs are equal"  # Origin of the scores.

    def as_json(self) -> dict[str, Any]:
        """Size, levels, and per class the range of the scores and the number of bins."""
        there = self.cluster.exists
        return {
            "label": self.label,
            "nodes": len(self.cluster.nodes),
            "gpus": int(there.sum()),
            "levels": {level.name: level.penalty for level in self.cluster.levels},
            "levels_by_class": {
                name: {level.name: level.of(name).value for level in self.cluster.levels}
                for name in self.cluster.levels[0].by_class
            },
            "same_indices": self.cluster.same_indices,
            "links_known": any(graph is not None for graph in self.cluster.graphs),
            "variability": self.variability,
            "scores": {
                name: {
                    "min": float(scores[there].min()),
                    "median": float(np.median(scores[there])),
                    "max": float(scores[there].max()),
                    "bins": len(np.unique(self.cluster.score(name)[there])),
                }
                for name, scores in self.truth.items()
            },
        }


def synthetic_site(
    nodes: int,
    gpus_per_node: int | None = None,
    *,
    machine_name: str | None = None,
    penalties: Mapping[str, float] | LevelPenalties = PENALTIES,
    same_indices: bool = True,
) -> SimulatedSite:
    """Equal nodes (``n1``, ...) by GPU count, or by machine with its links. Raises SourceError."""
    graph = None
    if machine_name is not None:
        try:
            graph = machine(machine_name)
        except ValueError as exc:
            raise SourceError(str(exc)) from None
        if gpus_per_node not in (None, graph.n):
            raise SourceError(f"{machine_name} has {graph.n} GPUs, not {gpus_per_node}")
    width = graph.n if graph is not None else gpus_per_node or 0
    if not 1 <= width <= MAX_GPUS_PER_NODE:
        raise SourceError(
            f"a node has 1 to {MAX_GPUS_PER_NODE} GPUs: give --gpus-per-node or --machine"
        )
    names = [f"n{i + 1}" for i in range(nodes)]
    cluster = Cluster.uniform(names, width, graph=graph, same_indices=same_indices)
    what = f"{machine_name} ({counted(width, 'GPU')})" if machine_name else counted(width, "GPU")
    label = f"{counted(nodes, 'node')} with {what}"
    return SimulatedSite(with_levels(cluster, penalties), {}, label)


def stored_site(
    cluster: Cluster, raw_scores: Mapping[str, Mapping[tuple[str, int], float]]
) -> SimulatedSite:
    """The profiled cluster; jobs run at the raw scores of the store."""
    row = {name: i for i, name in enumerate(cluster.nodes)}
    truth = {name: np.ones(cluster.exists.shape) for name in raw_scores}
    for name, scores in raw_scores.items():
        for (node, slot), score in scores.items():
            if node in row and slot < cluster.shape[1]:
                truth[name][row[node], slot] = score
    nodes, gpus = counted(len(cluster.nodes), "node"), counted(int(cluster.exists.sum()), "GPU")
    label = f"the store's cluster: {nodes}, {gpus}"
    measured = "measured on these GPUs" if truth else "none: no GPU was measured"
    return SimulatedSite(cluster, truth, label, measured)


def bin_all(scores: Mapping[str, FloatArray], exists: BoolArray) -> dict[str, FloatArray]:
    """(N, W) binned scores of every class over the GPUs that exist (PAL)."""
    return {
        name: on_gpus(bin_scores(values[exists]).scores, exists) for name, values in scores.items()
    }


def with_scores(base: SimulatedSite, draw: Draw) -> SimulatedSite:
    """The site with drawn scores; a class that is not in the draw keeps its own."""
    scores = {**base.cluster.scores, **bin_all(draw.scores, base.cluster.exists)}
    cluster = replace(base.cluster, scores=scores)
    return SimulatedSite(cluster, {**base.truth, **draw.scores}, base.label, draw.how)
