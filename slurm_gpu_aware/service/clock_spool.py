"""What prologs and epilogs recorded about clocks, from their spool into the ledger."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_gpu_aware.service.books import Books

__all__ = ["ClockSpool"]

log = logging.getLogger(__name__)

_JOB = re.compile(r"[1-9][0-9]{0,11}\Z")
_KINDS = frozenset({"clock_set", "clock_failed"})
_MOST = 1 << 20
"""Bytes read from one file at a time."""


class ClockSpool:
    """Reads new lines of NODE.jsonl files; remembers how far, also over a restart.

    Lines come from other hosts: anything that is not a record of the known form is skipped. A line
    may be written down twice if the selector dies between the ledger and its note.
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
            size = os.fstat(handle).st_size
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
    except ValueError:
        return None
    if not isinstance(raw, Mapping) or raw.get("event") not in _KINDS:
        return None
    if not _JOB.match(str(raw.get("job_id", ""))) or not isinstance(raw.get("at"), int | float):
        return None
    kept = {
        key: raw[key]
        for key in ("event", "at", "job_id", "node", "gpus", "asked_mhz", "mhz", "call", "error")
        if key in raw
    }
    return {k: v[:200] if isinstance(v, str) else v for k, v in kept.items()}
