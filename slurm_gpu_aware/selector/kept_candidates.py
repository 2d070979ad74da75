"""Candidates kept from round to round: an unchanged job of an unchanged site is translated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.snapshot import is_usable
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
)
from slurm_gpu_aware.slurm.topology import Fabric

if TYPE_CHECKING:
    from slurm_gpu_aware.selector.candidates import Candidate

_MOST_MASKS = 10_000  # users choose the options from which they are made
_FIXED_CLASS = frozenset({"given", "site"})  # Origins of a class that no other job changes.


@dataclass(frozen=True)
class _Site:
    """What translation reads of a site, without what running jobs use of it."""

    slurm: SlurmConfig
    partitions: Mapping[str, SlurmPartition]
    qos: Mapping[str, SlurmQos]
    fabric: Fabric
    nodes: tuple[object, ...]
    version: int  # See `Known.version`.
    reserved: bool  # There are reservations of nodes, which a job may reach as time passes.


class KeptCandidates:
    """The translations of the last round, by the record of their job as it was read."""

    def __init__(self) -> None:
        self._site: _Site | None = None
        self._nodes: dict[int, tuple[SlurmNode, object]] = {}
        self._last: dict[tuple[int, str], tuple[GatedJob, Candidate]] = {}
        self._next: dict[tuple[int, str], tuple[GatedJob, Candidate]] = {}
        self._eligible: dict[object, BoolArray] = {}
        self._idle: dict[object, int] = {}

    def renew(self, context: AdmissionContext) -> AdmissionContext:
        """Begin a round; returns its context with what is kept of the site.

        All is dropped when the site has changed, or with reservations of nodes, which a job may
        reach as time passes.
        """
        nodes = {id(node): self._still(node) for node in context.nodes.values()}
        self._nodes = nodes
        site = _Site(
            context.slurm,
            context.partitions,
            context.rules.qos,
            context.fabric,
            tuple(still for _, still in nodes.values()),
            context.known.version,
            any(one.nodes for one in context.reservations),
        )
        self._last, self._next = self._next, {}
        if len(self._eligible) > _MOST_MASKS or len(self._idle) > _MOST_MASKS:
            self._eligible, self._idle, self._last = {}, {}, {}
        if site != self._site or site.reserved:
            self._last, self._eligible, self._idle = {}, {}, {}
        self._site = site
        return replace(context, eligible=self._eligible, idle=self._idle)

    def get(self, record: GatedJob, job_id: str) -> Candidate | None:
        """The candidate of a job, or a task of its record, that has not changed; None: it has."""
        known = self._last.get((id(record), job_id))
        if known is None or known[0] is not record:
            return None
        self._next[id(record), job_id] = known
        return known[1]

    def put(self, record: GatedJob, candidate: Candidate, context: AdmissionContext) -> None:
        """Keep a candidate, unless it rests on what is free now, or on other jobs."""
        job, original, request = candidate.gated.job, candidate.gated.original, candidate.request
        sized = request.memory.per_gpu_mb or request.memory.per_cpu_mb or job.memory_mb_per_node
        least, most = original.nodes or (1, None)
        if (
            len(job.partitions) == 1  # else that in which it can start now
            and job.time_min_s is None
            and candidate.told.lasts
            and not request.sockets.given
            and (sized or not context.slurm.counts_memory)  # --mem=0: nodes of which all is free
            and most in (None, least)  # --nodes=2-4: as many as can start now
            and candidate.class_from in _FIXED_CLASS
        ):
            self._next[id(record), candidate.id] = record, candidate

    def _still(self, node: SlurmNode) -> tuple[SlurmNode, object]:
        """The node, and what does not change with the jobs on it."""
        known = self._nodes.get(id(node))
        if known is not None and known[0] is node:
            return known
        fixed = node.name, node.features, node.gpus, node.gpus_drained, node.cpus, node.threads
        more = node.memory_mb, node.shared_gres, node.untyped_shards, node.cores, node.gpu_sockets
        return node, (*fixed, *more, is_usable(node))
