"""AdminComments: freed while a job runs, returned when it waits again, and what they show."""

from typing import Any

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.gate.admin_comment import marked, parse, state_of, unmarked, with_state
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.job_comments import placed_text, waiting_text
from slurm_gpu_aware.selector.round import Rounds

RECORD = "gpuaware/1;tn=gres/gpu:2;mc=1"
LEFT = ";lf=place%3Doff"


def rounds_of(slurm: SlurmFolder, **gate: Any) -> Rounds:
    """A selector in this process that has just started."""
    rounds = RoundsBench(slurm, Config(gate=GateConfig(**gate))).rounds
    rounds.tracker.load()
    return rounds


def placed_run(slurm: SlurmFolder, record: str = "", rounds: int = 2, **gate: Any) -> Rounds:
    """Job 7 was placed and runs; ``rounds``: so many."""
    slurm.write([parked(record=record)], ["n1", "n2"])
    selector = rounds_of(slurm, **gate)
    selector.run()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    if rounds == 2:
        selector.run()
    return selector


def requeue_7(slurm: SlurmFolder) -> None:
    """Its user requeues job 7; it does not start by itself."""
    slurm.change("7", state="PENDING", reason="BeginTime", restart_cnt=1, nodes="", stuck=True)


def test_a_job_that_runs_unchanged_is_the_same_object_in_each_round(slurm: SlurmFolder) -> None:
    """Otherwise each round reads the records of all running jobs anew."""
    rounds = placed_run(slurm, rounds=1)
    assert state_of(slurm.jobs["7"]["admin_comment"]).startswith("n")
    rounds.run()
    assert slurm.jobs["7"]["admin_comment"] == ""
    (first,), (second,) = rounds._read().gated, rounds._read().gated
    assert second is first
    assert parse(first.job.admin_comment) == parse(RECORD)
    slurm.change("7", end_time=1_790_009_999)
    (third,) = rounds._read().gated
    assert third is not first
    assert third.job.end_s == 1_790_009_999


def test_a_state_is_no_part_of_the_record() -> None:
    told = with_state(RECORD, "n3:0,1,V=1.02")
    assert told == "gpuaware/1;st=n3:0,1,V=1.02;tn=gres/gpu:2;mc=1"
    assert parse(told) == parse(RECORD)
    assert unmarked(told) == RECORD
    assert with_state(told, "") == RECORD
    assert with_state(with_state("gpuaware/1;", "x"), "") == "gpuaware/1;"
    assert with_state("JS1:abc", "x") == "JS1:abc"
    both = marked(told, JobPhase.RELEASED, 0, 5.0)
    assert both == f"{told};sel=released:0:5"
    assert unmarked(both) == RECORD
    assert state_of(marked(both, JobPhase.LEFT, 0, 5.0, "")) == ""


def test_what_a_state_shows_is_bounded_and_safe() -> None:
    told = with_state(RECORD, "a;sel=left:0:1 \n" + "word " * 40)
    assert parse(told) == parse(RECORD)
    assert state_of(told).startswith("a-sel=left:0:1-word-word")
    assert len(state_of(told)) <= 48
    long = f"gpuaware/1;feat={'x' * 950}"
    kept = marked(
        long, JobPhase.PREPARED, 0, 1.0, "n1:0,V=1.00-and-more-words-that-do-not-fit-here"
    )
    assert kept == f"{long};sel=prepared:0:1"


@pytest.mark.parametrize(
    ("nodes", "slots", "text"),
    [
        (["n3"], (0, 1), "n3:0,1,V=1.02"),
        (["n3", "n4"], (2,), "n3+n4:2,V=1.02"),
        (["n3"], None, "n3,V=1.02"),
        (["a", "b", "c", "d"], (0,), "a+3-others:0,V=1.02"),
    ],
)
def test_a_placement_in_short(nodes: list[str], slots: tuple[int, ...], text: str) -> None:
    assert placed_text(nodes, slots, 1.0249) == text


@pytest.mark.parametrize(
    ("reason", "facts", "text"),
    [
        ("held by Dependency", {"held_by": "Dependency"}, ""),
        (
            "next in line: n4 has no free GPU; starts in 5 min",
            {"turn": "next"},
            "next:n4 has no free GPU",
        ),
        ("behind job 12: needs 4 GPUs", {"turn": "behind"}, "waits-its-turn"),
        ("licence matlab is in use", {}, "licence matlab is in use"),
    ],
)
def test_a_reason_in_short(reason: str, facts: dict[str, str], text: str) -> None:
    assert waiting_text({"reason": reason, **facts}) == text


@pytest.mark.parametrize(
    ("due", "text"),
    [(None, "n3:0"), (0.0, "due-impossible,n3:0"), (0.5, "n3:0"), ("unknown", "n3:0")],
)
def test_an_impossible_due_date_stands_in_front(due: float | str | None, text: str) -> None:
    values = {"due_s": 9.0} if due == "unknown" else {"due_s": 9.0, "in_time": due}
    assert Facts.read({} if due is None else {"due": values}).short("n3:0") == text


@pytest.mark.parametrize(
    ("more", "own"),
    [("", ""), (";ac=project%20x", "project x"), (LEFT, "")],
    ids=["placed", "commented", "left to Slurm"],
)
def test_the_comment_of_a_running_job_is_free_and_comes_back(
    slurm: SlurmFolder, more: str, own: str
) -> None:
    rounds = placed_run(slurm, more)
    assert slurm.jobs["7"]["admin_comment"] == own
    before = slurm.jobs
    rounds.run()
    assert slurm.jobs == before
    requeue_7(slurm)
    rounds_of(slurm).run()  # a selector that has just started, too
    back = slurm.jobs["7"]["admin_comment"]
    assert unmarked(back) == RECORD + more
    assert back.endswith(";sel=released:0:0")
    rounds = rounds_of(slurm)
    rounds.run()
    rounds.start_monitor.poll()
    assert_parked(slurm, more)


def assert_parked(slurm: SlurmFolder, more: str) -> None:
    """Job 7 waits at the gate with its own request."""
    back = slurm.jobs["7"]
    assert (back["licenses"], back["tres_per_node"]) == ("gpuaware:1", "gres/gpu:2")
    assert unmarked(back["admin_comment"]) == RECORD + more


@pytest.mark.parametrize("left", [False, True], ids=["placed", "left to Slurm"])
def test_a_job_that_its_user_requeues_after_its_end_waits_again(
    slurm: SlurmFolder, left: bool
) -> None:
    more = LEFT if left else ""
    rounds = placed_run(slurm, more)
    assert slurm.jobs["7"]["admin_comment"] == ""
    slurm.change("7", state="COMPLETED")
    rounds.run()
    assert not rounds.tracker.placed
    requeue_7(slurm)
    rounds.run()
    rounds.start_monitor.poll()
    assert_parked(slurm, more)


def ledger_asked(slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> tuple[Rounds, list[str]]:
    """Rounds beside a requeued job of which no record is left, and the jobs that the ledger, which
    knows none, is asked about.
    """
    slurm.write([parked(admin_comment="", licenses="", restart_cnt=1, stuck=True)], ["n1"])
    rounds, asked = rounds_of(slurm), list[str]()
    monkeypatch.setattr(rounds.tracker.ledger, "decisions", lambda i: asked.append(i) or [])
    return rounds, asked


def test_the_ledger_is_asked_once_about_a_requeued_job_that_is_not_ours(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, asked = ledger_asked(slurm, monkeypatch)
    for _ in range(3):
        rounds.run()
    assert asked == ["7"]
    slurm.change("7", restart_cnt=2)
    rounds.run()
    assert asked == ["7", "7"]


def test_the_ledger_is_asked_again_in_case_it_could_not_be_read(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, asked = ledger_asked(slurm, monkeypatch)
    monkeypatch.setattr("slurm_gpu_aware.selector.job_comments._AGAIN_S", 0.0)
    for _ in range(2):
        rounds.run()
    assert asked == ["7", "7"]


def test_what_the_site_wrote_stays(slurm: SlurmFolder) -> None:
    rounds = placed_run(slurm)
    assert slurm.jobs["7"]["admin_comment"] == ""
    slurm.change("7", admin_comment="JS1:abc")
    rounds.run()
    assert slurm.jobs["7"]["admin_comment"] == "JS1:abc"


def test_a_site_may_keep_the_state_of_running_jobs(slurm: SlurmFolder) -> None:
    placed_run(slurm, show_running=True)
    assert slurm.jobs["7"]["admin_comment"].startswith("gpu-aware n1:")
    requeue_7(slurm)
    rounds_of(slurm, show_running=True).run()
    assert unmarked(slurm.jobs["7"]["admin_comment"]) == RECORD


def test_what_slurm_refuses_to_remove_is_asked_again_later(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 24.11 refuses it for some forms of a running job, each time."""
    rounds = placed_run(slurm, rounds=1)
    slurm.set(refuse=["7"])
    rounds.run()
    slurm.set(refuse=[])
    rounds.run()
    assert unmarked(slurm.jobs["7"]["admin_comment"]) == RECORD
    monkeypatch.setattr("slurm_gpu_aware.selector.job_comments._AGAIN_S", 0.0)
    rounds.run()
    assert slurm.jobs["7"]["admin_comment"] == ""


def test_without_a_ledger_the_record_stays_in_slurm(slurm: SlurmFolder) -> None:
    slurm.store.write_bytes(b"no database" * 100)
    placed_run(slurm)
    assert unmarked(slurm.jobs["7"]["admin_comment"]) == RECORD


def test_a_job_that_slurm_started_alone_keeps_its_record(slurm: SlurmFolder) -> None:
    """Requeued, it waits at the gate again, and only Slurm has its request."""
    alone = {"state": "RUNNING", "reason": "None", "nodes": "n1", "slots": [0, 1]}
    slurm.write([parked(**alone)], ["n1", "n2"])
    rounds = rounds_of(slurm)
    rounds.run()
    rounds.run()
    assert slurm.jobs["7"]["admin_comment"] == RECORD


def test_a_waiting_job_shows_why_and_nothing_is_sent_twice(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("slurm_gpu_aware.selector.job_comments.time.monotonic", lambda: now[0])
    slurm.write([parked(str(n), 4) for n in range(10, 60)], ["n1"])
    rounds = rounds_of(slurm)

    def told() -> list[str]:
        return [state_of(job["admin_comment"]) for job in slurm.jobs.values()]

    rounds.run()
    shown = [text for text in told() if text]
    assert len(shown) == 21  # one is placed, twenty are told why not
    rounds.run()
    assert len([text for text in told() if text]) <= 21
    for _ in range(3):
        now[0] += 10.0
        rounds.run()
    texts = told()
    assert texts.count("waits-its-turn") == 48
    assert sum(text.startswith("next:") for text in texts) == 1
    sent: list[object] = []
    monkeypatch.setattr(
        type(rounds._client), "update_jobs", lambda self, updates: sent.extend(updates) or {}
    )
    now[0] += 10.0
    rounds.run()
    assert sent == []
