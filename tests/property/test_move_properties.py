"""Whatever runs and waits: moves take only free GPUs, keep times and rates, and pay."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.move_settings import MoveSettings
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning import PlanSettings, plan_round
from slurm_gpu_aware.planning.moves import Movable, may_move, plan_moves

NOW = 50_000.0
NODES, WIDTH = 4, 3


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
            ago = draw(st.none() | times)
            moved = None if ago is None else NOW - ago
            movable.append(Movable(request, job, draw(st.floats(0.0, 900.0)), moved))
    queue = [
        Request(f"9{i}", gpus, app_class="A", time_limit_s=3_000.0, submit_s=float(i))
        for i, gpus in enumerate(draw(st.lists(st.integers(1, 6), max_size=3)))
    ]
    return replace(cluster, running=tuple(running)), movable, queue


@given(
    sites(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.floats(0.0, 7_200.0), max_size=3),
    st.sampled_from(["pal", "packed"]),
)
def test_moves_keep_all_rules(site, sticky, per_round, per_hour, ago, policy):
    cluster, movable, queue = site
    settings = PlanSettings(policy=policy)
    moves = MoveSettings(sticky=sticky, per_round=per_round, per_hour=per_hour)
    recent = [NOW - s for s in ago]
    plan = plan_round(queue, cluster, settings, NOW)
    found = plan_moves(movable, queue, cluster, plan, settings, moves, NOW, recent=recent)
    within = sum(NOW - at < 3_600.0 for at in recent)
    assert len(found) <= min(per_round, max(0, per_hour - within))
    known = {one.request.job_id: one for one in movable}
    started = {
        (n, s)
        for a in plan.assignments
        for n, own in zip(a.nodes, a.slots, strict=True)
        for s in own
    }
    nodes: list[int] = []
    for move in found:
        one = known[move.job_id]
        assert may_move(one, moves, NOW)
        assert NOW - one.job.start_s >= moves.first_s
        assert one.remaining_s(NOW) >= moves.last_s
        assert one.moved_s is None or NOW - one.moved_s >= moves.again_s
        own = {(n, s) for n, slots in one.job.gpus for s in slots}
        target = move.assignment
        chosen = {
            (n, s) for n, slots in zip(target.nodes, target.slots, strict=True) for s in slots
        }
        assert len(chosen) == one.request.gpus
        assert chosen != own
        assert chosen.isdisjoint(started)
        assert all(gpu in own or cluster.free[gpu] for gpu in chosen)
        assert target.slowdown < move.slowdown
        cost = one.restart_s + moves.margin_s if sticky else 0.0
        gain = move.remaining_s * (1 - target.slowdown / move.slowdown)
        assert gain > cost
        nodes += {n for n, _ in own | chosen}
    assert len(nodes) == len(set(nodes))
