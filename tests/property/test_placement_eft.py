"""Policy eft against an oracle over all sets, and its waiting against every end in turn."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import plan_round, with_fields
from small_clusters import all_sets, cases, clusters, cost, level_index, requests
from small_oracle import chosen_of

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.model.room import node_demand
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.later import expected_ends
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.simulator.engine import Simulator
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

MANY = settings(max_examples=300, deadline=None)
BREAKING, TOLERANCE, CAP, MARGIN = 0.1, 0.02, 0.5, 0.02
NOW = 100.0


def price_of(request, cluster, chosen):
    """(cost, GPUs left free) of a set as the page of the policy defines them."""
    worst, _ = cost(request, cluster, chosen, cluster.score(request.app_class))
    product = cluster.levels[level_index(request, cluster, chosen)].penalty * worst
    free = [int(cluster.free[node].sum()) for node, _ in chosen]
    left = sum(n - len(slots) for n, (_, slots) in zip(free, chosen, strict=True))
    if len(chosen) == 1 and left:
        product *= 1.0 + BREAKING * free[0] / int(cluster.exists[chosen[0][0]].sum())
    return product, left


@MANY
@given(cases())
def test_eft_agrees_with_brute_force(case):
    """One node: the fewest GPUs left within the tolerance. Several: only if L x V is less."""
    request, cluster = case
    got = make_policy("eft").place(request, cluster)
    priced = [(len(s) > 1, *price_of(request, cluster, s)) for s in all_sets(request, cluster)]
    if got is None:
        assert not priced
        return
    alone = [(c, left) for several, c, left in priced if not several]
    across = min((c for several, c, _ in priced if several), default=math.inf)
    least = min((c for c, _ in alone), default=math.inf)
    chosen = chosen_of(got)
    price, left = price_of(request, cluster, chosen)
    assert (len(chosen) > 1) == (across < least - 1e-9)
    slack = TOLERANCE if len(chosen) == 1 or cluster.graphs else 0.0
    assert price <= min(across, least) * (1.0 + slack) + 1e-6
    if len(chosen) == 1:
        limit = least * (1.0 + TOLERANCE)
        assert left <= min(n for c, n in alone if c <= limit - 1e-6 or c == least)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_without_a_price_and_a_tolerance_eft_is_as_fast_as_pal(case):
    request, cluster = case
    got = make_policy("eft", {"breaking": 0.0, "tolerance": 0.0}).place(request, cluster)
    pal = make_policy("pal").place(request, cluster)
    assert (got is None) == (pal is None)
    if got is not None:
        assert math.isclose(got.slowdown, pal.slowdown)


WAITS = [None, None, Postponement(NOW - 5.0), Postponement(NOW - 60.0)]


@st.composite
def with_estimates(draw, most_jobs=1):
    """A cluster with running jobs on its busy GPUs, and requests with estimates."""
    cluster = draw(clusters(most_gpus=8))
    cluster = replace(
        cluster, free_cpus=cluster.free_cpus + 8, free_memory_mb=cluster.free_memory_mb + 8
    )
    running = []
    for node, slot in np.argwhere(cluster.exists & ~cluster.free).tolist():
        limit = NOW + draw(st.sampled_from([0.0, 20.0, 400.0, 400.0, 400.0]))
        expected = draw(st.none() | st.floats(NOW - 5, NOW + 40))
        running.append(
            RunningJob(
                f"r{node}.{slot}",
                ((node, (slot,)),),
                limit,
                {node: 1},
                {node: 1},
                start_s=NOW - 50.0,
                expected_end_s=expected,
            )
        )
    queue = [
        with_fields(
            draw(requests(cluster, str(number)))
            if draw(st.integers(0, 3)) == 0
            else Request(
                str(number),
                draw(st.integers(1, 4)),
                max_nodes=draw(st.sampled_from([1, 1, None])),
                app_class="A",
            ),
            time_limit_s=draw(st.sampled_from([100.0, 500.0, 500.0, math.inf])),
            estimate_s=draw(st.sampled_from([None, 60.0, 400.0, 400.0])),
            postponed=draw(
                st.sampled_from([None, None, *map(Postponement, (NOW - 5.0, NOW - 60.0))])
            ),
        )
        for number in range(most_jobs)
    ]
    return replace(cluster, running=tuple(running)), queue


FASTEST = {"breaking": 0.0, "tolerance": 0.0}
"""Options with which the policy takes the fastest set, whatever it breaks up."""


def by_every_end(request, cluster, weight):
    """(time, start) by the policy after each end in turn; only sets with a GPU that frees up.

    The time is that of running and, by its weight, of waiting.
    """
    policy, later = make_policy("eft", request.policy.options), cluster.copy()
    since = request.wait.since(NOW)
    ends = expected_ends(cluster.running, NOW).tolist()
    found = []
    for at, job in sorted(zip(ends, cluster.running, strict=True), key=lambda pair: pair[0]):
        if not at < math.inf or at > since + CAP * request.expected_s:
            break
        for node, slots in job.gpus:
            later.give_back(node, slots)
            later.free_cpus[node] += job.cpus[node]
            later.free_memory_mb[node] += job.memory_mb[node]
        set_then = policy.place(request, later)
        if set_then is None or all(
            cluster.free[node, list(slots)].all() for node, slots in chosen_of(set_then)
        ):
            continue
        found.append((weight * (at - NOW) + request.expected_s * set_then.slowdown, at))
    return found


@MANY
@given(with_estimates(), st.sampled_from([FASTEST, {}]), st.sampled_from([1.0, 4.0]))
def test_waiting_agrees_with_every_end_in_turn(situation, options, weight):
    """A job waits only for an end that is worth it.

    On one node it finds the best such end, if the policy takes the fastest set: the search goes by
    bounds of the slowdown, which a price for broken-up nodes can hide.
    """
    cluster, (request,) = situation
    request = with_fields(request, options={**options, "wait_weight": weight})
    answer = Dispatcher(PlanSettings(policy="eft"), now=NOW, running=cluster.running).place(
        request, cluster
    )
    here = make_policy("eft", options).place(request, cluster)
    if here is None:
        assert answer is None
        return
    run_s = request.expected_s
    if not run_s < math.inf:
        assert answer == here
        return
    goal = run_s * (here.slowdown - MARGIN)
    better = [time for time in by_every_end(request, cluster, weight) if time[0] < goal]
    if isinstance(answer, Postponement):
        time_s = weight * (answer.start_s - NOW) + answer.end_s - answer.start_s
        assert pytest.approx((time_s, answer.start_s)) in better
        assert answer.start_s <= request.wait.since(NOW) + CAP * run_s
        assert time_s < goal + 1e-9
        if options and request.max_nodes == 1 and request.min_nodes == 1:
            assert time_s <= min(time for time, _ in better) * (1 + TOLERANCE)
    else:
        assert answer == here
        assert not options or request.max_nodes != 1 or not better


@st.composite
def streams(draw):
    """Adversarial traffic for two nodes: bursts of short jobs beside long ones, false estimates.

    Jobs of a liar are estimated at the seconds that most of them take; the others last for an hour,
    and look all the time as if they were about to end. Those of a relay hold the fast node one
    after the other, each of more priority than what waits for that node.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    jobs, at = [], 0.0
    for number in range(draw(st.integers(5, 25))):
        at += draw(st.sampled_from([0.0, 1.0, 50.0, 400.0]))
        gpus = draw(st.integers(1, 4))
        user = draw(st.sampled_from(["liar", "liar", "u", "v"]))
        if user == "liar":
            run_s, limit_s = draw(st.sampled_from([5.0, 5.0, 5.0, 3600.0])), 40_000.0
        else:  # the estimates of a user with mixed runs are wrong, too
            run_s = draw(st.sampled_from([5.0, 100.0, 1000.0]))
            limit_s = run_s * draw(st.sampled_from([2.0, 5.0, 40.0]))
        jobs.append(TraceJob(f"{number}", at, gpus, run_s, time_limit_s=limit_s, user=user))
    legs, leg_s = draw(st.sampled_from([0, 10, 30])), draw(st.sampled_from([60.0, 120.0]))
    jobs += [
        TraceJob(f"r{leg}", leg * leg_s, 3, leg_s, time_limit_s=leg_s, priority=1.0)
        for leg in range(legs)
    ]
    if legs:
        jobs.append(TraceJob("long", 1.0, draw(st.integers(1, 3)), 1000.0, time_limit_s=2000.0))
    jobs.sort(key=lambda job: job.submit_s)
    scores = {"B": rng.choice([1.0, 1.2, 2.5], (2, 3))}
    if legs:
        scores["B"][:] = [[1.0], [draw(st.sampled_from([1.2, 1.5, 2.5]))]]
    return Trace.of("stream", jobs), Cluster.uniform(2, 3, scores=scores, same_indices=False)


RESTLESS = MovesConfig(
    margin_s=0.0, first_s=0.0, last_s=0.0, again_s=0.0, per_round=9, per_hour=10**6
)
"""Running jobs move for any gain, at any time."""


class Watched(Simulator):
    """A simulator that checks each postponement against the cap and the longest wait.

    The first postponement of each wait is noted here, not read from the request.
    """

    def run(self):
        self.first_s = {}
        return super().run()

    def _note_postponed(self, due):
        now = self.clock.now
        for assignment in due.plan.assignments:
            self.first_s.pop(assignment.job_id, None)
        waiting = {w.job_id: w for w in due.plan.waiting if w.postponed}
        for active in due.queue:
            request = active.request
            if (waits := waiting.get(request.job_id)) is not None:
                since = self.first_s.setdefault(request.job_id, now)
                start_s = waits.postponement.start_s
                assert now < start_s <= since + CAP * request.expected_s + 1e-6
                longest_s = self.settings.policy_options["longest_wait_s"]
                assert start_s <= active.job.submit_s + longest_s + 1e-6
        return super()._note_postponed(due)


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("round_s", [None, 60.0])
@settings(max_examples=40, deadline=None)
@given(
    streams(),
    st.sampled_from(["exact", "history", "limit"]),
    st.sampled_from([None, RESTLESS]),
    st.sampled_from([math.inf, 70.0, 500.0]),
)
def test_no_stream_holds_a_job_longer_than_its_cap(
    backfill, round_s, stream, estimate, moves, longest_s
):
    """All jobs start, and none waits by choice for a start beyond its cap or the longest wait."""
    trace, cluster = stream
    given = SimSettings(policy="eft", backfill=backfill, round_s=round_s)
    given = replace(given, policy_options={"longest_wait_s": longest_s})
    given = replace(given, order="priority")
    sections = () if moves is None else (moves,)
    given = replace(given, mode="sticky" if moves is None else "moves", migration_s=1.0).put(
        RunEstimates(estimate), *sections
    )
    result = Watched(trace, cluster, given).run()
    assert np.isfinite(result.start_s).all()


@st.composite
def awaited(draw):
    """A job that waits for the rest of a fast node, and others that could take what is free."""
    width = draw(st.integers(2, 3))
    slow = draw(st.sampled_from([1.3, 1.6, 2.5]))
    scores = {"A": np.array([[1.0] * width, [slow] * width])}
    cluster = Cluster.uniform(2, width, scores=scores)
    held = draw(st.integers(1, width - 1))
    cluster.free[0, :held] = False
    running = [
        RunningJob(
            f"r{slot}",
            ((0, (slot,)),),
            NOW + draw(st.sampled_from([60.0, 400.0])),
            {0: 1},
            {0: 1},
            start_s=NOW - 50.0,
            expected_end_s=NOW + draw(st.sampled_from([5.0, 20.0, 40.0])),
        )
        for slot in range(held)
    ]
    head = Request("0", width, max_nodes=1, app_class="A", time_limit_s=500.0, estimate_s=400.0)
    behind = [
        Request(
            str(number),
            draw(st.integers(1, 2)),
            app_class="A",
            time_limit_s=draw(st.sampled_from([10.0, 30.0, 100.0, 500.0])),
            estimate_s=draw(st.sampled_from([None, 5.0])),
        )
        for number in range(1, draw(st.integers(2, 4)))
    ]
    return replace(cluster, running=tuple(running)), [head, *behind]


@settings(max_examples=200, deadline=None)
@given(st.one_of(with_estimates(most_jobs=5), awaited()))
def test_no_job_takes_what_a_postponed_head_waits_for(situation):
    """If the expected ends come true, the head gets its later set at its expected start."""
    cluster, queue = situation
    queue = [replace(r, priority=-float(i)) for i, r in enumerate(queue)]
    plan = plan_round(queue, cluster, PlanSettings(policy="eft"), NOW)
    head = next((w for w in plan.waiting if not w.infeasible), None)
    if head is None or not head.postponed:
        return
    by_id = {r.job_id: r for r in queue}
    then, after = head.postponement.start_s, _after(plan, by_id, cluster, head)
    for name, slots in head.postponement.gpus:
        assert after.free[cluster.nodes.index(name), list(slots)].all()
    alone = plan_round([by_id[head.job_id]], after, PlanSettings(policy="eft"), then)
    assert alone.assignments or alone.waiting[0].postponed


def _after(plan, by_id, cluster, head):
    """The cluster at the head's expected start: expected ends and limits have come."""
    later = cluster.copy()
    ends = expected_ends(cluster.running, NOW)
    stay = []
    for job, end in zip(cluster.running, ends.tolist(), strict=True):
        if end <= head.postponement.start_s:
            for node, slots in job.gpus:
                later.give_back(node, slots)
                later.free_cpus[node] += job.cpus[node]
                later.free_memory_mb[node] += job.memory_mb[node]
        else:
            stay.append(job)
    for a in plan.assignments:
        request = by_id[a.job_id]
        first = request.priority > by_id[head.job_id].priority
        run_s = min(request.expected_s * a.slowdown, request.time_limit_s)
        end = NOW + (run_s if first else request.time_limit_s)
        if end > head.postponement.start_s:
            for node, slots in chosen_of(a):
                later.take(node, slots, *node_demand(request, len(a.nodes), len(slots)))
    return replace(later, running=tuple(stay))
