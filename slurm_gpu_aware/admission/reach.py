"""Nodes that a job may get by what it asks for, whatever else runs there."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext, partial_reservations
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode, SlurmReservation
from slurm_gpu_aware.slurm.words import matches, understood


def of_partitions(job: SlurmJob, context: AdmissionContext) -> tuple[BoolArray, BoolArray]:
    """(N,) nodes of rounds in the partitions of a job, whatever else it says; the same again."""
    known = [context.partitions[p].nodes for p in job.partitions if p in context.partitions]
    names = frozenset[str]().union(*known)
    mask = np.array([name in names for name in context.cluster.nodes], dtype=np.bool_)
    return mask, mask


def open_to(
    job: SlurmJob,
    nodes: Mapping[str, SlurmNode],
    reservations: Sequence[SlurmReservation],
    now: float,
) -> set[str]:
    """Names of the nodes that features and reservations leave to a job, whatever else holds.

    On one of the others its GPUs would count twice: as taken there, and as free where it starts.
    """
    able = with_features(job, nodes)
    names = set((job.reservation or "").split(",")) - {""}
    own = [one for one in reservations if one.name in names]
    if own and all(one.nodes and "FLEX" not in one.flags for one in own):
        return able.intersection(set().union(*(one.nodes for one in own)))
    shut = [one for one in reservations if one.active_at(now) and "MAGNETIC" not in one.flags]
    partial = partial_reservations(shut, nodes)
    whole = (one.nodes for one in shut if one.name not in partial)
    return able if names else able.difference(*whole)


def with_features(job: SlurmJob, nodes: Mapping[str, SlurmNode]) -> set[str]:
    """Names of those that have the features that a job asks for, as far as these are understood."""
    if not (job.features and understood(job.features)):
        return set(nodes)
    kinds = {node.features for node in nodes.values()}  # fewer than nodes
    fit = {kind for kind in kinds if matches(job.features, kind)}
    return {name for name, node in nodes.items() if node.features in fit}


def wanted(job: SlurmJob) -> tuple[object, ...]:
    """What `may_get` depends on."""
    asked = job.cpus, job.min_cpus_node, job.memory_mb_per_node, job.memory_mb_per_cpu
    nodes = job.req_nodes, job.exc_nodes, job.min_nodes, job.max_nodes
    return job.partitions, job.features, nodes, asked


def may_get(job: SlurmJob, context: AdmissionContext) -> tuple[list[str], list[str]]:
    """Names of the nodes that a job may get: those of rounds, and those that no round knows."""
    known, named = frozenset(context.cluster.nodes), {*job.req_nodes}
    there = (context.partitions[p].nodes for p in job.partitions if p in context.partitions)
    names = frozenset[str]().union(*there).difference(job.exc_nodes)
    if named and job.min_nodes <= len(named):
        names &= named
    nodes = {one: context.nodes[one] for one in names if one in context.nodes}
    cpus = job.least_cpus
    memory_mb = job.memory_mb_per_node or cpus * (job.memory_mb_per_cpu or 0)
    able = {i: one for i, one in nodes.items() if one.cpus >= cpus and one.memory_mb >= memory_mb}
    fit = with_features(job, able)
    return [one for one in fit if one in known], [one for one in fit if one not in known]


def on_other_nodes(job: SlurmJob, context: AdmissionContext) -> bool:
    """Whether nodes that no round knows suffice for a job of whole nodes."""
    if job.req_nodes and not frozenset(context.cluster.nodes).isdisjoint(job.req_nodes):
        return False
    return reach(job, context)[1] >= job.min_nodes


def rounds_nodes(partitions: Iterable[str], context: AdmissionContext) -> frozenset[str]:
    """Nodes of rounds in these partitions."""
    named = (context.partitions[p].nodes for p in partitions if p in context.partitions)
    return frozenset(context.cluster.nodes).intersection(frozenset[str]().union(*named))


def reach(job: SlurmJob, context: AdmissionContext) -> tuple[int, int]:
    """How many nodes of rounds a job may get, how many that no round knows."""
    key = wanted(job)
    if ("here", key) not in context.idle:
        here, others = may_get(job, context)
        context.idle["here", key], context.idle["others", key] = len(here), len(others)
    return context.idle["here", key], context.idle["others", key]
