"""Moved jobs that are back: before all others, on their new GPUs, else on the best free ones."""

from dataclasses import replace

import numpy as np
import pytest
from make import job_request, place_moved, plan_round, with_fields
from msgspec import structs

from slurm_gpu_aware.features.moves.declared import Moved
from slurm_gpu_aware.features.power.power_budget import PLANNED, PoweredJob, PowerState
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.plan import PlanSettings

PAL = PlanSettings(policy="pal", class_clock_mhz={"A": 1380})
SCORES = {"A": np.array([[1.0], [1.2], [2.0]])}
MOVED = Moved("n2 GPU 0", 2.0, 900.0, 3600.0, 60.0, "n1 GPU 0", 1.2)
FIRST = Request("1", 1, app_class="A", priority=1.0)
OTHER = Request("2", 1, app_class="A", priority=9.0)


def target(node):
    return Assignment("1", (node,), ((0,),), "", 0.0, "", 0.0, why=Facts((MOVED,)))


def moved_back(cluster, node=1):
    return place_moved({"1": target(node)}, [OTHER, FIRST], cluster, PAL, 0.0)


def test_it_gets_the_gpus_that_were_kept_for_it():
    (placed,), rest, after, _ = moved_back(Cluster.uniform(3, 1, scores=SCORES))
    assert (placed.nodes, placed.slowdown, placed.clock_mhz) == ((1,), 1.2, 1380)
    assert (placed.policy, placed.why.of(Moved)) == ("pal", MOVED)
    assert placed.why.text.startswith("moved from n2 GPU 0 (slowdown 2.00) to n1 GPU 0 (1.20)")
    assert placed.why.text.endswith("by distance and slowest GPU, 2 combinations tried")
    assert rest == [OTHER]
    assert after.free[:, 0].tolist() == [True, False, True]
    assert [job.job_id for job in after.running] == ["1"]


def test_if_they_are_taken_it_gets_the_best_that_are_free():
    cluster = Cluster.uniform(3, 1, scores=SCORES)
    cluster.take(0, (0,))
    (placed,), rest, *_ = moved_back(cluster, node=0)
    assert placed.nodes == (1,)
    assert placed.why.text.startswith("moved, but its new GPUs were no longer free; ")
    assert rest == [OTHER]


def test_if_none_are_free_it_is_first_in_the_queue():
    cluster = Cluster.uniform(3, 1, scores=SCORES)
    full = replace(cluster, free=np.zeros_like(cluster.free))
    placed, rest, *_ = moved_back(full)
    assert placed == ()
    assert max(rest, key=lambda request: request.priority).job_id == "1"


@pytest.mark.parametrize("sizes", [(), (2, 3)])
def test_if_its_owner_asks_for_more_meanwhile_it_has_no_precedence(sizes):
    """Else a job of one GPU that is moved could go before all others with any number."""
    changed = replace(FIRST, gpus=2, sizes=sizes)
    cluster = Cluster.uniform(3, 1, scores=SCORES)
    placed, rest, after, _ = place_moved({"1": target(1)}, [OTHER, changed], cluster, PAL, 0.0)
    assert (placed, rest) == ((), [OTHER, changed])
    assert after.free.all()


def test_what_its_request_forbids_since_then_is_not_taken():
    cluster = Cluster.uniform(3, 1, scores=SCORES)
    bound = with_fields(FIRST, eligible=np.array([False, False, True]))
    (placed,), *_ = place_moved({"1": target(1)}, [bound], cluster, PAL, 0.0)
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

    placed, rest, *_ = placed_at(649.0)  # 150 W idle, 250 W above it for each job
    assert not placed
    assert rest[0].priority > FIRST.priority
    (placed,), _, after, power = placed_at(650.0)
    assert placed.nodes == (1,)
    assert after.running[-1].job_id == "1"
    assert (power.running["1"].max_w, power.running["1"].starts) == (300.0, True)


@pytest.mark.parametrize(("limit_w", "gpus"), [(400.0, 2), (399.0, 1), (250.0, 1), (1e9, 2)])
def test_growth_that_the_limit_no_longer_allows_gives_it_the_number_that_it_had(limit_w, gpus):
    """Even if it is the only job, which may exceed the limit with its least number."""
    cluster = Cluster.uniform(1, 2, scores={"A": np.ones((1, 2))})
    table = SizeTable(
        np.array([1, 2]),
        np.array([600, 1200]),
        np.array([[2.0, 1.5], [1.2, 1.0]]),
        np.array([[120.0, 280.0], [200.0 * 2, 280.0 * 2]]),
    )
    grown = job_request("1", 1, app_class="A", sizes=(1, 2), table=table, clock="auto")
    why = Facts((structs.replace(MOVED, gpus=2, gpus_before=1),))
    wanted = Assignment("1", (0,), ((0, 1),), "", 0.0, "", 0.0, why=why)
    power = PowerState(np.full((1, 2), 300.0), np.full((1, 2), 50.0), limit_w)
    placed, rest, shown, power = place_moved({"1": wanted}, [grown], cluster, PAL, 0.0, power=power)
    plan = plan_round(rest, shown, PAL, 0.0, power=power)
    ((found,),) = ([*placed, *plan.assignments],)
    assert found.size == gpus
    assert plan.get(PLANNED).planned_w <= limit_w or plan.get(PLANNED).unmet
