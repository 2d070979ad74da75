"""What prologs and epilogs recorded about clocks, from their spool into the ledger."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeGuard

from slurm_gpu_aware.service.books import Books

__all__ = ["ClockSpool"]

log = logging.getLogger(__name__)

_JOB = re.compile(r"[1-9][0-9]{0,11}\Z")
_KINDS = frozenset({"clock_set", "clock_failed"})
_KEYS = ("node", "gpus", "asked_mhz", "mhz", "call", "error")
_MOST = 1 << 20
"""Bytes read from one file at a time."""
_LATEST = 1 << 33
"""More than any time in seconds, frequency or GPU index can be."""
_LONGEST = 200


class ClockSpool:
    """Reads new lines of NODE.jsonl files; remembers how far, also over a restart.

    Lines come from other hosts: anything that is not a record of the known form is skipped, and so
    are files that neither root, nor the selector, nor the owner of the folder owns. A line may be
    written down twice if the selector dies between the ledger and its note.
    """

    def __init__(self, folder: Path, note: Path) -> None:
        self._folder = folder
        self._note = note
        self._offsets = self._read_note()

    def collect(self, books: Books, id_of: Callable[[int], str]) -> int:
        """Write new records to the ledger; return how many. ``id_of``: raw number to job id."""
        written = 0
        moved = False
        for file in self._files():
            lines, offset = self._new_lines(file)
            for line in lines:
                record = _record(line)
                if record is None:
                    continue
                job_id = id_of(int(record.pop("job_id")))
                kind, at = record.pop("event"), record.pop("at")
                books.event(job_id, kind, record, at)
                written += 1
            moved = moved or self._offsets.get(file.name) != offset
            self._offsets[file.name] = offset
        if moved:
            self._write_note()
        return written

    def _files(self) -> list[Path]:
        try:
            return sorted(p for p in self._folder.iterdir() if p.suffix == ".jsonl")
        except OSError:
            return []

    def _new_lines(self, file: Path) -> tuple[list[bytes], int]:
        """Complete lines behind the noted offset, and the offset behind them."""
        offset = self._offsets.get(file.name, 0)
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return [], offset
        try:
            stat = os.fstat(handle)
            trusted = {0, os.geteuid(), self._folder.stat().st_uid}
            if not S_ISREG(stat.st_mode) or stat.st_uid not in trusted:
                return [], offset
            size = stat.st_size
            if size < offset:
                offset = 0  # rotated away
            data = os.pread(handle, _MOST, offset) if size > offset else b""
        except OSError:
            return [], offset
        finally:
            os.close(handle)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _MOST:
            return [], offset + _MOST  # a line that long is none of ours
        return data[:end].splitlines(), offset + end

    def _read_note(self) -> dict[str, int]:
        try:
            raw = json.loads(self._note.read_text(encoding="utf-8"))
            return {str(name): int(offset) for name, offset in raw.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _write_note(self) -> None:
        fresh = self._note.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(self._offsets), encoding="utf-8")
            fresh.replace(self._note)
        except OSError as exc:
            log.warning("%s: cannot be written: %s", self._note, exc.strerror)


def _record(line: bytes) -> dict[str, Any] | None:
    """A record that the ledger takes; None for anything else."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, Mapping) or raw.get("event") not in _KINDS:
        return None
    at = raw.get("at")
    if not _JOB.match(str(raw.get("job_id", ""))) or not _is_number(at) or not 0 < at < _LATEST:
        return None
    kept = {key: _plain(raw[key]) for key in _KEYS if key in raw}
    return {"event": raw["event"], "at": float(at), "job_id": raw["job_id"], **kept}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: object) -> object:
    """The value if it is short and of a type that is expected, else what type it has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:_LONGEST]
    if _is_number(value) and abs(value) < _LATEST:
        return value
    if isinstance(value, list) and len(value) <= _LONGEST:
        return [v for v in value if isinstance(v, int) and 0 <= v < _LATEST]
    return type(value).__name__
