"""Size tables of jobs: whose power counts."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from make import job_request

from slurm_gpu_aware.features.models.fitting import fit_model
from slurm_gpu_aware.features.models.least_squares import prior_of
from slurm_gpu_aware.features.models.performance_model import PerformanceSample, own_name
from slurm_gpu_aware.features.models.store import ModelRow, put_models, read_models
from slurm_gpu_aware.features.power.job_tables import JobTables
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.profile import GpuRecord, Profile
from slurm_gpu_aware.model.size_table import TABLE
from slurm_gpu_aware.store.database import open_store

CLOCKS = (1400, 1200, 1000)


@cache
def model_of_a_watt():
    """Of a GPU that draws 1 W at each clock."""
    samples = [
        PerformanceSample(n, 1, 1.0, float(clock), 1400 / clock / n, float(n))
        for n in (1, 2)
        for clock in CLOCKS
    ]
    return fit_model(samples, prior_of("A", "a100"), 1400.0, name="one", gpu_model="a100")


def model_row(kind, name, watts, time_error=0.05):
    model = model_of_a_watt()
    parts = ("static_w", "grad_w", "sync_w")
    power = replace(model.power, **{part: watts * getattr(model.power, part) for part in parts})
    quality = replace(model.quality, time_error=time_error, power_error=0.05, energy_error=0.05)
    values = replace(model, name=name, power=power, quality=quality).values()
    return ModelRow(kind, name, "a100", 1.0, json.dumps(values))


def tables_of(tmp_path, *rows, limits_w=(None,) * 4, least_w=None):
    with open_store(tmp_path / "store.db") as store:
        put_models(store, rows)
        models = read_models(store, 0.15)
    gpus = {
        ("n1", slot): GpuRecord(
            model="a100", clocks_mhz=CLOCKS, power_limit_w=limit_w, min_limit_w=least_w
        )
        for slot, limit_w in enumerate(limits_w)
    }
    profile = Profile({}, {}, gpus, {}, {}, {})
    cluster = Cluster.build(("n1",), np.ones((1, 4), dtype=np.bool_), model=("a100",))
    found = JobTables()
    found.renew(models, profile, cluster)
    return found


def power_w(found, **fields):
    job = job_request("7", 2, app_class="A", performance_model="bert", **fields)
    table = found.tabled(job).get(TABLE)
    return float(table.power_w[table.row(2), -1])


def test_a_users_own_power_is_not_taken_below_that_of_the_class(tmp_path):
    own = own_name("ada", "bert")
    found = tables_of(tmp_path, model_row("application", own, 1.0), model_row("class", "A", 250.0))
    assert power_w(found, user="ada") == pytest.approx(500.0, rel=0.1)
    more = tables_of(tmp_path, model_row("application", own, 350.0), model_row("class", "A", 250.0))
    assert power_w(more, user="ada") == pytest.approx(700.0, rel=0.1)


def limited_table(tmp_path, **cards):
    """The table of an application that was measured under 100 W and 300 W."""
    own = model_row("application", own_name("ada", "bert"), 20.0)
    values = json.loads(own.content)
    values["anchors"] = [
        {"clock_mhz": 1000.0, "time_ratio": 1.0, "power_ratio": 1.0}
        | {"limit_w": limit_w, "locked_mhz": 1400.0}
        for limit_w in (100.0, 300.0)
    ]
    own = own._replace(content=json.dumps(values))
    found = tables_of(tmp_path, own, model_row("class", "A", 250.0), **cards)
    job = job_request("7", 2, app_class="A", performance_model="bert", user="ada")
    return found.tabled(job).get(TABLE)


def test_no_job_gets_a_limit_that_its_cards_refuse(tmp_path):
    cards = {"limits_w": (None, 260.0, 250.0, 0.0), "least_w": 149.5}
    limits_w = limited_table(tmp_path, **cards).limited.limits_w
    assert (limits_w.min(), limits_w.max()) == (154, 244)  # a GPU has 250 W by its own limit
    assert limited_table(tmp_path, least_w=301.0).limited is None


def test_a_users_own_power_under_a_limit_is_not_taken_below_that_limit(tmp_path):
    """Regression: a row of 20 W under 100 W made the site's savings 15 times as large."""
    table = limited_table(tmp_path)
    limited, row = table.limited, table.row(2)
    least = np.minimum(limited.limits_w, table.power_w[row, -1] / 2)
    assert limited.limits_w.tolist()[0] == 100
    assert limited.power_w[row] == pytest.approx(2 * least)


def test_a_users_own_power_is_unknown_without_a_model_of_the_class(tmp_path):
    found = tables_of(tmp_path, model_row("application", own_name("ada", "bert"), 1.0))
    assert np.isnan(power_w(found, user="ada"))


def test_what_an_operator_has_stored_counts_as_it_is(tmp_path):
    found = tables_of(
        tmp_path, model_row("application", "bert", 100.0), model_row("class", "A", 250.0)
    )
    assert power_w(found, user="ada") == pytest.approx(200.0, rel=0.1)


def test_no_power_is_above_the_highest_limit_of_the_gpus(tmp_path):
    limits_w = (None, 300.0, 400.0, 0.0)
    of_class = model_row("class", "A", 718.0)
    for own in (
        [],
        [model_row("application", "bert", 718.0)],
        [model_row("application", "ada/bert", 718.0)],
    ):
        found = tables_of(tmp_path, of_class, *own, limits_w=limits_w)
        assert power_w(found, user="ada") == 800.0
    found = tables_of(tmp_path, model_row("application", "bert", 250.0), limits_w=limits_w)
    assert power_w(found) == pytest.approx(500.0, rel=0.1)


def test_why_a_model_is_not_used_is_said(tmp_path):
    job = job_request("7", 2, app_class="A", performance_model="bert", user="ada")
    wrong = model_row("application", "ada/bert", 100.0, time_error=0.3)
    found = tables_of(tmp_path, wrong, model_row("class", "A", 250.0))
    assert found.tabled(job).get(TABLE).source.startswith("A on a100")
    assert found.why_none(job) == (
        "performance model ada/bert for a100 is not used: it is wrong by 30%, see 'models show';"
        " that of A counts"
    )
    assert "the limits of its GPUs count" in tables_of(tmp_path, wrong).why_none(job)
