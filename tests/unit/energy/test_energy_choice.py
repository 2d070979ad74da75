"""Clocks that save energy: the choice, and the stage of a round. Counted by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make import job_request

from slurm_gpu_aware.features.due_dates.due_date import DueDate
from slurm_gpu_aware.features.energy.declared import OWN_CLOCK, SLOWER, EnergyConfig
from slurm_gpu_aware.features.energy.stage import (
    SETTINGS,
    bounded,
    chosen_clock,
    doubted,
    least_energy_within,
)
from slurm_gpu_aware.features.power.power_budget import POWER, PoweredJob, PowerState
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_hints import HINTED, JobHints
from slurm_gpu_aware.model.size_table import LimitedSettings, SizeTable
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.stages import plan_stages

PACKED, FLAT = PlanSettings(policy="packed"), Cluster.uniform(1, 4)
# Energy of an iteration: 200, 150, 165, 180, 300 J.
TABLE = SizeTable(
    np.array([1]),
    np.array([600, 800, 900, 1000, 1200]),
    np.array([[2.0, 1.2, 1.03, 1.01, 1.0]]),
    np.array([[100.0, 125.0, 160.2, 178.2, 300.0]]),
    time_error=np.array([0.005, 0.005, 0.005, 0.0, 0.0]),
)


# Under limits: 220 J at 1200 MHz and 230 W; 100 J at 900 MHz and 90 W, of which no error is known.
LIMITED = replace(
    TABLE,
    limited=LimitedSettings(
        np.array([900, 1200]),
        np.array([90, 230]),
        np.array([[1.02, 1.004]]),
        np.array([[98.0, 219.1]]),
        np.array([math.nan, 0.0]),
    ),
)


def decided_at(request, bound=0.05, settings=PACKED, power=None, cluster=FLAT, **more):
    """The assignment of one job."""
    energy = EnergyConfig(slowdown=bound, **more)
    one = Round([request], cluster, settings, 0.0).put(SETTINGS, energy)
    (found,) = plan_stages(one.put(POWER, power), FEATURES).assignments
    return found


def limited_to(watts):
    """The power of the cluster, of which each GPU takes 10 W idle and 300 W at most."""
    return PowerState(np.full((1, 4), 300.0), np.full((1, 4), 10.0), watts)


def saving_job(**more):
    return job_request("1", 1, **{"table": TABLE, "time_limit_s": 3600.0, **more})


@pytest.mark.parametrize(
    ("bound", "clock"), [(0.005, None), (0.01, 1000), (0.032, 1000), (0.036, 900), (0.3, 800)]
)
def test_the_bound_holds_for_the_upper_end_of_the_error(bound, clock):
    assert decided_at(saving_job(), bound).clock_mhz == clock


def test_what_is_not_known_is_not_chosen():
    nan = math.nan
    time, energy = np.array([1.0, 1.01, 1.0]), np.array([50.0, 80.0, 100.0])
    assert least_energy_within(time, energy, np.array([nan, 0.0, 0.0]), 2, 0.05).at == 1
    assert least_energy_within(np.array([nan, nan, 1.0]), energy, np.zeros(3), 2, 0.05) is None
    assert least_energy_within(time, np.array([50.0, 80.0, nan]), np.zeros(3), 2, 0.05) is None


def test_never_more_energy_than_at_the_default_setting():
    time, energy = np.array([1.0, 1.0]), np.array([100.0, 100.0])
    assert least_energy_within(time, energy, np.zeros(2), 1, 0.1) is None


def test_a_model_whose_error_was_not_tested_changes_nothing():
    untested = replace(TABLE, time_error=np.full(5, math.nan))
    assert decided_at(saving_job(table=untested)).clock_mhz is None
    assert decided_at(saving_job(table=replace(TABLE, time_error=np.zeros(0)))).clock_mhz is None
    assert decided_at(saving_job(table=None)).clock_mhz is None


def test_a_clock_that_somebody_has_given_stays():
    assert decided_at(saving_job(clock=700)).clock_mhz == 700
    assert decided_at(saving_job(clock="max")).clock_mhz is None
    assert decided_at(saving_job().put(OWN_CLOCK, True)).clock_mhz is None
    of_class = replace(PACKED, class_clock_mhz={"B": 1100})
    assert decided_at(saving_job(app_class="B"), settings=of_class).clock_mhz == 1100


def test_the_bound_of_the_job_comes_before_that_of_its_class_and_the_site():
    assert decided_at(saving_job(), None).clock_mhz is None
    assert decided_at(saving_job(app_class="C"), None, classes={"C": 0.3}).clock_mhz == 800
    assert decided_at(saving_job(app_class="C"), 0.05, classes={"C": 0.0}).clock_mhz is None
    says = saving_job(app_class="C").put(HINTED, JobHints({SLOWER.key: 1}))
    assert decided_at(says, 0.05, classes={"C": 0.3}).clock_mhz == 1000


def test_a_job_that_would_miss_its_due_date_or_its_limit_runs_at_the_default_clock():
    assert decided_at(saving_job(estimate_s=1000.0, due=DueDate(1100.0))).clock_mhz == 900
    assert decided_at(saving_job(estimate_s=1000.0, due=DueDate(1020.0))).clock_mhz is None
    assert decided_at(saving_job(estimate_s=3590.0)).clock_mhz is None
    assert decided_at(saving_job(estimate_s=3000.0)).clock_mhz == 900


def test_explain_says_what_the_clock_brings_and_the_slowdown_counts_it():
    found, plain = decided_at(saving_job()), decided_at(saving_job(), None)
    assert chosen_clock(found) == 900
    assert found.why.lines()["saves energy"] == "about 45% at 900 MHz, at most 3.5% slower"
    assert found.slowdown == pytest.approx(1.03 * plain.slowdown)
    assert plain.why.lines().get("saves energy") is None


def test_a_power_limit_is_chosen_where_it_saves_more_than_a_clock():
    found = decided_at(saving_job(table=LIMITED), 0.005)
    assert (found.clock_mhz, found.power_limit_w) == (1200, 230)
    said = "about 27% at 1200 MHz and 230 W, at most 0.4% slower"
    assert found.why.lines()["saves energy"] == said
    clock = decided_at(saving_job(table=LIMITED), 0.01)
    assert (clock.clock_mhz, clock.power_limit_w) == (1000, None)
    assert decided_at(saving_job(table=doubted(LIMITED)), 0.005).power_limit_w is None
    of_site = decided_at(saving_job(table=LIMITED), 0.005, power=limited_to(1000.0))
    assert of_site.power_limit_w is None


def test_a_power_limit_that_saves_almost_nothing_is_not_set():
    """No clock alone saves within the bound; the limit saves 0.3%."""
    one = replace(LIMITED.limited, power_w=np.array([[98.0, 0.997 * 300.0 / 1.004]]))
    found = decided_at(saving_job(table=replace(LIMITED, limited=one)), 0.005)
    assert (found.clock_mhz, found.power_limit_w) == (None, None)


def test_under_a_power_limit_the_round_chooses_no_clock_above_it():
    """With power for 1200 MHz the job gets 900; with less the limit decides, as without a bound."""
    auto = replace(PACKED, auto_clocks=True)
    for bound, limit_w, clock in ((0.05, 1000.0, 900), (0.05, 160.0, 800), (None, 1000.0, 1200)):
        found = decided_at(saving_job(), bound, auto, limited_to(limit_w))
        assert found.clock_mhz == clock


def test_the_table_of_a_running_job_ends_at_its_clock():
    table = bounded(TABLE, 900)
    assert PoweredJob(1, 300.0, table).table.clocks_mhz.tolist() == [600, 800, 900]
    assert table.time_error.tolist() == [0.005] * 3
    assert bounded(TABLE, None) is TABLE


@pytest.mark.parametrize(
    ("score", "clock"), [(0.9, 900), (1.0, 900), (1.02, 1000), (1.045, None), (1.2, None)]
)
def test_on_gpus_slower_than_the_median_both_together_stay_within_the_bound(score, clock):
    """Of 5% a GPU that is 2% slower leaves 2.9%: less than the 3.5% of 900 MHz."""
    scores = {"A": np.full((1, 4), score)}
    slow, job = Cluster.uniform(1, 4, scores=scores), saving_job(app_class="A")
    found = decided_at(job, cluster=slow, from_median=True)
    assert (found.clock_mhz, chosen_clock(found)) == (clock, clock)
    assert found.slowdown <= max(1.05, score)
    says_why = f"no: its GPUs are {score - 1:.1%} slower than the median, so no lower clock keeps"
    assert found.why.lines()["saves energy"].startswith(
        "about " if clock else f"{says_why} within 5%"
    )
    assert decided_at(job, cluster=slow).clock_mhz == 900


def test_slow_gpus_change_nothing_where_slurm_chooses_or_a_power_limit_decides():
    slow = Cluster.uniform(1, 4, scores={"A": np.full((1, 4), 1.045)})
    plain = replace(slow, indexed=np.zeros(1, dtype=np.bool_))
    job, median = saving_job(app_class="A"), {"from_median": True}
    assert decided_at(job, cluster=plain, **median).clock_mhz == 900
    auto = replace(PACKED, auto_clocks=True)
    found = decided_at(job, settings=auto, power=limited_to(1000.0), cluster=slow, **median)
    assert found.clock_mhz == 900
