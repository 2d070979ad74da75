"""The list of features: without any, jobs are placed as they ask; the page's example is one."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from make import job_request, sizes

from slurm_gpu_aware.features import registry
from slurm_gpu_aware.features.due_dates.account import DUE
from slurm_gpu_aware.features.due_dates.due_date import DueDate
from slurm_gpu_aware.features.power.power_budget import POWER, PowerState
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster, Shards
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.record import read_round, record_round, replay
from slurm_gpu_aware.planning.stages import Round, Stage, plan_stages
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.time_text import stamp

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
HOUR = 3600.0
PACKED = PlanSettings(policy="packed")
TABLE = SizeTable(
    np.array([1, 2, 4]),
    np.array([1000]),
    np.array([[4.0], [2.0], [1.0]]),
    np.array([[300.0], [600.0], [1200.0]]),
)


def hinting_round(now: float = 0.0) -> Round:
    """A round whose jobs ask for what features do, on one node with 8 GPUs."""
    due = DueDate(9 * HOUR, ((1, 12 * HOUR), (2, 6 * HOUR)))
    queue = [
        Request("plain", 2, priority=9.0),
        job_request("sizes", 1, sizes=(1, 2, 4), table=TABLE, due=due, priority=8.0),
        job_request("shards", 1, shards=2, priority=7.0),
        job_request("clock", 1, clock="auto", table=TABLE, priority=6.0),
        Request("large", 8, priority=5.0),
    ]
    cluster = Cluster.uniform(1, 8)
    shards = Shards(np.full((1, 8), 4), np.array([[3, 0, 0, 0, 0, 0, 0, 0]]))
    cluster.take(0, (0,))
    power = PowerState(np.full((1, 8), 300.0), np.full((1, 8), 40.0), 2000.0)
    cluster = Cluster(**{**vars(cluster), "shards": shards})
    return Round(queue, cluster, PACKED, now).put(POWER, power)


def start_times(
    stages: Sequence[Stage], trace: Sequence[TraceJob], **settings: Any
) -> dict[str, float]:
    """Job -> time of its start in a simulation on one node with 8 GPUs."""
    result = simulate(
        Trace.of("t", trace), Cluster.uniform(1, 8), SimSettings(**settings), stages=stages
    )
    return dict(zip((job.job_id for job in result.trace.jobs), result.start_s, strict=True))


def test_without_features_jobs_are_placed_as_they_ask() -> None:
    """Of shards, sizes, due dates, clocks and a power limit nothing comes."""
    plan = plan_stages(hinting_round(), ())
    assert sizes(plan) == {"plain": 2, "sizes": 1, "shards": 1, "clock": 1}
    assert [one.job_id for one in plan.waiting] == ["large"]
    assert all(one.clock_mhz is None and "due" not in one.why for one in plan.assignments)
    assert (plan.power, plan.clocks, plan.wake_s, plan.get(DUE)) == (None, (), math.inf, {})


def test_with_them_each_changes_the_same_round() -> None:
    plan = plan_stages(hinting_round(), FEATURES)
    policies = {one.job_id: one.policy for one in plan.assignments}
    assert policies["shards"] == "shards"
    assert sizes(plan)["sizes"] > 1
    assert plan.get(DUE).keys() == {"sizes"}
    assert plan.power is not None


def test_a_simulation_without_features_places_all_jobs() -> None:
    dated = TraceJob("2", 1.0, 4, 100.0, "A", sizes=(1, 2, 4), table=TABLE, deadline_s=900.0)
    jobs = [TraceJob("1", 0.0, 8, 50.0, "A"), dated]
    assert start_times((), jobs, policy="packed") == {"1": 0.0, "2": 50.0}


def test_no_two_facets_have_the_same_name() -> None:
    modules = [module for name, module in sys.modules.items() if "slurm_gpu_aware.features" in name]
    facets = {id(v): v for m in modules for v in vars(m).values() if isinstance(v, Facet)}
    names = [facet.name for facet in facets.values()]
    assert len(names) == len(set(names)) > 5
    inputs = [facet for stage in FEATURES for facet in stage.inputs]
    assert all(facet.kind is not None for facet in inputs)


@pytest.fixture
def with_night() -> Sequence[Stage]:
    """The list of features as the page shows it with its example."""
    section = PAGE.read_text().partition("## Add a feature\n")[2].partition("\n## ")[0]
    code, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    module = ModuleType("slurm_gpu_aware.features.night.stage")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, str(PAGE), "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    names = {**vars(registry), **vars(module)}
    exec(compile(line.replace("least_gpus=16", "least_gpus=8"), str(PAGE), "exec"), names)
    found: Sequence[Stage] = names["FEATURES"]
    kept = [type(stage) for stage in found if stage.name != "night"]
    assert kept == [type(stage) for stage in FEATURES]
    return found


def test_the_example_holds_large_jobs_by_day(with_night: Sequence[Stage]) -> None:
    asked = hinting_round(now=12 * HOUR)
    plan = plan_stages(asked, with_night)
    (waits,) = (one for one in plan.waiting if one.job_id == "large")
    assert waits.reason == f"jobs of 8 GPUs or more start at night, from {stamp(18 * HOUR)} on"
    assert plan.wake_s == 18 * HOUR
    other = plan_stages(Round(**{**vars(asked), "now": 19 * HOUR}), with_night)
    assert not any("night" in one.reason for one in other.waiting)


def test_the_example_is_replayed_and_simulated(with_night: Sequence[Stage]) -> None:
    asked = hinting_round(now=12 * HOUR)
    plan = plan_stages(asked, with_night)
    content = json.loads(json.dumps(record_round(asked, plan, with_night)))
    assert replay(read_round(content, with_night), with_night) == []
    jobs = [TraceJob("1", 10 * HOUR, 8, 50.0, "A"), TraceJob("2", 11 * HOUR, 4, 100.0, "A")]
    assert start_times(with_night, jobs, policy="packed") == {"1": 18 * HOUR, "2": 11 * HOUR}


def test_the_round_goes_on_without_a_job_that_fails_in_a_step(with_night: Sequence[Stage]) -> None:
    """So does the selector: it repeats a step for parts of the queue (`Round.only`)."""
    (night,) = (stage for stage in with_night if stage.name == "night")
    one = night.before(hinting_round(now=12 * HOUR))
    one = Round(**{**vars(one), "queue": [*one.queue, *one.aside]})
    assert [w.job_id for w in night.after(one).plan.waiting] == ["large"]
    rest = [request for request in one.queue if request.job_id != "large"]
    assert night.after(one.only(rest)).plan.waiting == ()
