"""Jobs to which the filter gave a begin time because parked jobs wait in the holding pool."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import as_gated
from rounds_bench import RoundsBench, reasons_of
from slurm_folder import SlurmFolder, parked
from test_holding_pool import NO_ROOM, aged, bench_of, end, full_node, heartbeat_of, pooled

from slurm_gpu_aware.config.settings import Config, EventsConfig
from slurm_gpu_aware.gate.restore import release_by_hand
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.live_jobs import live_job

BEGIN = int(time.time()) + 86400


def deferred(job_id: str, **fields: Any) -> dict[str, Any]:
    """As the filter and Slurm leave it."""
    usual = {"record": f";bt={BEGIN}", "eligible_time": BEGIN, "reason": "BeginTime"}
    return parked(job_id, **{**usual, **fields})


def begin_times(bench: RoundsBench, job_id: str) -> list[str]:
    """Begin times that were sent for a job."""
    fields = [dict(update.fields) for _, update in bench.told if update.job_id == job_id]
    return [sent["StartTime"] for sent in fields if "StartTime" in sent]


def test_it_is_placed_and_begins_at_once(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, deferred("7"))
    assert bench.run().placed == ["7"]
    assert slurm.jobs["7"]["state"] == "RUNNING"
    assert begin_times(bench, "7") == ["now"]


def test_it_is_put_in_the_pool_and_waits_there_like_others(slurm: SlurmFolder) -> None:
    bench = full_node(slurm, deferred("9"))
    assert pooled(slurm) == ["9"]
    slurm.change("9", reason="BeginTime")  # until Slurm's scheduler passes
    assert bench.run().blocked == 0
    past = int(time.time()) - 5  # its begin time has come; the job needs none
    record = parked(record=f";bt={past}")["admin_comment"]
    slurm.change("9", reason="Reservation", eligible_time=past, admin_comment=record)
    end(slurm, "7")
    assert bench.run().untried == 1
    slurm.change("9", reason="Licenses")
    assert bench.run().placed == ["9"]
    assert begin_times(bench, "9") == []


def test_taken_from_the_pool_before_its_begin_time(slurm: SlurmFolder) -> None:
    """Slurm looks at it first, as at others: it may begin now."""
    bench = full_node(slurm, deferred("9"))
    end(slurm, "7")
    assert bench.run().untried == 1
    assert begin_times(bench, "9") == ["now"]
    bench.wall = time.time()  # as Slurm, which has just let it begin
    assert bench.run().placed == []  # Slurm has not looked at it yet
    slurm.change("9", reason="Licenses")
    assert bench.run().placed == ["9"]
    assert begin_times(bench, "9") == ["now"]


def test_a_limit_that_holds_another_like_it(slurm: SlurmFolder) -> None:
    """Slurm shows the limit of the jobs that it has tried; no job is placed to find it out."""
    limited = parked("7", eligible_time=900, reason="QOSMaxJobsPerUserLimit")
    bench = bench_of(slurm, limited, deferred("9"), deferred("10"))
    outcome = bench.run()
    assert outcome.placed == []
    for job_id in ("9", "10"):
        assert reasons_of(outcome)[job_id].startswith("a limit holds job 7")


def test_placed_while_slurms_clock_is_behind_ours(slurm: SlurmFolder) -> None:
    """Its begin time came for us, and has not come for Slurm."""
    bench = bench_of(slurm, deferred("7", stuck=True))
    bench.wall = BEGIN + 1.0
    assert bench.run().placed == ["7"]
    assert begin_times(bench, "7") == []
    slurm.change("7", reason="BeginTime")
    assert bench.poll(2.0) == 0
    assert bench.closed("7") == []
    assert bench.poll(4.0) == 1
    assert len(bench.closed("7")) == 1


def test_what_people_see_of_it(slurm: SlurmFolder) -> None:
    slurm.write([deferred("7")], ["n1"])
    (job,) = slurm.client().jobs()
    assert live_job(job, Config()).reason == "Licenses"
    assert live_job(replace(job, eligible_s=job.submit_s), Config()).reason == "BeginTime"


def test_released_by_hand_it_begins_at_once(slurm: SlurmFolder) -> None:
    slurm.write([deferred("7")], ["n1"])
    release_by_hand(slurm.client(), Config(), ["7"])
    assert slurm.jobs["7"]["state"] == "RUNNING"


@pytest.mark.parametrize(
    "fields",
    [
        {"eligible_time": BEGIN + 3600},  # scontrol update StartTime=, or requeued
        {"record": ""},  # sbatch --begin
    ],
    ids=["changed since", "the user's own"],
)
def test_another_begin_time_holds_the_job(slurm: SlurmFolder, fields: dict[str, str]) -> None:
    bench = bench_of(slurm, deferred("7", **fields))
    outcome = bench.run()
    assert (outcome.placed, outcome.blocked) == ([], 1)
    assert outcome.waiting[0]["reason"] == "held by BeginTime"
    release_by_hand(slurm.client(), Config(), ["7"])
    assert slurm.jobs["7"]["state"] == "PENDING"


def test_a_time_that_has_come_is_not_sent(slurm: SlurmFolder) -> None:
    """Slurm would count the job's age from now."""
    past = int(time.time()) - 100
    bench = bench_of(slurm, deferred("7", record=f";bt={past}", eligible_time=past))
    (job,) = bench.client.jobs()
    assert as_gated(job).only_deferred
    assert bench.run().placed == ["7"]
    assert begin_times(bench, "7") == []


def test_the_heartbeat_tells_the_filter_while_there_is_a_pool(
    slurm: SlurmFolder, tmp_path: Path
) -> None:
    config = replace(NO_ROOM, events=EventsConfig(submit_file=tmp_path / "submitted"))
    heartbeat_of(bench_of(slurm, aged("7")), config).beat()
    assert not list(tmp_path.glob("submitted*"))
    bench = full_node(slurm, aged("9"))
    heartbeat = heartbeat_of(bench, config)
    heartbeat.beat()
    assert [path.name for path in tmp_path.glob("submitted*")] == ["submitted.defer"]
    told = float((tmp_path / "submitted.defer").read_text())
    assert told == int(heartbeat.held_until)


def test_a_file_that_cannot_be_written_is_told_once(
    slurm: SlurmFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(NO_ROOM, events=EventsConfig(submit_file=tmp_path / "gone" / "submitted"))
    bench = full_node(slurm, aged("9"))
    heartbeat = heartbeat_of(bench, config)
    for _ in range(3):
        heartbeat.beat()
    assert heartbeat.held_until == bench.wall + 90.0
    assert caplog.text.count("Slurm tries new jobs before they are in the holding pool") == 1


def test_not_before_the_pool_takes_jobs(slurm: SlurmFolder) -> None:
    """Slurm saves a new reservation some seconds later."""
    bench = bench_of(slurm, aged("9"))
    pool = HoldingPool(bench.client, clock=lambda: bench.wall, timer=lambda: bench.steady)
    assert not pool.in_use
    (job,) = bench.client.jobs()
    pool.put([job], bench.wall + 60.0)
    assert not pool.in_use
    bench.steady += 15.0
    assert pool.in_use
