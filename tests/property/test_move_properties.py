"""Whatever runs and waits: moves take only free GPUs, keep turns, times and rates, and pay."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from make import begun, job_request, plan_moves, plan_round, with_fields

from slurm_gpu_aware.features.moves.declared import MoveSettings
from slurm_gpu_aware.features.moves.front import front_of
from slurm_gpu_aware.features.moves.movable import Movable, may_move
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import TIER, Request
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.prefix import in_slurm_order

NOW = 50_000.0
NODES, WIDTH = 4, 3


def scaling(exponent):
    """Times that fall, or with an exponent below 0 rise, with the number of GPUs."""
    gpus = np.arange(1, NODES * WIDTH + 1)
    times = (1.0 / gpus**exponent)[:, None]
    return SizeTable(gpus, np.array([1000]), times, np.full_like(times, 100.0))


USERS = st.sampled_from(["alice", "bob"])


@st.composite
def sites(draw):
    """A cluster with running jobs of 1 to 3 GPUs, those that allow moves, and a queue."""
    values = st.sampled_from([0.9, 1.0, 1.3, 2.0])
    size = NODES * WIDTH
    scores = np.array(draw(st.lists(values, min_size=size, max_size=size)))
    cluster = Cluster.uniform(NODES, WIDTH, scores={"A": scores.reshape(NODES, WIDTH)})
    running, movable = [], []
    for number in range(draw(st.integers(1, 5))):
        node = draw(st.integers(0, NODES - 1))
        free = np.flatnonzero(cluster.free[node]).tolist()
        if not free:
            continue
        slots = tuple(sorted(draw(st.lists(st.sampled_from(free), min_size=1, unique=True))))
        cluster.take(node, slots)
        times = st.floats(0.0, 20_000.0)
        end_s = NOW + draw(times)
        job = RunningJob(
            str(number),
            ((node, slots),),
            end_s=end_s + draw(times),
            start_s=NOW - draw(times),
            app_class="A",
            expected_end_s=draw(st.sampled_from([None, end_s])),
        )
        running.append(job)
        if draw(st.booleans()):
            request = Request(str(number), len(slots), app_class="A", time_limit_s=40_000.0)
            request = replace(request, priority=TIER * draw(st.integers(0, 2)) + 9.0)
            request = replace(request, user=draw(USERS))
            if draw(st.booleans()):
                sizes = tuple(sorted({1, 2, 4, len(slots)}))
                request = with_fields(
                    request, sizes=sizes, table=scaling(draw(st.floats(-0.2, 1.0)))
                )
            ago = draw(st.none() | times)
            moved = None if ago is None else NOW - ago
            movable.append(Movable(request, job, draw(st.floats(0.0, 900.0)), moved))
    tiers = sorted(draw(st.lists(st.integers(0, 2), max_size=3)), reverse=True)
    queue = [
        job_request(
            f"9{i}",
            draw(st.integers(1, 6)),
            app_class="A",
            time_limit_s=3_000.0,
            submit_s=float(i),
            priority=TIER * tier,
            refused=draw(st.integers(0, 3)) == 0,
        )
        for i, tier in enumerate(tiers)
    ]
    return replace(cluster, running=tuple(running)), movable, queue


@given(
    sites(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.tuples(st.floats(0.0, 7_200.0), USERS), max_size=3),
    st.sampled_from(["pal", "packed"]),
)
def test_moves_keep_all_rules(site, sticky, per_round, per_hour, ago, policy):
    cluster, movable, queue = site
    settings = PlanSettings(policy=policy)
    moves = MoveSettings(sticky=sticky, per_round=per_round, per_hour=per_hour)
    recent = [(NOW - s, user) for s, user in ago]
    found = plan_moves(movable, queue, cluster, settings, moves, NOW, recent=recent)
    within = [user for at, user in recent if NOW - at < 3_600.0]
    assert len(found) <= min(per_round, max(0, per_hour - len(within)))
    for move in found if len({one.request.user for one in movable}) > 1 else ():
        assert within.count(move.request.user) < per_hour - len(within)
        within.append(move.request.user)
    known = {one.request.job_id: one for one in movable}
    nodes: list[int] = []
    for move in found:
        one = known[move.job_id]
        assert may_move(one, move.remaining_s, moves, NOW)
        assert NOW - one.job.start_s >= moves.first_s
        assert move.remaining_s >= moves.last_s
        assert one.moved_s is None or NOW - one.moved_s >= moves.again_s
        own = {(n, s) for n, slots in one.job.gpus for s in slots}
        target = move.assignment
        chosen = {
            (n, s) for n, slots in zip(target.nodes, target.slots, strict=True) for s in slots
        }
        ratio, others_s = 1.0, 0.0
        if len(chosen) != one.request.gpus:
            assert sticky
            assert len(chosen) in one.request.sizes
            ratio = (
                one.request.get(TABLE).time_s[len(chosen) - 1]
                / one.request.get(TABLE).time_s[len(own) - 1]
            )
            if len(chosen) > one.request.gpus:
                idle_queue(queue, settings, cluster)
            else:
                others_s = waiting_gain(move, queue, settings, cluster, found)
        assert chosen != own
        assert all(gpu in own or cluster.free[gpu] for gpu in chosen)
        assert others_s or ratio * target.slowdown < move.slowdown
        cost = one.restart_s + moves.margin_s if sticky else 0.0
        gain = move.remaining_s * (1 - ratio * target.slowdown / move.slowdown)
        assert gain + others_s > cost
        nodes += {n for n, _ in own | chosen}
    assert len(nodes) == len(set(nodes))
    if found:
        keep_their_turn(queue, settings, cluster, after(cluster, found))
    if sticky and len(found) == 1 and not found[0].starts:
        ordered, dispatcher = in_slurm_order(queue), Dispatcher(settings, now=NOW)
        before = front_of(ordered, cluster, dispatcher, NOW)
        then = front_of(ordered, after(cluster, found), dispatcher, NOW)
        assert not any(found[0].request.is_behind(request) for request in then.later(before))


def after(cluster, moves):
    """The cluster with each job on its new GPUs, with its time limit anew."""
    later = cluster.copy()
    running = {job.job_id: job for job in cluster.running}
    for move in moves:
        gpus = tuple(zip(move.assignment.nodes, move.assignment.slots, strict=True))
        for node, slots in move.of.job.gpus:
            later.free[node, list(slots)] = True
        for node, slots in gpus:
            assert later.free[node, list(slots)].all()
            later.free[node, list(slots)] = False
        end_s = NOW + move.of.request.time_limit_s
        running[move.job_id] = replace(running[move.job_id], gpus=gpus, end_s=end_s)
    return replace(later, running=tuple(running.values()))


def waiting_gain(move, queue, settings, cluster, found):
    """The time that a smaller job saves others; they start by it, and only by it."""
    (smaller,) = (other for other in found if other.request.gpus < other.of.request.gpus)
    assert smaller is move
    now, then = (
        {one.job_id for one in plan_round(queue, at, settings, NOW).assignments}
        for at in (cluster, after(cluster, found))
    )
    assert move.starts
    for request in (r for r in queue if r.job_id in move.starts):
        assert not request.wait.refused
        assert request.priority // TIER >= move.request.priority // TIER
    assert {*move.starts} <= then
    assert not {*move.starts} & now
    latest = max(job.end_s for job in cluster.running) - NOW
    assert 0 < move.others_s <= len(move.starts) * latest
    return move.others_s


def idle_queue(queue, settings, cluster):
    """Every job that can ever start does so now."""
    plan = plan_round(queue, cluster, settings, NOW)
    assert all(waiting.infeasible for waiting in plan.waiting)


def keep_their_turn(queue, settings, before, later):
    """Jobs that start in Slurm's order still start, and the first that does not no later."""
    plans = [plan_round(queue, cluster, settings, NOW) for cluster in (before, later)]
    started, still = ({a.job_id for a in plan.assignments} for plan in plans)
    waits, then = ({w.job_id: w for w in plan.waiting} for plan in plans)
    for request in queue:
        if request.job_id in started:
            assert request.job_id in still
        elif not waits[request.job_id].infeasible:
            head = then.get(request.job_id)
            assert head is None or head.shadow_start_s <= waits[request.job_id].shadow_start_s
            break


TIERS = st.integers(0, 2)


OTHERS = st.lists(st.tuples(TIERS, st.sampled_from([0.0, 9.0]), USERS, st.booleans()))


@given(st.lists(TIERS, min_size=2, max_size=2), OTHERS)
def test_jobs_shrink_for_those_of_their_tier_that_slurm_has_not_refused(own, others):
    """Two nodes, each full with a job of alice that shrinks for any job that it may shrink for."""
    cluster, movable = Cluster.uniform(2, 4, scores={"A": np.ones((2, 4))}), []
    for node, tier in enumerate(own):
        cluster.take(node, (0, 1, 2, 3))
        gpus = ((node, (0, 1, 2, 3)),)
        job = RunningJob(str(node), gpus, NOW + 4e4, app_class="A", expected_end_s=NOW + 2e4)
        request = Request(
            str(node), 4, app_class="A", priority=TIER * tier + 5.0, user="alice", sizes=(2, 4)
        )
        movable.append(Movable(with_fields(request, table=scaling(0.1)), job, 60.0))
    queue = [
        job_request(f"9{i}", 1, app_class="A", priority=TIER * t + more, user=user, refused=refused)
        for i, (t, more, user, refused) in enumerate(
            sorted(others, key=lambda one: -TIER * one[0] - one[1])
        )
    ]
    cluster = replace(cluster, running=tuple(one.job for one in movable))
    settings = PlanSettings(policy="packed")
    found = plan_moves(movable, queue, cluster, settings, MoveSettings(), NOW)
    allowed = {
        tier: {
            one.job_id
            for one in queue
            if one.priority // TIER >= tier and not one.wait.refused
            if one.user == "alice" or one.priority >= TIER * tier + 5.0
        }
        for tier in own
    }
    for move in found:
        assert {*move.starts} <= allowed[move.request.priority // TIER]
    allowed = set().union(*allowed.values())
    assert bool(found) == (queue[:1] != [] and queue[0].job_id in allowed)


@given(sites())
def test_while_moves_begin_no_gpu_has_two_holders(site):
    cluster, movable, queue = site
    settings, moves = PlanSettings(policy="pal"), MoveSettings(last_s=0.0, margin_s=0.0)
    found = plan_moves(movable, queue, cluster, settings, moves, NOW)
    later, _ = begun(cluster, found, settings, NOW)
    held = [gpu for job in later.running for gpu in job.each_gpu]
    assert len(held) == len(set(held))
    assert not any(later.free[gpu] for gpu in held)
    assert not (later.free & ~cluster.free).any()
    for move in found:
        target = move.assignment
        assert not any(
            later.free[node, slot]
            for node, slots in zip(target.nodes, target.slots, strict=True)
            for slot in slots
        )
