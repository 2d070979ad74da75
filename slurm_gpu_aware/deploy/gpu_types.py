"""Pending jobs that ask for a GPU type, while nodes lose their types or get them back.

While a rollout takes the types, such a job is changed to ask for the feature of the model, if srun
inside it will not ask for the type. The others can start on plain nodes only, so the nodes that
they need stay plain until then.

When nodes have their types again, a job that asks for the feature gets the type, before the
features go: Slurm would never start a job that asks for a feature which no node has. A job that the
filter parked is left to Slurm, as typed requests are. A selector that bound it between the reading
and the updates would leave it half typed, half bound, so jobs change only while no selector works.
"""

import math
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from slurm_gpu_aware.bounds import slot_of
from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.deploy.job_requests import (
    all_jobs,
    features_named,
    is_placed,
    jobs_text,
    own_comment,
    without_selector,
)
from slurm_gpu_aware.deploy.site import feature_of
from slurm_gpu_aware.filter_rules import TYPED_ENVIRONMENT
from slurm_gpu_aware.gate.admin_comment import is_ours, parse
from slurm_gpu_aware.gate.gated_job import gated_job
from slurm_gpu_aware.gate.request_forms import Fields, kept_tasks
from slurm_gpu_aware.gate.restore import begin_fields
from slurm_gpu_aware.gate.typed_requests import (
    can_start,
    gpu_types,
    typed_fields,
    untyped_fields,
    without_feature,
)
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode, record_id, split_arrays
from slurm_gpu_aware.slurm.updates import JobUpdate

REPEAT_S = 60.0  # Interval between reports of an unchanged wait.
_LARGEST = 1 << 24
_COUNT_BYTES = 4


class TypedJobs:
    """Pending jobs that ask for types of GPU models. Methods raise SourceError.

    ``say`` takes a line of progress. ``strand``: no node is kept plain for them.
    """

    def __init__(
        self, client: SlurmClient, say: Callable[[str], None], *, strand: bool = False
    ) -> None:
        self._client = client
        self._say = say
        self._strand = strand
        self._needing: dict[str, list[str]] = {}
        """Node -> jobs that need it, of the last call of `needed`."""
        self._said: list[str] = []
        self._said_at = -math.inf
        self._kept: dict[str, str] = {}
        """Job -> why it keeps its type, as it was said."""

    def convert(self, models: Collection[str]) -> list[str]:
        """Change requests for models (lower case) to their features; return the changed jobs."""
        jobs = all_jobs(self._client)
        split = split_arrays(jobs)
        updates: dict[str, JobUpdate] = {}
        kept: dict[str, str] = {}
        for job in _typed(jobs, models):
            fields, why = self._change(job)
            if fields is None:
                kept[job.id] = why
            else:
                updates[job.id] = JobUpdate(record_id(job, split), fields)
        refused = self._client.update_jobs(list(updates.values()))
        wrong = {job_id: refused[u.job_id] for job_id, u in updates.items() if u.job_id in refused}
        # A job may have started meanwhile, or the first tasks of an array: then it can start.
        now = all_jobs(self._client) if wrong else []
        pending = {job.id for job in now if job.state == "PENDING"}
        typed = {job.id for job in _typed(now, models)}
        kept |= {job_id: why for job_id, why in wrong.items() if job_id in typed}
        changed = [i for i in updates if i not in wrong or i in pending - typed]
        if changed:
            ask = "asks" if len(changed) == 1 else "ask"
            self._say(f"{jobs_text(changed)} now {ask} for a feature instead of a GPU type")
        for job_id, why in kept.items():
            if self._kept.get(job_id) != why:
                self._say(f"job {job_id} can start only on nodes with GPUs of its type: {why}")
        self._kept |= kept
        return changed

    def _change(self, job: SlurmJob) -> tuple[tuple[tuple[str, str], ...] | None, str]:
        """(fields of the update, why there is none)."""
        kinds = gpu_types(job)
        if len(kinds) > 1:
            return None, "it asks for several types"
        if job.het:
            return None, "it is a part of a heterogeneous job"
        record = parse(job.admin_comment)
        if record is not None and not record.left:  # the selector would write its type again
            return None, "it waits to be placed by node (placement.gpus was nodes)"
        (kind,) = kinds
        why = _type_problem(self._state_folder, job, kind)
        if why is not None:
            return None, why
        fields = untyped_fields(job, kind, feature_of(kind))
        return fields, "its constraint cannot be extended by a feature" if fields is None else ""

    @cached_property
    def _state_folder(self) -> Path:
        return Path(self._client.settings().get("StateSaveLocation", "/var/spool/slurmctld"))

    def needed(
        self, names: Iterable[str], models: Collection[str], plain: Sequence[SlurmNode]
    ) -> set[str]:
        """Nodes without whose GPU types a job can no longer start; none if ``strand``.

        ``plain``: nodes that keep their types for now.
        """
        self._needing = {}
        for job in () if self._strand else _typed(all_jobs(self._client), models):
            if not can_start(job, plain):
                continue
            for name in names:
                if not can_start(job, [node for node in plain if node.name != name]):
                    self._needing.setdefault(name, []).append(job.id)
        return set(self._needing)

    def say_needed(self, node: str) -> None:
        """Name the jobs that need a node, unless it was done a moment ago."""
        now = time.monotonic()
        jobs = self._needing.get(node, [])
        if jobs != self._said or now - self._said_at >= REPEAT_S:
            self._say(
                f"{node}: stays plain until these jobs have started or are cancelled, because they"
                f" need its GPU type: {', '.join(jobs)}; with --strand they are not waited for"
            )
            self._said, self._said_at = jobs, now

    def stranded(self, models: Collection[str]) -> dict[str, str]:
        """Jobs that no nodes with GPUs of their types can serve: job -> why it keeps its type."""
        nodes = self._client.nodes()
        return {
            job.id: self._kept.get(job.id, "it asks for a GPU type")
            for job in _typed(all_jobs(self._client), models)
            if not can_start(job, nodes)
        }


def _typed(jobs: Iterable[SlurmJob], models: Collection[str]) -> Iterator[SlurmJob]:
    """Pending jobs that ask for types of these models."""
    for job in jobs:
        if job.state == "PENDING" and any(kind.lower() in models for kind in gpu_types(job)):
            yield job


def _type_problem(state_folder: Path, job: SlurmJob, kind: str) -> str | None:
    """Why srun inside a pending job may ask for this GPU type; None: it does not.

    No request to Slurm shows the environment with which a pending job will start. slurmctld keeps
    it in ``hash.D/job.N/environment`` (D: last digit of N): a count of 32 bits, then texts that end
    with NUL.
    """
    number = job.array_id or job.raw_id
    folder = state_folder / f"hash.{number % 10}" / f"job.{number}"
    try:
        environment = _read(folder / "environment")[_COUNT_BYTES:].split(b"\0")
        script = _read(folder / "script")
    except FileNotFoundError:
        return "it has no script (srun or salloc)"
    except OSError as exc:
        return f"its environment cannot be read ({exc.filename or folder}: {exc.strerror})"
    name = re.escape(kind.encode())
    in_value = re.compile(rb"(?:^|[:=])" + name + rb"(?:[:=,]|$)")
    for entry in environment:
        variable, _, value = entry.partition(b"=")
        known = variable.decode("ascii", "replace")
        if known in TYPED_ENVIRONMENT and in_value.search(value):
            return f"its environment names the type ({known}), and srun inside asks for that"
    in_line = re.compile(rb"(?:gpus?[A-Za-z0-9-]{0,20}[:= ]|-G ?)" + name + rb"(?![A-Za-z0-9_.-])")
    if any(in_line.search(line) for line in script.split(b"\n") if line[:1] != b"#"):
        return f"its script asks for GPU type {kind}"
    return None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(0, "it is too large", str(path))
    return content


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
    typed: Fields  # GPU types, beside the feature.
    opened: Fields  # The constraint without the feature; licences and AdminComment without us.

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
            asked = [features[name] for name in named]
            returns[record_id(job, split)] = _return(job, gate, asked, kinds)
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


def _return(
    job: SlurmJob, gate: GateConfig, models: Collection[str], kinds: Mapping[str, str]
) -> _Return:
    """Updates of a job by the models it asks for. Raises ValueError: why there are none."""
    if len(models) > 1:
        raise ValueError(_by_hand(job, f"{job.features} names several models", "CONSTRAINT"))
    (model,) = models
    if job.het:
        raise ValueError(
            "Slurm changes no part of a heterogeneous job; its owner has to cancel it and submit it"
            f" again: 'scancel {job.raw_id}'"
        )
    gated = gated_job(job, gate)
    if is_placed(job, gated):
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
