"""Orphans: jobs with an overwritten AdminComment."""

from collections.abc import Sequence
from typing import Any

import pytest
from memory_slurm import MemorySlurm
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

STATS = "JS1:H4sIAAAAAAAA"
"""What a site's accounting leaves there at a job's end."""


class OrphanBench:
    """Rounds in this process."""

    def __init__(self, slurm: SlurmFolder, *, gate_left_s: float = 60.0) -> None:
        self.now = 1_790_000_000.0
        self.steady = 0.0
        self.rounds = Rounds(
            slurm.client(),
            Config(),
            LedgerWriter(slurm.store),
            gate_held_until=lambda: self.now + gate_left_s,
            clock=lambda: self.now,
            timer=lambda: self.steady,
        )
        self.rounds.tracker.load()


def after_round(slurm: SlurmFolder, *jobs: dict[str, Any]) -> OrphanBench:
    slurm.write(list(jobs), ["n1", "n2"])
    bench = OrphanBench(slurm)
    bench.rounds.run()
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
    bench.rounds.run()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    requeue(slurm, tres_freq="gpu:900", extra="mine,freq=900@0+1")
    (OrphanBench(slurm) if anew else bench).rounds.run()
    assert request_shown(slurm.jobs["7"]) == FREE
    assert slurm.jobs["7"]["tres_freq"] == ""
    assert slurm.jobs["7"]["extra"] == "mine"
    with open_store(slurm.store, readonly=True) as store:
        event = Ledger(store).events("7")[-1]
        assert Ledger(store).decisions("7")[-1].state == "waiting"
    assert event.detail["left_to_slurm"] == "its AdminComment was overwritten"
    before = slurm.jobs
    bench.rounds.run()
    assert slurm.jobs == before


def test_own_licences_stay(slurm: SlurmFolder) -> None:
    comment = "gpuaware/1;tn=gres/gpu:2;lic=matlab:2;mc=1"
    bench = after_round(slurm, parked(licenses="matlab:2,gpuaware:1", admin_comment=comment))
    requeue(slurm)
    bench.rounds.run()
    assert request_shown(slurm.jobs["7"]) == ("matlab:2", *FREE[1:])


def test_a_prepared_job_is_unpinned_before_it_is_opened(slurm: SlurmFolder) -> None:
    bench = after_round(slurm, parked(stuck=True))
    slurm.change("7", licenses="gpuaware:1", admin_comment=STATS)
    bench.rounds.run()
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
    OrphanBench(slurm, gate_left_s=0.0).rounds.run()
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
    bench.rounds.run()
    assert slurm.jobs == before


def test_a_refused_one_is_tried_again_later(slurm: SlurmFolder) -> None:
    bench = after_round(slurm, parked())
    requeue(slurm)
    slurm.set(refuse=["7"])
    bench.rounds.run()
    slurm.set(refuse=[])
    bench.steady += 59.0
    bench.rounds.run()
    assert slurm.jobs["7"]["req_nodes"] == "n1"
    bench.steady += 2.0
    bench.rounds.run()
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
    update, calls = MemorySlurm.update_jobs, []

    def dies(client: MemorySlurm, updates: Sequence[JobUpdate]) -> dict[str, str]:
        calls.extend([1] if updates else [])
        if len(calls) == after:
            raise KilledError
        return update(client, updates)

    with monkeypatch.context() as patch:
        patch.setattr(MemorySlurm, "update_jobs", dies)
        with pytest.raises(KilledError):
            bench.rounds.run()
    closed = "gpuaware:1" if after == 2 else ""
    assert (slurm.jobs["7"]["licenses"], slurm.jobs["7"]["req_nodes"]) == (closed, "n1")
    OrphanBench(slurm).rounds.run()
    assert request_shown(slurm.jobs["7"]) == FREE
