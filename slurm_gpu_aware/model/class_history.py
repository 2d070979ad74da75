"""Classes that users gave their jobs, for jobs with ``class=auto``.

The newest class that the user gave to a job of the same name counts, or that was stored for this
name (`gpu-aware-profile classify --save`); without one, the newest that the user gave to a job of
the same account. No job of another user counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_gpu_aware.bounds import MAX_JOB_NAME

UNKNOWN_CLASS = ("site", "nothing")
"""Values of `AskedClass.source` of jobs whose class is only the site's default."""
_KEPT_OF_USER = 400
"""Names and accounts of one user; the one without a job for longest goes."""
_ALL_KEPT = 50_000
"""Of all users (15 MB); the user without a job for longest goes."""

_Key = tuple[str, str]
"""``name`` or ``account``, and which one."""


@dataclass(frozen=True, slots=True)
class GivenClass:
    """A class that a user gave to a job, or that was stored for a user's job name."""

    user: str
    app_class: str
    at: float
    """Unix time."""
    name: str = ""
    """Job name; empty: not known."""
    account: str = ""
    """Empty: not known."""
    job_id: str | None = None
    """None: stored."""


@dataclass(frozen=True)
class AskedClass:
    """Application class of a job, and its origin."""

    app_class: str
    source: str
    """``given``: by the user; ``site``: its default. Of ``class=auto``: ``name`` or ``account``
    (see `ClassHistory`), or ``nothing``: nothing is known, so the site's default."""
    like: GivenClass | None = None
    """Where ``class=auto`` has it from."""

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
        self._users: OrderedDict[str, OrderedDict[_Key, GivenClass]] = OrderedDict()
        self._count = 0
        for one in given:
            self.note(one)

    def __len__(self) -> int:
        """Number of names and accounts."""
        return self._count

    def note(self, given: GivenClass) -> None:
        """Take in a class; an older one of the same name or account is replaced, never a newer."""
        user = given.user[:MAX_JOB_NAME]
        known = self._users.setdefault(user, OrderedDict())
        self._users.move_to_end(user)
        for key in _keys(given.name, given.account):
            if key in known and known[key].at > given.at:
                continue
            self._count += key not in known
            known[key] = given
            known.move_to_end(key)
            if len(known) > _KEPT_OF_USER:
                known.popitem(last=False)
                self._count -= 1
        while self._count > _ALL_KEPT:
            _, gone = self._users.popitem(last=False)
            self._count -= len(gone)

    def of(self, user: str, name: str, account: str) -> tuple[str, GivenClass] | None:
        """(``name`` or ``account``: what it has in common, the newest class); None: none known."""
        known = self._users.get(user[:MAX_JOB_NAME])
        if known is None:
            return None
        for key in _keys(name, account):
            if key in known:
                return key[0], known[key]
        return None


def _keys(name: str, account: str) -> list[_Key]:
    """The more specific first."""
    both = (("name", name[:MAX_JOB_NAME]), ("account", account[:MAX_JOB_NAME]))
    return [key for key in both if key[1]]
