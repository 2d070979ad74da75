"""Recorded jobs that only hold GPUs: which they are, which GPUs they take, and for how long."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.active import EventClock
from slurm_gpu_aware.simulator.cluster_state import BackgroundJobs, ClusterState
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.history import BEFORE, select_window
from slurm_gpu_aware.simulator.physics import Physics
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

CLUSTER = Cluster.uniform(["n1", "n2"], 4, locality_penalty=1.0, same_indices=False)


def recorded(job, start, run, gpus=1, submit=None, **more):
    submit = start if submit is None else submit
    more = {"recorded_start_s": float(start), "recorded_run_s": float(run), **more}
    return TraceJob(job, float(submit), gpus, float(run), **more)


def test_a_stretch_keeps_what_started_in_it_and_the_rest_holds():
    ended = [
        recorded("over", 100, 50),
        recorded("across", 100, 950),
        recorded("waiting", 1100, 100, submit=500),
        recorded("inside", 1300, 100, submit=1200),
    ]
    jobs, held, left_out = select_window(
        ended, [recorded("runs", 1500, 200)], now=2000, seconds=1000
    )
    assert [(j.job_id, j.submit_s, j.recorded_start_s) for j in jobs] == [
        ("waiting", 0, 100),
        ("inside", 200, 300),
    ]
    spans = {j.job_id: (j.recorded_start_s, j.recorded_start_s + j.recorded_run_s) for j in held}
    assert spans == {"across": (-900, 50), "runs": (500, 1000)}
    assert left_out == {BEFORE: 2}
    jobs, held, left_out = select_window(ended, [recorded("runs", 1500, 200)])
    assert [job.submit_s for job in jobs] == [0, 0, 400, 1100]
    assert (held[0].recorded_start_s, held[0].recorded_run_s) == (1400, 200)
    assert not left_out


def state_with(*taken):
    settings, clock = SimSettings(), EventClock(None)
    state = ClusterState(CLUSTER, settings, Physics(CLUSTER, settings), clock)
    for node, slot in taken:
        state._change(((node, (slot,)),), free=False)
    return state


@pytest.mark.parametrize(
    ("nodes", "slots", "taken", "expected"),
    [
        (("n2",), (1, 3), (), {(1, 1), (1, 3)}),
        (("n2",), (1, 3), [(1, 3)], {(1, 1), (1, 0)}),
        (("n2",), (), [(1, 0)], {(1, 1), (1, 2)}),
        (("n1", "n2"), (), (), {(0, 0), (1, 0)}),
        (("n2",), (), [(1, 0), (1, 1), (1, 2)], {(1, 3), (0, 0)}),
        (("gone",), (1, 3), (), {(0, 0), (0, 1)}),
        ((), (), [(0, 0)], {(0, 1), (0, 2)}),
    ],
)
def test_a_holder_takes_its_recorded_gpus_or_the_lowest(nodes, slots, taken, expected):
    state = state_with(*taken)
    job = recorded("9", 0, 100, gpus=2, recorded_nodes=nodes, recorded_slots=slots)
    background = BackgroundJobs([job], state)
    background.start(job)
    background.take()
    held = {(int(n), int(s)) for n, s in zip(*np.nonzero(~state.cluster.free), strict=True)}
    assert held - {tuple(gpu) for gpu in taken} == expected
    assert (state.background_gpus, state.free) == (2, 6 - len(taken))
    assert background.end(job)
    assert (state.background_gpus, state.free) == (0, 8 - len(taken))


@pytest.mark.parametrize("order", ["fifo", "las"])
@pytest.mark.parametrize("mode", ["sticky", "non-sticky"])
def test_what_is_not_free_yet_is_taken_as_soon_as_it_is(order, mode):
    """The holder starts at 50, finds two free GPUs, and has the others before the queue has any."""
    holder = recorded("9", 50, 400, gpus=8)
    jobs = [TraceJob("1", 0, 6, 200), TraceJob("2", 60, 4, 100), TraceJob("3", 500, 8, 10)]
    trace = replace(Trace.of("t", jobs), background=(holder,))
    settings = SimSettings(policy="packed", order=order, mode=mode, migration_s=0)
    result = simulate(trace, CLUSTER, settings)
    assert result.start_s.tolist() == [0, 450, 550]
    use = dict(zip(result.used_s.tolist(), result.used_gpus.tolist(), strict=True))
    assert (use[0.0], use[50.0], use[450.0]) == (6, 8, 4)
    assert result.utilization() == pytest.approx((300 + 50 * 0 + 400 * 8 + 100 * 4 + 80) / 8 / 560)


def test_the_run_ends_with_its_jobs_whatever_the_background_holds():
    trace = replace(
        Trace.of("t", [TraceJob("1", 0, 4, 100)]), background=(recorded("9", 0, 1e6, 4),)
    )
    result = simulate(trace, CLUSTER, SimSettings())
    assert result.end_s.tolist() == [100]
    assert result.used_s[-1] == 100
    assert result.utilization() == 1.0
