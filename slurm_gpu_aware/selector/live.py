"""Live side of a feature: what only the selector knows of it, and what it does on the site."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from slurm_gpu_aware.admission.context import AdmissionContext, Known
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features import found
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.isolation import Isolation, contained
from slurm_gpu_aware.selector.job_tracker import JobTracker
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round_state import View
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob

if TYPE_CHECKING:
    from slurm_gpu_aware.selector.candidates import Candidate

T = TypeVar("T")
L = TypeVar("L", bound="Live")


@dataclass
class Site:
    """What the selector offers to features."""

    client: SlurmClient
    config: Config
    ledger: LedgerWriter
    tracker: JobTracker
    backoff: Backoff
    clock: Callable[[], float] = time.time  # Unix seconds.
    timer: Callable[[], float] = time.monotonic  # Seconds of a clock that is never set.
    orders: Path | None = None
    """Folder of the orders for clock agents; None: clocks of running jobs stay."""
    spool: Path | None = None  # Folder of the nodes' records; None: they are not read.
    ids: Mapping[int, str] = field(default_factory=dict)
    """Slurm's record number -> job id, as last read."""
    wake_s: float = math.inf
    """When a round should run (`Plan.wake_s`), Unix seconds; inf: no such time is known."""
    news: bool = False  # The round is recorded, whatever else it did.
    _made: dict[type[Live], Live] = field(default_factory=dict)

    def of(self, kind: type[L]) -> L:
        """The live side of a kind; that of a feature that is not in the list does nothing."""
        one = self._made.get(kind)
        if not isinstance(one, kind):
            one = self._made[kind] = kind(self)
        return one


@dataclass(frozen=True)
class Seen:
    """What a round has read before it is planned."""

    view: View
    context: AdmissionContext
    profile: Profile | None
    settings: PlanSettings
    queue: Sequence[Request]  # Without what features know of the requests.


@dataclass(frozen=True)
class Done:
    """What a round has done with its plan."""

    plan: Plan
    placed: Sequence[str]  # Jobs that were released.
    view: View
    context: AdmissionContext
    jobs: Mapping[str, Candidate]  # Those that it may place.
    gate_held: bool  # Else nothing may be changed in Slurm any more.


@dataclass
class Told:
    """What features say of a parked job beside its request."""

    why: dict[str, Any] = field(default_factory=dict)
    """For the ledger, why it waits or got its GPUs."""
    asked: dict[str, Any] = field(default_factory=dict)
    """For the ledger, what it asked for."""
    lasts: bool = True  # The request stays the same while job and site do.
    ahead: bool = True  # Slurm may start it on any GPU that becomes free.


class Live:
    """A part of the selector beside rounds; a hook that it does not have does nothing.

    An error in a hook is logged, and the selector goes on without it; SourceError ends the round,
    and an error of `load` the selector.
    """

    name: ClassVar[str]  # In messages of its errors.
    tells: ClassVar[tuple[Facet[Any], ...]] = ()
    """Inputs of stages that `inputs` finds; they are told as empty where it fails."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def load(self) -> None:
        """Take up what a previous selector left in the ledger."""

    def start(self) -> None:
        """Begin what runs beside the rounds."""

    def stop(self) -> None:
        """End it."""

    def changed(self, job_id: str, now: float) -> None:
        """Take note that the owner of a waiting job has changed it."""

    def settle(self, gated: Sequence[GatedJob], now: float) -> Sequence[GatedJob]:
        """Follow the jobs of ours as a round has read them; return how it goes on with them."""
        return gated

    @property
    def awaits(self) -> bool:
        """Whether the next rounds follow soon, as something is under way."""
        return False

    def wants_round(self, gated: Sequence[GatedJob], now: float) -> bool:
        """Whether a round has to plan even if no job waits."""
        return self.awaits

    def know(self, known: Known, view: View) -> Known:
        """What the translation of jobs should know, beside what it knows so far."""
        return known

    def admit(self, context: AdmissionContext, jobs: Sequence[SlurmJob]) -> AdmissionContext:
        """The context of a round with what is known of the running ones of all ``jobs``."""
        return context

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """The request of a parked job; ``told`` takes what is to be said of it."""
        return request

    def inputs(self, seen: Seen) -> Iterator[tuple[Facet[Any], Any]]:
        """The values of `tells` in this round."""
        return iter(())

    def requests(
        self, jobs: Mapping[str, Candidate], queue: Sequence[Request]
    ) -> Sequence[Request]:
        """The queue with what is known of its requests in this round.

        If it fails with a job, it is asked again without that job.
        """
        return queue

    def planned(self, plan: Plan, queue: Sequence[Request]) -> Plan:
        """Take note of a plan; return it with what is to be said of it."""
        return plan

    def order(self, plan: Plan, cluster: Cluster, settings: PlanSettings) -> Plan:
        """Carry out what a plan says of running jobs; return the plan of what may start now."""
        return plan

    def requeued(self, job_id: str) -> bool:
        """Whether a job that is back in the queue was put there by the feature."""
        return False

    @property
    def opens_ahead(self) -> bool:
        """Whether Slurm may start the next jobs on GPUs that become free."""
        return not self.awaits

    def waits(self, waiting: Waiting, plan: Plan) -> Mapping[str, object]:
        """Values of a waiting job for the record of the round."""
        return {}

    def after(self, done: Done) -> None:
        """Take note of the jobs that were placed, and do what the plan says beside that."""

    def forget(self, known: Set[str]) -> None:
        """Drop jobs that are gone. ``known`` has an unsplit array under its number."""

    def before_round(self) -> None:
        """Take in what came since the last round."""

    def after_round(self) -> Mapping[str, float | None]:
        """The same, after a round that succeeded; values for its `RoundRecord`."""
        return {}


class Lives:
    """The live sides of all features, in the order of the list."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.all: Sequence[Live] = [
            site.of(kind) for kinds in found("live", "LIVES") for kind in kinds
        ]
        # These hooks are called for each job.
        self._translating = [one for one in self.all if type(one).translate is not Live.translate]
        self._telling = [one for one in self.all if type(one).waits is not Live.waits]

    def each(self, step: Callable[[Live], object]) -> None:
        """Let each take a step."""
        for one in self.all:
            with contained(one.name):
                step(one)

    def any(self, step: Callable[[Live], bool]) -> bool:
        """Whether one of them says so; the others behind it are not asked."""
        for one in self.all:
            with contained(one.name):
                if step(one):
                    return True
        return False

    def through(self, value: T, step: Callable[[Live, T], T]) -> T:
        """The value after a step of each."""
        for one in self.all:
            with contained(one.name):
                value = step(one, value)
        return value

    def translate(self, gated: GatedJob, request: Request, told: Told) -> Request:
        """See `Live.translate`. Raises what a hook raises: the job is then left to Slurm."""
        for one in self._translating:
            request = one.translate(gated, request, told)
        return request

    def inputs(self, seen: Seen) -> Mapping[Facet[Any], Any]:
        """All inputs of stages."""
        found = {facet: facet.empty for one in self.all for facet in one.tells}
        self.each(lambda one: found.update(one.inputs(seen)))
        return found

    def requests(
        self, isolation: Isolation, queue: Sequence[Request], jobs: Mapping[str, Candidate]
    ) -> Sequence[Request]:
        """The queue with what is known; in reverse order, as power rests on due dates."""
        for one in reversed(self.all):
            with contained(one.name):
                queue, _ = isolation.run(partial(one.requests, jobs), queue)
        return queue

    def waits(self, waiting: Waiting, plan: Plan) -> dict[str, object]:
        """What all say of a waiting job."""
        more: dict[str, object] = {}
        for one in self._telling:
            with contained(one.name, waiting.job_id):
                more |= one.waits(waiting, plan)
        return more
