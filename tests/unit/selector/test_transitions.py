"""Every change of phase that the selector makes or sees stands in `TRANSITIONS`."""

from collections.abc import Callable
from typing import Any

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.gated_job import gated_jobs
from slurm_gpu_aware.model.job_phase import TRANSITIONS, JobPhase
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked

HELD = "QOSMaxGRESPerUser"
Seen = set[tuple[JobPhase, JobPhase]]


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Changes of phase of tracked jobs, as they happen."""
    seen: Seen = set()
    withdraw, ended = JobTracker.withdraw, JobTracker._ended

    def set_phase(job: Tracked, name: str, value: Any) -> None:
        before = getattr(job, name, None)
        if name == "phase" and before is not None and before is not value:
            seen.add((before, value))
        object.__setattr__(job, name, value)

    def withdrawn(tracker: JobTracker, job_id: str, *rest: Any) -> None:
        if job_id in tracker.placed:
            seen.add((tracker.placed[job_id].phase, JobPhase.WAITING))
        withdraw(tracker, job_id, *rest)

    def over(tracker: JobTracker, job_id: str, job: Tracked, *rest: Any) -> None:
        seen.add((job.phase, JobPhase.ENDED))
        ended(tracker, job_id, job, *rest)

    monkeypatch.setattr(Tracked, "__setattr__", set_phase)
    monkeypatch.setattr(JobTracker, "withdraw", withdrawn)
    monkeypatch.setattr(JobTracker, "_ended", over)
    return seen


class Slurms:
    """A bench of which the phases are looked at after each step."""

    def __init__(self, slurm: SlurmFolder) -> None:
        self.slurm = slurm
        slurm.write([parked(stuck=True)], ["n1"])
        self.shown: Seen = set()
        self._phase = self.phase
        self.bench = RoundsBench(slurm)

    @property
    def phase(self) -> JobPhase | None:
        found = gated_jobs(self.slurm.client().jobs(), GateConfig())
        return found[0].phase if found else None

    def look(self) -> None:
        phase = self.phase
        if self._phase is not None and phase is not None and phase is not self._phase:
            self.shown.add((self._phase, phase))
        self._phase = phase

    def change(self, **fields: Any) -> None:
        self.slurm.change("7", **fields)
        self.look()

    def round(self) -> None:
        self.bench.run(100.0)
        self.look()
        self.bench.poll()
        self.look()

    def start(self) -> None:
        self.change(state="RUNNING", nodes="n1", slots=[0, 1], reason="None")
        self.round()

    def requeue(self) -> None:
        count = self.slurm.jobs["7"]["restart_cnt"] + 1
        self.change(state="PENDING", nodes="", reason="BeginTime", restart_cnt=count)

    def new_selector(self) -> None:
        self.bench.ledger.close()
        self.bench = RoundsBench(self.slurm)
        self.bench.rounds.tracker.load()


Step = Callable[[Slurms], object]


def refuses_openings(on: Slurms) -> None:
    """Slurm, for one round."""
    send = on.bench.client.update_jobs

    def refuse(updates: Any) -> Any:
        opening = [u for u in updates if dict(u.fields).get("Licenses") == ""]
        refused = send([u for u in updates if u not in opening])
        return refused | dict.fromkeys([u.job_id for u in opening], "busy")

    on.bench.client.update_jobs = refuse
    on.round()
    on.bench.client.update_jobs = send


def died_after(phase: JobPhase) -> Step:
    """The selector, which wrote this down of what it had done."""

    def died(on: Slurms) -> None:
        on.bench.ledger.outcome(on.bench.rounds.tracker.placed["7"].decision, phase, 0.0)

    return died


def now(**fields: Any) -> Step:
    return lambda on: on.change(**fields)


def refuses(*job_ids: str) -> Step:
    return lambda on: on.slurm.set(refuse=[*job_ids])


TURN, START, REQUEUE, ANEW = Slurms.round, Slurms.start, Slurms.requeue, Slurms.new_selector
READ = lambda on: on.bench.rounds.run()  # noqa: E731 - and no look at Slurm
FREE, LIMITED = now(reason="Licenses"), now(reason=HELD)
UNCLEAR = now(admin_comment="gpuaware/1;tn=gres/gpu:2;feat=%5Bx%5D;mc=1")
STORIES: dict[str, tuple[Step, ...]] = {
    "starts and ends": (TURN, START, now(state="COMPLETED"), TURN),
    "is held": (TURN, LIMITED, TURN, FREE, TURN),
    "is requeued": (TURN, START, REQUEUE, TURN, FREE, TURN),
    "is requeued and starts before a round": (
        *(TURN, START, REQUEUE, READ, START, now(state="CANCELLED"), TURN),
    ),
    "is refused": (refuses("7"), TURN, refuses(), TURN),
    "is refused when it is opened": (refuses_openings, TURN, TURN),
    "is cancelled once it is released": (TURN, now(state="CANCELLED"), TURN),
    "outlives its selector": (TURN, died_after(JobPhase.PLANNED), ANEW, TURN),
    "is requeued after that": (TURN, died_after(JobPhase.PREPARED), REQUEUE, ANEW, TURN),
    "starts as the gate runs out": (START, now(state="TIMEOUT"), TURN),
    "is left": (UNCLEAR, TURN, START),
    "loses its record": (TURN, now(admin_comment="ticket-4711"), TURN),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_happens_stands_in_the_table(slurm: SlurmFolder, tracked: Seen, story: str) -> None:
    on = Slurms(slurm)
    for step in STORIES[story]:
        step(on)
    assert tracked | on.shown
    assert not {(a, b) for a, b in tracked if b not in TRANSITIONS[a]}
    # A look at Slurm now and then does not see the phases in between.
    assert not {(a, b) for a, b in on.shown if b not in reachable(a)}


def reachable(phase: JobPhase) -> set[JobPhase]:
    found: set[JobPhase] = set()
    new = set(TRANSITIONS[phase])
    while new:
        found |= new
        new = {after for one in new for after in TRANSITIONS[one]} - found
    return found
