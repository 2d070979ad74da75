"""Postponements: what the selector remembers of jobs that wait by choice, also after a restart."""

from pathlib import Path

from make import live_site

from slurm_gpu_aware.features.waiting.live import Postponements
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import RoundRecord

WAIT = Postponement(100.0, 160.0, 900.0, (("n4", (0, 1)),), "postponed: as it was weighed")
PLAN = Plan((), (Waiting("7", WAIT.reason, postponement=WAIT), Waiting("8", "no GPU is free")))
QUEUE = [Request("7", 2), Request("8", 2)]


def postponements(tmp_path: Path) -> tuple[LedgerWriter, Postponements]:
    path = tmp_path / "store.db"
    open_store(path).close()
    ledger = LedgerWriter(path)
    return ledger, Postponements(live_site(ledger))


def test_a_wait_is_given_to_the_next_round_until_the_job_is_placed(tmp_path: Path) -> None:
    _, kept = postponements(tmp_path)
    kept.planned(PLAN, QUEUE)
    assert [request.wait.postponed for request in kept.requests({}, QUEUE)] == [WAIT, None]
    times = {"postponed_since_s": 100.0, "expected_start_s": 160.0}
    assert [kept.waits(waiting, PLAN) for waiting in PLAN.waiting] == [times, {}]
    kept.planned(Plan((), (Waiting("7", "no GPU is free"),)), QUEUE)
    assert kept.requests({}, QUEUE)[0].wait.postponed == WAIT
    placed = Assignment("7", (0,), ((0, 1),), slowdown=1.0, policy="eft", level="node", score=1.0)
    kept.planned(Plan((placed,), ()), QUEUE)
    assert kept.requests({}, QUEUE) == QUEUE


def test_a_job_that_its_owner_has_changed_is_weighed_anew(tmp_path: Path) -> None:
    """Its whole wait is limited from its beginning: a change gives no job more of it."""
    _, kept = postponements(tmp_path)
    kept.planned(PLAN, QUEUE)
    kept.changed("8", 0.0)
    assert kept.requests({}, QUEUE)[0].wait.postponed == WAIT
    kept.changed("7", 0.0)
    waits = [request.wait.postponed for request in kept.requests({}, QUEUE)]
    assert waits == [Postponement(100.0), None]


def test_jobs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    _, kept = postponements(tmp_path)
    kept.planned(PLAN, QUEUE)
    kept.forget({"7", "9"})
    assert kept.requests({}, QUEUE)[0].wait.postponed == WAIT
    kept.forget({"8"})
    assert kept.requests({}, QUEUE) == QUEUE


def test_after_a_restart_only_the_beginning_counts(tmp_path: Path) -> None:
    """The whole wait is limited from then on; what was weighed is weighed again."""
    ledger, kept = postponements(tmp_path)
    kept.planned(PLAN, QUEUE)
    entries = [{"job_id": w.job_id, **kept.waits(w, PLAN)} for w in PLAN.waiting]
    waiting = [*entries, "forged", {"job_id": 3}]
    ledger.round(RoundRecord(100.0, 0.1, 2, 0, 2, detail={"waiting": waiting}))
    ledger.flush()
    again = Postponements(live_site(LedgerWriter(tmp_path / "store.db")))
    waits = [request.wait.postponed for request in again.requests({}, QUEUE)]
    assert waits == [Postponement(100.0), None]
