"""Shortest earlier runs of each user's jobs, in files from which the filter tells late due dates.

The filter runs inside slurmctld and may not wait for a database. So the selector keeps a file of
each user beside ``events.submit_file``, which the filter (``etc/lua/gpu_aware_due.lua``) reads for
jobs with a due date. They lie in a folder for SlurmUser alone, as names of jobs may be private.
"""

import logging
import math
import pwd
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from slurm_gpu_aware.features.estimates.history import KEPT_GROUPS, RunHistory
from slurm_gpu_aware.filter_rules import MAX_RUN_NAME

log = logging.getLogger(__name__)


def shortest_text(by_name: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """A line for each job name: its first bytes in hex, least run time, least time x GPUs.

    ``by_name``: (GPUs, s) of the runs of each name, which are whole seconds in the text, rounded
    down. A run that a time limit ended, whose time is inf, was in time for no due date, so it does
    not count; a name without other runs has no line.
    """
    least: dict[bytes, tuple[int, int]] = {}
    for name, runs in islice(by_name.items(), KEPT_GROUPS):
        ended = [(seconds, gpus * seconds) for gpus, seconds in runs if seconds < math.inf]
        try:
            key = name.encode("utf-8", "surrogateescape")[:MAX_RUN_NAME]
        except UnicodeEncodeError:  # no name of a job in Slurm
            continue
        if not ended or not key:
            continue
        seconds, gpu_seconds = (int(min(column)) for column in zip(*ended, strict=True))
        known = least.get(key, (seconds, gpu_seconds))
        least[key] = min(known[0], seconds), min(known[1], gpu_seconds)
    return "".join(f"{key.hex()} {a} {b}\n" for key, (a, b) in least.items())


class ShortestRuns:
    """The files, each named by the id of its user, in ``folder`` (``EventsConfig.runs_folder``).

    A failure is logged once; it only keeps the filter from telling.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._uids: dict[str, int] = {}
        self._written: set[str] = set()
        """Users that may have a file."""
        self._failed = False

    def find(self, users: Iterable[str]) -> None:
        """Look up the ids of users, which may take as long as the site's directory service."""
        for user in set(users) - self._uids.keys():
            try:
                uid = pwd.getpwnam(user).pw_uid
                # of several names of an id Slurm knows one
                if pwd.getpwuid(uid).pw_name.casefold() == user.casefold():
                    self._uids[user] = uid
            except (KeyError, ValueError, OSError):  # ValueError: no name of a user at all
                log.debug("no user of this host: %r", user)

    def write_all(self, history: RunHistory) -> None:
        """Write the files of all users, and remove all others."""
        users = [*history.users()]
        self.find(users)
        self.write(history, users)
        kept = {str(self._uids[user]) for user in users if user in self._uids}
        try:
            gone = [file for file in self.folder.iterdir() if file.name not in kept]
            for file in gone:
                file.unlink()
        except FileNotFoundError:
            pass
        except OSError as exc:
            self._warn(exc)

    def write(self, history: RunHistory, users: Collection[str]) -> None:
        """Write what has changed of some users, whose ids were looked up, and of users that left
        the history."""
        left = {user for user in self._written if not history.runs_of(user)}
        for user in left.union(users):
            uid = self._uids.get(user)
            if uid is None:
                continue
            try:
                self._write(self.folder / str(uid), shortest_text(history.runs_by_name(user)))
                self._failed = False
            except OSError as exc:
                self._warn(exc)
        self._written = (self._written - left).union(users)

    def _write(self, file: Path, text: str) -> None:
        if not text:
            file.unlink(missing_ok=True)
            return
        try:
            if file.read_text("ascii", "replace") == text:
                return
        except FileNotFoundError:
            self.folder.mkdir(0o700, exist_ok=True)
        new = file.with_name(f"{file.name}.new")
        new.write_text(text, "ascii")
        new.replace(file)

    def _warn(self, problem: OSError) -> None:
        if not self._failed:
            log.warning("sbatch does not tell due dates that earlier runs miss: %s", problem)
        self._failed = True
