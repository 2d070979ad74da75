"""Estimates of run times from earlier runs of the same user, name, time limit and GPU count.

The estimate of a job starts at its time limit and moves, group by group from the coarsest (the
account) to the finest (user, name, limit and GPUs), towards a quantile of the group's last runs:
on a logarithmic scale by n / (n + 1/2) of the way for n runs. So little history leaves it near the
coarser group or the limit. A run counts as a share of its own time limit, because longer limits
mean longer runs. `benchmarks/experiments.md` has the measurements behind the numbers.

Run times are *work*: seconds on median GPUs without any slowdown.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from slurm_gpu_aware.bounds import MAX_JOB_NAME

QUANTILE = 0.6
"""Of a group's last runs: a little above the median, because a run that outlives its estimate
disturbs more than one that ends early."""
KEPT_RUNS = 10  # Last runs of a group that count; older ones describe an older program.
MOST_RUNS = 100  # Runs of a name that a due date rests on, at all its limits and numbers of GPUs.
_PRIOR_RUNS = 0.5  # Runs that the coarser group, or the limit, counts for.
KEPT_GROUPS = 200
"""Groups of one user; the one without a run for longest goes. So no user can displace others."""
ALL_GROUPS = 50_000  # Groups in all (25 MB); the user without a run for longest goes.
_LEAST_S = 1.0  # Shorter runs and limits count as this, so that a logarithmic scale exists.
_LIMITS_PER_OCTAVE = 2
"""Limits within a factor of 1.4 count as equal, so that odd ones do not displace all groups."""
_CACHED = 10_000

Group = tuple[object, ...]
Run = tuple[float, float, str]
"""(work, time limit, s; first node). Work is inf if the limit ended the run, a limit inf if there
was none, the node empty if it is not known."""
Groups = OrderedDict[Group, list[Run]]


@dataclass(frozen=True, slots=True)
class JobKind:
    """What is known of a job before it runs."""

    user: str
    name: str  # Job name; empty: not known.
    account: str  # Empty: not known.
    gpus: int
    time_limit_s: float  # inf: no limit.

    def groups(self) -> Iterator[tuple[str, str, Group]]:
        """(source, owner, group) from coarse to fine; an account owns its own group."""
        source, owner = "user", _owner(self.user)
        if self.account:
            yield "account", f"account {self.account[:MAX_JOB_NAME]}", ()
            if not self.user:
                source, owner = "account", f"members {self.account[:MAX_JOB_NAME]}"
        limited = math.isfinite(self.time_limit_s)
        octaves = math.log2(max(self.time_limit_s, _LEAST_S)) if limited else -1.0
        limit = round(_LIMITS_PER_OCTAVE * octaves)
        yield source, owner, ()
        yield source, owner, (limit,)
        yield source, owner, (limit, self.gpus)
        if self.name:
            name = self.name[:MAX_JOB_NAME]
            yield "name", owner, (name,)
            yield "name", owner, (name, limit, self.gpus)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated run time and its origin."""

    seconds: float  # At most the time limit; inf: neither limit nor history.
    source: str = "limit"
    """Finest history that it rests on: ``name`` (same user and job name), ``user``, ``account``;
    ``limit``: none."""
    runs: int = 0  # Runs of the finest group.


class RunHistory:
    """Last runs by group. Its size is bounded, whatever users submit; no call is slower for it."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, Groups] = OrderedDict()
        self._count = 0
        self._runs_of: dict[str, int] = {}
        self._known: dict[JobKind, Estimate] = {}

    def __len__(self) -> int:
        """Number of groups."""
        return self._count

    def runs_of(self, user: str) -> int:
        """Runs added for a user so far: as long as it stays, so do the user's estimates, but for
        other runs of the account."""
        return self._runs_of.get(_owner(user), 0)

    def add(self, kind: JobKind, work_s: float, *, cut_off: bool = False, node: str = "") -> None:
        """Add a run that has ended; runs are added in the order of their ends.

        ``cut_off``: its time limit ended it, so that its work is longer than any limit it had. A
        later job of the kind is expected to reach its limit, too. ``work_s`` that is not a positive
        number is ignored. ``node``: the first one on which it ran.
        """
        if not 0 < work_s < math.inf:
            return
        work_s = math.inf if cut_off else max(work_s, _LEAST_S)
        run = (work_s, max(kind.time_limit_s, _LEAST_S), node)
        for _, owner, group in kind.groups():
            groups = self._owners.setdefault(owner, OrderedDict())
            self._owners.move_to_end(owner)
            runs = groups.setdefault(group, [])
            self._count += not runs
            groups.move_to_end(group)
            runs.append(run)
            del runs[:-KEPT_RUNS]
            if len(groups) > KEPT_GROUPS:
                groups.popitem(last=False)
                self._count -= 1
        owner = _owner(kind.user)
        self._runs_of[owner] = self._runs_of.get(owner, 0) + 1
        while self._count > ALL_GROUPS:
            owner, gone = self._owners.popitem(last=False)
            self._count -= len(gone)
            self._runs_of.pop(owner, None)
        self._known.clear()

    def estimate(self, kind: JobKind, done_s: float = 0.0) -> Estimate:
        """The estimated work of a job, which has done ``done_s`` of it and has not ended."""
        if done_s > 0:
            return self._estimate(kind, done_s)
        known = self._known.get(kind)
        if known is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            known = self._known[kind] = self._estimate(kind, 0.0)
        return known

    def runs(self, user: str, name: str) -> tuple[tuple[int, float], ...]:
        """(GPUs, work) of the last runs of a user's jobs of a name, at most `MOST_RUNS`.

        Work is inf if a time limit ended the run.
        """
        return tuple((gpus, work) for gpus, (work, *_) in self._runs_named(user, name))

    def nodes(self, user: str, name: str) -> tuple[str, ...]:
        """The first node of each of `runs`."""
        return tuple(node for _, (*_, node) in self._runs_named(user, name))

    def _runs_named(self, user: str, name: str) -> list[tuple[int, Run]]:
        wanted = name[:MAX_JOB_NAME]
        groups = ((gpus, runs) for known, gpus, runs in self._named(user) if known == wanted)
        return [*islice(((gpus, run) for gpus, runs in groups for run in runs), MOST_RUNS)]

    def runs_by_name(self, user: str) -> dict[str, list[tuple[int, float]]]:
        """Job name -> `runs`, of all names of a user's jobs."""
        found: dict[str, list[tuple[int, float]]] = {}
        for name, gpus, runs in self._named(user):
            found.setdefault(name, []).extend((gpus, work) for work, *_ in runs)
        return {name: runs[:MOST_RUNS] for name, runs in found.items()}

    def users(self) -> Iterator[str]:
        """Users with runs."""
        prefix = _owner("")
        return (owner[len(prefix) :] for owner in self._owners if owner.startswith(prefix))

    def _named(self, user: str) -> Iterator[tuple[str, int, list[Run]]]:
        """(job name, GPUs, runs) of the groups of a user with both, the last first."""
        for group, runs in reversed(self._owners.get(_owner(user), {}).items()):
            if len(group) == 3:
                name, _, gpus = group
                assert isinstance(name, str)  # noqa: S101 - see `JobKind.groups`
                assert isinstance(gpus, int)  # noqa: S101
                yield name, gpus, runs

    def _estimate(self, kind: JobKind, done_s: float) -> Estimate:
        limit = max(kind.time_limit_s, _LEAST_S)
        found, origin, count = limit, "limit", 0
        for source, owner, group in kind.groups():
            groups = self._owners.get(owner)
            if groups is None or group not in groups:
                continue
            works = [work for run in groups[group] if (work := _under(limit, run)) > done_s]
            if not works:
                continue
            own, origin, count = min(_quantile(works), limit), source, len(works)
            weight = count / (count + _PRIOR_RUNS)
            # without a limit there is nothing to start from
            found = own if math.isinf(found) else found ** (1.0 - weight) * own**weight
        return Estimate(min(found, kind.time_limit_s), origin, count)


def _owner(user: str) -> str:
    return f"user {user[:MAX_JOB_NAME]}"


def _under(limit_s: float, run: Run) -> float:
    """The work of a run under another limit: the same share of it. Without limits: the same."""
    work_s, own_limit_s, _ = run
    if math.isinf(limit_s) or math.isinf(own_limit_s):
        return work_s
    return work_s * (limit_s / own_limit_s)


def _quantile(works: list[float]) -> float:
    """The quantile, between neighbours by distance; a run that was cut off is infinite."""
    ordered = sorted(works)
    place = QUANTILE * (len(ordered) - 1)
    below = ordered[int(place)]
    above = ordered[min(int(place) + 1, len(ordered) - 1)]
    if math.isinf(above):
        return below if place - int(place) < 0.5 else above
    return below + (above - below) * (place - int(place))


def expected_end_s(
    history: RunHistory, kind: JobKind, slowdown: float, start_s: float, end_s: float, now: float
) -> float:
    """Expected end of a job that has run since ``start_s``, between ``now`` and ``end_s``.

    It holds until it has passed: of a job that outlives it, only longer runs count. Runs of other
    users of the account do not: with short ones a user could let jobs wait for GPUs that do not
    come. ``end_s``: the end by its time limit, inf: none. ``slowdown``: L x V of its GPUs.
    """
    done_s = max(now - start_s, 0.0) / slowdown
    known = history.estimate(kind, done_s)
    if kind.user and known.source == "account":
        return end_s
    return min(end_s, max(now, start_s + known.seconds * slowdown))
