"""Moves under a power limit: never above it from requeue to restart, and no job is lost."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from make import begun, job_request, place_moved, plan_moves, plan_round
from test_power_properties import (
    IDLE_W,
    MOST_W,
    NOW,
    SETTINGS,
    drawn,
    power_after,
    situations,
    tables,
)

from slurm_gpu_aware.features.moves.declared import MoveSettings
from slurm_gpu_aware.features.moves.movable import Movable
from slurm_gpu_aware.features.power.power_budget import PLANNED, PoweredJob, PowerState
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.size_table import TABLE

MOVES = MoveSettings(margin_s=0.0, first_s=0.0, last_s=0.0)


@st.composite
def growing(draw):
    """A situation in which running jobs are of ours and mostly faster with more GPUs."""
    cluster, queue, state = draw(situations())
    table = draw(tables())
    table = replace(table, time_s=-np.sort(-table.time_s, axis=0))
    running = {}
    for job in cluster.running:
        gpus = len(job.each_gpu)
        known = PoweredJob(gpus, gpus * MOST_W, table, 600, adjustable=draw(st.booleans()))
        running[job.job_id] = state.running.get(job.job_id, known)
    limit_w = cluster.exists.sum() * draw(st.floats(IDLE_W + 10.0, MOST_W))
    queue = queue[: draw(st.sampled_from([0, 0, 1, 2]))]
    return cluster, queue, PowerState(state.max_w, state.idle_w, limit_w, running)


def movables(cluster, state):
    """The running jobs of ours, each with a range, and a restart without cost."""
    for job in cluster.running:
        known = state.running[job.job_id]
        request = job_request(job.job_id, known.gpus, sizes=(1, 2, 4), table=known.table)
        yield Movable(request, replace(job, expected_end_s=NOW + 1e3), restart_s=0.0)


def carried_out(cluster, state, plan, requests, moves):
    """Snapshot and power when the jobs on a move have stopped and the others have started."""
    clocks = {change.job_id: change.clock_mhz for change in plan.clocks}
    gone = {move.job_id: move for move in moves}
    later, known, running = cluster.copy(), {}, []
    for job in cluster.running:
        if job.job_id in gone:
            for node, slots in job.gpus:
                later.give_back(node, slots)
            continue
        running.append(job)
        if (one := state.running.get(job.job_id)) is not None:
            clock = clocks.get(job.job_id, one.clock_mhz)
            known[job.job_id] = replace(one, clock_mhz=clock)
    for one in plan.assignments:
        for node, slots in one.gpus:
            later.take(node, slots)
        running.append(RunningJob(one.job_id, one.gpus, NOW + 1e3, start_s=NOW))
        table = requests[one.job_id].get(TABLE)
        known[one.job_id] = PoweredJob(one.size, one.size * MOST_W, table, one.clock_mhz)
    power = PowerState(state.max_w, state.idle_w, state.limit_w, known)
    return replace(later, running=tuple(running)), power


@settings(max_examples=300, deadline=None)
@given(growing(), st.sampled_from([1.0, 1.0, 0.8]))
def test_a_move_keeps_the_limit_from_its_requeue_to_its_restart(situation, lowered):
    cluster, queue, state = situation
    requests = {request.job_id: request for request in queue}
    found = plan_moves(movables(cluster, state), queue, cluster, SETTINGS, MOVES, NOW, power=state)
    shown, power = begun(cluster, found, SETTINGS, NOW, state)
    plan = plan_round(queue, shown, SETTINGS, NOW, power=power)
    kept = {}
    for move in found:
        known = state.running[move.job_id]
        now_w = drawn(known.table, known.gpus, known.clock_mhz) - known.gpus * IDLE_W
        gpus, clock = move.request.gpus, move.assignment.clock_mhz
        then_w = drawn(move.request.get(TABLE), gpus, clock) - gpus * IDLE_W
        kept[move.job_id] = max(now_w, then_w)
        assert move.power_w >= kept[move.job_id] - 1e-6
    before_w = power_after(cluster, [], state, plan_round([], cluster, SETTINGS, NOW, power=state))
    meets = before_w <= state.limit_w + 1e-3 and not plan.get(PLANNED).unmet
    if meets and found:
        assert power_after(cluster, queue, state, plan, kept) <= state.limit_w + 1e-3

    # The jobs on a move are back.
    later, power = carried_out(cluster, state, plan, requests, found)
    power = replace(power, limit_w=state.limit_w * lowered)
    back = [move.of.request for move in found]
    targets = {move.job_id: move.assignment for move in found}
    placed, rest, shown, again = place_moved(targets, back, later, SETTINGS, NOW, power=power)
    assert sorted([a.job_id for a in placed] + [r.job_id for r in rest]) == sorted(targets)
    if lowered == 1.0 and meets:
        assert not rest  # what was kept for them is still free
    had = {move.job_id: move.of.request.gpus for move in found}
    assert all(request.gpus == had[request.job_id] for request in rest)
    second = plan_round(rest, shown, SETTINGS, NOW, power=again)
    told = {a.job_id for a in (*placed, *second.assignments)}
    assert told | {w.job_id for w in second.waiting} == set(targets)
    second = replace(second, assignments=(*placed, *second.assignments))
    total = power_after(later, back, power, second)
    if meets and lowered == 1.0:
        assert total <= state.limit_w + 1e-3
    assert total <= power.limit_w + 1e-3 or second.get(PLANNED).unmet
