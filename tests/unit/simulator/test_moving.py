"""Moves in the simulator: their gain in a small case, the jobs they concern, what they keep."""

import random
from itertools import pairwise

import numpy as np
import pytest
from make import replayed
from small_sizes import POWER, TABLES

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.features.moves.movable import MOVING, RETURNING
from slurm_gpu_aware.features.moves.simulated import RunMoves
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.stages import plan_stages
from slurm_gpu_aware.simulator import rounds
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

TWO = Cluster.uniform(2, 1, scores={"A": np.array([[1.0], [2.0]])})


def moved_by(jobs, cluster, policy, *sections, **more):
    base = SimSettings(**more).put(RunEstimates("exact"), *sections)
    settings = parse_policy(policy, base)
    return simulate(Trace.of("made up", jobs), cluster, settings, keep_placements=True)


def test_a_move_saves_what_the_slow_gpu_would_cost():
    """2 starts on the slow GPU; at 1,000 s, with 9,500 s of work left, the fast one is free."""
    jobs = [TraceJob("1", 0, 1, 1_000, "A"), TraceJob("2", 0, 1, 10_000, "A")]
    stays = moved_by(jobs, TWO, "pal", migration_s=90.0)
    moves = moved_by(jobs, TWO, "pal:moves", migration_s=90.0)
    assert (stays.end_s[1], stays.migrations[1]) == (20_000.0, 0)
    assert (moves.end_s[1], moves.migrations[1]) == (1_000.0 + 90.0 + 9_500.0, 1)
    assert [p["nodes"] for p in moves.placements if p["job_id"] == "2"] == [["n1"], ["n0"]]


def test_the_gpus_that_a_move_frees_are_given_at_once():
    """3 waits for a GPU beside the one that 1 leaves, which class B does not gain from."""
    scores = {"A": np.array([[1.0], [2.0]]), "B": np.ones((2, 1))}
    cluster = Cluster.uniform(2, 1, scores=scores)
    jobs = [
        TraceJob("1", 0, 1, 2_000, "A"),
        TraceJob("2", 0, 1, 10_000, "A"),
        TraceJob("3", 2_500, 1, 500, "B"),
    ]
    result = moved_by(jobs, cluster, "pal:moves")
    assert result.start_s[2] == 2_500.0
    assert result.migrations[1] == 1


def test_only_the_share_that_allows_moves_moves():
    jobs = [TraceJob("1", 0, 1, 1_000, "A"), TraceJob("2", 0, 1, 10_000, "A")]
    assert moved_by(jobs, TWO, "pal:moves", RunMoves(0.0)).migrations.sum() == 0
    many = [
        TraceJob(str(i), 1_000.0 * i, 1, random.Random(i).uniform(3e3, 3e4), "A") for i in range(80)
    ]
    cluster = Cluster.uniform(8, 2, scores={"A": np.tile([[1.0, 1.6]], (8, 1))})
    moved = {
        share: {
            job.job_id
            for job, n in zip(
                many,
                moved_by(many, cluster, "pal:moves", RunMoves(share)).migrations,
                strict=True,
            )
            if n
        }
        for share in (0.3, 1.0)
    }
    assert 0 < len(moved[0.3]) < len(moved[1.0])


@pytest.mark.parametrize(
    ("says", "share", "end_s"),
    [
        ({}, 0.0, 20_000.0),
        ({"elastic": False}, 1.0, 20_000.0),
        ({"elastic": True}, 0.0, 10_700.0),  # the restart of its class: 200 s
        ({"elastic": True, "restart_s": 30.0}, 0.0, 10_530.0),
        ({"elastic": True, "restart_s": 9_300.0}, 0.0, 20_000.0),  # it would gain less than 300 s
    ],
)
def test_what_a_job_says_itself_goes_before_its_class_and_the_share(says, share, end_s):
    jobs = [TraceJob("1", 0, 1, 1_000, "A"), TraceJob("2", 0, 1, 10_000, "A", **says)]
    of_classes = {"A": 200.0}
    result = moved_by(jobs, TWO, "pal:moves", RunMoves(share), class_restart_s=of_classes)
    assert result.end_s[1] == end_s


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("order", ["fifo", "las"])
@pytest.mark.parametrize("round_s", [None, 300.0])
def test_every_job_ends_once_and_moves_keep_the_rules(order, round_s, backfill):
    dice = random.Random(7)
    jobs, at = [], 0.0
    for i in range(60):
        at += dice.expovariate(1 / 600)
        gpus = dice.choice((1, 1, 1, 2, 4, 8))
        jobs.append(TraceJob(str(i), at, gpus, dice.uniform(600, 20_000), dice.choice("ABC")))
    rng = np.random.default_rng(7)
    scores = {c: rng.choice([0.95, 1.0, 1.3, 1.9], size=(6, 4)) for c in "ABC"}
    cluster = Cluster.uniform(6, 4, scores=scores)
    result = moved_by(jobs, cluster, "pal:moves", order=order, round_s=round_s, backfill=backfill)
    assert not result.infeasible
    assert np.isfinite(result.end_s).all()
    assert result.migrations.sum() > 0
    np.testing.assert_allclose(result.done_s, [job.duration_s for job in jobs], rtol=1e-9)
    if order == "fifo":  # in las a job also moves because it was preempted
        starts = {}
        for placement in result.placements:
            starts.setdefault(placement["job_id"], []).append(placement["at_s"])
        moved = sorted(at for times in starts.values() for at in times[1:])
        for times in starts.values():
            assert all(b - a >= 600.0 for a, b in pairwise(times))
            assert all(b - a >= 3_600.0 for a, b in pairwise(times[1:]))
        assert all(b - a >= 3_600.0 for a, b in zip(moved, moved[12:], strict=False))


@pytest.mark.parametrize(("user", "at_s"), [("bob", [1_500.0]), ("alice", [])])
def test_no_user_uses_up_the_moves_of_the_hour(user, at_s):
    """A fast GPU becomes free at 1,000, 1,500 and 2,800 s; the last job gains least."""
    ends = (1_000.0, 1_500.0, 2_800.0)
    jobs = [TraceJob(f"short{end_s}", 0, 1, end_s, "A") for end_s in ends]
    jobs += [TraceJob(f"long{i}", 1, 1, 20_000.0, "A", user="alice") for i in range(2)]
    jobs.append(TraceJob("last", 1, 1, 15_000.0, "A", user=user))
    cluster = Cluster.uniform(3, 2, scores={"A": np.tile([[1.0, 2.0]], (3, 1))})
    base = SimSettings(migration_s=10.0).put(RunEstimates("exact"), MovesConfig(per_hour=2))
    settings = parse_policy("pal:moves", base)
    result = simulate(Trace.of("made up", jobs), cluster, settings, keep_placements=True)
    starts = [p["at_s"] for p in result.placements if p["job_id"] == "last"]
    assert [at for at in starts[1:] if at < 4_600.0] == at_s


@pytest.mark.parametrize("order", ["fifo", "las"])
def test_moves_starts_and_returns_are_those_of_the_planners_stages(monkeypatch, order):
    """A round in which a job moves, and the one in which it is back, replay like live ones."""
    seen = []

    def spy(one, stages):
        plan = plan_stages(one, stages)
        replayed(one, plan)
        seen.append((one, plan))
        return plan

    monkeypatch.setattr(rounds, "plan_stages", spy)
    scores = {"A": np.array([[1.0], [2.0]]), "B": np.ones((2, 1))}
    jobs = [
        TraceJob("1", 0, 1, 2_000, "A"),
        TraceJob("2", 0, 1, 10_000, "A"),
        TraceJob("3", 2_500, 1, 500, "B"),
    ]
    moved_by(jobs, Cluster.uniform(2, 1, scores=scores), "pal:moves", order=order)
    moving = [at for at, (_, plan) in enumerate(seen) if plan.moved]
    assert len(moving) == 1
    (begins, plan), (returns, back) = seen[moving[0] : moving[0] + 2]
    assert (plan.moved[0].job_id, returns.now, returns.get(MOVING)) == ("2", begins.now, None)
    assert returns.get(RETURNING) == {"2": plan.moved[0]}
    assert [one.job_id for one in back.assignments] == ["2"]


@pytest.mark.parametrize("elastic", [True, False])
def test_a_running_job_shrinks_so_that_another_starts(elastic):
    """2 gets the half that 1 gives back. 3 arrives after the end of 2."""
    jobs = [
        TraceJob(n, at, 4, s, model="c", sizes=(1, 2, 4), elastic=elastic, table=TABLES["c"])
        for n, at, s in (("1", 0.0, 9_000.0), ("2", 2_000.0, 1_000.0), ("3", 5_700.0, 10.0))
    ]
    cluster = Cluster.uniform(1, 4)
    result = moved_by(jobs, cluster, "eft:moves", POWER, migration_s=10.0)
    sizes = [(placed["job_id"], sum(map(len, placed["slots"]))) for placed in result.placements]
    if elastic:  # an hour after its last move 1 grows again, at the end of 3
        assert sizes == [("1", 4), ("1", 2), ("2", 2), ("3", 2), ("1", 4)]
        assert result.start_s.tolist() == [0.0, 2_000.0, 5_700.0]
    else:
        assert sizes == [("1", 4), ("2", 2), ("3", 2)]
        assert result.start_s[1] == 9_000.0
    assert result.done.all()
