"""Requests by GPU type (``gpu:a100:2``): nodes that serve them; the type as a feature, and back.

A node with one GRES type per GPU has no type ``a100``; its feature ``gpu_a100`` names the model.
"""

import re
from collections.abc import Iterable, Sequence

from slurm_gpu_aware.bounds import slot_of
from slurm_gpu_aware.slurm.gres import asked_by
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode
from slurm_gpu_aware.slurm.updates import TRES_FIELDS
from slurm_gpu_aware.slurm.words import hostlist

_NOT_UNDERSTOOD = re.compile(r"[^A-Za-z0-9_.:=+&|,() -]")


def gpu_types(job: SlurmJob) -> frozenset[str]:
    """GPU types that a job asks for, without types of GPU indices."""
    return frozenset(kind for name in TRES_FIELDS.values() for kind, _ in _typed(job, name))


def _typed(job: SlurmJob, name: str) -> list[tuple[str, int]]:
    """(type, count) of the typed GPUs in a field of a job."""
    entries = map(asked_by, (getattr(job, name) or "").split(","))
    gpus = [one for one in entries if one is not None and one.name == "gpu"]
    return [(one.kind, one.count) for one in gpus if one.kind and slot_of(one.kind) is None]


def untyped_fields(job: SlurmJob, kind: str, feature: str) -> tuple[tuple[str, str], ...] | None:
    """Update that replaces a GPU type by a feature; None: its constraint does not allow it."""
    constraint = _with_feature(job.features or "", feature)
    if constraint is None:
        return None

    return ("Features", constraint), *_with_type(job, kind, None)


def _with_type(job: SlurmJob, old: str | None, new: str | None) -> tuple[tuple[str, str], ...]:
    """Fields that ask for GPUs of a type (None: of any), with another type for it."""

    def changed(item: str) -> str:
        asked = asked_by(item)
        own = asked is not None and asked.name == "gpu" and asked.kind == old
        return asked.with_kind(new) if asked is not None and own else item

    texts = [(field, getattr(job, name) or "") for field, name in TRES_FIELDS.items()]
    new_texts = [(field, text, ",".join(map(changed, text.split(",")))) for field, text in texts]
    return tuple((field, now) for field, text, now in new_texts if now != text)


def _with_feature(constraint: str, feature: str) -> str | None:
    """As ``with_feature`` of the filter (``etc/lua/gpu_aware_request.lua``)."""
    if _NOT_UNDERSTOOD.search(constraint):
        return None
    if feature in re.split("[&,|()]", constraint):
        return constraint
    if not re.search("[|()]", constraint):
        return f"{constraint}&{feature}".lstrip("&")
    return None if re.search("[&,()]", constraint) else f"({constraint})&{feature}"


def typed_fields(job: SlurmJob, kind: str) -> tuple[tuple[str, str], ...]:
    """Update that gives a type to the GPUs of a request that have none; the counts stay."""
    return _with_type(job, None, kind)


def without_feature(constraint: str, feature: str) -> str | None:
    """The reverse of `untyped_fields` for a constraint; None: the feature cannot be taken out."""
    if _NOT_UNDERSTOOD.search(constraint):
        return None
    own = constraint.removesuffix(f"&{feature}")
    if own != constraint and re.fullmatch(r"\([^()]*\)", own):
        return own[1:-1]
    if re.search("[|()]", constraint):
        return None
    return "&".join(word for word in re.split("[&,]", constraint) if word != feature)


def nodes_with(kind: str, nodes: Iterable[SlurmNode]) -> list[SlurmNode]:
    """Nodes with GPUs of this type."""
    return [node for node in nodes if any(kind == have for have, _ in node.gpus)]


def can_start(job: SlurmJob, nodes: Sequence[SlurmNode]) -> bool:
    """Whether these nodes, when they are free, have the GPU types that a job asks for.

    It must be certain only if the answer is no: features and other resources are not counted.
    """
    kinds = gpu_types(job)
    for kind in kinds:
        here = [node for node in nodes_with(kind, nodes) if node.name not in job.exc_nodes]
        per_node = max((n for k, n in _typed(job, "tres_per_node") if k == kind), default=1)
        total = max((n for k, n in _typed(job, "tres_per_job") if k == kind), default=1)
        per_task = max((n for k, n in _typed(job, "tres_per_task") if k == kind), default=0)
        counts = [sum(n for have, n in node.gpus if have == kind) for node in here]
        enough = [count for count in counts if count >= per_node]
        if sum(enough) < max(total, per_task * job.tasks):
            return False
        if len(kinds) == 1 and (
            len(enough) < job.min_nodes or not set(job.req_nodes) <= {node.name for node in here}
        ):
            return False
    return True


def type_sentence(job: SlurmJob, nodes: Sequence[SlurmNode]) -> str | None:
    """What its GPU type means for a job that Slurm places; None: it asks for no type."""
    kinds = sorted(gpu_types(job))
    if not kinds:
        return None
    if job.state != "PENDING":
        return f"it asked for GPU type {' and '.join(kinds)} while its nodes still had that type"
    asks = f"it asks for GPU type {' and '.join(kinds)}"
    if can_start(job, nodes):
        having = {node.name for kind in kinds for node in nodes_with(kind, nodes)}
        return f"{asks}, the type of {hostlist(having)}"
    return (
        f"{asks}, and the nodes that still have it do not suffice, so the job can no longer start:"
        " cancel it and submit it again"
    )
