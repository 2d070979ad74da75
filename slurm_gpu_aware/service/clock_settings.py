"""What the clock hooks read: ``clock.conf``, the job's environment, and the notes of locks.

Standard library only; every value from outside goes through a strict grammar.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Asked",
    "ClockConfig",
    "Locks",
    "nearest_clock",
    "parse_extra",
    "parse_gpus",
    "read_config",
]

CONFIG = Path("/etc/slurm-gpu-aware/clock.conf")
_CLOCK = re.compile(r"freq=([1-9][0-9]{1,4})(?:@([0-9]{1,4}(?:\+[0-9]{1,4})*))?\Z")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?\Z")
METHODS = ("locked", "application")
"""Ways to set a clock: locked clocks, or (before Volta) application clocks."""
_PATH_KEYS = ("spool", "locks", "command")


@dataclass(frozen=True)
class ClockConfig:
    """``clock.conf``: lines ``key = value``; ``#`` starts a comment line."""

    spool: Path = Path("/var/spool/slurm-gpu-aware/clocks")
    """Folder of the records, one file NODE.jsonl per node. May be on a shared file system."""
    locks: Path = Path("/var/lib/slurm-gpu-aware/clock-locks")
    """Folder of the notes; local to the node, and kept over a restart."""
    command: Path | None = None
    """Where the hooks find this program; only they read it. None: on PATH."""


def read_config(file: Path | None = None) -> tuple[ClockConfig, str | None]:
    """Return (configuration, complaint): a wrong line costs its own setting, never the job.

    ``$GPU_AWARE_CLOCK_CONFIG`` names another file, ``$GPU_AWARE_CLOCK_SPOOL`` another spool.
    """
    path = file or Path(os.environ.get("GPU_AWARE_CLOCK_CONFIG") or CONFIG)
    values: dict[str, Path] = {}
    complaint = None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as exc:
        lines, complaint = [], f"{path}: cannot be read: {exc}"
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or key not in _PATH_KEYS or not value.startswith("/"):
            known = ", ".join(_PATH_KEYS)
            complaint = f"{path}:{number}: expected KEY = /PATH with a key of {known}"
            continue
        values[key] = Path(value)
    spool = os.environ.get("GPU_AWARE_CLOCK_SPOOL")
    if spool:
        values["spool"] = Path(spool)
    return ClockConfig(**values), complaint


@dataclass(frozen=True)
class Asked:
    """The clock that a job asks for."""

    mhz: int
    gpus: tuple[int, ...] | None = None
    """GPU indices on each of its nodes; None: what Slurm says."""


def parse_extra(text: str) -> Asked | None:
    """Return what ``freq=MHZ`` or ``freq=MHZ@0+3`` among comma separated items asks for.

    The indices are needed where every GPU has a GRES type of its own: the ``SLURM_JOB_GPUS`` of a
    prolog holds the GPUs of one type only, the job's last (seen on 24.11).

    Returns None if there is no such item. Raises ValueError if it is there twice or is malformed.
    """
    found = [item.strip() for item in text.split(",") if item.strip().startswith("freq=")]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError("freq= occurs more than once")
    match = _CLOCK.match(found[0])
    if not match:
        raise ValueError(f"{found[0][:40]!r} is not freq=MHZ or freq=MHZ@INDEX+INDEX")
    gpus = tuple(sorted({int(k) for k in match[2].split("+")})) if match[2] else None
    return Asked(int(match[1]), gpus)


def parse_gpus(text: str) -> list[int]:
    """Return the GPU indices of ``SLURM_JOB_GPUS`` (``0,2`` or ``0-3``), ascending.

    Raises ValueError for anything else.
    """
    found: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        match = _RANGE.match(item)
        if not match:
            raise ValueError(f"{text[:40]!r} is not a list of GPU indices")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{text[:40]!r} is not a list of GPU indices")
        found.update(range(first, last + 1))
    return sorted(found)


def nearest_clock(asked_mhz: int, supported_mhz: Sequence[int]) -> int:
    """Return the supported clock nearest to the asked one; of two equally near the lower."""
    return min(supported_mhz, key=lambda mhz: (abs(mhz - asked_mhz), mhz), default=asked_mhz)


@dataclass(frozen=True)
class Note:
    """What is noted of a locked GPU."""

    job_id: str | None
    """None: the note is unreadable."""
    method: str | None = None
    """``locked`` or ``application``; None: not known (yet)."""
    ended: bool = False
    """The job's epilog ran: a clock that is still locked has to go, whoever comes first."""
    tried_at: float | None = None
    """When a hook of another job tried to reset it, in vain. Units: Unix seconds."""


class Locks:
    """The notes of what we locked: one file per GPU, named after its index.

    Each is written in one step. GPUs belong to one job at a time, so no two hooks write one file;
    only a hook that looks after what other jobs left behind must be :meth:`alone`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, index: int, note: Note) -> None:
        """Note a lock: before it is made, and again when it is known how. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".gpu{index}.{os.getpid()}"
        temporary.write_text(json.dumps(vars(note)))
        temporary.replace(self._file(index))

    def forget(self, index: int) -> None:
        """Drop a note, if there is one."""
        with contextlib.suppress(OSError):
            self._file(index).unlink()

    def notes(self) -> dict[int, Note]:
        """GPU index -> its note."""
        found: dict[int, Note] = {}
        for file in self.folder.glob("gpu*.json") if self.folder.is_dir() else ():
            digits = file.name.removeprefix("gpu").removesuffix(".json")
            if digits.isascii() and digits.isdigit():
                found[int(digits)] = _read_note(file)
        return found

    @contextlib.contextmanager
    def alone(self, wait_s: float) -> Iterator[bool]:
        """While no other hook is at work here; False: some were, for as long as we waited."""
        with self._locked(fcntl.LOCK_EX, wait_s) as got:
            yield got

    @contextlib.contextmanager
    def together(self, wait_s: float) -> Iterator[bool]:
        """While no hook is :meth:`alone`; False: one was, for as long as we waited."""
        with self._locked(fcntl.LOCK_SH, wait_s) as got:
            yield got

    @contextlib.contextmanager
    def _locked(self, kind: int, wait_s: float) -> Iterator[bool]:
        """A lock on the folder; without one (it is missing, say) nothing is held off."""
        try:
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield True
            return
        try:
            yield _wait_for(handle, kind, wait_s)
        finally:
            # By hand: a child that hangs in the driver has this handle, too.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _file(self, index: int) -> Path:
        return self.folder / f"gpu{index}.json"


def _wait_for(handle: int, kind: int, wait_s: float) -> bool:
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        except OSError:
            return True  # a file system without locks


def _read_note(file: Path) -> Note:
    with contextlib.suppress(OSError, ValueError):
        raw = json.loads(file.read_text())
        if isinstance(raw, dict) and isinstance(raw.get("job_id"), str):
            method = raw.get("method")
            tried_at = raw.get("tried_at")
            return Note(
                raw["job_id"],
                method if method in METHODS else None,
                raw.get("ended") is True,
                tried_at if isinstance(tried_at, int | float) else None,
            )
    return Note(None)
