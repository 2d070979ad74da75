"""Jobs that have ended since the last look, by the file of Slurm's jobcomp/filetxt."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LINE = re.compile(rb"^JobId=([0-9]{1,10}) ", re.MULTILINE)
_MOST_BYTES = 1 << 18
"""Of one look; what is older is passed over, as all jobs are read now and then."""


class JobEnds:
    """A file to which Slurm appends a line when a job has ended; it may be rotated."""

    def __init__(self, path: Path | None) -> None:
        """``path``: None if there is no such file."""
        self._path = path
        self._at: tuple[int, int] | None = None
        """Inode, and bytes that were read."""

    def look(self) -> frozenset[int] | None:
        """The numbers since the last look; None: not known, all jobs must be read.

        A job's name can forge a line: then a job is read that has not ended.
        """
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                before, self._at = self._at, (status.st_ino, status.st_size)
                if before is None or before[0] != status.st_ino:
                    return None
                new = status.st_size - before[1]
                if not 0 <= new <= _MOST_BYTES:
                    return None
                stream.seek(before[1])
                text = stream.read(new)
        except OSError:
            self._at = None
            return None
        whole = text.rfind(b"\n") + 1
        self._at = (status.st_ino, before[1] + whole)
        return frozenset(int(found[1]) for found in _LINE.finditer(text[:whole]))
