"""Prolog and epilog: lock the clocks of a job's GPUs, and reset them.

The clock comes in the job's Extra field (``freq=MHZ``, or ``freq=MHZ@0+3`` with the GPUs), the GPUs
otherwise in ``SLURM_JOB_GPUS``; no call to slurmctld is made.

Order of a prolog, so that nothing is left locked whenever it is cut off::

    note the lock (one small file per GPU) -> lock the clock -> record what happened

The epilog resets what is noted for its job; what it could not reset, the next hook does. Neither
ever fails a job: whatever goes wrong is one JSON line in the spool (and a line in syslog), and the
job runs at the default clock. Calls to the driver run in a child process with a time limit, because
a sick GPU can hang them for ever.
"""

from __future__ import annotations

from slurm_gpu_aware.clocks.driver import Result, indices_here, lock_clocks, reset_clocks
from slurm_gpu_aware.clocks.gres import NodeGres, agreed_gpus
from slurm_gpu_aware.clocks.job import Asked, Job, Record, parse_extra, parse_gpus
from slurm_gpu_aware.clocks.notes import NO_JOB, Note, Notes
from slurm_gpu_aware.clocks.steps import has_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["epilog", "prolog", "reset_all"]

DRIVER_LIMIT_S = 10.0
"""Time limit of all driver calls of a step."""

MAKE_UP_LIMIT_S = 3.0
"""Time limit of the driver calls for GPUs of ended jobs."""

AGAIN_S = 60.0
"""A GPU that could not be reset then is tried again by hooks of other jobs after this time."""

ALONE_S = 2.0
"""How long a hook waits for others to be done before it looks after what ended jobs left."""

TOGETHER_S = 5.0
"""How long a hook waits for one that does so, and then goes on with its own GPUs all the same."""


def prolog(
    env: Mapping[str, str], notes: Notes, at: float, limit_s: float = DRIVER_LIMIT_S
) -> list[Record]:
    """Lock the clocks that the job asks for; return what to record.

    What is left of jobs that have ended is reset first (see :func:`epilog`), also for a job that
    asks for no clock. A note of another job on one of its GPUs means that an epilog never ran: that
    GPU is reset, too, if it is known to be this job's. It is where Slurm names it, which on an
    indexed node it does for the GPUs of one type only, or the selector in the Extra field; there it
    is not touched if that job still runs here.
    """
    job = Job(env)
    records = _make_up(job, notes, at)
    with notes.together(TOGETHER_S):
        return records + _set(job, notes, at, limit_s)


def _set(job: Job, notes: Notes, at: float, limit_s: float) -> list[Record]:
    noted = notes.all()
    try:
        asked, indices = _wanted(job)
    except ValueError as exc:
        return [job.record("clock_failed", at, gpus=[], call="parse", error=str(exc))]
    foreign = _foreign(job, indices, noted)
    indices = [index for index in indices if index not in foreign]
    records = [
        job.record("clock_failed", at, gpus=[i], call="lock", error=f"job {job_id} runs on it")
        for i, job_id in foreign.items()
    ]
    stale = {
        index: noted[index].method
        for index in indices
        if index in noted
        and (asked is None or noted[index].job_id != job.id)
        and noted[index].tried_at != at  # not twice by one hook
    }
    if stale:
        records += _undo(job, stale, notes, at, limit_s)
    if asked is None or not indices:
        return records
    try:
        for index in indices:
            notes.write(index, Note(job.id))
    except OSError as exc:
        # Nothing would reset a lock that is not noted. Notes that were written do no harm.
        why = f"{notes.folder}: cannot be written: {exc.strerror}"
        return [*records, job.record("clock_failed", at, gpus=indices, call="note", error=why)]
    results = lock_clocks(indices, asked.mhz, limit_s)
    for mhz, method in sorted({(r.mhz, r.method or "") for r in results if r.mhz is not None}):
        same = sorted(r.index for r in results if (r.mhz, r.method) == (mhz, method))
        records.append(
            job.record("clock_set", at, gpus=same, asked_mhz=asked.mhz, mhz=mhz, method=method)
        )
    for result in results:
        if result.error is None:
            # If that fails it stays noted, only not how it was locked.
            _write(notes, result.index, Note(job.id, result.method))
        elif result.answered:
            notes.forget(result.index)  # surely not locked; else the epilog has to reset it
    return records + _failures(job, results, at, asked_mhz=asked.mhz)


def _make_up(job: Job, notes: Notes, at: float) -> list[Record]:
    """Reset what epilogs tried in vain, whichever GPUs and jobs it was.

    No other hook may be at work: it could be locking a GPU that is about to be reset. If some are
    all the time, the next hook tries again; and so it does, after a while, where a GPU is sick.
    """
    if not _left_behind(notes, at):
        return []
    with notes.alone(ALONE_S) as alone:
        left = _left_behind(notes, at) if alone else {}
        records: list[Record] = []
        for job_id in sorted({note.job_id for note in left.values()}):
            methods = {i: note.method for i, note in left.items() if note.job_id == job_id}
            records += _undo(job, methods, notes, at, MAKE_UP_LIMIT_S, job_id=job_id, restarts=0)
        for index, note in notes.all().items():
            if index in left:
                _write(notes, index, Note(note.job_id, note.method, ended=True, tried_at=at))
        return records


def _left_behind(notes: Notes, at: float) -> dict[int, Note]:
    """Notes of jobs that have ended, unless they were tried a short while ago."""
    return {
        index: note
        for index, note in notes.all().items()
        if note.ended and not (note.tried_at and 0.0 <= at - note.tried_at < AGAIN_S)
    }


def _write(notes: Notes, index: int, note: Note) -> None:
    """Write a note again, if that is possible."""
    try:
        notes.write(index, note)
    except OSError:
        pass


def _wanted(job: Job) -> tuple[Asked | None, list[int]]:
    """The clock and the GPUs of a job. Raises ValueError for nonsense."""
    asked, seen = parse_extra(job.extra), parse_gpus(job.gpus)
    if asked is None:
        return None, seen
    gres = NodeGres(job.slurm_conf, job.node)
    if seen and gres.shared():
        raise ValueError("no clock is set on a node with shards or MPS: jobs share its GPUs")
    return asked, agreed_gpus(seen, asked.gpus, job.extra, gres)


def _foreign(job: Job, indices: Sequence[int], noted: Mapping[int, Note]) -> dict[int, str]:
    """GPU -> job: those that another job on this node has locked and Slurm does not name here."""
    seen = parse_gpus(job.gpus)
    holders = {i: noted[i].job_id for i in indices if i in noted and i not in seen}
    alive = {job_id for job_id in set(holders.values()) - {job.id} if has_step(job_id)}
    return {i: job_id for i, job_id in holders.items() if job_id in alive}


def epilog(
    env: Mapping[str, str], notes: Notes, at: float, limit_s: float = DRIVER_LIMIT_S
) -> list[Record]:
    """Reset the clocks that were locked for this job; return what to record.

    Its notes are marked first, so that a clock which cannot be reset now, by this hook or because
    it is cut off, is reset by the next hook of any job on this node. Those that were marked before
    are tried again, too. No other clock is touched.
    """
    job = Job(env)
    records = _make_up(job, notes, at)
    with notes.together(TOGETHER_S):
        own = {
            index: note
            for index, note in notes.all().items()
            if note.job_id == job.id and note.tried_at != at  # not twice by one hook
        }
        for index, note in own.items():
            _write(notes, index, Note(note.job_id, note.method, ended=True))
        methods = {index: note.method for index, note in own.items()}
        return records + (_undo(job, methods, notes, at, limit_s) if own else [])


def reset_all(
    env: Mapping[str, str],
    notes: Notes,
    at: float,
    every: bool = False,
    limit_s: float = DRIVER_LIMIT_S,
) -> list[Record]:
    """Reset what a node that died had left locked; for the start of the node, before any job.

    ``every``: all GPUs of the node, whether noted or not (the notes themselves may be lost); this
    undoes clocks that the site set, too.
    """
    job = Job({**env, "SLURM_JOB_ID": NO_JOB})
    methods = {index: note.method for index, note in notes.all().items()}
    if every:
        methods = dict.fromkeys(indices_here(limit_s)) | methods
    return _undo(job, methods, notes, at, limit_s) if methods else []


def _undo(
    job: Job,
    methods: Mapping[int, str | None],
    notes: Notes,
    at: float,
    limit_s: float,
    **of_job: object,
) -> list[Record]:
    """``of_job``: for which other job than the hook's own, as the records name it."""
    results = reset_clocks(methods, limit_s)
    good = sorted(r.index for r in results if r.error is None)
    for index in good:
        notes.forget(index)
    records = [job.record("clock_reset", at, gpus=good, **of_job)] if good else []
    # A failed note stays, so that the next hook or the next boot tries again.
    return records + _failures(job, results, at, during="reset", **of_job)


def _failures(job: Job, results: Iterable[Result], at: float, **detail: object) -> list[Record]:
    by_cause: dict[tuple[str, str], list[int]] = {}
    for result in results:
        if result.error is not None:
            by_cause.setdefault((result.call or "", result.error), []).append(result.index)
    return [
        job.record("clock_failed", at, gpus=sorted(gpus), call=call, error=error, **detail)
        for (call, error), gpus in by_cause.items()
    ]
