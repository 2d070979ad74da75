"""Events that start a round: the filter's byte at a submission, jobcomp's line at an end, a timer.

Both files are watched by inotify. A missing or rotated file is watched as soon as it exists.
"""

import contextlib
import logging
import os
import select
from collections.abc import Mapping, Set
from pathlib import Path

import inotify_simple

log = logging.getLogger(__name__)

_FLAGS = inotify_simple.flags
_CHANGED = _FLAGS.MODIFY | _FLAGS.CLOSE_WRITE | _FLAGS.ATTRIB
_GONE = _FLAGS.MOVE_SELF | _FLAGS.DELETE_SELF


class Events:
    """Waits for a change of a file, a call of `wake`, or a timeout.

    ``files``: event (``submit``, ``end``) -> file that changes with it.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)
        self._inotify = inotify_simple.INotify()
        self._watched: dict[int, str] = {}
        self._missing: set[str] = set()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, timeout_s: float) -> Set[str]:
        """Wait; return which of ``submit``, ``end``, ``woken`` happened; none: the time is over."""
        self._watch()
        readable, _, _ = select.select(
            [self._inotify.fileno(), self._wake_r], [], [], max(0.0, timeout_s)
        )
        woken = self._wake_r in readable
        if woken:
            os.read(self._wake_r, 4096)
        return self.drain() | ({"woken"} if woken else set())

    def wake(self) -> None:
        """End a wait at once; for signal handlers and other threads."""
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b".")

    def close(self) -> None:
        """Close the file descriptors."""
        self._inotify.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def drain(self) -> Set[str]:
        """Drop the events so far, as a round that starts now sees their effects; return which."""
        happened = set()
        for event in self._inotify.read(timeout=0):
            what = self._watched.get(event.wd)
            if event.mask & (_GONE | _FLAGS.IGNORED):
                self._watched.pop(event.wd, None)
            if what is not None and event.mask & _CHANGED:
                happened.add(what)
        return happened

    def _watch(self) -> None:
        for what, path in self._files.items():
            if what in self._watched.values():
                continue
            try:
                number = self._inotify.add_watch(str(path), _CHANGED | _GONE)
            except OSError as exc:
                text = "%s: cannot be watched (%s); rounds start by the timer until it can"
                if what not in self._missing:
                    log.warning(text, path, exc.strerror)
                self._missing.add(what)
                continue
            self._missing.discard(what)
            self._watched[number] = what
