"""The holding pool: which jobs wait there, which leave it, and that it never holds a job up."""

import logging
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from make import as_gated, slurm_job
from rounds_bench import RoundsBench, reasons_of
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import in_holding_pool
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.restore import release_by_hand
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.candidates import Candidate, Candidates
from slurm_gpu_aware.selector.heartbeat import Heartbeat
from slurm_gpu_aware.selector.holding_pool import HoldingPool, alike, spare, stranded

RECORD = "gpuaware/1;tn=gres/gpu:2;mc=1"
LOST = {"priority": 0, "reason": "Reservation_(null)_is_invalid", "resv_name": ""}
"""A job whose reservation is gone, as Slurm shows it."""
NO_ROOM = replace(Config(), gate=replace(Config().gate, queue_tests=0))


def aged(job_id: str, **fields: Any) -> dict[str, Any]:
    """A parked job whose age counts; each asks for a node's half."""
    return parked(job_id, eligible_time=900, **fields)


def bench_of(slurm: SlurmFolder, *jobs: dict[str, Any], config: Config = NO_ROOM) -> RoundsBench:
    slurm.write(list(jobs), ["n1"])
    bench = RoundsBench(slurm, config)
    bench.wall = time.time()  # by which Slurm knows whether a reservation has begun
    return bench


def pools(slurm: SlurmFolder) -> list[str]:
    return [found["name"] for found in slurm.get("reservations") if in_holding_pool(found["name"])]


def pooled(slurm: SlurmFolder) -> list[str]:
    return sorted(i for i, job in slurm.jobs.items() if in_holding_pool(job["resv_name"]))


def releases(slurm: SlurmFolder) -> list[str]:
    return [call[1] for call in slurm.calls if call[0] == "release"]


def full_node(slurm: SlurmFolder, *more: dict[str, Any]) -> RoundsBench:
    """7 and 8 run on all of n1, the others wait in the holding pool."""
    bench = bench_of(slurm, aged("7"), aged("8"), *more)
    assert sorted(bench.run().placed) == ["7", "8"]
    bench.run()
    return bench


def heartbeat_of(bench: RoundsBench, config: Config | None = None) -> Heartbeat:
    return Heartbeat(bench.client, config or bench.config, bench.pool, clock=lambda: bench.wall)


def end(slurm: SlurmFolder, job_id: str) -> None:
    slurm.change(job_id, state="COMPLETED", slots=[])


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("gpuaware_pool", True),
        ("gpuaware_pool_1790000000", True),
        ("gpuaware_poolside", False),
        ("gpuaware_gate", False),
        ("x,gpuaware_pool_1", False),
        (None, False),
    ],
)
def test_names(name: str | None, *, ours: bool) -> None:
    assert in_holding_pool(name) is ours


def test_a_pool_is_not_what_the_user_asked_for(slurm: SlurmFolder) -> None:
    slurm.write([aged("7", resv_name="gpuaware_pool_1"), aged("8", resv_name="class")], ["n1"])
    jobs = {job.id: job for job in slurm.client().jobs()}
    assert (jobs["7"].reservation, jobs["7"].holding_pool) == (None, "gpuaware_pool_1")
    assert (jobs["8"].reservation, jobs["8"].holding_pool) == ("class", None)
    assert jobs["7"].eligible_s == 900.0


def test_a_job_without_a_place_is_put_there_and_taken_out_when_there_is_one(
    slurm: SlurmFolder,
) -> None:
    bench = full_node(slurm, aged("9"), aged("10"))
    assert pooled(slurm) == ["10", "9"]
    assert len(pools(slurm)) == 1
    end(slurm, "7")
    outcome = bench.run()
    assert (outcome.placed, outcome.untried, pooled(slurm)) == ([], 1, ["10"])
    assert reasons_of(outcome)["9"].startswith("GPUs are free")
    assert bench.run().placed == []  # Slurm has not looked at it yet
    slurm.change("9", reason="Licenses")
    assert bench.run().placed == ["9"]
    assert slurm.jobs["9"]["state"] == "RUNNING"


def test_its_gpus_are_kept_until_slurm_has_looked(slurm: SlurmFolder) -> None:
    """10 is behind 9; it does not get what 9 was taken from the holding pool for."""
    bench = full_node(slurm, aged("9"), aged("10", priority=50))
    end(slurm, "7")
    bench.run()
    slurm.change("10", reason="Licenses", resv_name="")
    assert bench.run().placed == []


def test_a_scheduler_that_does_not_come_to_it_is_not_waited_for(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, aged("9"))
    end(slurm, "7")
    bench.run()
    assert bench.run(3.9).placed == []
    assert bench.run(0.2).placed == ["9"]


def test_of_jobs_alike_one_shows_the_limit(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, aged("9"), aged("10"), aged("11", gpus=1))
    end(slurm, "7")
    bench.run()
    assert pooled(slurm) == ["10", "11"]
    slurm.change("9", reason="QOSMaxGRESPerUser")
    outcome = bench.run()
    why = reasons_of(outcome)
    assert why["10"] == "a limit holds job 9, which is like it: QOSMaxGRESPerUser"
    assert pooled(slurm) == ["10"]  # 11 asks for less: it is asked for itself
    bench.run(50.0)
    assert pooled(slurm) == ["10"]  # 9 stays where Slurm shows its limit
    end(slurm, "8")
    slurm.change("9", reason="Licenses")
    assert bench.run().placed == ["9"]


def test_now_and_then_one_more_of_the_kind_is_tried(slurm: SlurmFolder) -> None:
    """What Slurm shows of 9 may be old: nothing tells when a limit is changed."""
    bench = full_node(slurm, aged("9"), aged("10"), aged("11"))
    end(slurm, "7")
    end(slurm, "8")
    slurm.change("9", reason="AssocGrpGRES", resv_name="")
    bench.run()
    assert pooled(slurm) == ["10", "11"]
    assert bench.run(61.0).untried == 1
    assert pooled(slurm) == ["11"]


def test_a_longer_job_is_not_alike() -> None:
    """It may break a limit on time alone."""
    short, long = slurm_job(7), slurm_job(8, time_limit_s=86400.0)
    assert alike(short) != alike(long)
    assert alike(short) == alike(slurm_job(9))


def test_few_parked_jobs_stay_in_slurms_queue(slurm: SlurmFolder) -> None:
    room = replace(Config(), gate=replace(Config().gate, queue_tests=2))
    jobs = [aged(str(i), priority=100 - i) for i in range(7, 13)]
    bench = bench_of(slurm, *jobs, config=room)
    bench.run()
    assert pooled(slurm) == ["11", "12"]  # 7 and 8 run, 9 and 10 are next


@pytest.mark.parametrize(
    "fields",
    [
        {"eligible_time": 0},
        {"resv_name": "class"},
        {"reason": "Dependency"},
        {"reason": "JobHeldUser"},
        {"reason": "BeginTime", "eligible_time": 2_790_000_000},
    ],
    ids=["not eligible yet", "in a reservation", "dependent", "held", "user's begin time"],
)
def test_jobs_that_are_not_put_there(slurm: SlurmFolder, fields: dict[str, str]) -> None:
    full_node(slurm, aged("9") | fields)
    assert pooled(slurm) == []
    assert pools(slurm) == []


HELD_THERE = [
    ({"eligible_time": 0, "accrue_time": 0, "reason": "JobHeldUser"}, True),
    ({"reason": "Reservation"}, False),
    ({"eligible_time": 950, "reason": "Licenses"}, True),
]
"""With enforced limits Slurm forgets both times, and counts again only in its own queue."""
THROTTLED = [({"eligible_time": 0, "reason": "Reservation"}, True)]
"""Of an array that its throttle held it forgets the eligible time, and goes on counting its age."""


@pytest.mark.parametrize("steps", [HELD_THERE, THROTTLED], ids=["held", "throttled"])
def test_held_and_released_in_the_pool_it_goes_on_growing_older(
    slurm: SlurmFolder, steps: list[tuple[dict[str, Any], bool]]
) -> None:
    bench = full_node(slurm, aged("9", accrue_time=900))
    for fields, stays in steps:
        slurm.change("9", **fields)
        bench.run()
        assert (pooled(slurm) == ["9"]) is stays


def test_stranded_jobs() -> None:
    pool = "gpuaware_pool_9"
    lost = {"holding_pool": pool, "reason": "Reservation", "eligible_s": None}
    jobs = [slurm_job(7, **lost), slurm_job(8, holding_pool=pool, reason="Reservation")]
    jobs.append(slurm_job(98, array_id=98, array_tasks="2-9", **lost))
    assert stranded(jobs, frozenset()) == [jobs[0], jobs[2]]
    assert stranded(jobs, frozenset({98})) == [jobs[0]]
    many = [slurm_job(i, **lost) for i in range(1, 500)]
    assert stranded(many, frozenset()) == many[:100]


def test_what_is_left_of_a_split_array_stays() -> None:
    whole = as_gated(slurm_job(98, array_id=98, array_tasks="1-9", admin_comment=RECORD))
    other = as_gated(slurm_job(7, admin_comment=RECORD))
    assert spare([other, whole], 1, frozenset()) == [whole.job]
    assert spare([other, whole], 1, frozenset({98})) == []


def test_a_later_task_waits_for_the_earlier_one_at_which_slurm_looks() -> None:
    def job(number: int, pool: str | None = None, **fields: Any) -> GatedJob:
        return as_gated(slurm_job(number, holding_pool=pool, admin_comment=RECORD, **fields))

    def task(number: int, pool: str | None = None) -> GatedJob:
        return job(100 + number, pool, array_id=98).task(f"98_{number}")

    jobs = [task(3, "s"), task(2), task(4), job(7)]
    pool = SimpleNamespace(holds=lambda job: job.holding_pool == "s", awaits=lambda job: False)
    to_plan = {job.id: Candidate(job, Request(job.id, gpus=1)) for job in jobs}
    candidates = Candidates(None, None, None, pool, None, to_plan)  # type: ignore[arg-type]
    found, waits = candidates.placeable(
        [SimpleNamespace(job_id=job.id) for job in jobs]  # type: ignore[misc]
    )
    assert [a.job_id for a in found] == ["98_2", "7"]
    assert [job.id for job in waits] == ["98_3", "98_4"]


def test_released_by_hand_it_leaves_the_pool(slurm: SlurmFolder) -> None:
    full_node(slurm, aged("9"))
    end(slurm, "7")
    release_by_hand(slurm.client(), Config(), ["9"])
    assert slurm.jobs["9"]["resv_name"] == ""
    assert slurm.jobs["9"]["state"] == "RUNNING"


def test_no_job_with_an_open_gate_stays_there(slurm: SlurmFolder) -> None:
    """An operator released 9 while a round put it there; 10's licence was taken away."""
    bench = full_node(slurm, aged("9"), aged("10"))
    slurm.change("9", admin_comment="gpuaware/1;tn=gres/gpu:2;mc=1;sel=opened:0:1", licenses="")
    slurm.change("10", licenses="")
    bench.run()
    assert pooled(slurm) == []


def test_released_before_it_was_seen_there(slurm: SlurmFolder) -> None:
    slurm.write([aged("9")], [])
    release_by_hand(slurm.client(), Config(), ["9"])
    sent = [call[2] for call in slurm.calls if call[0] == "update"]
    assert any(fields.get("ReservationName") == "" for fields in sent)


def test_tasks_that_were_just_opened_are_not_put_there_with_the_rest(slurm: SlurmFolder) -> None:
    array = aged("98", array_job_id=98, array_task_str="1,2,3,4", priority=50)
    bench = bench_of(slurm, array)
    assert sorted(bench.run().placed) == ["98_1", "98_2"]
    assert pooled(slurm) == []
    bench.run()
    assert pooled(slurm) == []


def test_a_task_is_taken_and_the_rest_stays(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, aged("98", array_job_id=98, array_task_str="1,2,3"))
    assert pooled(slurm) == ["98"]
    end(slurm, "7")
    assert bench.run().untried == 1
    task = next(j for j in slurm.jobs.values() if j["array_task_id"] == 1)
    assert task["resv_name"] == ""
    assert slurm.jobs["98"]["array_task_str"] == "2,3"
    assert pooled(slurm) == ["98"]
    slurm.change(str(task["job_id"]), reason="Licenses")
    assert bench.run().placed == ["98_1"]


def test_a_job_that_slurm_holds_because_it_lost_the_pool_is_released(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, aged("9"), aged("10", resv_name="class"))
    bench.run()
    for job_id in ("9", "10"):
        slurm.change(job_id, **LOST)
    slurm.forget_calls()
    bench.run()
    assert releases(slurm) == ["9"]  # 10's user named a reservation that is gone
    end(slurm, "7")
    slurm.change("9", reason="Licenses")
    assert bench.run().placed == ["9"]


def test_a_new_selector_knows_whose_pool_was_lost(slurm: SlurmFolder) -> None:
    """By the ledger: 9 came without a reservation, 10 with one; of 11 nothing is written."""
    bench = full_node(slurm, aged("9"), aged("10", resv_name="class"))
    bench.run()
    for job_id in ("9", "10"):
        slurm.change(job_id, **LOST)
    slurm.add(aged("11", **LOST))
    slurm.forget_calls()
    again = RoundsBench(slurm, NO_ROOM)
    again.wall = time.time()
    again.rounds.run()
    assert releases(slurm) == ["9"]


def test_a_pool_that_cannot_be_deleted_is_kept_closed(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = full_node(slurm, aged("9"))
    slurm.change("9", state="CANCELLED")
    refuse = Mock(side_effect=SourceError("Requested reservation is in use"))
    monkeypatch.setattr(bench.client, "delete_reservation", refuse)
    bench.run(61.0)
    assert bench.pool.holds(slurm_job(9, holding_pool=pools(slurm)[0]))


def test_slurm_has_saved_a_pool_before_jobs_name_it(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, aged("9"))
    pool = HoldingPool(bench.client, clock=lambda: bench.wall, timer=lambda: bench.steady)
    pool.put([slurm_job(9)], bench.wall + 60.0)
    assert (len(pools(slurm)), pooled(slurm)) == (1, [])
    bench.steady += 15.0
    pool.put([slurm_job(9)], bench.wall + 60.0)
    assert pooled(slurm) == ["9"]


def test_a_round_fills_the_pool_for_a_short_time_only(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, *(aged(str(number)) for number in range(11, 41)))
    bench.update_s = 0.015
    jobs = [slurm_job(number) for number in range(11, 41)]
    assert bench.pool.put(jobs, bench.wall + 60.0) == 14
    assert len(pooled(slurm)) == 16
    assert bench.pool.put(jobs[16:], bench.wall + 60.0) == 0
    assert len(pooled(slurm)) == 30


def test_the_heartbeat_holds_the_gate_before_it_puts_the_pool_off(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, aged("9"))
    slurm.forget_calls()
    heartbeat_of(bench).beat()
    gate, pool = [call[1:] for call in slurm.calls if call[0] == "move_reservation"]
    assert gate[0] == "gpuaware_gate"
    assert in_holding_pool(pool[0])
    (ends, _), (pool_ends, opens) = gate[1:], pool[1:]
    assert opens == ends + 30
    assert pool_ends == opens + 365 * 86400


def test_a_pool_that_slurm_refuses_to_put_off_does_not_open_the_gate(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = full_node(slurm, aged("9"))
    move = bench.client.move_reservation

    def refuse(name: str, *times: Any, **more: Any) -> bool:
        if in_holding_pool(name):
            raise SourceError(f"{name}: no")
        return move(name, *times, **more)

    monkeypatch.setattr(bench.client, "move_reservation", refuse)
    heartbeat = heartbeat_of(bench)
    heartbeat.beat()
    assert heartbeat.held_until == bench.wall + 90.0
    assert "could not be put off" in caplog.text


def test_a_limit_of_the_past_does_not_keep_it_there(slurm: SlurmFolder) -> None:
    """9 was placed and ran into a limit; in the holding pool no reason shows that this is over."""
    bench = bench_of(slurm, aged("7"), aged("8"), aged("9", stuck=True))
    slurm.change("7", state="CANCELLED")
    assert sorted(bench.run().placed) == ["8", "9"]
    slurm.change("9", reason="QOSMaxGRESPerUser")
    slurm.change("8", state="COMPLETED", slots=[])
    bench.run()
    assert bench.poll() == 1
    slurm.change("9", reason="Licenses")
    bench.run()  # held back for two seconds
    assert pooled(slurm) == ["9"]
    assert bench.run(2.5).untried == 1
    assert bench.run().untried == 1  # Slurm has not looked: its GPUs are kept for it


def begun(slurm: SlurmFolder) -> None:
    """The selector was away: the holding pool has opened, its jobs wait at the gate."""
    with slurm.state() as state:
        for found in state["reservations"]:
            found["start_time"] = 100


def test_one_that_has_opened_is_left_for_a_new_one(
    slurm: SlurmFolder, caplog: pytest.LogCaptureFixture
) -> None:
    bench = full_node(slurm, aged("9"), aged("10"))
    first = pools(slurm)
    begun(slurm)
    for job_id in ("9", "10"):
        slurm.change(job_id, reason="Licenses")
    bench.wall += 100.0
    with caplog.at_level(logging.WARNING):
        bench.pool.keep_closed(bench.wall + 90.0)
    assert "has opened" in caplog.text
    end(slurm, "7")
    assert bench.run().placed == ["9"]  # at once: Slurm tries the jobs in the pool
    assert slurm.jobs["9"]["resv_name"] == ""
    assert pools(slurm)[0] == first[0]
    assert slurm.jobs["10"]["resv_name"] == pools(slurm)[1] != first[0]


@pytest.mark.parametrize("closed", [True, False])
def test_a_selector_goes_on_with_the_pool_that_is_there(
    slurm: SlurmFolder, *, closed: bool
) -> None:
    bench = full_node(slurm, aged("9"))
    name = pools(slurm)[0]
    if not closed:
        begun(slurm)
    pool = HoldingPool(bench.client, clock=lambda: bench.wall, timer=lambda: bench.steady)
    pool.keep_closed(bench.wall + 200.0)
    assert pool.holds(slurm_job(9, holding_pool=name)) is closed
    (start,) = [r["start_time"] for r in slurm.get("reservations") if r["name"] == name]
    assert (start == int(bench.wall + 230.0)) is closed


def test_without_its_licence_all_stay_in_the_queue(
    slurm: SlurmFolder, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.set(licences={"gpuaware": 100_000})
    with caplog.at_level(logging.WARNING):
        bench = full_node(slurm, aged("9"))
        bench.run()
    assert pooled(slurm) == []
    assert len(re.findall("is gpuaware_pool among Licenses", caplog.text)) == 1
    end(slurm, "7")
    assert bench.run().placed == ["9"]


def test_one_that_slurm_does_not_let_in_is_not_tried_again(slurm: SlurmFolder) -> None:
    slurm.set(refuse=["9"])
    bench = full_node(slurm, aged("9"))
    bench.run()
    sent = [u for _, u in bench.told if "ReservationName" in dict(u.fields)]
    assert [u.job_id for u in sent] == ["9"]


def test_a_deleted_pool_is_made_anew(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, aged("9"))
    slurm.change("9", resv_name="", reason="Licenses")
    slurm.reserve()
    bench.wall += 1.0
    bench.run()
    assert pooled(slurm) == []
    bench.run()
    assert pooled(slurm) == ["9"]


def test_an_unused_pool_is_removed(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, aged("9"))
    slurm.change("9", state="CANCELLED")
    bench.run(59.0)
    assert len(pools(slurm)) == 1
    bench.run(2.0)
    assert pools(slurm) == []


@pytest.mark.parametrize(("first", "placed"), [("AssocGrpGRES", ["9"]), ("Licenses", ["7", "8"])])
def test_behind_a_job_that_a_limit_holds_no_job_like_it_is_tried(
    slurm: SlurmFolder, first: str, placed: list[str]
) -> None:
    """Slurm looks at the first of them first, so what it shows of the others is older."""
    other = parked("9", user_id=1002, user_name="bob")
    slurm.write([parked(reason=first), parked("8", reason="None"), other], ["n1"])
    bench = RoundsBench(slurm)
    outcome = bench.run()
    assert sorted(outcome.placed) == placed
    if first != "Licenses":
        assert reasons_of(outcome) == {
            "7": "held by AssocGrpGRES",
            "8": "a limit holds job 7, which is like it: AssocGrpGRES",
        }


def test_a_limit_that_holds_a_later_job_holds_no_earlier_one(slurm: SlurmFolder) -> None:
    """Slurm tries only the first jobs of its queue in each pass."""
    slurm.write([parked(), parked("8", reason="AssocGrpGRES")], ["n1"])
    assert RoundsBench(slurm).rounds.run().placed == ["7"]


@pytest.mark.parametrize(
    ("reason", "after_s", "placed"),
    [("None", 1.0, []), ("None", 11.0, ["7", "8"]), ("Licenses", 1.0, ["7", "8"])],
)
def test_a_limit_counts_while_slurm_goes_through_its_queue(
    slurm: SlurmFolder, reason: str, after_s: float, placed: list[str]
) -> None:
    """At the begin of a pass Slurm takes the reasons of all jobs away."""
    limited = [parked(i, reason="AssocGrpGRES") for i in ("7", "8")]
    slurm.write(limited, ["n1"])
    bench = RoundsBench(slurm)
    assert bench.run().placed == []
    for job_id in ("7", "8"):
        slurm.change(job_id, reason=reason)
    bench.steady += after_s
    assert sorted(bench.run().placed) == placed


def test_a_job_that_a_limit_sent_back_tells_it_of_those_like_it(slurm: SlurmFolder) -> None:
    """Else they hold all GPUs in turn, until Slurm has shown the limit of each of them."""
    slurm.write([parked(str(i), reason="Priority", stuck=True) for i in range(7, 20)], ["n1"])
    bench = RoundsBench(slurm)
    assert bench.run().placed == ["7", "8"]
    end(slurm, "7")
    slurm.change("8", reason="AssocGrpGRES")
    assert bench.poll(1.0) == 2
    slurm.change("8", reason="None")
    assert bench.run(3.0).placed == []
    slurm.change("8", reason="Licenses")
    assert bench.run(3.0).placed == ["8"], "the limit let one run"
