"""Waiting for a set that ends a job sooner: when a job waits, for how long, and what it blocks."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make import job_request, placements, plan_round, with_fields, with_running

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import NodeGroups, Postponement, PreemptionRights
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.facts import Reserved
from slurm_gpu_aware.planning.guard import guarded
from slurm_gpu_aware.planning.later import expected_ends
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.round import _Placing
from slurm_gpu_aware.selector.job_comments import waiting_text
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.time_text import stamp

NOW = 10_000.0
HOUR = 3600.0
SLOW = np.array([[1.0, 1.0], [1.5, 1.5]])
"""n0 is fast, n1 takes half as long again."""


def held(job_id, node, slots, in_s, *, limit_s=20 * HOUR, cpus=0):
    """A job that ends in ``in_s`` as far as is known."""
    return RunningJob(
        job_id,
        ((node, tuple(slots)),),
        NOW + limit_s,
        cpus={node: cpus},
        start_s=NOW - HOUR,
        expected_end_s=NOW + in_s,
    )


def here(*running, scores=SLOW, **fields):
    cluster = Cluster.uniform(scores.shape[0], scores.shape[1], scores={"B": scores}, **fields)
    return with_running(cluster, *running)


def asking(number, gpus, estimate_s=10 * HOUR, limit_s=30 * HOUR, **fields):
    return job_request(str(number), gpus, time_limit_s=limit_s, estimate_s=estimate_s, **fields)


def plan(queue, cluster, policy="eft", options=None, **settings):
    given = None if options is None else {policy: options}
    return plan_round(
        queue, cluster, PlanSettings(policy=policy, **settings), NOW, policy_options=given
    )


def test_a_job_waits_for_faster_gpus_and_says_what_it_weighed():
    """10 h at 1.0 after an hour of waiting end 4 h sooner than 10 h at 1.5."""
    result = plan([asking(1, 2)], here(held("r", 0, [0, 1], HOUR)))
    (waits,) = result.waiting
    assert waits.postponed
    assert waits.postponement.start_s == NOW + HOUR
    assert waits.shadow_start_s is None
    assert waits.reason == (
        f"postponed: expected at {stamp(NOW + HOUR)[:16]} on n0 GPUs 0,1 (1.00); it ends"
        " 4 h sooner than now on n1 GPUs 0,1 (1.50); reserved for it"
    )


def test_what_slurm_shows_of_a_postponed_job_changes_only_with_the_plan():
    """With 'in 12 min' each waiting job was updated in Slurm each minute."""
    cluster = here(held("r", 0, [0, 1], HOUR))
    shown = {
        waiting_text({"reason": waits.reason, "turn": waits.turn})
        for later_s in (0.0, 60.0, 600.0)
        for waits in plan_round(
            [asking(1, 2)], cluster, PlanSettings(policy="eft"), NOW + later_s
        ).waiting
    }
    assert shown == {f"postponed: expected at {stamp(NOW + HOUR)[:16]} on n0 GPUs 0,1 (1.00)"}


@pytest.mark.parametrize(
    ("weight", "in_s", "estimate_s", "waits"),
    [
        (1.0, 4.7 * HOUR, 10 * HOUR, True),
        (1.0, 4.9 * HOUR, 10 * HOUR, False),  # the gain is below 2% of the run time
        (4.0, 1.19 * HOUR, 10 * HOUR, True),  # 5 h of running, less 2%, for 1.2 h of waiting
        (4.0, 1.21 * HOUR, 10 * HOUR, False),
        (4.0, 0.11 * HOUR, HOUR, True),
        (4.0, 0.13 * HOUR, HOUR, False),
    ],
)
def test_a_wait_must_save_its_weight_and_two_percent(weight, in_s, estimate_s, waits):
    """The free node takes half as long again."""
    cluster = here(held("r", 0, [0, 1], in_s))
    result = plan([asking(1, 2, estimate_s)], cluster, options={"wait_weight": weight})
    assert bool(result.waiting) is waits


def test_a_job_prefers_a_short_wait_to_a_sooner_end_much_later():
    """n1 saves 4 h for an hour of waiting, n0 one hour more for 40 minutes more."""
    scores = np.array([[1.0], [1.1], [1.5]])
    cluster = here(held("a", 0, [0], 100 * 60.0), held("b", 1, [0], HOUR), scores=scores)
    for weight, node in ((1.0, "n0"), (2.0, "n1")):
        options = {"wait_weight": weight, "breaking": 0}
        (waits,) = plan([asking(1, 1)], cluster, options=options).waiting
        assert [name for name, _ in waits.postponement.gpus] == [node]


@pytest.mark.parametrize(
    ("waited_s", "in_s", "waits"),
    [(0.0, 4.0, True), (0.9, 4.0, True), (1.1, 4.0, False), (5.1, 0.1, False)],
)
def test_the_whole_wait_is_at_most_half_the_estimate(waited_s, in_s, waits):
    """It counts from the first postponement, whatever the job waits for now."""
    request = with_fields(asking(1, 2), postponed=Postponement(NOW - waited_s * HOUR))
    result = plan([request], here(held("r", 0, [0, 1], in_s * HOUR)))
    assert bool(result.waiting) is waits


@pytest.mark.parametrize(
    ("submitted_s", "since_s", "in_s", "longest_s", "waits"),
    [
        (0.0, None, 3.0, 3.1, True),
        (0.0, None, 3.0, 2.9, False),
        (2.0, None, 1.0, 3.1, True),  # it has waited for 2 h as no set was free
        (2.0, None, 1.0, 2.9, False),
        (2.0, 1.0, 1.0, 3.1, True),  # and for one of them by choice
        (2.0, 1.0, 1.0, 2.9, False),
        (9.0, None, 1.0, 3.0, False),
        (9.0, None, 1.0, math.inf, True),
        (0.0, None, 0.1, 0.0, False),
    ],
)
def test_the_wait_since_the_submission_is_bounded(submitted_s, since_s, in_s, longest_s, waits):
    """Whatever part of it was by choice; the account of the start names the bound."""
    wait = None if since_s is None else Postponement(NOW - since_s * HOUR)
    request = with_fields(asking(1, 2), submit_s=NOW - submitted_s * HOUR, postponed=wait)
    cluster = here(held("r", 0, [0, 1], in_s * HOUR))
    result = plan([request], cluster, options={"longest_wait_s": longest_s * HOUR})
    assert bool(result.waiting) is waits
    if not waits:
        until_s = request.submit_s + longest_s * HOUR
        text = f"; by choice it waits until {stamp(until_s)[:16]} at most (longest_wait_s)"
        assert result.assignments[0].why.text.endswith(text)


@pytest.mark.parametrize("longest_s", [HOUR, math.inf])
def test_a_bound_that_decides_nothing_is_not_named(longest_s):
    """A set that is free is as good as any, or the cap ends the wait before the bound."""
    best = plan([asking(1, 2)], here(held("r", 1, [0, 1], HOUR)))
    same = replace(asking(1, 2), submit_s=NOW)
    cluster = here(held("r", 1, [0, 1], HOUR))
    result = plan([same], cluster, options={"longest_wait_s": longest_s})
    assert result.assignments[0].why == best.assignments[0].why
    short = replace(asking(1, 2, HOUR), submit_s=NOW)
    cluster = here(held("r", 0, [0, 1], HOUR))
    result = plan([short], cluster, options={"longest_wait_s": longest_s})
    assert "longest_wait_s" not in result.assignments[0].why.text


def test_a_wait_under_way_ends_when_the_site_lowers_the_bound():
    wait = Postponement(NOW - HOUR, NOW + HOUR, NOW + 11 * HOUR, (("n0", (0, 1)),), "as before")
    waiting = with_fields(asking(1, 2), submit_s=NOW - HOUR, postponed=wait)
    cluster = here(held("r", 0, [0, 1], 20 * HOUR))
    for longest_s, waits in ((2.1 * HOUR, True), (1.9 * HOUR, False)):
        result = plan([waiting], cluster, options={"longest_wait_s": longest_s})
        assert bool(result.waiting) is waits


def test_a_cap_of_zero_and_other_policies_never_wait():
    cluster = here(held("r", 0, [0, 1], 60.0))
    assert plan([asking(1, 2)], cluster).waiting
    for policy, options in (("eft", {"wait_cap": 0}), ("pal", None), ("packed", None)):
        assert placements(plan([asking(1, 2)], cluster, policy, options)) == {
            "1": ((1,), ((0, 1),))
        }


def test_without_an_estimate_the_limit_counts_and_without_both_no_job_waits():
    cluster = here(held("r", 0, [0, 1], HOUR))
    assert plan([asking(1, 2, None)], cluster).waiting
    assert not plan([asking(1, 2, None, limit_s=HOUR)], cluster).waiting
    assert not plan([asking(1, 2, None, limit_s=math.inf)], cluster).waiting


def test_only_ends_on_nodes_of_the_job_count():
    cluster = here(held("r", 0, [0, 1], HOUR))
    for fields in (
        {"eligible": np.array([False, True])},
        {"groups": NodeGroups(np.array([-1, 0]))},
        {"cpus": 1 << 21},
    ):
        assert not any(w.postponed for w in plan([asking(1, 2, **fields)], cluster).waiting)


def test_cpus_come_back_with_the_gpus():
    cluster = here(held("r", 0, [0], HOUR, cpus=6), cpus_per_node=8)
    assert plan([asking(1, 2, cpus=8)], cluster).waiting
    stays = here(held("r", 0, [0], HOUR), cpus_per_node=8)
    stays.free_cpus[0] = 2
    assert not plan([asking(1, 2, cpus=8)], stays).waiting


def test_a_job_over_several_nodes_waits_for_better_ones():
    scores = np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    cluster = here(held("r", 0, [0, 1], HOUR), scores=scores)
    (waits,) = plan([asking(1, 4)], cluster).waiting
    assert waits.postponement.start_s == NOW + HOUR
    assert "on n0 GPUs 0,1 + n1 GPUs 0,1 (1.50)" in waits.reason
    assert "than now on n1 GPUs 0,1 + n2 GPUs 0,1 (3.00)" in waits.reason


def test_the_best_of_several_ends_is_found():
    """The first end gives a little, the second much, the third as much but later."""
    scores = np.array([[1.3, 1.3], [1.0, 1.0], [1.0, 1.0], [1.5, 1.5]])
    ends = [held(f"r{n}", n, [0, 1], (n + 1) * HOUR) for n in range(3)]
    (waits,) = plan([asking(1, 2)], here(*ends, scores=scores)).waiting
    assert waits.postponement.start_s == NOW + 2 * HOUR


def test_the_head_keeps_its_later_set_from_others():
    """A job that may not end before the head's expected start gets none of the reserved GPUs."""
    cluster = here(held("r", 0, [0], HOUR))
    queue = [asking(1, 2), asking(2, 1, limit_s=2 * HOUR, estimate_s=HOUR)]
    result = plan(queue, cluster)
    assert placements(result) == {"2": ((1,), ((0,),))}
    short = asking(2, 1, limit_s=0.9 * HOUR, estimate_s=0.9 * HOUR)
    assert placements(plan([queue[0], short], cluster)) == {"2": ((0,), ((1,),))}
    wide = [queue[0], asking(2, 4), asking(3, 1, limit_s=2 * HOUR, estimate_s=HOUR)]
    assert not plan(wide, cluster, backfill=False).assignments
    assert placements(plan(queue, cluster, backfill=False)) == {"2": ((1,), ((0,),))}


@pytest.mark.parametrize(
    ("limit_s", "starts"),
    [(2 * HOUR, {"3"}), (4 * HOUR, set())],
)
def test_behind_a_wait_by_choice_the_first_misfit_has_a_reservation(limit_s, starts):
    """Job 2 can start on n1 in 3 h. Each wait of a job before it would else let others pass it."""
    cluster = here(
        held("r", 0, [0, 1], HOUR), held("s", 1, [0], 3 * HOUR, limit_s=3 * HOUR), scores=SLOW
    )
    queue = [
        asking(1, 1),
        asking(2, 2, max_nodes=1, limit_s=HOUR, estimate_s=None, eligible=np.array([False, True])),
        asking(3, 1, limit_s=limit_s, estimate_s=60.0),
        asking(4, 1, limit_s=limit_s, estimate_s=60.0),
    ]
    result = plan(queue, cluster)
    assert {w.job_id for w in result.waiting if w.postponed} == {"1"}
    assert placements(result).keys() == starts
    words = {w.job_id: w.reason for w in result.waiting}
    if not starts:
        assert "time limit reaches past the start of job 2, which comes first" in words["3"]
        assert words["4"] == words["3"]


def test_the_reservation_of_the_misfit_lies_beside_the_later_set_of_the_head():
    """The GPUs of n0 are the head's until its limit ends, so job 2 gets the next whole node."""
    scores = np.array([[1.0] * 4, [1.5] * 4, [1.5] * 4, [1.5] * 4])
    ends = [held("r", 0, [0, 1, 2, 3], 60.0, limit_s=60.0)]
    ends += [held(f"s{n}", n, [0], 2 * HOUR, limit_s=2 * HOUR) for n in (1, 2, 3)]
    queue = [
        asking(1, 4, limit_s=10 * HOUR, estimate_s=10 * HOUR),
        asking(2, 4, max_nodes=1, limit_s=HOUR, estimate_s=HOUR),
        *(asking(n, 1, limit_s=3 * HOUR, estimate_s=3 * HOUR) for n in range(3, 15)),
    ]
    result = plan(queue, here(*ends, scores=scores))
    assert [w.job_id for w in result.waiting if w.postponed][:1] == ["1"]
    taken = {node for nodes, _ in placements(result).values() for node in nodes}
    assert len(placements(result)) == 6
    assert len(taken & {1, 2, 3}) == 2


def test_what_starts_behind_a_wait_by_choice_is_kept_off_the_reservation_of_the_misfit():
    """It says for which job a free GPU is kept."""
    scores = np.array([[1.0], [1.5], [1.5], [1.5]])
    cluster = here(held("r", 0, [0], HOUR), held("s", 3, [0], HOUR, limit_s=HOUR), scores=scores)
    last = np.array([False, False, True, True])
    queue = [asking(1, 1), asking(2, 2, eligible=last), asking(3, 1), asking(4, 1)]
    result = plan(queue, cluster)
    assert placements(result) == {"3": ((1,), ((0,),))}
    (started,) = result.assignments
    kept = started.why.of(Reserved)
    assert (kept.job_id, kept.kept) == ("2", {"n2": (0,)})


ALICE = {"user": "alice", "priority": 41_000.0}
BOB = {"user": "bob", "priority": 1.0}


@pytest.mark.parametrize(
    ("holder", "end", "other", "starts"),
    [
        ("bob", {}, BOB, False),
        ("bob", {}, {**BOB, "user": "carol"}, True),  # nothing that this user said
        ("carol", {}, BOB, True),
        ("bob", {}, {**ALICE, "priority": 1.0}, True),  # her own job
        ("bob", {}, {**BOB, "limit_s": 0.9 * HOUR}, True),  # it ends before
        ("bob", {"limit_s": HOUR}, BOB, True),  # Slurm ends the other job then
        ("", {}, {**BOB, "user": ""}, True),
    ],
)
@pytest.mark.parametrize("backfill", [True, False])
def test_no_user_makes_another_wait_for_own_gpus_and_takes_what_that_leaves(
    holder, end, other, starts, backfill
):
    """The job of the holder may run on; the head could start on n1 now."""
    cluster = here(replace(held("r", 0, [0], HOUR, **end), user=holder))
    behind = asking(2, 1, **{"limit_s": 2 * HOUR, "estimate_s": HOUR, **other})
    result = plan([asking(1, 2, max_nodes=1, **ALICE), behind], cluster, backfill=backfill)
    (first, *others) = result.waiting
    assert (first.job_id, first.postponed) == ("1", True)
    assert bool(placements(result)) == starts
    assert starts or "waits for GPUs of another job of the same user" in others[0].reason


@pytest.mark.parametrize(("of_cores", "starts"), [("bob", False), ("carol", True)])
def test_no_user_makes_another_wait_for_own_cores_and_takes_what_that_leaves(of_cores, starts):
    """The GPUs of n0 come back for sure, its cores when a job without GPUs ends."""
    cores = RunningJob(
        "c", (), NOW + 20 * HOUR, cpus={0: 6}, expected_end_s=NOW + 0.9 * HOUR, user=of_cores
    )
    gpus = replace(held("r", 0, [0], HOUR, limit_s=HOUR), user="bob")
    cluster = here(gpus, cores, cpus_per_node=8)
    queue = [asking(1, 2, max_nodes=1, cpus=8, **ALICE), asking(2, 1, limit_s=2 * HOUR, **BOB)]
    result = plan(queue, cluster)
    assert [one.job_id for one in result.waiting if one.postponed] == ["1"]
    assert bool(placements(result)) is starts


def test_two_that_wait_for_gpus_of_a_user_keep_a_set_each():
    """Each of them alone could start beside the other job of that user."""
    cluster = here(replace(held("r", 0, [0, 1], HOUR), user="bob"))
    first, second = asking(1, 1, **ALICE), asking(2, 1, **{**ALICE, "priority": 40_000.0})
    result = plan([first, second, asking(3, 1, limit_s=30 * HOUR, **BOB)], cluster)
    assert [one.job_id for one in result.waiting if one.postponed] == ["1", "2"]
    assert placements(result) == {}
    assert "behind job 2, which waits for GPUs of another job" in result.waiting[-1].reason


def test_beside_what_the_head_could_have_a_job_of_the_holder_starts():
    scores = np.array([[1.0, 1.0], [1.5, 1.5], [1.5, 1.5]])
    cluster = here(replace(held("r", 0, [0], HOUR), user="bob"), scores=scores)
    queue = [asking(1, 2, max_nodes=1, **ALICE), *(asking(n, 1, **BOB) for n in (2, 3, 4))]
    assert len(placements(plan(queue, cluster))) == 2


def test_a_short_job_opens_no_way_for_a_long_one():
    """The short one ends before the head is expected to start, so it leaves that its GPU."""
    cluster = here(replace(held("r", 0, [0], HOUR), user="bob"))
    short = asking(2, 1, limit_s=0.9 * HOUR, estimate_s=0.9 * HOUR, **{**BOB, "priority": 2.0})
    narrow = with_fields(short, eligible=np.array([False, True]))
    queue = [asking(1, 2, max_nodes=1, **ALICE), narrow, asking(3, 1, limit_s=2 * HOUR, **BOB)]
    assert placements(plan(queue, cluster)).keys() == {"2"}


@pytest.mark.parametrize(("limit_s", "gpus"), [(20 * HOUR, 2), (HOUR, 4)])
def test_no_growth_takes_what_the_head_could_have(limit_s, gpus):
    running = replace(held("r", 0, [0, 1, 2], HOUR, limit_s=limit_s), user="bob")
    cluster = here(running, scores=np.array([[1.0] * 4, [1.5] * 4]))
    counts = np.array([1, 2, 4])
    table = SizeTable(counts, np.array([1000]), 1.0 / counts[:, None], np.full((3, 1), 100.0))
    grows = with_fields(asking(2, 1, **BOB), sizes=(1, 2, 4), table=table)
    ((nodes, slots),) = placements(
        plan([asking(1, 2, max_nodes=1, **ALICE), grows], cluster)
    ).values()
    assert (nodes, sum(map(len, slots))) == ((1,), gpus)


def test_a_job_behind_the_head_does_not_count_on_reserved_gpus():
    cluster = here(held("r", 0, [0, 1], HOUR))
    result = plan([asking(1, 2), asking(2, 2)], cluster)
    assert placements(result) == {"2": ((1,), ((0, 1),))}
    alone = plan([asking(1, 5, max_nodes=3), asking(2, 2)], cluster)
    assert [w.job_id for w in alone.waiting if w.postponed] == ["2"]


def test_no_two_jobs_wait_for_the_same_gpus():
    """The third has the slow node now, as the fast ones have a job already that waits for them."""
    scores = np.array([[1.0, 1.0], [1.0, 1.0], [1.5, 1.5]])
    cluster = here(held("a", 0, [0, 1], HOUR), held("b", 1, [0, 1], 2 * HOUR), scores=scores)
    for backfill in (True, False):
        result = plan([asking(n, 2) for n in (1, 2, 3)], cluster, backfill=backfill)
        waits = {w.job_id: w.postponement.gpus for w in result.waiting}
        assert waits == {"1": (("n0", (0, 1)),), "2": (("n1", (0, 1)),)}
        assert placements(result) == {"3": ((2,), ((0, 1),))}


@pytest.mark.parametrize(
    ("start_in_s", "end_in_s", "node", "waits"),
    [
        (HOUR, 11 * HOUR, "n0", True),
        (HOUR, 14.9 * HOUR, "n0", False),  # the free node ends it nearly as soon: search again
        (-1.0, 10 * HOUR, "n0", False),  # its time has come
        (5 * HOUR, 11 * HOUR, "n0", False),  # beyond the cap: the job has become shorter
        (HOUR, 11 * HOUR, "gone", False),
        (HOUR, 11 * HOUR, "n3", False),  # no longer allowed
    ],
)
@pytest.mark.parametrize("place", ["head", "behind"])
def test_until_its_time_a_job_waits_on_without_a_search(start_in_s, end_in_s, node, waits, place):
    """No job holds the fast node any more as far as is known: a search would start the job."""
    scores = np.array([[1.0, 1.0], [1.5, 1.5], [1.5, 1.5], [1.5, 1.5]])
    ends_s = 20 * HOUR
    busy = [held(str(n), n, [0, 1], ends_s) for n in (0, 2, 3)]
    cluster = here(*busy, scores=scores)
    allowed = np.array([True, True, True, False])
    wait = Postponement(
        NOW - HOUR, NOW + start_in_s, NOW + end_in_s, ((node, (0, 1)),), "as before"
    )
    waiting = asking(2, 2, postponed=wait, eligible=allowed)
    wide = asking(1, 4, eligible=np.array([True, False, True, False]))
    result = plan([wide, waiting] if place == "behind" else [waiting, asking(3, 2)], cluster)
    (kept,) = [w.postponement for w in result.waiting if w.job_id == "2"] or [None]
    assert kept == (wait if waits else None)
    taken = placements(result)
    assert taken.get("2") == (None if waits else ((1,), ((0, 1),)))
    if waits and place == "head":
        assert taken == {"3": ((1,), ((0, 1),))}


def test_a_wait_for_a_slot_that_no_node_has_ends():
    """As after a node with fewer GPUs came back."""
    cluster = here(held("r", 0, [0, 1], 20 * HOUR))
    wait = Postponement(NOW - HOUR, NOW + HOUR, NOW + 2 * HOUR, (("n0", (0, 6)),), "as before")
    result = plan([asking(1, 2, postponed=wait)], cluster)
    assert placements(result) == {"1": ((1,), ((0, 1),))}


def test_a_head_that_waits_on_keeps_cores_of_its_node():
    """Jobs that outlast its wait take none of the cores that it needs and no job gives back."""
    busy = held("a", 0, [0, 1], HOUR, cpus=2)
    cluster = here(busy, scores=np.ones((2, 4)), cpus_per_node=4)
    wait = Postponement(NOW, NOW + HOUR, NOW + 2 * HOUR, (("n0", (0, 1)),), "as before")
    only = np.array([True, False])
    for cpus, starts in ((4, False), (2, True)):
        head = asking(1, 2, postponed=wait, cpus=cpus, eligible=only)
        other = asking(2, 1, limit_s=9 * HOUR, cpus=2, eligible=only)
        result = plan([head, other], cluster)
        assert bool(placements(result)) == starts


def test_a_job_without_a_place_does_not_wait_by_choice():
    cluster = here(held("a", 0, [0, 1], HOUR), held("b", 1, [0, 1], HOUR))
    wait = Postponement(NOW - HOUR, NOW + HOUR, NOW + 2 * HOUR, (("n0", (0, 1)),), "as before")
    result = plan(
        [asking(1, 4), with_fields(asking(2, 2), postponed=wait)], cluster, backfill=False
    )
    assert not any(w.postponed for w in result.waiting)


def test_a_postponed_job_preempts_no_other():
    victim = replace(held("r", 0, [0, 1], HOUR), preemptable_by=1.0)
    result = plan([asking(1, 2, preemption=PreemptionRights(tier=2.0))], here(victim))
    assert not result.assignments
    assert result.waiting[0].postponed


@pytest.mark.parametrize(
    ("limit", "expected", "end"),
    [
        (100.0, None, 100.0),
        (100.0, 40.0, 40.0),
        (100.0, 400.0, 100.0),
        (-1.0, None, math.inf),
        (-1.0, -5.0, math.inf),
        (100.0, 0.0, 50.0),  # it has run 1000 s, as expected: 5% more
        (100.0, -200.0, 100.0),  # overdue by 200 s: 200 s more, but not past its limit
        (900.0, -200.0, 200.0),
        (math.inf, None, math.inf),
    ],
)
def test_expected_ends_are_later_than_now(limit, expected, end):
    running = RunningJob("r", ((0, (0,)),), NOW + limit, start_s=NOW - 1000.0)
    if expected is not None:
        running = replace(running, expected_end_s=NOW + expected)
    assert expected_ends([running], NOW).tolist() == [NOW + end]


SIMULATED = Cluster.uniform(2, 2, scores={"B": SLOW}, same_indices=False)


@pytest.mark.parametrize(("round_s", "start"), [(None, 1000.0), (300.0, 1200.0)])
def test_a_simulated_job_waits_and_starts_on_the_better_gpus(round_s, start):
    jobs = [TraceJob("1", 0, 2, 1000), TraceJob("2", 0, 2, 10_000)]
    settings = SimSettings(policy="eft", round_s=round_s).put(RunEstimates("exact"))
    result = simulate(Trace.of("t", jobs), SIMULATED, settings, keep_placements=True)
    assert [(p["job_id"], p["at_s"], p["nodes"]) for p in result.placements] == [
        ("1", 0.0, ["n0"]),
        ("2", start, ["n0"]),
    ]


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("longest_s", [math.inf, 300.0])
def test_a_job_gives_up_when_the_end_does_not_come(backfill, longest_s):
    """Ten runs of 50 s let the next one of 5000 s look short: 91 waits for it, but not for long."""
    shared = {"time_limit_s": 6000, "user": "u", "name": "x"}
    runs = [TraceJob(f"{i}", 60.0 * i, 2, 50, **shared) for i in range(10)]
    long = TraceJob("90", 2000.0, 2, 5000, **shared)
    after = TraceJob("91", 2001.0, 2, 1000, time_limit_s=2000, user="v", name="y")
    settings = SimSettings(policy="eft", backfill=backfill).put(RunEstimates("history"))
    settings = replace(settings, policy_options={"longest_wait_s": longest_s})
    result = simulate(Trace.of("t", [*runs, long, after]), SIMULATED, settings)
    assert 2001.0 < result.start_s[-1] <= 2001.0 + min(longest_s, 0.5 * 2000.0)
    assert result.slowdown()[-1] == pytest.approx(1.5)


def test_the_later_set_of_a_head_that_waits_by_choice_is_guarded():
    """Two GPUs of n0, of which one is free: jobs that pass the gate would take it."""
    cluster = here(held("r", 0, [0], HOUR))
    job = asking(1, 2, max_nodes=1)
    result = plan([job], cluster)
    assert result.waiting[0].postponed
    queue = {job.job_id: job}
    assert guarded(result, cluster, queue, NOW, passing=True) == {"n0": (2, 1, True, 0)}
    assert guarded(result, cluster, queue, NOW, passing=False) == {}


@pytest.mark.parametrize("backfill", [False, True])
def test_jobs_that_all_wait_on_by_choice_are_placed_as_one_by_one(monkeypatch, backfill):
    """Whole plans of the same rounds; the jobs wait since the round before."""
    together, rng, found, at_once = _Placing._all_wait, np.random.default_rng(4), [False], 0

    def recorded(self, ordered):
        found.append(together(self, ordered))
        return found[-1]

    for _ in range(150):
        nodes = np.flatnonzero(rng.random(6) < 0.7)
        ends = [(n, [0, 1][: rng.integers(1, 3)], HOUR * rng.uniform(0.2, 3)) for n in nodes]
        scores = rng.choice([0.6, 1.0, 1.1, 1.5], (6, 2))
        cluster = here(*(held(f"r{n}", n, *end) for n, *end in ends), scores=scores)
        sizes, hours = rng.integers(1, 4, 3), rng.uniform(5, 20, 3)
        queue = [asking(i, int(sizes[i]), HOUR * hours[i]) for i in range(3)]
        waits = {one.job_id: one.postponement for one in plan(queue, cluster).waiting}
        queue = [with_fields(r, postponed=wait) for r in queue if (wait := waits.get(r.job_id))]
        plans = []
        for method in (recorded, lambda self, ordered: False):
            monkeypatch.setattr(_Placing, "_all_wait", method)
            plans.append(plan(queue, cluster, backfill=backfill))
        assert plans[0] == plans[1]
        at_once += len(queue) > 1 and found[-1]
    assert at_once > 10


@pytest.mark.parametrize("backfill", [False, True])
def test_a_job_without_a_place_beside_the_first_wait_waits_for_its_turn(backfill):
    """Both wait by choice; the only free GPU of the second is one that the first waits for."""
    scores = np.array([[1.0, 1.0], [1.5, 1.5], [0.7, 0.7]])
    busy = held("a", 0, [0], HOUR), held("b", 2, [0, 1], HOUR)
    first = Postponement(NOW, NOW + HOUR, NOW + 11 * HOUR, (("n0", (0, 1)),), "as before")
    second = replace(first, end_s=NOW + 8 * HOUR, gpus=(("n2", (0,)),))
    queue = [
        asking(1, 2, postponed=first, max_nodes=1, eligible=np.array([True, True, False])),
        asking(2, 1, postponed=second, eligible=np.array([True, False, True])),
    ]
    alone = plan(queue[1:], here(*busy, scores=scores), backfill=backfill).waiting
    assert [one.postponement for one in alone] == [second]
    both = plan(queue, here(*busy, scores=scores), backfill=backfill).waiting
    assert [one.postponement for one in both] == [first, None]
