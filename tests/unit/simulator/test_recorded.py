"""What Slurm recorded, as work: the slowdown that a run time already holds is taken out of it."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.history import (
    RECORDED,
    UNSUPPORTED,
    recorded_result,
    with_slots,
    with_work,
    without_unsupported,
)
from slurm_gpu_aware.simulator.physics import Physics, expected_worst
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.topology.machines import machine

SCORES = np.array([[1.0, 1.5, 2.0, 0.9], [1.0, 1.0, 1.2, 3.0]])
CLUSTER = Cluster.uniform(["n1", "n2"], 4, locality_penalty=1.7, same_indices=False)
TRUTH = {"B": SCORES}


def recorded(gpus=1, nodes=("n1",), slots=(), **more):
    return TraceJob(
        "1", 0, gpus, 340.0, recorded_start_s=10.0, recorded_run_s=340.0, recorded_nodes=nodes,
        recorded_slots=slots, **more,
    )  # fmt: skip


def work(job, settings=None, cluster=CLUSTER):
    trace, known = with_work(Trace.of("t", [job]), cluster, TRUTH, settings or SimSettings())
    return trace.jobs[0].duration_s, dict(known)


def test_recorded_indices_give_the_exact_work():
    assert work(recorded(slots=(2,))) == (pytest.approx(340 / 2.0), {"exact": 1})
    both = recorded(gpus=4, nodes=("n2", "n1"), slots=(1, 2))
    assert work(both) == (pytest.approx(340 / (1.7 * 2.0)), {"exact": 1})
    flat = SimSettings(variability=False, locality=False)
    assert work(both, flat)[0] == 340.0


def test_without_indices_the_expected_slowdown_of_the_nodes_counts():
    mean = np.mean([max(pair) for pair in combinations(SCORES[0], 2)])
    assert work(recorded(gpus=2)) == (pytest.approx(340 / mean), {"expected": 1})
    pairs = product(combinations(SCORES[0], 2), combinations(SCORES[1], 2))
    mean = np.mean([max(*a, *b) for a, b in pairs])
    several = recorded(gpus=4, nodes=("n1", "n2"))
    assert work(several)[0] == pytest.approx(340 / (1.7 * mean))


def test_expected_worst_of_whole_nodes_is_their_worst():
    assert expected_worst([SCORES[0]], 4) == pytest.approx(2.0)
    assert expected_worst([SCORES[0], SCORES[1]], 9) == pytest.approx(3.0)
    assert expected_worst([np.array([np.inf, 1.0])], 1) == pytest.approx(1.0)


def test_nodes_that_the_cluster_lacks_are_counted_as_such():
    assert work(recorded(nodes=("gone",))) == (340.0, {"unknown": 1})
    assert work(recorded(nodes=())) == (340.0, {"unknown": 1})
    assert work(recorded(nodes=("n1", "gone"))) == (pytest.approx(200.0), {"unknown": 1})
    plain = TraceJob("1", 0, 1, 340.0)
    assert work(plain) == (340.0, {})


def test_the_links_of_unknown_gpus_count_on_average():
    graph = machine("dgx-1-v100")
    cluster = Cluster.uniform(["n1"], 8, graph=graph)
    settings = SimSettings(communication_share=0.5, variability=False)
    job = recorded(gpus=3, bandwidth_sensitive=True)
    physics = Physics(cluster, settings)

    def slowdown(slots):
        return physics.slowdown(job, (0,), (slots,))

    mean = np.mean([slowdown(slots) for slots in combinations(range(8), 3)])
    assert mean > 1.01
    found, _ = with_work(Trace.of("t", [job]), cluster, {}, settings)
    assert found.jobs[0].duration_s == pytest.approx(340 / mean)


def test_the_same_place_takes_the_recorded_time_again():
    """A slow GPU is not paid for twice: on the one GPU there is, ours ends when Slurm's did."""
    cluster = Cluster.uniform(["n1"], 1)
    truth = {"B": np.array([[1.6]])}
    job = replace(recorded(slots=(0,)), submit_s=10.0)
    trace, _ = with_work(Trace.of("t", [job]), cluster, truth, SimSettings())
    ours = simulate(trace, cluster, SimSettings(), truth=truth)
    theirs = recorded_result(trace, cluster)
    assert ours.end_s[0] == pytest.approx(theirs.end_s[0]) == 350.0
    assert ours.slowdown()[0] == pytest.approx(theirs.slowdown()[0]) == pytest.approx(1.6)


def test_what_was_not_recorded_stays_open():
    trace = Trace.of("t", [recorded()])
    summary = recorded_result(trace, CLUSTER).summary()
    assert summary["policy"] == RECORDED
    assert summary["order"] is None
    assert summary["fragmentation"] is None


def test_the_ledger_names_the_gpus_where_the_accounts_do_not():
    jobs = (
        replace(recorded(gpus=2), job_id="1"),
        replace(recorded(gpus=2, nodes=("n2",)), job_id="2"),
        replace(recorded(gpus=2, nodes=("n1", "n2")), job_id="3"),
        replace(recorded(gpus=2, slots=(2, 3)), job_id="4"),
    )
    ledger = {
        "1": {"n1": [3, 1]},
        "2": {"n1": [0, 1]},  # an older job of the same number
        "3": {"n1": [0], "n2": [0]},
        "4": {"n1": [0, 1]},
    }
    trace = with_slots(Trace.of("history", jobs), ledger)
    slots = {job.job_id: job.recorded_slots for job in trace.jobs}
    assert slots == {"1": (1, 3), "2": (), "3": (0,), "4": (2, 3)}


@pytest.mark.parametrize(
    ("gpus", "asked", "ran_on", "left"),
    [
        (3, 2, 2, True),  # -N2 --gpus=3
        (4, 2, 2, False),
        (3, None, 2, False),  # --gpus=3: Slurm used two nodes, one will do
        (5, None, 2, True),  # --gpus=5 needs two nodes of 4
        (6, None, 2, False),
        (10, None, 3, True),
        (5, None, 0, True),  # no NodeList
        (5, None, 1, False),  # on a larger node than any here
        (9, 2, 2, False),
        (64, None, 16, False),
    ],
)
def test_uneven_jobs_are_without_unsupported(gpus, asked, ran_on, left):
    cluster = Cluster.uniform(2, 4)
    nodes = tuple(f"n{i}" for i in range(ran_on))
    job = TraceJob(
        "35", 0, gpus, 9.0, nodes=asked, recorded_nodes=nodes, recorded_start_s=1.0,
        recorded_run_s=9.0,
    )  # fmt: skip
    other = replace(job, job_id="36", gpus=1, nodes=None)
    found = without_unsupported(Trace.of("t", [job, other]), cluster)
    assert found.background == ((job,) if left else ())
    assert found.jobs == ((other,) if left else (job, other))
    assert found.skipped == ({UNSUPPORTED: 1} if left else {})


def test_only_what_ran_is_without_unsupported():
    trace = Trace.of("t", [TraceJob("35", 0, 3, 9.0, nodes=2)])
    assert without_unsupported(trace, Cluster.uniform(2, 4)) is trace
    ran = Trace.of("t", [recorded(gpus=3, nodes=("n1", "n2"))])
    ran = replace(ran, jobs=(replace(ran.jobs[0], nodes=2),))
    assert without_unsupported(ran, CLUSTER) is ran  # its nodes may differ
