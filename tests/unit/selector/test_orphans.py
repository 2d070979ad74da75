"""Orphans: jobs with an overwritten AdminComment."""

from collections.abc import Sequence
from typing import Any

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.slurm.updates import JobUpdate

STATS = "JS1:H4sIAAAAAAAA"
"""What a site's accounting leaves there at a job's end."""


def orphan_bench(slurm: SlurmFolder) -> RoundsBench:
    bench = RoundsBench(slurm)
    bench.rounds.tracker.load()
    return bench


def after_round(slurm: SlurmFolder, *jobs: dict[str, Any]) -> RoundsBench:
    slurm.write(list(jobs), ["n1", "n2"])
    bench = orphan_bench(slurm)
    bench.run()
    return bench


def requeue(slurm: SlurmFolder, number: str = "7", **fields: Any) -> None:
    """Slurm takes it back to its queue; ours starts nothing that is stuck."""
    usual = {"state": "PENDING", "reason": "BeginTime", "restart_cnt": 1, "nodes": ""}
    slurm.change(number, admin_comment=STATS, stuck=True, **{**usual, **fields})


def request_shown(job: dict[str, Any]) -> tuple[str, str, str, str]:
    return job["licenses"], job["req_nodes"], job["tres_per_node"], job["admin_comment"]


FREE = ("", "", "gres/gpu:2", STATS)


@pytest.mark.parametrize("anew", [False, True], ids=["same selector", "a new one"])
def test_a_requeued_job_gets_its_request_back(slurm: SlurmFolder, anew: bool) -> None:
    bench = after_round(slurm, parked())
    bench.run()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    requeue(slurm, tres_freq="gpu:900", extra="mine,freq=900@0+1")
    (orphan_bench(slurm) if anew else bench).run()
    assert request_shown(slurm.jobs["7"]) == FREE
    assert slurm.jobs["7"]["tres_freq"] == ""
    assert slurm.jobs["7"]["extra"] == "mine"
    assert slurm.ledger("7")[-1].state == "waiting"
    assert slurm.events()[-1].detail["left_to_slurm"] == "its AdminComment was overwritten"
    before = slurm.jobs
    bench.run()
    assert slurm.jobs == before


def test_own_licences_stay(slurm: SlurmFolder) -> None:
    bench = after_round(slurm, parked(record=";lic=matlab:2", licenses="matlab:2,gpuaware:1"))
    requeue(slurm)
    bench.run()
    assert request_shown(slurm.jobs["7"]) == ("matlab:2", *FREE[1:])


def test_a_prepared_job_is_unpinned_before_it_is_opened(slurm: SlurmFolder) -> None:
    bench = after_round(slurm, parked(stuck=True))
    slurm.change("7", licenses="gpuaware:1", admin_comment=STATS)
    bench.run()
    assert request_shown(slurm.jobs["7"]) == FREE


@pytest.mark.parametrize(
    "fields",
    [{}, {"array_job_id": 7, "array_task_str": "1-3"}, {"licenses": "matlab:2,gpuaware:1"}],
    ids=["single", "array", "licences"],
)
def test_a_job_that_lost_its_record_before_the_first_round_does_not_wait_for_ever(
    slurm: SlurmFolder, fields: dict[str, Any]
) -> None:
    after_round(slurm, parked(**{**fields, "admin_comment": STATS, "stuck": True}))
    own = "matlab:2" if "licenses" in fields else ""
    assert [request_shown(job) for job in slurm.jobs.values()] == [(own, *FREE[1:])]


def test_nothing_is_unpinned_while_the_gate_is_not_held(slurm: SlurmFolder) -> None:
    after_round(slurm, parked())
    requeue(slurm)
    before = slurm.jobs
    bench = orphan_bench(slurm)
    bench.rounds._gate_held_until = lambda: bench.wall
    bench.run()
    assert slurm.jobs == before


@pytest.mark.parametrize(
    "fields",
    [{"user_id": 2002, "user_name": "bob"}, {"tres_per_node": "gres/gpu:g2:1,gres/gpu:g3:1"}],
    ids=["user", "GPUs"],
)
def test_another_job_of_the_same_number_is_left_alone(
    slurm: SlurmFolder, fields: dict[str, str]
) -> None:
    bench = after_round(slurm, parked())
    requeue(slurm, **fields)
    before = slurm.jobs
    bench.run()
    assert slurm.jobs == before


def test_a_refused_one_is_tried_again_later(slurm: SlurmFolder) -> None:
    bench = after_round(slurm, parked())
    requeue(slurm)
    slurm.set(refuse=["7"])
    bench.run()
    slurm.set(refuse=[])
    bench.run(59.0)
    assert slurm.jobs["7"]["req_nodes"] == "n1"
    bench.run(2.0)
    assert request_shown(slurm.jobs["7"]) == FREE


class KilledError(BaseException):
    """The selector was killed."""


@pytest.mark.parametrize("after", [1, 2])
def test_a_selector_that_dies_in_between_leaves_a_closed_gate(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Killed before the job is closed, or closed and still pinned; the next one goes on."""
    bench = after_round(slurm, parked())
    requeue(slurm)
    update, calls = bench.client.update_jobs, []

    def dies(updates: Sequence[JobUpdate]) -> dict[str, str]:
        calls.extend([1] if updates else [])
        if len(calls) == after:
            raise KilledError
        return update(updates)

    with monkeypatch.context() as patch:
        patch.setattr(bench.client, "update_jobs", dies)
        with pytest.raises(KilledError):
            bench.run()
    closed = "gpuaware:1" if after == 2 else ""
    assert (slurm.jobs["7"]["licenses"], slurm.jobs["7"]["req_nodes"]) == (closed, "n1")
    orphan_bench(slurm).run()
    assert request_shown(slurm.jobs["7"]) == FREE
