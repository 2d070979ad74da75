"""The list of features: without any, jobs are placed as they ask."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import reload
from typing import Any

import numpy as np
import pytest
from make import job_request, sizes

from slurm_gpu_aware import features
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.features import found, registry
from slurm_gpu_aware.features.due_dates.declared import DueAccount
from slurm_gpu_aware.features.due_dates.due_date import DUE, DueDate
from slurm_gpu_aware.features.power.power_budget import PLANNED, POWER, PowerState
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster, Shards
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.stages import Stage, plan_stages
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

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
    assert all(one.clock_mhz is None and one.why.of(DueAccount) is None for one in plan.assignments)
    assert (plan.get(PLANNED), plan.clocks, plan.wake_s, plan.get(DUE)) == (None, (), math.inf, {})


def test_with_them_each_changes_the_same_round() -> None:
    plan = plan_stages(hinting_round(), FEATURES)
    policies = {one.job_id: one.policy for one in plan.assignments}
    assert policies["shards"] == "shards"
    assert sizes(plan)["sizes"] > 1
    assert plan.get(DUE).keys() == {"sizes"}
    assert plan.get(PLANNED) is not None


def test_a_simulation_without_features_places_all_jobs() -> None:
    dated = TraceJob("2", 1.0, 4, 100.0, "A", sizes=(1, 2, 4), table=TABLE, deadline_s=900.0)
    jobs = [TraceJob("1", 0.0, 8, 50.0, "A"), dated]
    assert start_times((), jobs, policy="packed") == {"1": 0.0, "2": 50.0}


class _Alone(Stage):
    """No job starts beside another one."""

    name = "alone"
    sees_running = True

    def before(self, one: Round) -> Round:
        if not one.cluster.running:
            return one
        return replace(one, queue=[], aside=tuple(one.queue))


@pytest.mark.parametrize("backfill", [False, True])
def test_a_stage_that_says_so_sees_the_running_jobs_of_a_simulation(backfill: bool) -> None:
    jobs = [TraceJob("1", 0.0, 1, 50.0, "A"), TraceJob("2", 1.0, 1, 50.0, "A")]
    found = start_times([_Alone()], jobs, policy="packed", backfill=backfill)
    assert found == {"1": 0.0, "2": 50.0}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("nihgt.Night", r"'nihgt.Night' does not name a folder .* known: .*baselines, .*waiting$"),
        ("moves.Moovs", r"'moves.Moovs' does not name a stage .* known: Returns, Moves$"),
        ("waiting.Waits", r"'waiting.Waits' does not name a stage of waiting/.* known: none$"),
    ],
)
def test_a_wrong_name_in_the_list_is_told(
    entry: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "FEATURES", (entry,))
    features.load_facts.cache_clear()
    with pytest.raises(ConfigError, match=says):
        reload(registry)


def test_no_two_facets_have_the_same_name() -> None:
    modules = [module for name, module in sys.modules.items() if "slurm_gpu_aware.features" in name]
    facets = {id(v): v for m in modules for v in vars(m).values() if isinstance(v, Facet)}
    names = [facet.name for facet in facets.values()]
    assert len(names) == len(set(names)) > 5
    inputs = [facet for stage in FEATURES for facet in stage.inputs]
    assert all(facet.kind is not None for facet in inputs)


def test_no_two_features_have_the_same_key_section_or_event() -> None:
    """One would hide the other."""
    for name, least in (("HINTS", 6), ("SENTENCES", 9), ("SECTIONS", 4), ("EVENTS", 5)):
        there = [one for some in found("declared", name) for one in some]
        names = [getattr(one, "key", None) or getattr(one, "name", one) for one in there]
        assert len(set(names)) == len(names) >= least
