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
        self.bench.steady += 100.0
        self.bench.rounds.run()
        self.look()
        self.bench.rounds.start_monitor.poll()
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


def starts_and_ends(on: Slurms) -> None:
    on.round()
    on.start()
    on.change(state="COMPLETED")
    on.round()


def is_held(on: Slurms) -> None:
    on.round()
    on.change(reason=HELD)
    on.round()
    on.change(reason="Licenses")
    on.round()


def is_requeued(on: Slurms) -> None:
    on.round()
    on.start()
    on.requeue()
    on.round()
    on.change(reason="Licenses")
    on.round()


def is_requeued_and_starts_before_a_round(on: Slurms) -> None:
    on.round()
    on.start()
    on.requeue()
    on.bench.rounds.run()
    on.start()
    on.change(state="CANCELLED")
    on.round()


def is_refused(on: Slurms) -> None:
    on.slurm.set(refuse=["7"])
    on.round()
    on.slurm.set(refuse=[])
    on.round()


def is_refused_when_it_is_opened(on: Slurms) -> None:
    send = on.bench.client.update_jobs

    def refuse(updates: Any) -> Any:
        opening = [u for u in updates if dict(u.fields).get("Licenses") == ""]
        refused = send([u for u in updates if u not in opening])
        return refused | dict.fromkeys([u.job_id for u in opening], "busy")

    on.bench.client.update_jobs = refuse  # type: ignore[method-assign]
    on.round()
    on.bench.client.update_jobs = send  # type: ignore[method-assign]
    on.round()
    on.round()


def is_cancelled_once_it_is_released(on: Slurms) -> None:
    on.round()
    on.change(state="CANCELLED")
    on.round()


def outlives_its_selector(on: Slurms) -> None:
    """Which wrote the decision down, and died when it had opened the gate."""
    on.round()
    tracked = on.bench.rounds.tracker.placed["7"]
    on.bench.ledger.outcome(tracked.decision, JobPhase.PLANNED, 0.0)
    on.new_selector()
    on.round()


def is_requeued_after_its_selector_died(on: Slurms) -> None:
    on.round()
    tracked = on.bench.rounds.tracker.placed["7"]
    on.bench.ledger.outcome(tracked.decision, JobPhase.PREPARED, 0.0)
    on.requeue()
    on.new_selector()
    on.round()


def starts_as_the_gate_runs_out(on: Slurms) -> None:
    on.start()
    on.change(state="TIMEOUT")
    on.round()


def is_left(on: Slurms) -> None:
    on.change(admin_comment="gpuaware/1;tn=gres/gpu:2;feat=%5Bx%5D;mc=1")
    on.round()
    on.start()


def loses_its_record(on: Slurms) -> None:
    on.round()
    on.change(admin_comment="ticket-4711")
    on.round()


@pytest.mark.parametrize(
    "story",
    [
        starts_and_ends,
        is_held,
        is_requeued,
        is_requeued_and_starts_before_a_round,
        is_refused,
        is_refused_when_it_is_opened,
        is_cancelled_once_it_is_released,
        outlives_its_selector,
        is_requeued_after_its_selector_died,
        starts_as_the_gate_runs_out,
        is_left,
        loses_its_record,
    ],
    ids=lambda story: story.__name__,
)
def test_what_happens_stands_in_the_table(
    slurm: SlurmFolder, tracked: Seen, story: Callable[[Slurms], None]
) -> None:
    on = Slurms(slurm)
    story(on)
    assert tracked | on.shown
    missing = {(a, b) for a, b in tracked if b not in TRANSITIONS[a]}
    assert missing == set()
    # A look at Slurm now and then does not see the phases in between.
    later = {(a, b) for a, b in on.shown if b not in reachable(a)}
    assert later == set()


def reachable(phase: JobPhase) -> set[JobPhase]:
    found: set[JobPhase] = set()
    new = set(TRANSITIONS[phase])
    while new:
        found |= new
        new = {after for one in new for after in TRANSITIONS[one]} - found
    return found
