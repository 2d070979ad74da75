"""Moves of running jobs by the selector, against a small Slurm of ours."""

import itertools
import math
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
from make import as_gated, live_site, slurm_job
from memory_slurm import MemorySlurm
from rounds_bench import rounds_with
from slurm_folder import SlurmFolder, parked, run_by_slurm
from store_samples import ingest, report

from slurm_gpu_aware.features.moves.under_way import MovesUnderWay, UnderWay
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.profile import GpuScore
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.store.profiles import put_scores

NODES = ["n1", "n2"]
OTHER = run_by_slurm("9", "n2", user_name="bob")


def put_times(store: Store, n1: float, n2: float, at: float = 1000.0) -> None:
    """Scores of the GPUs of each node; 100 ms are 1."""
    values = [("n1", n1), ("n2", n2)]
    scores = [
        GpuScore(name, slot, "A", value, value / 100, value / 100, 0, 0, at)
        for name, value in values
        for slot in range(4)
    ]
    put_scores(store, scores)


def run_slow(slurm: SlurmFolder, moves: str = "first_s = 0.0\nlast_s = 0.0", **job: Any) -> None:
    """Job 7 runs on slow GPUs of n1, as bob's job holds all of n2, and then bob's ends."""
    slurm.configure(f'[placement]\npolicy = "pal"\n[moves]\nenabled = true\n{moves}')
    with open_store(slurm.store) as store:
        for name, value in (("n1", 200.0), ("n2", 100.0)):
            ingest(store, report(name, times=dict.fromkeys(range(4), value)))
        put_times(store, n1=200.0, n2=100.0)
    slurm.write([parked(**{"comment": "class=A,move=ok", **job}), OTHER], NODES)
    assert slurm.round(2) == 0, slurm.said
    assert (slurm.jobs["7"]["state"], slurm.jobs["7"]["nodes"]) == ("RUNNING", "n1")
    runs_for_hours(slurm)
    slurm.change("9", state="COMPLETED", nodes="")


def requeue_slow(slurm: SlurmFolder) -> None:
    """The same, and the first round after it."""
    run_slow(slurm)
    assert slurm.round() == 0, slurm.said


def runs_for_hours(slurm: SlurmFolder) -> None:
    now = int(time.time())
    slurm.change("7", start_time=now - 5_000, end_time=now + 30_000)


def requeues(slurm: SlurmFolder) -> int:
    return sum(call[0] == "requeue" for call in slurm.calls)


RECORD = "gpuaware/1;tn=gres/gpu:2;mc="
WHOLE = {"tres_per_node": "gres/gpu:4", "admin_comment": "gpuaware/1;tn=gres/gpu:4;mc=1"}


def wants_four(slurm: SlurmFolder, job_id: str, **fields: Any) -> None:
    """A job of high priority comes, which asks for all GPUs of a node."""
    slurm.add(parked(job_id, 4, comment="class=A", priority=9_000, **fields))


def test_a_job_is_moved_and_goes_first_to_its_new_gpus(slurm: SlurmFolder) -> None:
    run_slow(slurm)
    wants_four(slurm, "8", time_limit=24 * 60)
    # On the GPUs that the move would leave, 8 would lose more time than 7 saves.
    assert slurm.round() == 0, slurm.said
    assert (slurm.jobs["8"]["nodes"], requeues(slurm)) == ("n2", 0)
    slurm.change("8", state="COMPLETED", nodes="")
    assert slurm.round() == 0, slurm.said
    assert requeues(slurm) == 1, slurm.said
    assert (slurm.jobs["7"]["state"], slurm.jobs["7"]["restart_cnt"]) == ("PENDING", 1)
    (begun,) = slurm.events("move_begun")
    assert (begun.detail["nodes"], begun.detail["left"]) == (["n2"], ["n1"])
    # Whatever comes now finds the new GPUs taken, and 7 before it.
    wants_four(slurm, "10")
    assert slurm.round(4) == 0, slurm.said
    assert slurm.jobs["7"]["nodes"] == "n2", slurm.said
    assert slurm.jobs["10"]["nodes"] == "n1"
    assert slurm.jobs["7"]["starts"] == 2
    first, second = slurm.ledger("7")
    assert (first.state, first.outcome["why"]) == ("waiting", "moved")
    assert second.state == "started"
    assert "moved from n1 GPUs" in Facts.read(second.why).text
    assert second.why["moved"]["saves_s"] > 10_000
    (moved,) = slurm.events("moved")
    assert moved.detail["nodes"] == ["n2"]


def test_gpus_are_kept_before_slurm_tells_of_its_delay(slurm: SlurmFolder) -> None:
    """For a moment a requeued job is delayed, and its reason is not that."""
    requeue_slow(slurm)
    assert requeues(slurm) == 1
    slurm.change("7", reason="None")
    wants_four(slurm, "10")
    assert slurm.round(2) == 0, slurm.said
    assert (slurm.jobs["7"]["state"], slurm.jobs["10"]["nodes"]) == ("PENDING", "n1"), slurm.said
    slurm.change("7", reason="BeginTime")
    assert slurm.round(2) == 0, slurm.said
    assert slurm.jobs["7"]["nodes"] == "n2", slurm.said


def test_a_moved_job_starts_in_no_second_in_which_its_first_run_stopped(slurm: SlurmFolder) -> None:
    """There slurmd refuses it: "Job credential revoked". Its GPUs are kept meanwhile."""
    requeue_slow(slurm)
    client = MemorySlurm(slurm.home)
    moves = MovesUnderWay(live_site(LedgerWriter(slurm.store), client))
    moves.load()
    (found,) = client.jobs_of(["7"])
    seven = as_gated(replace(found, admin_comment=f"{RECORD}1", licenses=(("gpuaware", 1),)))
    for after_s, back in ((0.0, False), (1.9, False), (2.0, True)):
        (job,) = moves.settle([seven], seven.job.submit_s + after_s)
        assert job.job.reason == ("Licenses" if back else "BeginTime")
        kept = moves.kept([job], seven.job.submit_s + after_s)
        assert [hold.job_id for hold in kept] == ([] if back else ["7"])


OWNERS = "its owner lets it wait"


@pytest.mark.parametrize(
    ("put_off", "why"),
    [
        ({"reason": "JobHeldUser"}, OWNERS),
        ({"begin_time": 1_000}, OWNERS),
        ({"reason": "QOSMaxJobsPerUserLimit"}, "it waits for Slurm's reason QOSMax"),
    ],
)
def test_nothing_is_kept_for_a_job_that_does_not_come_back(
    slurm: SlurmFolder, put_off: dict[str, Any], why: str
) -> None:
    """Nor does it go first later, or start sooner than its owner said."""
    requeue_slow(slurm)
    assert requeues(slurm) == 1
    with open_store(slurm.store) as store, store.write():  # some minutes ago
        store.execute("UPDATE events SET at_unix = at_unix - 200 WHERE kind = 'move_begun'")
    later = int(time.time()) + put_off.pop("begin_time", 0)
    slurm.change("7", **put_off, eligible_time=later, stuck=True)
    wants_four(slurm, "10")
    assert slurm.round(2) == 0, slurm.said
    assert (slurm.jobs["7"]["state"], slurm.jobs["10"]["nodes"]) == ("PENDING", "n2"), slurm.said
    assert slurm.jobs["7"]["eligible_time"] == later
    (error,) = slurm.events("error")
    assert error.detail["step"] == "return"
    assert why in error.detail["why"]


def test_a_job_that_was_held_meanwhile_waits_for_no_delay(slurm: SlurmFolder) -> None:
    """But for a begin time that its owner sets later."""
    requeue_slow(slurm)
    slurm.change("7", reason="JobHeldUser", stuck=True)
    assert slurm.round() == 0, slurm.said
    (error,) = slurm.events("error")
    assert OWNERS in error.detail["why"]
    held, owners = dict(slurm.jobs["7"]), int(time.time()) + 400
    for eligible_s, state in ((owners, "PENDING"), (held["eligible_time"], "RUNNING")):
        slurm.change("7", reason="BeginTime", stuck=False, eligible_time=eligible_s)
        assert slurm.round(2) == 0, slurm.said
        assert slurm.jobs["7"]["state"] == state, slurm.said


def test_moves_count_for_their_user_after_a_restart_too(slurm: SlurmFolder) -> None:
    """Moves of an earlier release count for the site alone."""
    requeue_slow(slurm)
    (begun,) = slurm.events("move_begun")
    detail = dict(begun.detail)
    assert detail.pop("user") == "alice"
    with open_store(slurm.store) as store:
        Ledger(store).add_event("55", "move_begun", detail, begun.at + 1)
    moves = MovesUnderWay(live_site(LedgerWriter(slurm.store)))
    moves.load()
    assert moves.times == [(begun.at, "alice"), (begun.at + 1, "")]


@pytest.mark.parametrize(("gpus", "new_gpus", "least"), [(4, 2, 2), (2, 4, 2)])
def test_a_job_that_shrinks_waits_for_no_more_gpus_than_it_is_to_get(
    slurm: SlurmFolder, gpus: int, new_gpus: int, least: int
) -> None:
    requeue_slow(slurm)
    (begun,) = slurm.events("move_begun")
    move = UnderWay(**begun.detail | {"gpus": gpus, "slots": list(range(new_gpus))})
    ledger = LedgerWriter(slurm.store)
    ledger.event("8", "move_begun", asdict(move), begun.at)
    record = {"admin_comment": WHOLE["admin_comment"]}
    job = as_gated(slurm_job(8, restarts=1, reason="JobHeldUser", **record))
    moves = MovesUnderWay(live_site(ledger, MemorySlurm(slurm.home)))
    moves.settle([job], begun.at + 1)
    assert moves.before["8"].gpus == least


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (WHOLE, "it asks for more GPUs"),
        ({"licenses": "gpuaware:2", "extra": f"{RECORD}8"}, "its owner has changed it"),
    ],
    ids=["GPUs", "CPUs"],
)
def test_a_job_that_its_owner_changes_meanwhile_is_on_no_move(
    slurm: SlurmFolder, change: dict[str, str], why: str
) -> None:
    """It waits as any other one, so that others may move; else it would pass jobs before it."""
    requeue_slow(slurm)
    assert requeues(slurm) == 1
    slurm.change("7", **change)
    slurm.change("9", state="RUNNING", nodes="n2")
    assert slurm.round(2) == 0, slurm.said
    (error,) = slurm.events("error")
    assert (error.detail["step"], error.detail["why"][: len(why)]) == ("return", why)


def test_a_short_job_starts_on_the_gpus_that_a_move_leaves(slurm: SlurmFolder) -> None:
    """On its way back the moved job is first; 8 waits for no more than its stop."""
    run_slow(slurm)
    wants_four(slurm, "8")
    assert slurm.round() == 0, slurm.said
    assert (requeues(slurm), slurm.jobs["8"]["state"]) == (1, "PENDING"), slurm.said
    assert slurm.round(4) == 0, slurm.said
    assert (slurm.jobs["7"]["nodes"], slurm.jobs["8"]["nodes"]) == ("n2", "n1"), slurm.said


@pytest.mark.parametrize(
    ("moves", "job"),
    [
        ("enabled = false", {}),
        ("", {}),  # within its last minutes by its limit, as set below
        ("first_s = 6000.0\nlast_s = 0.0", {}),
        ("first_s = 0.0", {"comment": "class=A"}),
        ("first_s = 0.0", {"comment": "class=A,move=no"}),
        ("first_s = 0.0", {"comment": "class=A,move=20000s"}),
        ("first_s = 0.0\n[classes.A]\nrestart_s = 20000.0", {}),
        ("first_s = 0.0", {"array_job_id": 7, "array_task_id": 1}),
        ("first_s = 0.0", {"record": ";ia=1"}),
    ],
)
def test_no_move(slurm: SlurmFolder, moves: str, job: dict[str, Any]) -> None:
    run_slow(slurm, moves.replace("enabled = false", "margin_s = 1.0"), **job)
    if moves == "enabled = false":
        text = slurm.config.read_text().replace("enabled = true", "enabled = false")
        slurm.config.write_text(text)
    if not moves:
        slurm.change("7", end_time=int(time.time()) + 500)
    assert slurm.round() == 0, slurm.said
    assert requeues(slurm) == 0
    assert slurm.jobs["7"]["state"] == "RUNNING"


@pytest.mark.parametrize(("job_id", "ago_s"), [("7", 20_000.0), ("55", 600.0)])
def test_a_restart_costs_what_it_took(slurm: SlurmFolder, job_id: str, ago_s: float) -> None:
    """The job's own restart counts however long ago, else that of other jobs of the last hour."""
    run_slow(slurm)
    with open_store(slurm.store) as store:
        Ledger(store).add_event(job_id, "moved", {"after_s": 20_000.0}, time.time() - ago_s)
    slurm.change("7", restart_cnt=1)
    assert slurm.round() == 0, slurm.said
    assert (requeues(slurm), slurm.jobs["7"]["state"]) == (0, "RUNNING")


def test_a_job_that_slurm_does_not_requeue_is_asked_once(slurm: SlurmFolder) -> None:
    run_slow(slurm)
    slurm.change("7", no_requeue=True)
    assert slurm.round() == 0, slurm.said
    assert (requeues(slurm), slurm.jobs["7"]["state"]) == (1, "RUNNING")
    (error,) = slurm.events("error")
    assert error.detail["step"] == "move"
    assert "presently disabled" in error.detail["why"]
    assert slurm.round() == 0, slurm.said
    assert requeues(slurm) == 0


def test_what_slurm_does_not_requeue_uses_up_no_moves_of_the_site(slurm: SlurmFolder) -> None:
    run_slow(slurm, "first_s = 0.0\nlast_s = 0.0\nagain_s = 0.0\nper_hour = 1")
    slurm.change("7", no_requeue=True)
    assert slurm.round() == 0, slurm.said
    assert (requeues(slurm), slurm.jobs["7"]["state"]) == (1, "RUNNING")
    slurm.change("7", no_requeue=False)
    assert slurm.round(4) == 0, slurm.said
    assert slurm.jobs["7"]["nodes"] == "n2", slurm.said


def test_a_job_is_not_moved_again_within_the_hour(slurm: SlurmFolder) -> None:
    run_slow(slurm)
    assert slurm.round(5) == 0, slurm.said
    assert slurm.jobs["7"]["nodes"] == "n2"
    with open_store(slurm.store) as store:
        put_times(store, n1=100.0, n2=300.0, at=2000.0)
    runs_for_hours(slurm)
    assert slurm.round() == 0, slurm.said
    assert requeues(slurm) == 0


def test_killed_at_every_change_nothing_is_lost(slurm: SlurmFolder) -> None:
    """A move, with the selector killed before or after each request that changes something."""
    run_slow(slurm)
    state, ledger = slurm.home.joinpath("state.json").read_text(), slurm.store.read_bytes()
    assert slurm.round(5) == 0, slurm.said
    changes = [n for n, call in enumerate(slurm.calls, 1) if call[0] in ("requeue", "update")]
    assert len(changes) > 5
    for count, before in itertools.product(changes, (True, False)):
        for path in slurm.store.parent.glob("store.db*"):
            path.unlink()
        slurm.store.write_bytes(ledger)
        slurm.home.joinpath("state.json").write_text(state)
        assert slurm.round(5, kill_at=count, before=before) != 0
        assert slurm.round(6) == 0, slurm.said
        job = slurm.jobs["7"]
        assert job["state"] == "RUNNING", (count, before, slurm.said)
        assert job["licenses"] == ""
        assert job["starts"] == job["restart_cnt"] + 1
        assert (job["restart_cnt"], job["nodes"]) in ((0, "n1"), (1, "n2")), (count, before)
        assert slurm.ledger("7")[-1].state == "started"
        assert len(slurm.events("moved")) == job["restart_cnt"]


def test_a_job_with_a_deadline_of_slurm_stays(slurm: SlurmFolder) -> None:
    """Requeued, it would have its whole limit before it again, and Slurm would cancel it."""
    run_slow(slurm, deadline=int(time.time()) + 3 * 3600)
    runs_for_hours(slurm)
    assert slurm.round(5) == 0, slurm.said
    assert requeues(slurm) == 0
    done = slurm.run("gpu-aware", "--config", str(slurm.config), "explain", "7")
    assert "may cancel a requeued job that has a --deadline" in " ".join(done.stdout.split())


@pytest.mark.parametrize("comment", ["class=A,move=ok", "class=A"])
def test_a_job_that_allows_moves_is_told_that_the_site_has_none(
    slurm: SlurmFolder, comment: str
) -> None:
    slurm.write([parked("7", comment=comment), parked("8", 4, comment=comment)], ["n1"])
    assert slurm.round() == 0, slurm.said
    assert (slurm.jobs["7"]["state"], slurm.jobs["8"]["state"]) == ("RUNNING", "PENDING")
    for job_id in ("7", "8"):
        done = slurm.run("gpu-aware", "--config", str(slurm.config), "explain", job_id)
        told = "moves are off on this site" in " ".join(done.stdout.split())
        assert told == ("move=ok" in comment), done


@pytest.mark.parametrize("waits", [True, False])
def test_without_moves_the_time_of_a_stage_is_forgotten_when_it_has_come(
    slurm: SlurmFolder, *, waits: bool
) -> None:
    """Else a round would run each second from then on, whether or not jobs wait."""

    class Alarm(Stage):
        name = "alarm"

        def after(self, one: Round) -> Round:
            return replace(one, plan=replace(one.plan, wake_s=at)) if one.now < at else one

    bench = rounds_with(slurm, parked(), parked("8"), parked("9"))
    at = bench.wall + 60.0
    bench.rounds.planner.features = (Alarm(),)
    bench.run()
    assert bench.rounds.site.wake_s == at
    if not waits:
        slurm.write([], ["n1"])
    bench.wall = at
    bench.run()
    assert bench.rounds.site.wake_s == math.inf
