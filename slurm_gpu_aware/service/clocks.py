"""``gpu-aware-clock``: locks and resets the SM clocks of exactly a job's GPUs, on its node.

Slurm's prolog and epilog run it as root, for sites whose slurmd cannot set clocks (no NVML). The
clock comes in the job's Extra field (``freq=MHZ``, or ``freq=MHZ@0+3`` with the GPUs), the GPUs
otherwise in ``SLURM_JOB_GPUS``; no call to slurmctld is made.

Order of a prolog, so that nothing is left locked whenever it is cut off::

    note the lock (one small file per GPU) -> lock the clock -> record what happened

The epilog resets what is noted for its job; what it could not reset, the next hook does. Neither
ever fails a job: whatever goes wrong is one JSON line in the spool (and a line in syslog), and the
job runs at the default clock. Calls to the driver run in a child process with a time limit, because
a sick GPU can hang them for ever.

Standard library only, and NVML only if there is something to do: hooks pay for every import.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_gpu_aware.service.clock_driver import (
    Result,
    indices_here,
    lock_clocks,
    reset_clocks,
)
from slurm_gpu_aware.service.clock_rights import agreed_gpus, read_gres, runs_here
from slurm_gpu_aware.service.clock_settings import (
    Asked,
    Locks,
    Note,
    parse_extra,
    parse_gpus,
    read_config,
)

__all__ = ["epilog", "main", "prolog", "reset_all"]

SCHEMA = "gpu-aware-clock/1"
DRIVER_LIMIT_S = 10.0
"""Time that the driver calls of one step may take together."""

MAKE_UP_LIMIT_S = 3.0
"""The same for what other jobs left."""

AGAIN_S = 60.0
"""A GPU that could not be reset then is tried again by hooks of other jobs after this time."""

ALONE_S = 2.0
"""How long a hook waits for others to be done before it looks after what ended jobs left."""

TOGETHER_S = 5.0
"""How long a hook waits for one that does so, and then goes on with its own GPUs all the same."""

ROTATE_BYTES = 8 << 20
"""A spool file that is larger becomes NODE.jsonl.1, in place of the one before it."""

_JOB = re.compile(r"[0-9]{1,12}\Z")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}\Z")


@dataclass(frozen=True)
class _Hook:
    """What Slurm told the hook."""

    node: str
    job_id: str
    restarts: int
    extra: str
    gpus: str
    slurm_conf: str

    @classmethod
    def of(cls, env: Mapping[str, str]) -> _Hook:
        node = env.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        job_id = env.get("SLURM_JOB_ID", "")
        restarts = env.get("SLURM_JOB_RESTART_COUNT") or env.get("SLURM_RESTART_COUNT") or "0"
        if not _NODE.match(node):
            raise ValueError(f"{node[:40]!r} is not a node name")
        if not _JOB.match(job_id):
            raise ValueError(f"SLURM_JOB_ID is {job_id[:40]!r}")
        return cls(
            node,
            job_id,
            int(restarts) if restarts.isdigit() else 0,
            env.get("SLURM_JOB_EXTRA", ""),
            env.get("SLURM_JOB_GPUS", ""),
            env.get("SLURM_CONF", ""),
        )

    def record(self, event: str, at: float, **detail: Any) -> dict[str, Any]:
        base = {"schema": SCHEMA, "event": event, "at": at, "node": self.node}
        return base | {"job_id": self.job_id, "restarts": self.restarts} | detail


Record = dict[str, Any]


def prolog(
    env: Mapping[str, str], locks: Locks, at: float, limit_s: float = DRIVER_LIMIT_S
) -> list[Record]:
    """Lock the clocks that the job asks for; return what to record.

    What is left of jobs that have ended is reset first (see :func:`epilog`), also for a job that
    asks for no clock. A note of another job on one of its GPUs means that an epilog never ran: that
    GPU is reset, too, if it is known to be this job's. It is where Slurm names it, which on an
    indexed node it does for the GPUs of one type only, or the selector in the Extra field; there it
    is not touched if that job still runs here.
    """
    hook = _Hook.of(env)
    records = _make_up(hook, locks, at)
    with locks.together(TOGETHER_S):
        return records + _set(hook, locks, at, limit_s)


def _set(hook: _Hook, locks: Locks, at: float, limit_s: float) -> list[Record]:
    notes = locks.notes()
    try:
        asked, indices = _wanted(hook)
    except ValueError as exc:
        return [hook.record("clock_failed", at, gpus=[], call="parse", error=str(exc))]
    foreign = _foreign(hook, indices, notes)
    indices = [index for index in indices if index not in foreign]
    records: list[Record] = [
        hook.record("clock_failed", at, gpus=[i], call="lock", error=f"job {job_id} runs on it")
        for i, job_id in foreign.items()
    ]
    stale = {
        index: notes[index].method
        for index in indices
        if index in notes
        and (asked is None or notes[index].job_id != hook.job_id)
        and notes[index].tried_at != at  # not twice by one hook
    }
    if stale:
        records += _undo(hook, stale, locks, at, limit_s)
    if asked is None or not indices:
        return records
    try:
        for index in indices:
            locks.note(index, Note(hook.job_id))
    except OSError as exc:
        # Nothing would reset a lock that is not noted. Notes that were written do no harm.
        why = f"{locks.folder}: cannot be written: {exc.strerror}"
        return [*records, hook.record("clock_failed", at, gpus=indices, call="note", error=why)]
    results = lock_clocks(indices, asked.mhz, limit_s)
    for mhz, method in sorted({(r.mhz, r.method or "") for r in results if r.mhz is not None}):
        same = sorted(r.index for r in results if (r.mhz, r.method) == (mhz, method))
        records.append(
            hook.record("clock_set", at, gpus=same, asked_mhz=asked.mhz, mhz=mhz, method=method)
        )
    for result in results:
        if result.error is None:
            with contextlib.suppress(OSError):  # it stays noted, only not how it was locked
                locks.note(result.index, Note(hook.job_id, result.method))
        elif result.answered:
            locks.forget(result.index)  # surely not locked; else the epilog has to reset it
    return records + _failures(hook, results, at, asked_mhz=asked.mhz)


def _make_up(hook: _Hook, locks: Locks, at: float) -> list[Record]:
    """Reset what epilogs tried in vain, whichever GPUs and jobs it was.

    No other hook may be at work: it could be locking a GPU that is about to be reset. If some are
    all the time, the next hook tries again; and so it does, after a while, where a GPU is sick.
    """
    if not _left_behind(locks, at):
        return []
    with locks.alone(ALONE_S) as alone:
        left = _left_behind(locks, at) if alone else {}
        records: list[Record] = []
        for job_id in sorted({note.job_id or hook.job_id for note in left.values()}):
            methods = {i: n.method for i, n in left.items() if (n.job_id or hook.job_id) == job_id}
            of_it = replace(hook, job_id=job_id, restarts=0)
            records += _undo(of_it, methods, locks, at, MAKE_UP_LIMIT_S)
        for index, note in locks.notes().items():
            if index in left:
                with contextlib.suppress(OSError):
                    locks.note(index, replace(note, tried_at=at))
        return records


def _left_behind(locks: Locks, at: float) -> dict[int, Note]:
    """Notes of jobs that have ended, unless they were tried a short while ago."""
    return {
        index: note
        for index, note in locks.notes().items()
        if note.ended and not (note.tried_at and 0.0 <= at - note.tried_at < AGAIN_S)
    }


def _wanted(hook: _Hook) -> tuple[Asked | None, list[int]]:
    """The clock and the GPUs of a job. Raises ValueError for nonsense."""
    asked, seen = parse_extra(hook.extra), parse_gpus(hook.gpus)
    if asked is None:
        return None, seen
    gres = read_gres(hook.slurm_conf, hook.node)
    if gres.shared and seen:
        raise ValueError("no clock is set on a node with shards or MPS: jobs share its GPUs")
    return asked, agreed_gpus(seen, asked.gpus, hook.extra, gres)


def _foreign(hook: _Hook, indices: Sequence[int], notes: Mapping[int, Note]) -> dict[int, str]:
    """GPU -> job: those that another job on this node has locked and Slurm does not name here."""
    seen = parse_gpus(hook.gpus)
    holders = {i: notes[i].job_id for i in indices if i in notes and i not in seen}
    others = {job_id for job_id in holders.values() if job_id not in (None, hook.job_id)}
    alive = {job_id for job_id in others if job_id is not None and runs_here(job_id)}
    return {i: job_id for i, job_id in holders.items() if job_id is not None and job_id in alive}


def epilog(
    env: Mapping[str, str], locks: Locks, at: float, limit_s: float = DRIVER_LIMIT_S
) -> list[Record]:
    """Reset the clocks that were locked for this job; return what to record.

    Its notes are marked first, so that a clock which cannot be reset now, by this hook or because
    it is cut off, is reset by the next hook of any job on this node. Those that were marked before
    are tried again, too. No other clock is touched.
    """
    hook = _Hook.of(env)
    records = _make_up(hook, locks, at)
    with locks.together(TOGETHER_S):
        mine = {
            index: note
            for index, note in locks.notes().items()
            if note.job_id == hook.job_id and note.tried_at != at  # not twice by one hook
        }
        for index, note in mine.items():
            with contextlib.suppress(OSError):
                locks.note(index, Note(note.job_id, note.method, ended=True))
        methods = {index: note.method for index, note in mine.items()}
        return records + (_undo(hook, methods, locks, at, limit_s) if mine else [])


def reset_all(
    env: Mapping[str, str],
    locks: Locks,
    at: float,
    every: bool = False,
    limit_s: float = DRIVER_LIMIT_S,
) -> list[Record]:
    """Reset what a node that died had left locked; for the start of the node, before any job.

    ``every``: all GPUs of the node, whether noted or not (the notes themselves may be lost); this
    undoes clocks that the site set, too.
    """
    hook = _Hook.of({**env, "SLURM_JOB_ID": "0"})
    methods = {index: note.method for index, note in locks.notes().items()}
    if every:
        methods = dict.fromkeys(indices_here(limit_s)) | methods
    return _undo(hook, methods, locks, at, limit_s) if methods else []


def _undo(
    hook: _Hook, methods: Mapping[int, str | None], locks: Locks, at: float, limit_s: float
) -> list[Record]:
    results = reset_clocks(methods, limit_s)
    good = sorted(r.index for r in results if r.error is None)
    for index in good:
        locks.forget(index)
    records = [hook.record("clock_reset", at, gpus=good)] if good else []
    # A failed note stays, so that the next hook or the next boot tries again.
    return records + _failures(hook, results, at, during="reset")


def _failures(hook: _Hook, results: Iterable[Result], at: float, **detail: Any) -> list[Record]:
    by_cause: dict[tuple[str, str], list[int]] = {}
    for result in results:
        if result.error is not None:
            by_cause.setdefault((result.call or "", result.error), []).append(result.index)
    return [
        hook.record("clock_failed", at, gpus=sorted(gpus), call=call, error=error, **detail)
        for (call, error), gpus in by_cause.items()
    ]


def _spool(folder: Path, records: Sequence[Record], rotate_bytes: int = ROTATE_BYTES) -> None:
    """Append the records to NODE.jsonl; one write, so that lines of several hooks do not mix."""
    if not records:
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{records[0]['node']}.jsonl"
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    handle = _open_spool(file)
    try:
        if os.fstat(handle).st_size > rotate_bytes and _rotated(file, handle):
            os.close(handle)
            handle = _open_spool(file)
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _open_spool(file: Path) -> int:
    """Open for appending; a link, or a file that somebody else put there, is refused.

    The folder may be writable for others (a shared one), and we are root.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(file, flags, 0o644)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(handle)
        raise PermissionError(f"{file} is not a file of ours")
    return handle


def _rotated(file: Path, handle: int) -> bool:
    """Move a spool file aside; False: it stays the one to write to.

    One of several hooks does it: the lock is on the file, and who gets it later finds another file
    under the name. One that writes to the old file meanwhile loses nothing: the reader still looks
    at the end of that.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(file, follow_symlinks=False)):
            file.replace(file.with_name(f"{file.name}.1"))
    except OSError:
        return False
    return True


def _syslog(lines: Iterable[str]) -> None:
    import syslog

    syslog.openlog("gpu-aware-clock", 0, syslog.LOG_DAEMON)
    for line in lines:
        syslog.syslog(syslog.LOG_INFO, line[:900])


USAGE = """usage: gpu-aware-clock prolog | epilog | reset-all [--every]

  prolog     lock the clocks that the job of this environment asks for
  epilog     reset the clocks that were locked for it
  reset-all  at the start of a node: reset what a crash left locked; --every: all GPUs
Exit code 0 whatever happens to a clock (see the spool), 2 for wrong usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point. Never raises, and fails only for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["-h"], ["--help"]):
        sys.stdout.write(USAGE + "\n")
        return 0
    if words not in (["prolog"], ["epilog"], ["reset-all"], ["reset-all", "--every"]):
        sys.stderr.write(USAGE + "\n")
        return 2
    said: list[str] = []
    try:
        config, complaint = read_config()
        said += [complaint] if complaint else []
        locks, at = Locks(config.locks), time.time()
        if words[0] == "prolog":
            records = prolog(os.environ, locks, at)
        elif words[0] == "epilog":
            records = epilog(os.environ, locks, at)
        else:
            records = reset_all(os.environ, locks, at, every="--every" in words)
        said += [json.dumps(record) for record in records]
        _spool(config.spool, records)
    except Exception as exc:  # a hook that raises would drain the node
        said.append(f"{words[0]}: {type(exc).__name__}: {exc}")
    with contextlib.suppress(Exception):
        _syslog(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
