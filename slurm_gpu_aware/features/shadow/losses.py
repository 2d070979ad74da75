"""Jobs that Slurm started: their record, and what they lose on its GPUs, by week and partition.

A loss is what a job loses on the GPUs that Slurm gave it; a negative one is what it gains by them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

from msgspec import Meta

from slurm_gpu_aware.bounds import (
    MAX_GBPS,
    MAX_GPUS,
    MAX_GPUS_PER_NODE,
    MAX_PENALTY,
    MAX_TIME_S,
    NODE_NAME,
)
from slurm_gpu_aware.records import Text, number, text, whole

NodeName = Annotated[str, text(NODE_NAME, "a name of letters, digits, '.', '_' and '-'")]
Slots = Annotated[
    tuple[Annotated[int, whole(0, MAX_GPUS_PER_NODE - 1, "a GPU index")], ...],
    Meta(max_length=MAX_GPUS_PER_NODE),
]
Places = Annotated[tuple[tuple[NodeName, Slots], ...], Meta(max_length=MAX_GPUS)]
Ratio = Annotated[float, number(0.0, MAX_PENALTY)]


@dataclass(frozen=True)
class GpuSet:
    """A set of GPUs, and what it costs its job, at the moment before the job started."""

    gpus: Places  # (node, Slurm's GPU indices), ascending.
    level: Text  # Name of the locality level that the set needs.
    score: Ratio | None = None
    """Worst PM score (lower is better) for the job's class; None: a GPU has not been measured."""
    slowdown: Ratio | None = None
    """Predicted time divided by that on median GPUs of one node; None: as for ``score``."""
    gbps: Annotated[float, number(0.0, MAX_GBPS)] | None = None
    """EffBW of the slowest node; None: one GPU per node, no communication, or no links known."""
    direct: bool | None = None
    """All pairs that communicate inside nodes have a direct link; None: as for ``gbps``."""
    broken: tuple[NodeName, ...] = ()  # Nodes of which all GPUs were free and only some are taken.

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return sum(len(slots) for _, slots in self.gpus)


@dataclass(frozen=True)
class Sets:
    """Both sets of a job."""

    given: GpuSet | None = None  # None: Slurm did not show it any more.
    ours: GpuSet | None = None  # None: not known, see `ShadowJob.reason`.


@dataclass(frozen=True)
class ShadowJob:
    """One start of a job. Times are Unix seconds."""

    job_id: str
    user: str
    partition: str
    app_class: str
    started_at: float
    sets: Sets
    reason: str = ""  # Why it is not compared; empty: it is.
    power_w: float | None = None
    """Predicted power of its GPUs at the default clock; None: no performance model."""
    saves: float | None = None
    """Share of that energy which its clock and power limit would save within the bound of
    ``[energy]``, as predicted; None: no performance model, or no bound is set."""
    ended_at: float | None = None  # None: it runs, as far as is known.
    waited_s: float = 0.0
    """Time in which a job that needs whole nodes waited for a node that this one broke up."""
    waiting_job: str = ""  # The last such job; empty: none.

    @property
    def key(self) -> tuple[str, float]:
        """What names a start: a requeued job starts again."""
        return self.job_id, self.started_at

    @property
    def compared(self) -> bool:
        """Whether both sets are known."""
        return self.sets.given is not None and self.sets.ours is not None

    @property
    def needless(self) -> tuple[str, ...]:
        """Nodes that it broke up, though on our GPUs it had broken up fewer; empty: none."""
        given, ours = self.sets.given, self.sets.ours
        if given is None or ours is None or len(given.broken) <= len(ours.broken):
            return ()
        return tuple(name for name in given.broken if name not in ours.broken)


@dataclass(frozen=True)
class Watch:
    """A time in which the shadow ran, Unix seconds."""

    since_at: Annotated[float, number(0.0, MAX_TIME_S)]
    until_at: Annotated[float, number(0.0, MAX_TIME_S)]


LEAST = 0.005
"""Smaller differences of scores and bandwidths are none: measurements repeat within them."""
EXAMPLES = 3
KINDS = ("links", "nodes", "slow")
"""GPUs without a direct link or with slower ones, nodes broken up, slow GPUs."""
_NO_SCORES = (
    "compared jobs have no scores of their GPUs, so their time is not known:"
    " 'gpu-aware-profile sweep' measures them"
)
_NO_LINKS = (
    "compared jobs with several GPUs on a node have no known links:"
    " 'gpu-aware-profile sweep' reads them"
)
_NO_POWER = (
    "compared jobs have no performance model, so their energy is not known:"
    " 'gpu-aware models' makes them"
)


@dataclass(frozen=True)
class Loss:
    """What one compared job lost on the GPUs that Slurm gave, against ours."""

    job: ShadowJob
    given: GpuSet
    ours: GpuSet
    ran_s: float

    @property
    def unlinked(self) -> bool:
        """Its GPUs talk over the host, though GPUs with direct links were free."""
        return self.given.direct is False and bool(self.ours.direct)

    @cached_property
    def bandwidth(self) -> float:
        """Share of the effective bandwidth that it lost, 0.0 to 1.0; 0.0 also if not known."""
        if self.given.gbps is None or not self.ours.gbps:
            return 0.0
        share = 1.0 - self.given.gbps / self.ours.gbps
        return share if share > LEAST else 0.0

    @cached_property
    def slower(self) -> float:
        """How much slower its slowest GPU is than ours (0.1: 10%); 0.0 also if not known."""
        if self.given.score is None or not self.ours.score:
            return 0.0
        more = self.given.score / self.ours.score - 1.0
        return more if more > LEAST else 0.0

    @cached_property
    def time_s(self) -> float | None:
        """Predicted time lost of its run so far; None: not known."""
        if not self.given.slowdown or self.ours.slowdown is None:
            return None
        return self.ran_s * (1.0 - self.ours.slowdown / self.given.slowdown)

    @cached_property
    def energy_j(self) -> float | None:
        """Predicted energy of that time; None: not known."""
        if self.time_s is None or self.job.power_w is None:
            return None
        return self.time_s * self.job.power_w

    @property
    def spent_j(self) -> float | None:
        """Predicted energy of its run so far; None: not known, or no bound is set."""
        return None if self.job.saves is None else self.ran_s * (self.job.power_w or 0.0)

    def has(self, kind: str) -> bool:
        """Whether it lost something of a kind (`KINDS`)."""
        if kind == "links":
            return self.unlinked or self.bandwidth > 0.0
        return bool(self.job.needless) if kind == "nodes" else self.slower > 0.0

    def size(self, kind: str) -> tuple[float, ...]:
        """Sort key of examples of a kind, the largest first."""
        own = {"links": self.bandwidth, "nodes": self.job.waited_s, "slow": self.slower}[kind]
        return -own, -self.ran_s


@dataclass(frozen=True)
class Group:
    """The jobs of one week and partition."""

    week: str  # The Monday, ``2026-11-23``.
    partition: str
    losses: tuple[Loss, ...]  # Of the compared jobs.
    jobs: int  # All jobs that Slurm started, compared or not.

    def of(self, kind: str) -> list[Loss]:
        """Those with a loss of a kind, the largest first."""
        return self._by_kind[kind]

    @cached_property
    def _by_kind(self) -> dict[str, list[Loss]]:
        return {
            kind: sorted((one for one in self.losses if one.has(kind)), key=lambda o: o.size(kind))
            for kind in KINDS
        }

    @property
    def unlinked(self) -> int:
        """Jobs without a direct link that had one on our GPUs."""
        return sum(one.unlinked for one in self.losses)

    @property
    def waited_s(self) -> float:
        """Time in which jobs waited for nodes that were broken up without need."""
        return sum(one.job.waited_s for one in self.losses)

    @property
    def time_s(self) -> float | None:
        """Time lost, less the time gained; None: not known of any job."""
        return _sum(one.time_s for one in self.losses)

    @property
    def energy_j(self) -> float | None:
        """Energy lost, less that gained; None: not known of any job."""
        return _sum(one.energy_j for one in self.losses)

    @property
    def spent_j(self) -> float | None:
        """Energy of the jobs of which it is known what clocks and power limits would save."""
        return _sum(one.spent_j for one in self.losses)

    @property
    def saved_j(self) -> float | None:
        """What these would save of it within the site's bound; None: not known of any job."""
        known = [one for one in self.losses if one.spent_j is not None]
        return _sum((one.spent_j or 0.0) * (one.job.saves or 0.0) for one in known)

    @property
    def better(self) -> list[Loss]:
        """Jobs that Slurm's GPUs make faster than ours, by more than `LEAST` of their run."""
        return [one for one in self.losses if (one.time_s or 0.0) < -LEAST * one.ran_s]


@dataclass(frozen=True)
class Account:
    """All jobs of a report."""

    groups: tuple[Group, ...]
    reasons: tuple[tuple[str, int], ...]
    """(why jobs are not compared, how many), most frequent first."""
    total: Group

    @property
    def nothing_lost(self) -> bool | None:
        """Whether no compared job lost anything; None: not known, or no job was compared."""
        if any(self.total.of(kind) for kind in KINDS) or (self.total.time_s or 0.0) > 0.0:
            return False
        every = self.total.losses
        timed = all(one.time_s is not None for one in every)
        known = timed and all(map(_links_known, self._several))
        return True if every and known else None

    @property
    def _several(self) -> list[Loss]:
        """Compared jobs with several GPUs on a node."""
        return [
            one for one in self.total.losses if any(len(gpus) > 1 for _, gpus in one.given.gpus)
        ]

    def missing(self) -> list[str]:
        """What is not known of the compared jobs; one sentence each, without a full stop."""
        every = self.total.losses
        several = self._several
        found = [
            (sum(one.time_s is None for one in every), len(every), _NO_SCORES),
            (sum(not _links_known(one) for one in several), len(several), _NO_LINKS),
            (sum(one.job.power_w is None for one in every), len(every), _NO_POWER),
        ]
        return [f"{without} of {of} {what}" for without, of, what in found if without]


def account(
    jobs: Iterable[ShadowJob], now: float, week_of: Callable[[float], str], since: float = 0.0
) -> Account:
    """The account of some jobs.

    ``now``: until when those that run have run, ``since``: from when their runs count, Unix s.
    """
    every = list[Loss | None]()
    groups: dict[tuple[str, str], list[Loss | None]] = {}
    reasons = Counter[str]()
    for job in jobs:
        loss, given, ours = None, job.sets.given, job.sets.ours
        if given is not None and ours is not None:
            loss = Loss(job, given, ours, _ran_s(job, since, now))
        every.append(loss)
        groups.setdefault((week_of(job.started_at), job.partition), []).append(loss)
        if not job.compared:
            reasons[job.reason] += 1
    return Account(
        tuple(_group(*key, groups[key]) for key in sorted(groups)),
        tuple(reasons.most_common()),
        _group("", "", every),
    )


def _group(week: str, partition: str, jobs: Sequence[Loss | None]) -> Group:
    """``jobs``: the loss of each, None for those that are not compared."""
    losses = tuple(loss for loss in jobs if loss is not None)
    return Group(week, partition, losses, len(jobs))


def _links_known(loss: Loss) -> bool:
    return loss.given.gbps is not None and loss.ours.gbps is not None


def _ran_s(job: ShadowJob, since: float, now: float) -> float:
    ended_at = now if job.ended_at is None else job.ended_at
    return max(0.0, ended_at - max(since, job.started_at))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


Start = tuple[str, float]  # Job and its start, Unix s.


class WholeNodeJob(NamedTuple):
    """A job that waits for whole nodes."""

    job_id: str
    nodes: int  # Nodes that it needs.
    eligible: Set[str]  # Nodes that it may use.


class Charge(NamedTuple):
    """A job that waits, and the start to which its wait is charged."""

    waiting_job: str
    start: Start


def charges(
    waiting: Sequence[WholeNodeJob], whole: Set[str], broken: Mapping[str, Sequence[Start]]
) -> list[Charge]:
    """Whose wait is charged to which start, now.

    ``waiting``: in the order of the queue. ``whole``: nodes of which no job holds a GPU.
    ``broken``: node -> the only jobs that hold GPUs of it, all of which broke it up without need.
    A job counts if the nodes of ``broken`` are all that it lacks. Each node serves one job, and
    the wait of a job is charged once, however many nodes it waits for.
    """
    left, freeable = set(whole), dict(broken)
    found: list[Charge] = []
    for job in waiting:
        ready = sorted(left & job.eligible)[: job.nodes]
        lacking = job.nodes - len(ready)
        able = sorted(freeable.keys() & job.eligible)[:lacking]
        if len(able) < lacking:
            continue
        left.difference_update(ready)
        if lacking:
            found.append(Charge(job.job_id, freeable[able[0]][0]))
        for name in able:
            del freeable[name]
    return found
