"""State of the simulated cluster: the jobs on its GPUs and their pace; background jobs."""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count, groupby, takewhile
from operator import itemgetter

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment, RunningJobs
from slurm_gpu_aware.model.cluster import Cluster, Gpus, RunningJob
from slurm_gpu_aware.model.facets import changed
from slurm_gpu_aware.placement.policy import with_slurms_gpus
from slurm_gpu_aware.simulator.active import ActiveJob, EventClock, FairShares, Kind
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.power_meter import PowerMeter
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.simulated_feature import SimulatedFeature
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.topology.locality import with_known_sockets


class Holders:
    """Running jobs as the planner sees them, by position in the trace, sorted from round to round.

    They stand in the order in which they were first listed.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        """``shape``: of the cluster."""
        self._jobs: dict[int, RunningJob] = {}
        self._by_end: list[RunningJob] = []
        self._listed: dict[str, tuple[int, int]] = {}
        """Job id -> number in the order of listing, position in the trace."""
        self._numbers = count()
        self._until = np.full(shape, np.nan)

    def put(self, position: int, job: RunningJob) -> None:
        """List a job, or what is now known of it."""
        if (old := self._jobs.get(position)) is None:
            self._listed[job.job_id] = (next(self._numbers), position)
        else:
            del self._by_end[self._rank(old)]
        self._hold(job, job.end_s)
        self._jobs[position] = job
        insort(self._by_end, job, key=self._key)

    def discard(self, position: int) -> None:
        """Remove a job if it is listed."""
        if (job := self._jobs.pop(position, None)) is not None:
            del self._by_end[self._rank(job)]
            del self._listed[job.job_id]
            self._hold(job, math.nan)

    def overdue(self, now: float) -> list[int]:
        """Positions of the jobs with an expected end before ``now``."""
        late = takewhile(lambda job: job.until_s < now, self._by_end)
        return [self._listed[job.job_id][1] for job in late]

    def all(self) -> RunningJobs:
        """All jobs; valid until one is listed or removed."""
        jobs = RunningJobs(self._jobs.values())
        jobs.by_end, jobs.beside_gpus = self._by_end, ()  # their CPUs are not known
        jobs.known_until = self._until
        return jobs

    def of(self, positions: Iterable[int]) -> tuple[RunningJob, ...]:
        """The jobs at these positions."""
        return tuple(self._jobs[position] for position in positions)

    def _hold(self, job: RunningJob, until_s: float) -> None:
        for node, slots in job.gpus:
            self._until[node, slots] = until_s

    def _key(self, job: RunningJob) -> tuple[float, int, int]:
        return job.until_s, *self._listed[job.job_id]

    def _rank(self, job: RunningJob) -> int:
        """Place of a job in ``_by_end``."""
        return bisect_left(self._by_end, self._key(job), key=self._key)


class ClusterState:
    """The cluster and the jobs on it."""

    def __init__(
        self,
        idle: Cluster,
        settings: SimSettings,
        physics: Physics,
        clock: EventClock,
        jobs: Sequence[TraceJob] = (),
    ) -> None:
        """``jobs``: those of the trace, whose users have fair shares."""
        self.idle = idle
        self.cluster = idle.copy()
        self.settings = settings
        self.physics = physics
        self.clock = clock
        self.running: dict[int, ActiveJob] = {}
        """Position in the trace -> job."""
        self.total = int(idle.exists.sum())
        self.partly = 0
        """Free GPUs on nodes that are partly used."""
        self._capacity: list[int] = idle.exists.sum(axis=1).tolist()
        self._free_on: list[int] = self.cluster.free.sum(axis=1).tolist()
        self.free: int = sum(self._free_on)
        self._groups = _socket_groups(idle) if settings.interference_scope == "socket" else {}
        self._sharing: dict[tuple[int, int], set[int]] = {}
        """(node, socket) -> positions of the jobs on it; maintained with interference only."""
        self.background: dict[str, list[RunningJob]] = {}
        """Id of a background job -> GPUs that it holds."""
        self.background_gpus = 0
        self.meter: PowerMeter | None = None
        """Set if the power of every job is known."""
        priority = settings.multifactor
        self.shares = None if priority is None else FairShares(priority, jobs, idle)
        """Fair shares of users; None: they do not count."""
        self.interferes = settings.interference is not None
        self.features: Sequence[SimulatedFeature] = ()
        self._holders = Holders(self.idle.shape)
        self._unlisted: set[int] = set()
        """Positions of running jobs that are not in ``_holders`` yet."""

    @property
    def used(self) -> int:
        """GPUs in use."""
        return self.total - self.free

    def given(self, active: ActiveJob, assignment: Assignment) -> Assignment:
        """The assignment with the GPUs that Slurm chooses now, where it chooses them."""
        request, options = active.request, self.settings.slurm_options
        if request.sizes:
            request = request.resized(assignment.size)
        return with_slurms_gpus(assignment, request, self.cluster, options)

    def enter(self, active: ActiveJob, assignment: Assignment, cost_s: float) -> None:
        """Put a job on GPUs; it makes progress after ``cost_s``."""
        now = self.clock.now
        active.placed, active.placed_s, active.done_before_s = assignment, now, active.done_s
        active.since_s, active.resume_s = now, now + cost_s
        active.limit_end_s = now + cost_s + active.request.time_limit_s
        active.size = assignment.size
        active.clock_mhz, active.power_limit_w = assignment.clock_mhz, assignment.power_limit_w
        self._change(active.gpus(), free=False)
        self.running[active.position] = active
        if self.shares is not None:
            self.shares.change(active.position, active.size, now)
        self._unlisted.add(active.position)
        active.alone = self.physics.slowdown(active.job, assignment.nodes, assignment.slots)
        active.stretch, power_w = self._stretch(active)
        if self.meter is not None:
            self.meter.enter(active, now, power_w)
        if self.interferes:
            self._neighbours_changed(active, gone=False)
        else:
            self._set_pace(active)
        if self.settings.order == "las":
            left = self.settings.las_threshold_gpu_s - active.service_gpu_s
            if left > 0:
                self.clock.add(now + left / active.size, Kind.CROSSING, active)

    def leave(self, active: ActiveJob) -> None:
        """Take a job off its GPUs."""
        active.credit(self.clock.now)
        if self.meter is not None:
            self.meter.leave(active, self.clock.now)
        self._change(active.gpus(), free=True)
        active.version += 1
        del self.running[active.position]
        if self.shares is not None:
            self.shares.change(active.position, -active.size, self.clock.now)
        self._unlisted.discard(active.position)
        self._holders.discard(active.position)
        if self.interferes:
            self._neighbours_changed(active, gone=True)
        active.last, active.placed, active.holder = active.placed, None, None
        active.placed_s = math.nan
        active.size = active.request.gpus

    def set_clock(self, active: ActiveJob, clock_mhz: int | None) -> None:
        """Change the clock of a running job."""
        if clock_mhz == active.clock_mhz:
            return
        active.credit(self.clock.now)
        active.clock_mhz = clock_mhz
        active.stretch, power_w = self._stretch(active)
        if self.meter is not None:
            self.meter.change(active, self.clock.now, power_w)
        self._holders.discard(active.position)
        self._unlisted.add(active.position)
        active.holder = None
        self._set_pace(active)

    def _stretch(self, active: ActiveJob) -> tuple[float, float]:
        """`Physics.stretch` of a running job."""
        setting = active.clock_mhz, active.power_limit_w
        return self.physics.stretch(active.job, active.size, *setting)

    def hold(self, job: RunningJob) -> None:
        """Give a background job free GPUs in addition to those that it holds."""
        self.background_gpus += self._change(job.gpus, free=False)
        self.background.setdefault(job.job_id, []).append(job)

    def release(self, job_id: str) -> bool:
        """Free all GPUs of a background job; return whether it held any."""
        parts = self.background.pop(job_id, [])
        for part in parts:
            self.background_gpus -= self._change(part.gpus, free=True)
        return bool(parts)

    def view(self, keep: set[int] | None, *, with_holders: bool) -> Cluster:
        """The cluster as the planner sees it: the running jobs in ``keep`` (None: all) and the
        background jobs hold their GPUs. ``with_holders``: list these jobs in ``running``."""
        held = [part for parts in self.background.values() for part in parts]
        view = self.cluster
        shown: Collection[int] = self.running if keep is None else keep
        if len(shown) < len(self.running):
            view = self.idle.copy()
            for gpus in (*(p.gpus for p in held), *(self.running[p].gpus() for p in shown)):
                for node, slots in gpus:
                    view.take(node, slots)
        if not with_holders:
            return view
        self._list_holders()
        if len(shown) < len(self.running):
            return changed(view, running=(*self._holders.of(sorted(shown)), *held))
        holders = self._holders.all()
        return changed(view, running=(*holders, *held) if held else holders)

    def holder(self, active: ActiveJob) -> RunningJob:
        """A running job as the planner sees it."""
        job = active.as_holder()
        for feature in self.features:
            job = feature.shown(active, job)
        active.holder = job
        return job

    def _list_holders(self) -> None:
        """Bring ``_holders`` up to date: jobs that have started, ends that have passed."""
        now = self.clock.now
        for position in sorted(self._unlisted.union(self._holders.overdue(now))):
            self._holders.put(position, self.holder(self.running[position]))
        self._unlisted.clear()

    def _change(self, gpus: Gpus, *, free: bool) -> int:
        """Mark GPUs as free or held; return their number."""
        total_before = self.free
        for node, slots in gpus:
            (self.cluster.give_back if free else self.cluster.take)(node, slots)
            capacity, before, count = self._capacity[node], self._free_on[node], len(slots)
            after = self._free_on[node] = before + (count if free else -count)
            self.partly += after * (after < capacity) - before * (before < capacity)
            self.free += after - before
        return abs(self.free - total_before)

    def _neighbours_changed(self, active: ActiveJob, *, gone: bool) -> None:
        """Set the pace of every job on the sockets of a job that enters or leaves."""
        affected: set[int] = set()
        for socket in self._sockets(active):
            there = self._sharing.setdefault(socket, set())
            there.discard(active.position) if gone else there.add(active.position)
            affected |= there
        for position in sorted(affected):
            self._set_pace(self.running[position])

    def _sockets(self, active: ActiveJob) -> set[tuple[int, int]]:
        """(node, socket) of the job's GPUs; the socket is 0 where sockets are not known."""
        return {
            (node, groups[slot] if (groups := self._groups.get(node)) else 0)
            for node, slots in active.gpus()
            for slot in slots
        }

    def _set_pace(self, active: ActiveJob) -> None:
        """Set slowdown and end of a running job."""
        pace = active.alone * active.stretch
        if self.interferes:
            sharing = (self._sharing.get(socket, set()) for socket in self._sockets(active))
            beside = set().union(*sharing) - {active.position}
            others = [self.running[position].job for position in sorted(beside)]
            pace *= self.physics.interference(active.job, others)
        self.clock.add(active.end_at_pace(pace, self.clock.now), Kind.END, active)


def _socket_groups(cluster: Cluster) -> dict[int, tuple[int, ...]]:
    """Node -> socket of each GPU, for nodes whose sockets are known."""
    graphs = with_known_sockets(cluster).graphs
    return {node: graph.groups for node, graph in enumerate(graphs) if graph is not None}


class BackgroundJobs:
    """Jobs of a history that hold GPUs at their recorded times under every policy.

    A job takes the recorded GPUs if free, else free ones of the recorded nodes, else the lowest of
    the cluster. If too few are free, it takes the rest later.
    """

    def __init__(self, jobs: Iterable[TraceJob], state: ClusterState) -> None:
        self.state = state
        self._row = {name: i for i, name in enumerate(state.idle.nodes)}
        self._lacking: dict[str, tuple[TraceJob, int]] = {}
        """Job id -> job and the number of GPUs that it still has to take."""
        for job in reversed([*jobs]):
            start_s, run_s = job.recorded_start_s or 0.0, job.recorded_run_s or 0.0
            if run_s > 0:
                state.clock.add(start_s, Kind.HOLD, job)
                state.clock.add(start_s + run_s, Kind.FREE, job)

    @property
    def can_take(self) -> bool:
        """Whether a GPU is free for a job that lacks some."""
        return bool(self._lacking) and self.state.free > 0

    def start(self, job: TraceJob) -> None:
        """Let a job take its GPUs, at the next ``take``."""
        self._lacking[job.job_id] = (job, job.gpus)

    def end(self, job: TraceJob) -> bool:
        """Release the GPUs of a job; return whether it held any."""
        for feature in self.state.features:
            feature.background_ends(job)
        self._lacking.pop(job.job_id, None)
        return self.state.release(job.job_id)

    def take(self) -> None:
        """Give free GPUs to the jobs that lack some."""
        for job, lacking in list(self._lacking.values()):
            if not self.state.free:
                break
            self._take(job, lacking)

    def _take(self, job: TraceJob, lacking: int) -> None:
        chosen: dict[tuple[int, int], None] = {}  # in order, each once
        for gpu in self._candidates(job):
            if len(chosen) == lacking:
                break
            chosen[gpu] = None
        by_node = groupby(sorted(chosen), itemgetter(0))
        gpus = tuple((node, tuple(slot for _, slot in own)) for node, own in by_node)
        end = (job.recorded_start_s or 0.0) + job.time_limit_s
        self.state.hold(RunningJob(job.job_id, gpus, end, app_class=job.app_class))
        self._lacking[job.job_id] = (job, lacking - len(chosen))
        if len(chosen) == lacking:
            del self._lacking[job.job_id]

    def _candidates(self, job: TraceJob) -> Iterator[tuple[int, int]]:
        """Free (node, slot) in order of preference; some occur twice."""
        free = self.state.cluster.free
        share = -(-job.gpus // max(1, len(job.recorded_nodes)))
        for name in job.recorded_nodes:
            if (node := self._row.get(name)) is not None:
                there = free[node].nonzero()[0].tolist()
                there.sort(key=lambda slot: slot not in job.recorded_slots)  # stable
                yield from ((node, slot) for slot in there[:share])
        for node, slot in zip(*free.nonzero(), strict=True):
            yield int(node), int(slot)
