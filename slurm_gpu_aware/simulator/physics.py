"""Physics of a simulation: the slowdown of a job on its GPUs and beside its neighbours.

slowdown = L x max V (PAL, eq. 1) x bandwidth factor, each part switchable. The bandwidth factor of
a sensitive job with communication share c is (1 - c) + c best/have: the slowest link sets the time
of communication only. It applies to sets on one node; between nodes the network is slower than any
link, and L is its measured cost. Interference is a further factor that changes with the neighbours.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.placement.account import level_of, predicted_slowdown
from slurm_gpu_aware.simulator.settings import SimSettings, share_of
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK
from slurm_gpu_aware.topology.matching import eff_table, match
from slurm_gpu_aware.topology.patterns import parse_pattern
from slurm_gpu_aware.topology.subsets import MAX_EXACT


class Physics:
    """Slowdown of a job on GPUs; ``cluster`` has the true scores, not the planner's bins."""

    def __init__(self, cluster: Cluster, settings: SimSettings) -> None:
        every = np.ones(len(cluster.nodes), dtype=np.bool_)
        self.cluster = replace(cluster, indexed=every)
        self.settings = settings
        self._room = [_room(cluster, level) for level in cluster.levels]
        """GPUs of the largest group of each level."""
        self._plain = replace(cluster, indexed=~every)
        """The cluster without GPU indices."""

    def slowdown(
        self, job: TraceJob, nodes: Sequence[int], slots: Sequence[tuple[int, ...]]
    ) -> float:
        """t_iter / t_orig >= 0 of ``job`` on the slots of each node, without interference."""
        score, _, both = predicted_slowdown(self.cluster, job.app_class, nodes, slots)
        graph = self._graph(job, nodes)
        ratio = 1.0 if graph is None else bandwidth_ratio(graph, slots[0], job.pattern)
        locality = both / score
        if job.table is not None and (gpus := sum(map(len, slots))) != job.gpus:
            locality *= self._of_size(job, gpus)
        return self._product(job, score, locality, ratio)

    def _of_size(self, job: TraceJob, gpus: int) -> float:
        """L that the job's own GPUs need / L that so many need: times of its table hold both."""
        if not self.settings.locality:
            return 1.0
        needed = []
        for count in (job.gpus, gpus):
            levels = zip(self.cluster.levels, self._room, strict=True)
            fits = [level for level, room in levels if room >= count]
            needed.append((fits or self.cluster.levels[-1:])[0].of(job.app_class).value)
        return needed[0] / needed[1]

    def stretch(
        self, job: TraceJob, gpus: int, clock_mhz: int | None, limit_w: int | None = None
    ) -> tuple[float, float]:
        """Relative time and power of a job by its table.

        Returns the time of ``gpus`` GPUs at a clock and power limit of each / that of its size in
        the trace at the default clock, and the power of all its GPUs, W. Without a table: 1 and 0.
        Raises SourceError if the table does not have them.
        """
        table = job.table
        if table is None:
            return 1.0, 0.0
        row, base = table.row(gpus), table.row(job.gpus)
        if row is not None and base is not None:
            time_s, power = table.at(row, clock_mhz, limit_w)
            time = time_s / float(table.time_s[base, table.column(None)])
            if 0.0 < time < math.inf and 0.0 <= power < math.inf:
                return time, power
        clock = "the default clock" if clock_mhz is None else f"{clock_mhz} MHz"
        raise SourceError(
            f"job {job.job_id}: its size table has no time and power for {gpus} GPUs at {clock} and"
            f" {job.gpus} at the default clock"
        )

    def expected(self, job: TraceJob, nodes: Sequence[int]) -> float:
        """Expected slowdown of ``job`` if every set of GPUs on these nodes is equally likely.

        Each node gives gpus / nodes GPUs, rounded up, independently of the others.
        """
        each = -(-job.gpus // len(nodes))
        scores = self.cluster.score(job.app_class)
        worst = expected_worst([scores[n][self.cluster.exists[n]] for n in nodes], each)
        level = level_of(self._plain, nodes, [()] * len(nodes))
        locality = level.of(job.app_class).value
        graph = self._graph(job, nodes)
        ratio = 1.0 if graph is None else float(_ratios(graph, each, job.pattern).mean())
        return self._product(job, worst, locality, ratio)

    def worst(self, job: TraceJob) -> float:
        """A slowdown that ``job`` does not exceed on any GPUs, beside any neighbours.

        The worst V with the worst L or the worst links, and the worst neighbour on every other GPU
        of a machine, whether or not they occur together.
        """
        scores = self.cluster.score(job.app_class)[self.cluster.exists]
        score = float(np.max(np.where(np.isfinite(scores), scores, 1.0), initial=1.0))
        levels = {level.name: level.of(job.app_class).value for level in self.cluster.levels}
        graphs = {self._graph(job, (node,)) for node in range(len(self.cluster.nodes))}
        ratios = (float(_ratios(g, job.gpus, job.pattern).max()) for g in graphs if g is not None)
        across = self._product(job, score, max(levels.values(), default=1.0), 1.0)
        inside = self._product(job, score, levels.get("node", 1.0), max(ratios, default=1.0))
        profile = self.settings.interference
        if profile is None:
            return max(across, inside)
        return max(across, inside) * (1.0 + (self.cluster.shape[1] - 1) * (profile.worst - 1.0))

    def longest(self, job: TraceJob) -> float:
        """Time of the job's work at slowdown 1 in the slowest of its sizes and clocks."""
        if (table := job.table) is None:
            return job.duration_s
        self.stretch(job, job.gpus, None)  # raises without a time of reference
        rows = {n: row for n in job.sizes or (job.gpus,) if (row := table.row(n)) is not None}
        longest_s = np.nanmax(
            [table.settings(row).time_s * self._of_size(job, n) for n, row in rows.items()]
        )
        default_s = table.time_s[table.row(job.gpus), table.column(None)]
        return job.duration_s * float(longest_s / default_s)

    def interference(self, job: TraceJob, others: Sequence[TraceJob]) -> float:
        """Slowdown >= 1 of ``job`` beside ``others`` (Amaral et al., SC'17, section 3.2).

        Only pairs are measured, so the excess over 1 of each neighbour is added. A pair without a
        measurement, or with a measured gain (noise), does not count.
        """
        profile = self.settings.interference
        if profile is None:
            return 1.0
        own = (job.model or "", job.gpus)
        pairs = (profile.slowdown(own, (other.model or "", other.gpus)) for other in others)
        return 1.0 + sum((ratio - 1.0 for ratio in pairs if ratio is not None), 0.0)

    def _graph(self, job: TraceJob, nodes: Sequence[int]) -> HardwareGraph | None:
        """Links that slow the job; None: it spans nodes, is not sensitive, or they are unknown."""
        if self.share(job) is None or not job.bandwidth_sensitive or not self.cluster.graphs:
            return None
        return self.cluster.graphs[nodes[0]] if len(nodes) == 1 else None

    def share(self, job: TraceJob) -> float | None:
        """Communication share: the job's own, its application's, else that of the run.

        None while bandwidth is switched off.
        """
        general = self.settings.communication_share
        if general is None or job.communication_share is not None:
            return general if general is None else job.communication_share
        known = share_of(job.model)
        return general if known is None else known

    def _product(self, job: TraceJob, score: float, locality: float, ratio: float) -> float:
        """Product of the factors that are switched on; ``ratio``: best / present EffBW."""
        factor = score if self.settings.variability else 1.0
        if self.settings.locality:
            factor *= locality
        share = self.share(job)
        if share is None:
            return float(factor)
        return float(factor) * ((1.0 - share) + share * max(1.0, ratio))


def _room(cluster: Cluster, level: LocalityLevel) -> int:
    """GPUs of the largest group of a level; 0 below the node."""
    if level.group.ndim != 1:
        return 0
    known = level.group >= 0
    return int(np.bincount(level.group[known], cluster.exists[known].sum(axis=1)).max(initial=0))


def expected_worst(rows: Sequence[FloatArray], k: int) -> float:
    """Expected largest score of ``k`` random GPUs of each row (all GPUs of a shorter row).

    Sum over scores v of v P(max = v), where P(max <= v) is the product over the rows of
    C(number <= v, k) / C(n, k). A score that is not finite counts as 1.
    """
    clean = [np.where(np.isfinite(row), row, 1.0) for row in rows]
    values = np.unique(np.concatenate(clean))
    below = np.ones(len(values))
    for row in clean:
        take = min(k, len(row))
        counts = np.searchsorted(np.sort(row), values, side="right")
        below *= [math.comb(int(c), take) / math.comb(len(row), take) for c in counts]
    return float(np.dot(values, np.diff(below, prepend=0.0)))


@lru_cache(maxsize=1 << 16)
def bandwidth_ratio(graph: HardwareGraph, slots: tuple[int, ...], pattern: str) -> float:
    """EffBW of the best set of this size / EffBW of this set; 1.0 without links or tables."""
    shape = parse_pattern(pattern)
    if graph.n > MAX_EXACT or not shape.has_edges(len(slots)):
        return 1.0
    have = match(graph, slots, shape, BOTTLENECK).eff_gbps
    best = float(eff_table(graph, shape, len(slots), BOTTLENECK).max())
    return best / have if have > 0 else 1.0


@lru_cache(maxsize=256)
def _ratios(graph: HardwareGraph, k: int, pattern: str) -> FloatArray:
    """(S,) :func:`bandwidth_ratio` of all sets of ``k`` GPUs of the machine."""
    shape = parse_pattern(pattern)
    if graph.n > MAX_EXACT or k > graph.n or not shape.has_edges(k):
        return np.ones(1)
    have = eff_table(graph, shape, k, BOTTLENECK)
    linked = have > 0
    ratios = np.ones(len(have))
    ratios[linked] = have.max() / have[linked]
    return ratios
