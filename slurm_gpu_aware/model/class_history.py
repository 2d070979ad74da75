"""Classes that users gave their jobs, for jobs with ``class=auto``.

The newest class that the user gave to an earlier job of the same name counts, or that was stored
for this name (`gpu-aware-profile classify --save`); without one, the newest that the user gave to
an earlier job of the same account. No job of another user counts, and no later one: what a job
waits for does not change under it.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_gpu_aware.bounds import MAX_JOB_NAME

UNKNOWN_CLASS = ("site", "nothing")
"""Values of `AskedClass.source` of jobs whose class is only the site's default."""
_KEPT_OF_USER = 400  # Names and accounts of one user; the one without a job for longest goes.
_KEPT_OF_KEY = 4  # Classes of one name or account, of a run of equal ones the first and the last.
_ALL_KEPT = 50_000  # Of all users (at most 40 MB); the user without a job for longest goes.

_ANY = (math.inf, 0)
_Key = tuple[str, str]  # ``name`` or ``account``, and which one.


@dataclass(frozen=True, slots=True)
class GivenClass:
    """A class that a user gave to a job, or that was stored for a user's job name."""

    user: str
    app_class: str
    at: float  # Unix time.
    name: str = ""  # Job name; empty: not known.
    account: str = ""  # Empty: not known.
    job_id: str | None = None  # None: stored.

    @property
    def turn(self) -> tuple[float, int]:
        """Key of the order of jobs by submission; what is stored holds for all jobs."""
        if self.job_id is None:
            return -math.inf, 0
        return self.at, int(self.job_id.partition("_")[0])


@dataclass(frozen=True)
class AskedClass:
    """Application class of a job, and its origin."""

    app_class: str
    source: str
    """``given``: by the user; ``site``: its default. Of ``class=auto``: ``name`` or ``account``
    (see `ClassHistory`), or ``nothing``: nothing is known, so the site's default."""
    like: GivenClass | None = None  # Where ``class=auto`` has it from.

    @property
    def words(self) -> str:
        """``A, as the user's job 98 of the same name``; empty: not of ``class=auto``."""
        if self.source == "nothing":
            return f"{self.app_class}, the site's default, as no job like it had a class"
        if self.like is None:
            return ""
        if self.like.job_id is None:
            return f"{self.app_class}, stored for the user's jobs of this name"
        return f"{self.app_class}, as the user's job {self.like.job_id} of the same {self.source}"


class ClassHistory:
    """The newest class by user and job name, and by user and account. Its size is bounded."""

    def __init__(self, given: Iterable[GivenClass] = ()) -> None:
        self._users: OrderedDict[str, OrderedDict[_Key, tuple[GivenClass, ...]]] = OrderedDict()
        self._count = 0
        for one in given:
            self.note(one)

    def __len__(self) -> int:
        """Number of names and accounts."""
        return self._count

    def note(self, given: GivenClass) -> None:
        """Take in a class; a job of which another one is known gets the new one."""
        user = given.user[:MAX_JOB_NAME]
        known = self._users.setdefault(user, OrderedDict())
        self._users.move_to_end(user)
        for key in _keys(given.name, given.account):
            self._count += key not in known
            known[key] = _with(known.get(key, ()), given)
            known.move_to_end(key)
            if len(known) > _KEPT_OF_USER:
                known.popitem(last=False)
                self._count -= 1
        while self._count > _ALL_KEPT:
            _, gone = self._users.popitem(last=False)
            self._count -= len(gone)

    def of(
        self, user: str, name: str, account: str, before: tuple[float, int] = _ANY
    ) -> tuple[str, GivenClass] | None:
        """(``name`` or ``account``: what it has in common, the newest class); None: none known.

        ``before``: time of submission and number of the job; later ones do not count.
        """
        known = self._users.get(user[:MAX_JOB_NAME])
        if known is None:
            return None
        for key in _keys(name, account):
            for given in reversed(known.get(key, ())):
                if given.turn < before:
                    return key[0], given
        return None


def _with(known: tuple[GivenClass, ...], given: GivenClass) -> tuple[GivenClass, ...]:
    """The classes of a name or account with one more, by their times."""
    by_job = {one.job_id: one for one in (*known, given)}
    stored = [one for one in (*known, given) if one.job_id is None]
    if stored:
        by_job[None] = max(stored, key=lambda one: one.at)
    kept: list[GivenClass] = []
    for one in sorted(by_job.values(), key=lambda one: one.at):
        if len(kept) > 1 and {kept[-1].app_class, kept[-2].app_class} == {one.app_class}:
            kept.pop()
        kept.append(one)
    return tuple(kept[-_KEPT_OF_KEY:])


def _keys(name: str, account: str) -> list[_Key]:
    """The more specific first."""
    both = (("name", name[:MAX_JOB_NAME]), ("account", account[:MAX_JOB_NAME]))
    return [key for key in both if key[1]]
