"""A job with which planning fails keeps no other from being placed."""

import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from rounds_bench import RoundsBench, rounds_with
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.features.due_dates import live as due_dates
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policies.eft import Eft
from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.planning import round as planning
from slurm_gpu_aware.planning import stages
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.selector import candidates

NODES = [f"n{i}" for i in range(1, 41)]


class Error(Exception):
    """One that no code of ours expects."""


def fail_for(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *jobs: str) -> None:
    """A function of a request, or with one as its first argument but self, fails for some jobs."""
    real = getattr(owner, name)

    def wrong(*given: Any, **options: Any) -> Any:
        (request,) = (one for one in given if isinstance(one, Request))
        if request.job_id.partition("_")[0] in jobs:
            raise Error(f"cannot do job {request.job_id}")
        return real(*given, **options)

    monkeypatch.setattr(owner, name, wrong)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the queues that were planned."""
    real, found = stages.place_round, []

    def place_round(one: Round) -> Any:
        found.append(len(one.queue))
        return real(one)

    monkeypatch.setattr(stages, "place_round", place_round)
    return found


def left_reasons(bench: RoundsBench, job_id: str) -> list[str]:
    """Reasons for which a job was left to Slurm, of its ledger."""
    events = bench.ledger.events(job_id)
    return [e.detail["left_to_slurm"] for e in events if "left_to_slurm" in e.detail]


def assert_left(slurm: SlurmFolder, bench: RoundsBench) -> None:
    """After two more rounds job 7 is left to Slurm for that error."""
    bench.run()
    bench.run()
    assert left_open(slurm) == {"7"}
    assert all("cannot do job 7" in why for why in left_reasons(bench, "7"))


def left_open(slurm: SlurmFolder) -> set[str]:
    """Jobs whose gate is open and that Slurm places as it likes."""
    marks = "st=by-Slurm", ";sel=left:"
    opened = (i for i, job in slurm.jobs.items() if job["licenses"] == "")
    return {i for i in opened if any(m in slurm.jobs[i]["admin_comment"] for m in marks)}


def test_one_job_of_many_is_left_to_slurm_and_the_others_are_placed(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, plans: list[int], caplog: Any
) -> None:
    """Its size, for example, cannot be chosen."""
    ids = [str(i) for i in range(100, 164)]
    slurm.write([parked(i, stuck=True) for i in ids], NODES)
    fail_for(monkeypatch, planning.Dispatcher, "place", "137")
    bench = RoundsBench(slurm)
    assert sorted(bench.run().placed) == [i for i in ids if i != "137"]
    assert len(plans) <= math.log2(len(ids)) + 3
    assert left_open(slurm) == set()
    bench.run()  # planning by counts fails with it, too
    assert left_open(slurm) == {"137"}
    assert slurm.jobs["137"]["licenses"] == ""
    assert slurm.jobs["137"]["tres_per_node"] == "gres/gpu:2"
    *_, why = left_reasons(bench, "137")
    assert why == "planning fails with it: Error('cannot do job 137')"
    said, *_ = (r for r in caplog.records if r.exc_info and "137" in r.getMessage())
    assert said.exc_info[0] is Error
    plans.clear()
    bench.run()
    assert len(plans) <= 1


def test_two_jobs_and_all_tasks_of_an_array_are_left(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = parked("98", stuck=True, array_job_id=98, array_task_str="0-4")
    slurm.write([parked("7"), array, parked("99", stuck=True), parked("100")], NODES)
    fail_for(monkeypatch, planning.Dispatcher, "place", "98", "99")
    bench = RoundsBench(slurm)
    assert sorted(bench.run().placed) == ["100", "7"]
    assert left_open(slurm) == set()
    bench.run()
    assert left_open(slurm) == {"98", "99"}


def test_many_jobs_are_left_in_several_rounds(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [str(i) for i in range(10, 17)]
    slurm.write([*(parked(i, stuck=True) for i in wrong), parked("20")], NODES)
    fail_for(monkeypatch, planning.Dispatcher, "place", *wrong)
    bench = RoundsBench(slurm)
    for _ in range(12):
        try:
            placed = bench.run().placed
        except Error:
            continue
        if placed == ["20"]:
            break
    bench.run()
    assert slurm.jobs["20"]["licenses"] == ""
    assert left_open(slurm) == set(wrong)


def test_an_error_of_no_job_fails_the_round(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "place_round", Mock(side_effect=Error("the snapshot is damaged")))
    slurm.write([parked("7"), parked("8")], NODES)
    with pytest.raises(Error, match="damaged"):
        RoundsBench(slurm).rounds.run()
    assert {job["licenses"] for job in slurm.jobs.values()} == {"gpuaware:1"}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Eft, "place"),
        (Policy, "relaxed"),
        (planning, "take"),
        (due_dates.DueDates, "dated"),
        (candidates, "default_cpus"),
    ],
)
def test_wherever_it_fails_the_other_job_is_placed(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    more = {"relaxed": {"gpus": 9}, "dated": {"comment": "due=36h"}}.get(name, {})
    slurm.write([parked("7", stuck=True, **more), parked("8")], NODES)
    fail_for(monkeypatch, owner, name, "7")
    bench = RoundsBench(slurm)
    assert "8" in bench.run().placed
    assert_left(slurm, bench)


class Failing(Stage):
    """A stage that fails with job 7 in one of its steps."""

    name = "failing"

    def __init__(self, step: str, *, optional: bool = False) -> None:
        setattr(self, step, self.fail)
        self.optional = optional  # type: ignore[misc]

    def fail(self, one: Round) -> Round:
        """The step."""
        if any(request.job_id == "7" for request in one.queue):
            raise Error("cannot do job 7")
        return one


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_job_with_which_a_stage_fails_is_left(slurm: SlurmFolder, step: str) -> None:
    bench = rounds_with(slurm, parked("7", stuck=True), parked("8", stuck=True), nodes=NODES)
    bench.rounds.planner.features = (*FEATURES, Failing(step))
    assert bench.run().placed == ["8"]
    assert_left(slurm, bench)


class Forgetting(Stage):
    """A stage that takes job 7 from the queue, and decides nothing of it."""

    name = "forgetting"

    def before(self, one: Round) -> Round:
        """The round without the job."""
        return replace(one, queue=[request for request in one.queue if request.job_id != "7"])


def test_a_job_that_a_stage_forgets_waits_and_the_log_says_it(
    slurm: SlurmFolder, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.write([parked("7", stuck=True), parked("8", stuck=True)], NODES)
    bench = RoundsBench(slurm)
    bench.rounds.planner.features = (Forgetting(), *FEATURES)
    outcome = bench.rounds.run()
    assert outcome.placed == ["8"]
    (waits,) = outcome.waiting
    assert (waits["job_id"], waits["reason"][:36]) == ("7", "the last round decided nothing of it")
    assert "decided nothing of them: ['7']" in caplog.text


def test_the_round_goes_on_without_an_optional_stage(slurm: SlurmFolder) -> None:
    bench = rounds_with(slurm, parked("7"), parked("8"), nodes=NODES)
    bench.rounds.planner.features = (*FEATURES, Failing("before", optional=True))
    assert sorted(bench.run().placed) == ["7", "8"]
