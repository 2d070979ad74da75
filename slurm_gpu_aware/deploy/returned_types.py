"""Pending jobs that ask for a GPU model by its feature get its GPU type, when nodes have it again.

The reverse of `typed_jobs`, before the features go: Slurm would never start a job that asks for a
feature which no node has. A job that the filter parked is left to Slurm, as typed requests are. A
selector that bound it between the reading and the updates would leave it half typed, half bound, so
jobs change only while no selector works.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.deploy.job_requests import (
    all_jobs,
    features_named,
    own_comment,
    without_selector,
)
from slurm_gpu_aware.deploy.site import feature_of
from slurm_gpu_aware.gate.admin_comment import is_ours
from slurm_gpu_aware.gate.gated_job import gated_job
from slurm_gpu_aware.gate.index_types import bound_slots
from slurm_gpu_aware.gate.request_forms import Fields, kept_tasks
from slurm_gpu_aware.gate.restore import begin_fields
from slurm_gpu_aware.gate.typed_requests import gpu_types, typed_fields, without_feature
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.names import slot_of
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode, record_id, split_arrays
from slurm_gpu_aware.slurm.updates import JobUpdate

_BOUND = (JobPhase.PREPARED, JobPhase.RELEASED, JobPhase.REQUEUED)


@dataclass
class ReturnedTypes:
    """Outcome for the pending jobs that asked for a feature."""

    changed: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    """Job that still asks for the feature -> why, and what to type."""


@dataclass(frozen=True)
class _Return:
    """Updates of a job. A refused one may be applied in part, so the feature goes last."""

    job: SlurmJob
    typed: Fields
    """GPU types, beside the feature."""
    opened: Fields
    """The constraint without the feature; licences and AdminComment without us."""

    def command(self) -> str:
        """What does the same by hand."""
        words = [f"{name}={value}" for name, value in (*self.typed, *self.opened[:1])]
        return shlex.join(["scontrol", "update", f"JobId={self.job.id}", *words])


def return_types(client: SlurmClient, config: Config, models: Collection[str]) -> ReturnedTypes:
    """Change pending jobs that ask for features of models (lower case). Raises SourceError.

    The nodes must have their own GPU types and, still, the features.
    """
    with without_selector(client, config) as works:
        if works is None:
            return _return_types(client, config.gate, models)
    features = frozenset(map(feature_of, models))
    asking = [job for job in all_jobs(client) if job.state == "PENDING"]
    why = f"the request changes only while no selector works: {works}"
    return ReturnedTypes(wrong={j.id: why for j in asking if features_named(j) & features})


def _return_types(client: SlurmClient, gate: GateConfig, models: Collection[str]) -> ReturnedTypes:
    outcome = ReturnedTypes()
    features = {feature_of(model): model for model in models}
    kinds = _types(client.nodes())
    jobs = all_jobs(client)
    split = split_arrays(jobs)
    returns: dict[str, _Return] = {}
    for job in jobs:
        named = features_named(job) & features.keys()
        if job.state != "PENDING" or not named:
            continue
        try:
            model = features[_only(job, named)]
            returns[record_id(job, split)] = _return(job, gate, model, kinds)
        except ValueError as exc:
            outcome.wrong[job.id] = str(exc)
    typed = [JobUpdate(i, one.typed) for i, one in returns.items() if one.typed]
    refused = client.update_jobs(typed)
    opened = [JobUpdate(i, one.opened) for i, one in returns.items() if i not in refused]
    refused |= client.update_jobs(opened)
    pending = {job.id for job in all_jobs(client) if job.state == "PENDING"} if refused else set()
    for record, one in returns.items():
        if record not in refused:
            outcome.changed.append(one.job.id)
        elif one.job.id in pending:  # a job that has started meanwhile needs no type
            outcome.wrong[one.job.id] = f"Slurm: {refused[record]}: '{one.command()}'"
    return outcome


def _types(nodes: Collection[SlurmNode]) -> dict[str, str]:
    """Model in lower case -> the GPU type of nodes, as Slurm spells it."""
    kinds = (kind for node in nodes for kind, _ in node.gpus)
    return {kind.lower(): kind for kind in kinds if kind and slot_of(kind) is None}


def _only(job: SlurmJob, named: Collection[str]) -> str:
    if len(named) > 1:
        raise ValueError(_by_hand(job, f"{job.features} names several models", "CONSTRAINT"))
    (feature,) = named
    return feature


def _return(job: SlurmJob, gate: GateConfig, model: str, kinds: Mapping[str, str]) -> _Return:
    """Updates of a job. Raises ValueError with the reason why there are none."""
    if job.het:
        raise ValueError(
            "Slurm changes no part of a heterogeneous job; its owner has to cancel it and submit it"
            f" again: 'scancel {job.raw_id}'"
        )
    gated = gated_job(job, gate)
    if bound_slots(job) is not None or (gated is not None and gated.phase in _BOUND):
        raise ValueError("it is placed; as soon as the selector has taken it back, it can change")
    constraint = without_feature(job.features or "", feature_of(model))
    if constraint is None:
        raise ValueError(_by_hand(job, f"its constraint is {job.features}", "CONSTRAINT"))
    kind = kinds.get(model)
    if kind is None:
        raise ValueError(_by_hand(job, f"no node has GPUs of type {model}", constraint))
    typed = typed_fields(job, kind)
    if not typed and not gpu_types(job):
        raise ValueError(_by_hand(job, "it asks for no GPUs", constraint))
    opened: Fields = (("Features", constraint),)
    if is_ours(job.admin_comment):
        opened += (("AdminComment", own_comment(job)),)
    if gated is None:
        return _Return(job, typed, opened)
    if gated.parked:
        opened += (("Licenses", gated.original.licenses or ""),)
        if job.reservation is None:
            opened += (("ReservationName", ""),)  # the holding pool's
        opened += begin_fields(gated, time.time())
    tasks = kept_tasks(gated.original)
    return _Return(job, (*typed, *tasks) if typed else (), (*opened, *tasks))


def _by_hand(job: SlurmJob, why: str, constraint: str) -> str:
    command = shlex.join(["scontrol", "update", f"JobId={job.id}", f"Features={constraint}"])
    return f"{why}, so it gets no GPU type; its owner or you: '{command}', or 'scancel {job.id}'"
