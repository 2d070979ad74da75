"""AdminComment of a parked job: the record of its request, and the job marker; its Extra.

``etc/lua/gpu_aware_request.lua`` writes the record at submission, and anew when the owner changes
the job (`gate.gated_job`); the selector reads it to place the job and to restore it. One line of
ASCII without blanks::

    gpuaware/1;tn=gres/gpu:2;nn=2-2;feat=gpu_a100%26big

Values are percent-encoded outside `filter_rules.RECORD_SAFE`; an option that was not given has no
key. The selector appends its marker: phase, Slurm's restart count, Unix time::

    gpuaware/1;tn=gres/gpu:2;sel=released:0:1790000000

In front, for readers of ``squeue``, the selector writes where the job goes or what it waits for. It
is no part of the record: readers skip it as a key that they do not know::

    gpuaware/1;st=n3:0,1,V=1.02;tn=gres/gpu:2;sel=released:0:1790000000
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.bounds import setting_text
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.updates import JobUpdate

BOUND = frozenset({JobPhase.PREPARED, JobPhase.RELEASED})
"""Marked phases of a job that the selector has bound to nodes."""
MARKED = (JobPhase.PREPARED, JobPhase.RELEASED, JobPhase.LEFT, JobPhase.OPENED)
"""Phases that a marker names."""
_MARKER = re.compile(rf";sel=({'|'.join(MARKED)}):([0-9]{{1,9}}):([0-9]{{1,12}})\Z")
_STATE = re.compile(rf"({re.escape(rules.RECORD_VERSION)})st=([{rules.RECORD_SAFE}]*);?")
_FOREIGN = re.compile(f"[^{rules.RECORD_SAFE}]+")
_MAX_STATE = 48
_ENTRY = re.compile(rf"([a-z]{{2,4}})=((?:[{rules.RECORD_SAFE}]|%[0-9A-F]{{2}})*)\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
_NODES = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?\Z")


@dataclass(frozen=True)
class OriginalRequest:
    """A request in Slurm's own words; None: not given."""

    tres_per_node: str | None = None  # ``gres/gpu:2``: ``--gres``, ``--gpus-per-node``.
    tres_per_job: str | None = None  # ``--gpus``.
    tres_per_task: str | None = None
    """``--gpus-per-task`` (``gres/gpu=1``), and ``cpu=N`` where Slurm writes ``-c`` this way."""
    tres_per_socket: str | None = None  # ``--gpus-per-socket``.
    tres_bind: str | None = None
    cpus_per_tres: str | None = None  # ``--cpus-per-gpu``.
    mem_per_tres: str | None = None  # ``--mem-per-gpu``.
    nodes: tuple[int, int | None] | None = None  # (least, most) nodes; most None: no upper bound.
    licenses: str | None = None  # Those of the user, without the gate's.
    features: str | None = None  # ``--constraint``, with the model's feature.
    req_nodes: str | None = None
    exc_nodes: str | None = None
    num_tasks: int | None = None
    cpus_per_task: int | None = None
    ntasks_per_node: int | None = None
    ntasks_per_tres: int | None = None  # ``--ntasks-per-gpu``.
    sockets_per_node: int | None = None
    min_cpus: int | None = None
    min_cpus_node: int | None = None  # ``--mincpus``.
    memory: bool = False
    """``--mem`` or ``--mem-per-cpu`` was given, so ``DefMemPerGPU`` does not apply."""
    tres_freq: str | None = None
    model: str | None = None  # GPU model that the user typed as GRES type (``a100``).
    exclusive: bool = False  # ``--exclusive``: whole nodes.
    interactive: bool = False  # No batch script: salloc or srun.
    begin_s: int | None = None
    """Begin time that the filter gave, Unix seconds; see `gate.licence_gate`."""
    environment: str | None = None
    """Hints of the environment variable (`filter_rules.ENVIRONMENT`) of a batch job."""
    admin_comment: str | None = None  # AdminComment that a script of the site set before.
    left: str | None = None  # Why the job is left to Slurm, as the filter found; None: it is not.
    resizable: str | None = None
    """What becomes of its tasks if it gets another number of GPUs: ``gpus``: as many more or fewer,
    ``nodes``: they stay. None: it must not."""
    partial: bool = False
    """Its request is too long for a record, which holds only why it is left to Slurm."""


_KEYS = dict(rules.RECORD_KEYS)
_KINDS = {f.name: str(f.type) for f in fields(OriginalRequest)}


def is_ours(text: str | None) -> bool:
    """Whether an AdminComment holds a record of any version."""
    return text is not None and text.startswith(rules.RECORD)


@lru_cache(maxsize=1 << 14)  # several steps of each round ask for the same job
def parse(text: str | None) -> OriginalRequest | None:
    """Read an AdminComment; None if it is not a record or does not follow the grammar.

    Unknown keys are skipped, so that a newer filter does no harm.
    """
    if text is None or not text.startswith(rules.RECORD_VERSION):
        return None
    values: dict[str, object] = {}
    for entry in filter(None, text[len(rules.RECORD_VERSION) :].split(";")):
        match = _ENTRY.match(entry)
        if match is None:
            return None
        name = _KEYS.get(match[1])
        if name is None:
            continue
        value = _read(_KINDS[name], unquote_to_bytes(match[2]).decode("utf-8", "surrogateescape"))
        if value is None or name in values:
            return None
        values[name] = value
    return OriginalRequest(**values)  # type: ignore[arg-type]  # checked key by key in _read


def _read(kind: str, text: str) -> object | None:
    if kind == "bool":
        return True if text == "1" else None
    if kind.startswith("int"):
        return int(text) if _NUMBER.match(text) else None
    if kind.startswith("tuple"):
        match = _NODES.match(text)
        return match and (int(match[1]), None if match[2] is None else int(match[2]))
    return text


@dataclass(frozen=True)
class JobMarker:
    """The last step of the selector with a job."""

    phase: JobPhase  # One of `MARKED`.
    restarts: int
    at: float  # Unix seconds.


def marker_of(admin_comment: str | None) -> JobMarker | None:
    """The marker of an AdminComment; None if there is none."""
    match = _MARKER.search(admin_comment or "")
    return None if match is None else JobMarker(JobPhase(match[1]), int(match[2]), float(match[3]))


def state_of(admin_comment: str | None) -> str:
    """The state that an AdminComment shows; empty: none."""
    match = _STATE.match(admin_comment or "")
    return "" if match is None else match[2]


def unmarked(admin_comment: str) -> str:
    """The AdminComment as the filter wrote it."""
    return _STATE.sub(r"\1", _MARKER.sub("", admin_comment), count=1)


def marked(
    admin_comment: str, phase: JobPhase, restarts: int, at: float, state: str | None = None
) -> str:
    """The AdminComment with a new marker, and with another state unless it is None.

    What is too long for Slurm is left out: first the state, then the marker.
    """
    text = f"{unmarked(admin_comment)};sel={phase}:{restarts}:{int(at)}"
    if len(text) > rules.MAX_TEXT:
        return unmarked(admin_comment)
    return with_state(text, state_of(admin_comment) if state is None else state)


def with_features(record: str, features: str) -> str:
    """A record whose request has these features (``--constraint``; empty: none)."""
    request = parse(record)
    if request is None or (request.features or "") == features:
        return record
    named = f"feat={_FOREIGN.sub(_escaped, features)}" if features else ""
    entries = [*(e for e in record.split(";") if not e.startswith("feat=")), named]
    return ";".join(filter(None, entries))


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))


def with_state(admin_comment: str, state: str) -> str:
    """The AdminComment with another state (empty: none); without one if it is too long."""
    plain = _STATE.sub(r"\1", admin_comment, count=1)
    if not state or not plain.startswith(rules.RECORD_VERSION):
        return plain
    shown = _FOREIGN.sub("-", state).strip("-")
    if len(shown) > _MAX_STATE:  # whole words
        shown = shown[:_MAX_STATE].rpartition("-")[0] or shown[:_MAX_STATE]
    rest = plain.removeprefix(rules.RECORD_VERSION)
    text = f"{rules.RECORD_VERSION}st={shown}{';' if rest else ''}{rest}"
    return text if len(text) <= rules.MAX_TEXT else plain


def noted_record(extra: str | None) -> str | None:
    """The record of an owner's change at the end of an Extra; None: there is none."""
    at = (extra or "").find(rules.RECORD)
    return None if extra is None or at < 0 else extra[at:]


def without_note(extra: str | None) -> str:
    """An Extra without the record of an owner's change at its end."""
    return (extra or "").removesuffix(noted_record(extra) or "")


def extra_with_clock(
    extra: str | None,
    clock_mhz: int | None,
    slots: Sequence[int] | None = None,
    limit_w: int | None = None,
) -> str | None:
    """The job's Extra with ``freq=MHZ:W@SLOT+SLOT`` among its comma-separated items, or without it.

    ``limit_w``: power limit of each GPU, W; without one ``:W`` is left out.

    The slots are named because SLURM_JOB_GPUS in the prolog of Slurm 24.11 holds only the GPUs of
    the job's last GRES type; without slots (plain nodes) it uses that variable. MHZ 0 with slots is
    the default clock: the prolog must know a job's GPUs for the account of their energy, too. The
    record of an owner's change is dropped. None if an update cannot carry the user's own items.
    """
    extra = without_note(extra)
    items = [i for i in extra.split(",") if i and not i.strip().startswith(rules.EXTRA_CLOCK)]
    if clock_mhz is not None or limit_w is not None or slots:
        where = "@" + "+".join(map(str, slots)) if slots else ""
        items.append(f"{rules.EXTRA_CLOCK}{setting_text(clock_mhz or 0, limit_w or 0)}{where}")
    text = ",".join(items)
    try:
        JobUpdate("1", (("Extra", text),))
    except ValueError:
        return None
    return text
