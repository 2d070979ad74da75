"""Scheduler of jobs with due dates: order, models, best fit, waiting, shares, growth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from due_samples import any_work, speeds_like, speeds_of_any_kind, with_share
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.features.due_dates.free_gpus import DueNode, FreeGpus, Share
from slurm_gpu_aware.features.due_dates.sts import DueJob, decide
from slurm_gpu_aware.features.due_dates.work import empirical, uniform

OLD = speeds_like(4, base=1.0, on_w=1.0)
NEW = replace(OLD, speed=4 * OLD.speed, power=6 * OLD.power)
"""Four times as fast, and half as dear again for the same work."""
BOTH = {"old": OLD, "new": NEW}


def due_job(name="1", due=1000.0, *, speeds=BOTH, work=None, late_cost=10.0, **more):
    return DueJob(name, due, late_cost, work or uniform(100, 100), speeds, **more)


def due_nodes(old=1, new=0, gpus=4):
    return [DueNode("old", gpus)] * old + [DueNode("new", gpus)] * new


def given_shares(decision):
    return {name: given.share for name, given in decision.jobs.items()}


def test_with_time_a_job_gets_the_cheapest_size_of_the_cheapest_model():
    found = decide([due_job()], due_nodes(1, 1), 0, 1)
    assert given_shares(found) == {"1": Share(0, 1)}
    assert (found.waiting, found.wake) == ((), math.inf)


def test_a_due_date_that_only_the_fast_model_meets():
    assert given_shares(decide([due_job(due=26)], due_nodes(1, 1), 0, 1)) == {"1": Share(1, 1)}


def test_it_wakes_when_the_first_job_grows():
    found = decide([due_job(due=60), due_job("2", due=1000)], due_nodes(2), 100 - 100, 1)
    (leaves, *_) = found.jobs["1"].plan.leaves
    assert found.wake == leaves < 60


def test_jobs_under_pressure_come_first():
    jobs = [due_job("late", 500), due_job("soon", 90), due_job("over", -5)]
    found = decide(jobs, due_nodes(1, 0, 1), 0, 1)
    assert list(found.jobs) == ["over"]
    assert found.waiting == ("soon", "late")


def test_jobs_fill_used_nodes_first():
    held = [due_job("a", held=Share(1, 2)), due_job("b", held=Share(2, 1))]
    found = decide([*held, due_job("1"), due_job("2"), due_job("3")], due_nodes(3), 0, 1)
    assert [given_shares(found)[name].node for name in "123"] == [1, 1, 2]


def test_a_job_with_time_waits_for_the_cheap_model():
    held = due_job("a", speeds={"old": OLD}, held=Share(0, 4), movable=False)
    cheap = decide([held, due_job("1", due=500)], due_nodes(1, 1), 0, 1)
    assert cheap.waiting == ("1",)
    pressed = decide([held, due_job("1", due=50)], due_nodes(1, 1), 0, 20)
    assert given_shares(pressed)["1"].node == 1


def test_a_job_starts_on_fewer_gpus_than_it_should_have():
    held = due_job("a", held=Share(0, 2), movable=False)
    work = empirical([100], 100)
    found = decide([held, due_job("1", due=38, work=work)], due_nodes(1), 0, 1)
    assert found.jobs["1"].plan.gpus[0] > 2
    assert given_shares(found)["1"] == Share(0, 2)


def test_a_job_that_stays_as_it_starts_has_the_plan_of_what_it_gets():
    held = due_job("a", held=Share(0, 2), movable=False)
    late = due_job("1", due=38, work=empirical([100], 100), movable=False, speeds={"old": OLD})
    given = decide([held, late], due_nodes(1), 0, 50).jobs["1"]
    assert (given.share, given.plan.gpus) == (Share(0, 2), (2,))
    assert (given.plan.late, given.plan.in_time) == (pytest.approx(100 / 2**0.7 - 38), 0)


def test_a_running_job_grows_on_its_own_node():
    found = decide([due_job(due=38, held=Share(1, 1))], due_nodes(2), 0, 1)
    assert given_shares(found)["1"].node == 1
    assert given_shares(found)["1"].gpus > 1


def test_a_running_job_moves_only_to_grow():
    full = due_job("a", held=Share(0, 3), movable=False)
    grown = decide([full, due_job(due=38, held=Share(0, 1))], due_nodes(2), 0, 1)
    assert given_shares(grown)["1"].node == 1
    enough = decide([full, due_job(due=1000, held=Share(0, 1))], due_nodes(2), 0, 1)
    assert given_shares(enough)["1"] == Share(0, 1)


def test_what_a_job_leaves_that_moves_is_first_for_a_more_pressing_one():
    moves = due_job("1", due=26, held=Share(0, 1))
    pressed = due_job("2", due=-5, speeds={"old": OLD})
    patient = due_job("3", due=1000, speeds={"old": OLD})
    found = decide([moves, pressed, patient], due_nodes(1, 1, 1), 0, 1)
    assert list(given_shares(found).items()) == [("2", Share(0, 1)), ("1", Share(1, 1))]
    assert (found.waiting, "2" in found.wanted) == (("3",), False)


def test_a_running_job_grows_on_what_another_one_leaves():
    full = [due_job(str(n), held=Share(n, 3 - n), movable=False) for n in range(2)]
    first = due_job("first", due=-5, speeds={"old": speeds_like(2, base=1, on_w=1)})
    first, second = replace(first, held=Share(0, 1)), due_job("second", 26, held=Share(1, 2))
    found = given_shares(decide([first, second, *full], due_nodes(2, 1), 0, 1))
    assert (found["first"], found["second"]) == (Share(1, 2), Share(2, 2))


def test_a_job_grows_as_planned_or_not_at_all():
    growing = due_job(
        "1", due=30, held=Share(0, 1), speeds={"old": OLD}, work=empirical([100], 100)
    )
    fixed = due_job("2", held=Share(0, 1), movable=False)
    found = decide([growing, fixed], due_nodes(1), 0, 1)
    assert given_shares(found)["1"] == Share(0, 1)
    assert found.jobs["1"].plan.gpus[0] == 4


def test_a_job_that_need_not_move_any_more_stays():
    """The first one leaves its node after the second has left it: room for the second."""
    first = due_job("1", due=30, held=Share(0, 1), speeds={"old": OLD})
    second = due_job("2", due=44, held=Share(0, 3), speeds={"old": OLD})
    found = decide([first, second], due_nodes(3), 0, 1)
    assert given_shares(found)["1"].gpus == 4
    assert given_shares(found)["2"].node == 0


def test_a_job_that_may_not_be_moved_stays_as_it_is():
    found = decide([due_job(due=1, held=Share(0, 1), movable=False)], due_nodes(2), 0, 1)
    assert given_shares(found) == {"1": Share(0, 1)}
    assert found.wake == math.inf


def test_a_job_that_may_not_be_moved_starts_with_all_it_needs():
    found = decide([due_job(due=60, movable=False, speeds={"old": OLD})], due_nodes(2), 0, 1)
    assert given_shares(found) == {"1": Share(0, 3)}
    assert found.wake == math.inf


def test_a_job_on_a_model_of_which_nothing_is_known_keeps_its_gpus():
    found = decide([due_job(speeds={"new": NEW}, held=Share(0, 1))], due_nodes(1, 1), 0, 1)
    assert (given_shares(found), found.jobs["1"].plan) == ({"1": Share(0, 1)}, None)


def test_a_job_for_models_that_are_not_here_waits():
    assert decide([due_job(speeds={"new": NEW})], due_nodes(), 0, 1).waiting == ("1",)


def test_shares_fill_a_gpu_before_the_next_one():
    shared = {"old": with_share(OLD, 0.5)}
    jobs = [due_job(name, speeds=shared) for name in "123"]
    found = decide(jobs, due_nodes(1, 0, 2), 0, 1)
    assert [given_shares(found)[name] for name in "123"] == [
        Share(0, 0.5, 0),
        Share(0, 0.5, 0),
        Share(0, 0.5, 1),
    ]
    none_left = decide([*jobs, due_job("4", due=50)], due_nodes(1, 0, 1), 0, 1)
    assert len(none_left.jobs) == 1


def test_a_share_grows_to_its_whole_gpu_when_it_is_alone_on_it():
    shared = {"old": with_share(speeds_like(1, base=1.0, on_w=1.0), 0.5)}
    running = due_job(due=100, speeds=shared, held=Share(0, 0.5, 0))
    assert given_shares(decide([running], due_nodes(1, 0, 1), 0, 1)) == {"1": Share(0, 1)}
    other = due_job("2", speeds=shared, held=Share(0, 0.5, 0))
    assert given_shares(decide([running, other], due_nodes(1, 0, 1), 0, 1))["1"] == running.held


def test_gpus_that_are_not_there_cannot_be_held():
    with pytest.raises(ValueError, match="not as many"):
        decide([due_job(held=Share(0, 5))], due_nodes(), 0, 1)
    halves = [due_job(str(i), held=Share(0, 0.75, 0)) for i in range(2)]
    with pytest.raises(ValueError, match="shared out"):
        decide(halves, due_nodes(), 0, 1)


MODELS = ("old", "new")


@st.composite
def due_cases(draw):
    """Nodes, and jobs of which some run."""
    here = draw(
        st.lists(st.builds(DueNode, st.sampled_from(MODELS), st.integers(0, 8)), min_size=1)
    )
    free, jobs = FreeGpus(here), []
    for n in range(draw(st.integers(1, 8))):
        speeds = {
            model: draw(speeds_of_any_kind())
            for model in draw(st.lists(st.sampled_from(MODELS), unique=True, min_size=1))
        }
        if draw(st.booleans()):
            speeds = {m: with_share(s, 0.25) if s.gpus[0] == 1 else s for m, s in speeds.items()}
        work = draw(any_work)
        work = work.given(draw(st.floats(0, 0.9)) * work.most)
        held = None
        if draw(st.booleans()):
            size = draw(st.sampled_from([0.25, 1, 2, 3]))
            held = free.on_node(draw(st.integers(0, len(here) - 1)), size)
            if held is not None:
                free.take(held)
        due, movable = draw(st.floats(-50, 300)), draw(st.booleans())
        jobs.append(DueJob(str(n), due, draw(st.floats(0, 100)), work, speeds, held, movable))
    return jobs, here


@given(due_cases(), st.floats(0.1, 100))
def test_what_every_decision_is(case, period):
    jobs, here = case
    found = decide(jobs, here, 0.0, period)
    assert sorted([*found.jobs, *found.waiting]) == sorted(job.job_id for job in jobs)
    assert found.wake > 0
    free = FreeGpus(here)
    for one in found.jobs.values():
        free.take(one.share)
    by_name = {job.job_id: job for job in jobs}
    for name, one in found.jobs.items():
        own, model = by_name[name], here[one.share.node].model
        if own.held is not None:
            assert one.share.gpus >= own.held.gpus
            assert own.movable or one.share == own.held
            assert (
                one.share.node == own.held.node
                or one.share.gpus > own.held.gpus
                or model != here[own.held.node].model
            )
        if one.share != own.held:
            assert one.share.gpus in own.speeds[model].gpus
    assert not any(by_name[name].held for name in found.waiting)


@given(due_cases())
def test_pressed_jobs_never_leave_a_free_node(case):
    """A job that is late already gets something of a model it knows, if that has free GPUs."""
    jobs, here = case
    jobs = [replace(j, due=-1e6, late_cost=100.0) for j in jobs]
    found = decide(jobs, here, 0.0, 1.0)
    free = FreeGpus(here)
    for one in found.jobs.values():
        free.take(one.share)
    by_name = {job.job_id: job for job in jobs}
    for name in found.waiting:
        for model, speeds in by_name[name].speeds.items():
            assert all(free.best_fit(model, size) is None for size in speeds.gpus)


def test_a_node_without_gpus_hides_no_free_ones():
    held = due_job("a", held=Share(1, 1))
    found = decide([held, due_job("1")], [DueNode("old", 0), DueNode("old", 2)], 0, 1)
    assert given_shares(found)["1"] == Share(1, 1)


def test_free_gpus_come_back():
    free = FreeGpus(due_nodes(1))
    for share in (Share(0, 2), Share(0, 0.25, 0), Share(0, 0.75, 0)):
        free.take(share)
    assert (free.whole, free.left[0].keys()) == ([1], {0})
    assert free.left[0][0] == pytest.approx(0)
    for share in (Share(0, 0.25, 0), Share(0, 2), Share(0, 0.75, 0)):
        free.give_back(share)
    assert (free.whole, free.left) == ([4], [{}])
    assert free.any
    assert not FreeGpus([DueNode("old", 0)]).any
    assert np.all([free.on_node(0, size) for size in (0.5, 1, 4)])


def test_placed_anew_a_pressing_job_takes_the_gpus_of_a_running_one():
    held = due_job("runs", due=1000, held=Share(0, 1))
    pressed = due_job("pressed", due=26, speeds={"old": OLD})
    kept = decide([held, pressed], due_nodes(1), 0, 1)
    assert given_shares(kept)["runs"] == Share(0, 1)
    anew = decide([held, pressed], due_nodes(1), 0, 1, keeps=False)
    assert given_shares(anew) == {"pressed": Share(0, 4)}
    assert anew.waiting == ("runs",)
    fixed = decide([replace(held, movable=False), pressed], due_nodes(1), 0, 1, keeps=False)
    assert given_shares(fixed)["runs"] == Share(0, 1)


def test_placed_anew_a_job_keeps_its_node_and_gets_no_fewer_gpus():
    jobs = [due_job("a", held=Share(1, 2)), due_job("b", held=Share(0, 1)), due_job("c")]
    found = given_shares(decide(jobs, due_nodes(2), 0, 1, keeps=False))
    assert (found["a"], found["b"]) == (Share(1, 2), Share(0, 1))
