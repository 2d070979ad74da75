"""Moved jobs that are back: before all others, on their new GPUs, else on the best free ones."""

from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.power import PoweredJob, PowerState
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning import PlanSettings
from slurm_gpu_aware.planning.moved import place_moved

PAL = PlanSettings(policy="pal", class_clock_mhz={"A": 1380})
SCORES = {"A": np.array([[1.0], [1.2], [2.0]])}
WHY = {"summary": "moved from n2", "moved": {"saves_s": 900.0}}
FIRST = Request("1", 1, app_class="A", priority=1.0)
OTHER = Request("2", 1, app_class="A", priority=9.0)


def target(node):
    return Assignment("1", (node,), ((0,),), "", 0.0, "", 0.0, why=WHY)


def back(cluster, node=1):
    return place_moved({"1": target(node)}, [OTHER, FIRST], cluster, PAL, 0.0)


def test_it_gets_the_gpus_that_were_kept_for_it():
    (placed,), rest, after = back(Cluster.uniform(3, 1, scores=SCORES))
    assert (placed.nodes, placed.slowdown, placed.clock_mhz) == ((1,), 1.2, 1380)
    assert (placed.policy, placed.why["moved"]) == ("pal", WHY["moved"])
    assert placed.why["summary"] == "moved from n2"
    assert rest == [OTHER]
    assert after.free[:, 0].tolist() == [True, False, True]
    assert [job.job_id for job in after.running] == ["1"]


def test_if_they_are_taken_it_gets_the_best_that_are_free():
    cluster = Cluster.uniform(3, 1, scores=SCORES)
    cluster.take(0, (0,))
    (placed,), rest, _ = back(cluster, node=0)
    assert placed.nodes == (1,)
    assert placed.why["summary"].startswith("moved, but its new GPUs were no longer free; ")
    assert rest == [OTHER]


def test_if_none_are_free_it_is_first_in_the_queue():
    cluster = Cluster.uniform(3, 1, scores=SCORES)
    full = replace(cluster, free=np.zeros_like(cluster.free))
    placed, rest, _ = back(full)
    assert placed == ()
    assert max(rest, key=lambda request: request.priority).job_id == "1"


def test_what_its_request_forbids_since_then_is_not_taken():
    cluster = Cluster.uniform(3, 1, scores=SCORES)
    bound = replace(FIRST, eligible=np.array([False, False, True]))
    (placed,), _, _ = place_moved({"1": target(1)}, [bound], cluster, PAL, 0.0)
    assert placed.nodes == (2,)


def test_under_a_power_limit_it_starts_only_if_there_is_power_for_it():
    shape = (3, 1)

    def placed_at(limit_w):
        power = PowerState(np.full(shape, 300.0), np.full(shape, 50.0), limit_w)
        cluster = Cluster.uniform(3, 1, scores=SCORES)
        cluster.take(0, (0,))
        other = RunningJob("other", ((0, (0,)),), np.inf)
        cluster = replace(cluster, running=(other,))
        power = replace(power, running={"other": PoweredJob(1, 300.0)})
        return place_moved({"1": target(1)}, [FIRST], cluster, PAL, 0.0, power=power)

    placed, rest, after = placed_at(649.0)  # 150 W idle, 250 W above it for each job
    assert not placed
    assert rest[0].priority > FIRST.priority
    (placed,), _, after = placed_at(650.0)
    assert placed.nodes == (1,)
    assert after.running[-1].power_w == 250.0
