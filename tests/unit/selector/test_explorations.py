"""Explorations: which jobs try several clocks, for how long, and the power that nodes measured."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_gpu_aware.features.models import store as models
from slurm_gpu_aware.features.models.live import put_measured
from slurm_gpu_aware.features.models.performance_model import NamedSample, PerformanceSample
from slurm_gpu_aware.features.models.store import application_samples
from slurm_gpu_aware.features.power.clock_orders import JobClocks
from slurm_gpu_aware.features.power.explorations import (
    Explorable,
    Explorations,
    explored_power,
    tried_clocks,
)
from slurm_gpu_aware.features.power.job_tables import ExplorationPower
from slurm_gpu_aware.features.power.power_budget import PoweredJob, PowerState
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Event, Ledger

CLOCKS = (*range(600, 1530, 15), 1530)
TRIED = (1530, 1365, 1185, 1020, 840)
CLUSTER = Cluster.build(("n1",), np.ones((1, 4), dtype=np.bool_), model=("v100",))
Found = tuple[Explorations, JobClocks]
Explore = Callable[[], Found]


def explorable(*job_ids: str, name: str = "ada/bert") -> dict[str, Explorable]:
    return dict.fromkeys(job_ids, Explorable(name, "v100", "A", 250.0, TRIED))


@pytest.fixture
def explorations(tmp_path: Path) -> Callable[[], Found]:
    """Makes explorations of 100 s on one ledger, and the clocks of jobs 1 to 3."""

    def make() -> Found:
        clocks = JobClocks()
        for job_id in ("1", "2", "3"):
            clocks.start(job_id, 1400, ["n1"])
        return Explorations(100.0, LedgerWriter(tmp_path / "state.db")), clocks

    return make


def renewed(found: Found, jobs: dict[str, Explorable], now: float) -> None:
    one, clocks = found
    one.renew(jobs, clocks, ExplorationPower(CLUSTER, PlanSettings(), None), now)


def test_clocks_are_supported_ones_from_the_highest_down() -> None:
    for clocks, tried in ((CLOCKS, TRIED), ((900, 1000), (1000, 900)), ((900,), (900,)), ((), ())):
        assert tried_clocks(clocks) == tried


def test_one_job_of_a_name_is_explored_at_a_time(explorations: Explore) -> None:
    found = explorations()
    renewed(found, explorable("1", "2") | explorable("3", name="bob/bert"), 0.0)
    assert [job_id for job_id in "123" if found[0].of(job_id)] == ["1", "3"]
    found[0].keep(["2"], 5.0)  # job 1 has ended before all clocks were tried
    renewed(found, explorable("2"), 10.0)
    assert found[0].of("2") is not None


@pytest.mark.parametrize(("limit_w", "begins"), [(500.0, True), (475.0, False)])
def test_none_begins_while_the_limit_holds_others_below_their_efficient_clocks(
    explorations: Explore, limit_w: float, begins: bool
) -> None:
    """Two idle GPUs 100 W, job 1 250 W in any case, job 2 100 W at 600 MHz and 150 W at 900."""
    table = SizeTable(
        gpus=np.array([1]),
        clocks_mhz=np.array([600, 900]),
        time_s=np.array([[2.0, 1.2]]),
        power_w=np.array([[100.0, 150.0]]),
        source="measured",
    )
    jobs = {
        "1": PoweredJob(1, 250.0, adjustable=True),
        "2": PoweredJob(1, 250.0, table, 600, adjustable=True),
    }
    running = (RunningJob("1", ((0, (0,)),), math.inf), RunningJob("2", ((0, (1,)),), math.inf))
    cluster, shape = replace(CLUSTER, running=running), CLUSTER.shape
    state = PowerState(np.full(shape, 250.0), np.full(shape, 50.0), limit_w, jobs)
    one, clocks = explorations()
    one.renew(explorable("1"), clocks, ExplorationPower(cluster, PlanSettings(), state), 1000.0)
    assert (one.of("1") is not None) is begins


def test_one_clock_is_no_choice(explorations: Explore) -> None:
    found = explorations()
    renewed(found, {"1": Explorable("ada/bert", "v100", "A", 250.0, (900,))}, 0.0)
    assert found[0].of("1") is None


def test_the_clocks_of_a_job_over_time(explorations: Explore) -> None:
    found = explorations()
    renewed(found, explorable("1"), 50.0)
    one = found[0].of("1")
    assert [one.clock(50.0 + 20 * step) for step in range(6)] == [*TRIED, 1400]
    assert [one.is_over(at) for at in (50.0, 149.0, 150.0, 40.0)] == [False, False, True, True]
    assert found[0].looks(found[1], 51.0)  # 1530 is not ordered yet
    found[1].order("1", "n1", 1530, 1, 51.0)
    assert not found[0].looks(found[1], 60.0)
    assert found[0].looks(found[1], 75.0)
    # Another selector goes on with it.
    later = explorations()
    later[0].restore("1", [Event("1", "exploring", one.detail(), 50.0)])
    assert later[0].of("1") == one
    # An earlier release wrote less of it.
    detail = {k: v for k, v in one.detail().items() if k not in ("class", "limit_w")}
    later[0].restore("1", [Event("1", "exploring", detail, 50.0)])
    old = later[0].of("1")
    assert (old.clock(75.0), old.back) == (one.clock(75.0), one.back)


def test_neither_job_nor_model_is_explored_again_at_once(explorations: Explore) -> None:
    found = explorations()
    renewed(found, explorable("1"), 50.0)
    renewed(found, {}, 160.0)  # its clock is back
    assert found[0].of("1") is None
    later = explorations()
    later[0].load(170.0)
    later[0].restore("1", [Event("1", "explored", {}, 160.0)])
    for one in (found, later):
        renewed(one, explorable("1", "2"), 170.0)
        assert one[0].of("2") is None
        renewed(one, explorable("1", "2"), 160.0 + 86_400.0)
        assert one[0].of("1") is None  # a job is explored once
        assert one[0].of("2") is not None


def test_what_jobs_do_not_finish_is_left_after_three_of_them(explorations: Explore) -> None:
    found = explorations()
    for job_id, at in (("1", 0.0), ("2", 100.0), ("3", 200.0)):
        renewed(found, explorable(job_id), at)
        assert found[0].of(job_id) is not None
        found[0].keep([], at + 50.0)
    later = explorations()
    later[0].load(300.0)
    for one in (found, later):
        one[1].start("4", None, ["n1"])
        renewed(one, explorable("4"), 300.0)
        assert one[0].of("4") is None
        renewed(one, explorable("4"), 86_450.0)
        assert one[0].of("4") is not None


def test_the_power_at_each_clock_is_stored(explorations: Explore, tmp_path: Path) -> None:
    found = explorations()
    writer = LedgerWriter(tmp_path / "state.db")
    writer.event("1", "started", {"gpus": {"n1": [0, 1]}}, 40.0)
    renewed(found, explorable("1"), 50.0)
    for step, mhz in enumerate(TRIED[:3]):  # then the job ends
        detail = {"node": "n1", "gpus": [0, 1], "mhz": mhz, "counter_mj": 8_000_000 * step}
        writer.event("1", "clock_set", detail, 51.0 + 20 * step)
    found[0].keep([], 120.0)
    with open_store(tmp_path / "state.db", readonly=True) as store:
        (event,) = [one for one in Ledger(store).events("1") if one.kind == "explored"]
        samples = application_samples(store)
    assert event.detail["error"] == "the job ended first"
    assert (event.detail["mhz"], event.detail["power_w"]) == ([1530, 1365], [400.0, 400.0])
    assert {(s.name, s.gpu_model, s.app_class) for s in samples} == {("ada/bert", "v100", "A")}
    stored = sorted((s.sample.gpus, s.sample.clock_mhz, s.sample.power_w) for s in samples)
    assert stored == [(2, 1365.0, 400.0), (2, 1530.0, 400.0)]
    assert all(math.isnan(one.sample.time_s) for one in samples)


def test_too_many_applications_of_a_user_are_told_and_the_store_stays_open(
    explorations: Explore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = explorations()
    monkeypatch.setattr(models, "MAX_OF_USER", 0)
    sample = PerformanceSample(1, 1, 1.0, 900.0, 1.0, 100.0)
    writer = one._ledger
    put_measured(writer, [NamedSample("ada/bert", "v100", 1.0, sample)])
    writer.event("1", "explored", {}, 1.0)
    assert [event.kind for event in writer.events("1")] == ["explored"]
    with open_store(tmp_path / "state.db", readonly=True) as store:
        assert models.application_pairs(store) == []


@pytest.mark.parametrize("detail", [{}, {"clocks_mhz": ["x"]}, {"clocks_mhz": 5, "step_s": 1}])
def test_a_damaged_event_begins_nothing(explorations: Explore, detail: dict[str, object]) -> None:
    found, _ = explorations()
    found.restore("1", [Event("1", "exploring", detail, 0.0)])
    assert found.of("1") is None


WATTS = {1500: 300.0, 1200: 200.0, 900: 140.0}
GPUS = {"n1": [0, 2]}
LIMIT_W = 250.0


def story(
    node: str = "n1", skew_s: float = 0.0, watts: dict[int, float] = WATTS, **wrong: Any
) -> list[Event]:
    """Records of the agent at each change, 20 s apart; ``wrong``: in that at 1200 MHz."""
    found, at, mj = [], 1000.0 + skew_s, 10**14
    for mhz in (*watts, 0):
        detail = {"node": node, "gpus": GPUS["n1"], "mhz": mhz, "counter_mj": mj, "seq": 5}
        found.append(Event("7", "clock_set", {**detail, **(wrong if mhz == 1200 else {})}, at))
        at += 20.0
        mj += round(20e3 * watts.get(mhz, 0.0))
    return found


def numbered(*records: Event, gpus: object = GPUS) -> list[Event]:
    begin = [
        Event("7", "released", {}, 900.0),
        Event("7", "started", {"gpus": gpus}, 910.0),
        Event("7", "exploring", {}, 2000.0),  # by another clock than that of the nodes
    ]
    return [
        Event(e.job_id, e.kind, e.detail, e.at, id=i) for i, e in enumerate([*begin, *records], 1)
    ]


def powers(given: list[Event]) -> dict[int, float]:
    return dict(explored_power(given, tuple(WATTS), 10.0, LIMIT_W).power_w)


def test_power_at_each_clock_is_that_between_two_records() -> None:
    given = numbered(*story())
    random.Random(1).shuffle(given)
    measured = explored_power(given, tuple(WATTS), 10.0, LIMIT_W)
    assert (measured.gpus, measured.nodes) == (2, 1)
    assert list(measured.power_w) == [1500, 1200, 900]
    assert dict(measured.power_w) == pytest.approx(WATTS)


def test_power_of_several_nodes_is_added_where_each_knows_it() -> None:
    both = {"n1": [0, 2], "n2": [0, 2]}
    first, second = story(), story("n2", skew_s=-500.0)
    mixed = [one for pair in zip(first, second, strict=True) for one in pair]
    assert powers(numbered(*mixed, gpus=both)) == pytest.approx(
        {m: 2 * w for m, w in WATTS.items()}
    )
    late = [*first, *second[:3]]  # the last change of n2 is not known
    assert powers(numbered(*late, gpus=both)) == pytest.approx({1500: 600.0, 1200: 400.0})


def from_the_prolog() -> list[Event]:
    """The first clock is set before the job has started."""
    first, *others = story()
    released, *begin = numbered()
    given = [released, first, *begin, *others]
    return [Event("7", e.kind, e.detail, e.at, id=i) for i, e in enumerate(given, 1)]


SLOW_START, NOISE = {1500: 90.0, 1200: 150.0, 900: 140.0}, {1500: 149.0, 1200: 150.0, 900: 151.0}
AGAIN = [*story(watts={1500: 50.0}), Event("7", "released", {}, 1.0), *numbered()[1:]]
STORIES: dict[str, tuple[list[Event], dict[int, float]]] = {
    "from the prolog on": (from_the_prolog(), WATTS),
    "an earlier run": (numbered(*AGAIN), {}),
    "read twice": (numbered(*story(), *story()), WATTS),
    "a program that still starts": (numbered(*story(watts=SLOW_START)), {1200: 150.0, 900: 140.0}),
    "noise": (numbered(*story(watts=NOISE)), NOISE),
    **{f"GPUs {odd}": (numbered(*story(), gpus=odd), {}) for odd in (None, {}, "n1", {"n1": []})},
}


@pytest.mark.parametrize("case", STORIES)
def test_power_counts_of_the_last_start_once_and_not_of_a_program_that_starts(case: str) -> None:
    given, found = STORIES[case]
    assert powers(given) == pytest.approx(found)


@pytest.mark.parametrize(
    "wrong",
    [
        {"counter_mj": None},
        {"counter_mj": "int"},
        {"counter_mj": True},
        {"counter_mj": 5},  # the driver was loaded anew
        {"counter_mj": 10**15},  # more than two GPUs can draw
        {"gpus": [0, 2, 3]},
        {"gpus": "dict"},
        {"mhz": None},
        {"node": "n9"},
    ],
)
def test_a_wrong_record_costs_the_clocks_beside_it(wrong: dict[str, Any]) -> None:
    given = powers(numbered(*story(**wrong)))
    assert given.keys() <= {900, 1500}
    assert given.get(900) in (None, pytest.approx(140.0))
    assert given.get(1500, 0.0) <= 2 * LIMIT_W * 1.05


def test_a_clock_that_lasted_too_short_is_left_out() -> None:
    assert dict(explored_power(numbered(*story()), (1500,), 20.5, LIMIT_W).power_w) == {}
