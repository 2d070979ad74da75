"""Jobs whose AdminComment somebody overwrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.config import Config
from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.service.rounds import Rounds
from slurm_gpu_aware.slurm.cli_gateway import CliGateway
from slurm_gpu_aware.slurm.client import JobUpdate
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

STATS = "JS1:H4sIAAAAAAAA"
"""What a site's accounting leaves there at a job's end."""


class Bench:
    """Rounds in this process."""

    def __init__(self, slurm: FakeSlurm, *, gate_left_s: float = 60.0) -> None:
        self.now = 1_790_000_000.0
        self.steady = 0.0
        self.rounds = Rounds(
            CliGateway(scontrol=slurm.scontrol),
            Config(),
            Books(slurm.store),
            gate_held_until=lambda: self.now + gate_left_s,
            clock=lambda: self.now,
            timer=lambda: self.steady,
        )
        self.rounds.watch.load()


def place(slurm: FakeSlurm, *jobs: dict[str, Any]) -> Bench:
    slurm.write(list(jobs), ["n1", "n2"])
    bench = Bench(slurm)
    bench.rounds.run()
    return bench


def requeue(slurm: FakeSlurm, number: str = "7", **fields: Any) -> None:
    """Slurm takes it back to its queue; the fake starts nothing that is stuck."""
    usual = {"JobState": "PENDING", "Reason": "BeginTime", "Restarts": "1", "NodeList": ""}
    slurm.change(number, AdminComment=STATS, stuck="1", **{**usual, **fields})


def seen(job: dict[str, Any]) -> tuple[str, str, str, str]:
    return job["Licenses"], job["ReqNodeList"], job["TresPerNode"], job["AdminComment"]


FREE = ("(null)", "(null)", "gres/gpu:2", STATS)


@pytest.mark.parametrize("anew", [False, True], ids=["same selector", "a new one"])
def test_a_requeued_job_gets_its_request_back(slurm: FakeSlurm, anew: bool) -> None:
    bench = place(slurm, parked())
    bench.rounds.run()
    assert slurm.jobs["7"]["JobState"] == "RUNNING"
    requeue(slurm, TresFreq="gpu:900", Extra="mine,freq=900@0+1")
    (Bench(slurm) if anew else bench).rounds.run()
    assert seen(slurm.jobs["7"]) == FREE
    assert "TresFreq" not in slurm.jobs["7"]
    assert slurm.jobs["7"]["Extra"] == "mine"
    with open_store(slurm.store, readonly=True) as store:
        event = Ledger(store).events("7")[-1]
        assert Ledger(store).decisions("7")[-1].state == "reparked"
    assert event.detail["left_to_slurm"] == "its AdminComment was overwritten"
    before = slurm.jobs
    bench.rounds.run()
    assert slurm.jobs == before


def test_own_licences_stay(slurm: FakeSlurm) -> None:
    comment = "gpuaware/1;tn=gres/gpu:2;lic=matlab:2;mc=1"
    bench = place(slurm, parked(Licenses="matlab:2,gpuaware:1", AdminComment=comment))
    requeue(slurm)
    bench.rounds.run()
    assert seen(slurm.jobs["7"]) == ("matlab:2", *FREE[1:])


def test_a_prepared_job_is_unpinned_before_it_is_opened(slurm: FakeSlurm) -> None:
    bench = place(slurm, parked(stuck="1"))
    slurm.change("7", Licenses="gpuaware:1", AdminComment=STATS)
    bench.rounds.run()
    assert seen(slurm.jobs["7"]) == FREE


def test_nothing_is_unpinned_while_the_gate_is_not_held(slurm: FakeSlurm) -> None:
    place(slurm, parked())
    requeue(slurm)
    before = slurm.jobs
    Bench(slurm, gate_left_s=0.0).rounds.run()
    assert slurm.jobs == before


@pytest.mark.parametrize(
    "fields",
    [{"UserId": "bob(2002)"}, {"TresPerNode": "gres/gpu:g2:1,gres/gpu:g3:1"}],
    ids=["user", "GPUs"],
)
def test_another_job_of_the_same_number_is_left_alone(
    slurm: FakeSlurm, fields: dict[str, str]
) -> None:
    bench = place(slurm, parked())
    requeue(slurm, **fields)
    before = slurm.jobs
    bench.rounds.run()
    assert slurm.jobs == before


def test_a_refused_one_is_tried_again_later(slurm: FakeSlurm) -> None:
    bench = place(slurm, parked())
    requeue(slurm)
    (slurm.home / "refuse").write_text("7")
    bench.rounds.run()
    (slurm.home / "refuse").unlink()
    bench.steady += 59.0
    bench.rounds.run()
    assert slurm.jobs["7"]["ReqNodeList"] == "n1"
    bench.steady += 2.0
    bench.rounds.run()
    assert seen(slurm.jobs["7"]) == FREE


class KilledError(Exception):
    """The selector was killed."""


@pytest.mark.parametrize("after", [1, 2])
def test_a_selector_that_dies_in_between_leaves_a_closed_gate(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Killed before the job is closed, or closed and still pinned; the next one goes on."""
    bench = place(slurm, parked())
    requeue(slurm)
    update, calls = CliGateway.update_jobs, []

    def dies(gateway: CliGateway, updates: Sequence[JobUpdate]) -> dict[str, str]:
        calls.extend([1] if updates else [])
        if len(calls) == after:
            raise KilledError
        return update(gateway, updates)

    with monkeypatch.context() as patch:
        patch.setattr(CliGateway, "update_jobs", dies)
        with pytest.raises(KilledError):
            bench.rounds.run()
    closed = "gpuaware:1" if after == 2 else "(null)"
    assert (slurm.jobs["7"]["Licenses"], slurm.jobs["7"]["ReqNodeList"]) == (closed, "n1")
    Bench(slurm).rounds.run()
    assert seen(slurm.jobs["7"]) == FREE
