"""Properties of rounds under a power limit: never above it, nothing waits for ever, replay."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import job_request, plan_round, replayed

from slurm_gpu_aware.features.power.power_budget import PLANNED, POWER, PoweredJob, PowerState
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings

NOW = 100.0
CLOCKS = np.array([600, 900, 1200])
SIZES = np.array([1, 2, 4])
IDLE_W, MOST_W = 40.0, 300.0
SETTINGS = PlanSettings(policy="packed")


@st.composite
def tables(draw):
    """A table with any positive times, one perhaps unknown, and powers that rise with the clock."""
    times = draw(st.lists(st.floats(0.1, 10.0), min_size=9, max_size=9))
    powers = draw(st.lists(st.floats(IDLE_W + 1, MOST_W), min_size=3, max_size=3))
    time_s = np.array(times).reshape(3, 3)
    power_w = SIZES[:, None] * np.sort(np.array(powers))[None]
    if draw(st.integers(0, 5)) == 0:
        time_s[draw(st.integers(0, 2)), draw(st.integers(0, 2))] = math.nan
    return SizeTable(SIZES, CLOCKS, time_s, power_w)


@st.composite
def situations(draw):
    """A cluster, running jobs (the first ones of ours), a queue, and a limit."""
    nodes = draw(st.integers(1, 3))
    cluster = Cluster.uniform(nodes, 4)
    known = draw(st.lists(tables(), min_size=1, max_size=2))
    running, ours = [], {}
    for number in range(draw(st.integers(0, 3))):
        node = draw(st.integers(0, nodes - 1))
        free = np.flatnonzero(cluster.free[node]).tolist()
        gpus = draw(st.sampled_from([1, 2]))
        if len(free) < gpus:
            continue
        slots = tuple(free[:gpus])
        cluster.take(node, slots)
        end = NOW + draw(st.sampled_from([10.0, 20.0, math.inf]))
        running.append(RunningJob(f"r{number}", ((node, slots),), end, start_s=NOW - 5))
        if draw(st.booleans()):
            ours[f"r{number}"] = PoweredJob(
                gpus,
                gpus * MOST_W,
                draw(st.sampled_from([None, *known])),
                draw(st.sampled_from([None, 600, 900])),
                adjustable=draw(st.booleans()),
            )
    queue = []
    for number in range(draw(st.integers(1, 6))):
        gpus = draw(st.sampled_from([1, 2, 4]))
        sizes = draw(st.sampled_from([(), (1, 2, 4)]))
        queue.append(
            job_request(
                str(number),
                gpus,
                sizes=sizes,
                table=draw(st.sampled_from([None, *known])),
                clock=draw(st.sampled_from([None, "auto", "max", 900])),
                time_limit_s=draw(st.sampled_from([10.0, 30.0, math.inf])),
                priority=draw(st.sampled_from([0.0, 1.0])),
            )
        )
    limit_w = draw(st.floats(100.0, nodes * 4 * MOST_W))
    shape = cluster.shape
    state = PowerState(np.full(shape, MOST_W), np.full(shape, IDLE_W), limit_w, ours)
    return replace(cluster, running=tuple(running)), queue, state


def drawn(table, gpus, clock_mhz):
    """Power of a job at a clock; the power limits of its GPUs if the table does not say."""
    row = None if table is None else table.row(gpus)
    if row is None:
        return gpus * MOST_W
    column = len(CLOCKS) - 1 if clock_mhz is None else int(np.argmin(abs(CLOCKS - clock_mhz)))
    return float(table.power_w[row, column])


def power_after(cluster, queue, state, plan, kept=None):
    """Power of all GPUs when the plan has been carried out, counted job by job.

    ``kept``: job on a move -> what it may draw.
    """
    kept = kept or {}
    requests = {request.job_id: request for request in queue}
    clocks = {change.job_id: change.clock_mhz for change in plan.clocks}
    total = cluster.exists.sum() * IDLE_W + sum(kept.values())
    for job in cluster.running:
        if job.job_id in kept:
            continue
        gpus, known = len(job.each_gpu), state.running.get(job.job_id)
        power = gpus * MOST_W
        if known is not None:
            power = drawn(known.table, gpus, clocks.get(job.job_id, known.clock_mhz))
        total += power - gpus * IDLE_W
    for one in plan.assignments:
        table = requests[one.job_id].get(TABLE)
        total += drawn(table, one.size, one.clock_mhz) - one.size * IDLE_W
    return total


@settings(max_examples=400, deadline=None)
@given(situations())
def test_a_plan_keeps_the_limit_or_starts_one_job_alone(situation):
    cluster, queue, state = situation
    plan = plan_round(queue, cluster, SETTINGS, NOW, power=state)
    ids = [a.job_id for a in plan.assignments] + [w.job_id for w in plan.waiting]
    assert sorted(ids) == sorted(r.job_id for r in queue)
    total = power_after(cluster, queue, state, plan)
    assert plan.get(PLANNED) is not None
    assert total <= plan.get(PLANNED).planned_w + 1e-3
    if total > state.limit_w + 1e-3:
        assert plan.get(PLANNED).unmet
        # only what runs, or the one job that would never start otherwise
        assert len(plan.assignments) <= (0 if state.running else 1)
    by_id = {request.job_id: request for request in queue}
    for one in plan.assignments:
        assert sum(map(len, one.slots)) in (by_id[one.job_id].sizes or (by_id[one.job_id].gpus,))


@settings(max_examples=200, deadline=None)
@given(situations())
def test_lowered_clocks_come_first_and_what_needs_their_power_waits(situation):
    cluster, queue, state = situation
    plan = plan_round(queue, cluster, SETTINGS, NOW, power=state)
    before = {i: drawn(job.table, job.gpus, job.clock_mhz) for i, job in state.running.items()}
    saves = [change.power_w <= before[change.job_id] for change in plan.clocks]
    assert saves == sorted(saves, reverse=True)
    assert all(state.running[change.job_id].adjustable for change in plan.clocks)
    lowered = {c.job_id for c, lower in zip(plan.clocks, saves, strict=True) if lower}
    assert plan.get(PLANNED).after_lowering.isdisjoint(lowered)
    if not lowered:
        assert not plan.get(PLANNED).after_lowering
        return
    at_once = replace(
        plan,
        assignments=tuple(
            a for a in plan.assignments if a.job_id not in plan.get(PLANNED).after_lowering
        ),
        clocks=tuple(
            change
            for change, lower in zip(plan.clocks, saves, strict=True)
            if not lower and change.job_id not in plan.get(PLANNED).after_lowering
        ),
    )
    present = power_after(cluster, queue, state, replace(plan, assignments=(), clocks=()))
    total = power_after(cluster, queue, state, at_once)
    assert total <= max(state.limit_w, present) + 1e-3


@settings(max_examples=200, deadline=None)
@given(situations())
def test_running_clocks_come_to_the_plan_in_two_rounds(situation):
    """First those that fall, then those that rise; no clock waits for another one for ever."""
    cluster, _, state = situation
    for number in range(3):
        plan = plan_round([], cluster, SETTINGS, NOW, power=state)
        assert number < 2 or not plan.clocks
        clocks = {
            c.job_id: c.clock_mhz
            for c in plan.clocks
            if c.job_id not in plan.get(PLANNED).after_lowering
        }
        running = {
            job_id: replace(job, clock_mhz=clocks.get(job_id, job.clock_mhz))
            for job_id, job in state.running.items()
        }
        state = replace(state, running=running)
    present_w = power_after(cluster, [], state, replace(plan, assignments=(), clocks=()))
    assert plan.get(PLANNED).planned_w == pytest.approx(present_w)
    assert plan.get(PLANNED).unmet == (present_w > state.limit_w + 1e-3)


@settings(max_examples=150, deadline=None)
@given(situations())
def test_every_job_starts(situation):
    """Rounds, in each of which the job that has run longest ends, start every job."""
    cluster, queue, state = situation
    waiting = {request.job_id: request for request in queue}
    running = {job.job_id: job for job in cluster.running}
    powered = dict(state.running)
    infeasible = set()
    for number in range(4 * len(queue) + 8):
        if not waiting:
            break
        here = replace(Cluster.uniform(len(cluster.nodes), 4), running=tuple(running.values()))
        for job in running.values():
            for node, slots in job.gpus:
                here.take(node, slots)
        now = NOW + number
        one = replace(state, running=powered)
        plan = plan_round(list(waiting.values()), here, SETTINGS, now, power=one)
        infeasible |= {w.job_id for w in plan.waiting if w.infeasible}
        changed = {change.job_id: change.clock_mhz for change in plan.clocks}
        powered = {
            i: replace(job, clock_mhz=changed.get(i, job.clock_mhz)) for i, job in powered.items()
        }
        for a in plan.assignments:
            request = waiting.pop(a.job_id)
            gpus = sum(map(len, a.slots))
            running[a.job_id] = RunningJob(a.job_id, a.gpus, now + request.time_limit_s)
            powered[a.job_id] = PoweredJob(gpus, gpus * MOST_W, request.get(TABLE), a.clock_mhz)
        if running:
            first = next(iter(running))
            del running[first]
            powered.pop(first, None)
    assert waiting.keys() == infeasible & waiting.keys()


@settings(max_examples=100, deadline=None)
@given(situations())
def test_the_head_is_not_delayed_by_the_jobs_behind_it(situation):
    cluster, queue, state = situation
    alone = plan_round(queue, cluster, replace(SETTINGS, backfill=False), NOW, power=state)
    heads = [w for w in alone.waiting if w.shadow_start_s is not None]
    both = plan_round(queue, cluster, SETTINGS, NOW, power=state)
    if not heads or not math.isfinite(heads[0].shadow_start_s):
        return
    head = next(r for r in queue if r.job_id == heads[0].job_id)
    later = heads[0].shadow_start_s
    requests = {request.job_id: request for request in queue}
    still = [job for job in cluster.running if max(job.end_s, NOW) > later]
    powered = {i: job for i, job in state.running.items() if i in {job.job_id for job in still}}
    clocks = {change.job_id: change.clock_mhz for change in both.clocks}
    powered = {
        i: replace(job, clock_mhz=clocks.get(i, job.clock_mhz)) for i, job in powered.items()
    }
    for a in both.assignments:
        if (end := NOW + requests[a.job_id].time_limit_s) > later:
            still.append(RunningJob(a.job_id, a.gpus, end))
            gpus = sum(map(len, a.slots))
            table = requests[a.job_id].get(TABLE)
            powered[a.job_id] = PoweredJob(gpus, gpus * MOST_W, table, a.clock_mhz)
    there = replace(Cluster.uniform(len(cluster.nodes), 4), running=tuple(still))
    for job in still:
        for node, slots in job.gpus:
            there.take(node, slots)
    plan = plan_round([head], there, SETTINGS, later, power=replace(state, running=powered))
    assert [a.job_id for a in plan.assignments] == [head.job_id]


@settings(max_examples=60, deadline=None)
@given(situations())
def test_a_replay_gives_the_same_sizes_and_clocks(situation):
    cluster, queue, state = situation
    plan = plan_round(queue, cluster, SETTINGS, NOW, power=state)
    recorded = replayed(Round(queue, cluster, SETTINGS, NOW).put(POWER, state), plan)
    assert recorded.clocks.keys() >= {a.job_id for a in plan.assignments}
