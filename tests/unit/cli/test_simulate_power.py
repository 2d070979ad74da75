"""``gpu-aware simulate --eta``: size tables from the store, a sweep of limits, energy."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from commands import gpu_aware, refusal, succeeded
from store_samples import ingest_sweep

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.features.energy.stage import EXACT
from slurm_gpu_aware.features.models.store import put_models, read_models
from slurm_gpu_aware.features.power.run_tables import simulated_power
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.store.database import open_store

CLOCKS = (900, 1000, 1100, 1200, 1312, 1400, 1530)


@pytest.fixture(scope="module")
def fitted_site(tmp_path_factory):
    """A store with a fitted model of class A on v100, and a trace of such jobs."""
    folder: Path = tmp_path_factory.mktemp("site")
    with open_store(folder / "store.db") as store:
        # At 0.08 the two highest clocks cost Zeus the same to a part in 5,000.
        ingest_sweep(store, CLOCKS, dynamic_w=0.1)
    config = folder / "config.toml"
    text = f'[store]\npath = "{folder}/store.db"\n[power]\nidle_watts = 30\n'
    config.write_text(text)
    assert gpu_aware("models", "fit", config=config).exit_code == 0
    rows = "".join(f"{i},{40 * i},1,600,A,1-4\n" for i in range(20))
    (folder / "trace.csv").write_text(f"job_id,submit_s,gpus,duration_s,class,sizes\n{rows}")
    return config


def simulated(site, *args):
    trace = str(site.parent / "trace.csv")
    nodes = ("--nodes", "2", "--gpus-per-node", "4", "--gpu-model", "v100", "--processes", "1")
    return gpu_aware("simulate", trace, *nodes, "--overrun", "extend", *args, config=site)


def simulated_runs(site, *args):
    return json.loads(succeeded(simulated(site, *args, "--json")).stdout)["runs"]


def test_a_lower_limit_needs_less_energy_and_more_time(fitted_site):
    runs = simulated_runs(fitted_site, "-p", "packed", "--eta", "none,0.7,0.5")
    assert [r["policy"] for r in runs] == ["packed", "packed eta=0.7", "packed eta=0.5"]
    assert [r["power_limit_w"] for r in runs] == [None, 0.7 * 8 * 300, 0.5 * 8 * 300]
    for one, lower in pairwise(runs):
        assert lower["avg_jct_s"] > one["avg_jct_s"]
        assert lower["energy_kwh"] < one["energy_kwh"]
        assert lower["peak_power_w"] <= lower["power_limit_w"] + 0.01
    assert "kWh" in simulated(fitted_site, "-p", "packed", "--eta", "none").stdout


def test_bounds_of_clocks_that_save_energy_are_swept(fitted_site):
    runs = simulated_runs(fitted_site, "-p", "packed", "--slowdown", "none,0.1,0.2")
    assert [r["policy"] for r in runs] == ["packed", "packed slowdown=0.1", "packed slowdown=0.2"]
    own = [r["energy_kwh"] - r["idle_energy_kwh"] for r in runs]
    assert own[0] > own[1] > own[2]
    for run, bound in zip(runs[1:], (0.1, 0.2), strict=True):
        assert 1.0 < run["avg_slowdown"] / runs[0]["avg_slowdown"] <= 1 + bound + EXACT
    # The bound of the site is that of runs without the option.
    with_bound = fitted_site.with_name("bound.toml")
    with_bound.write_text(f"{fitted_site.read_text()}[energy]\nslowdown = 0.2\n")
    (bounded,) = simulated_runs(with_bound, "-p", "packed", "--eta", "none")
    assert bounded["energy_kwh"] == runs[2]["energy_kwh"]


def test_published_schedulers_are_modes(fitted_site):
    modes = ("-p", "packed:as-asked", "-p", "packed:zeus")
    asked, zeus = (
        one["energy_kwh"] - one["idle_energy_kwh"]
        for one in simulated_runs(fitted_site, *modes, "--eta", "none")
    )
    assert zeus < 0.95 * asked
    plain = ("--nodes", "2", "--gpus-per-node", "4", "-p", "packed:zeus")
    trace = str(fitted_site.parent / "trace.csv")
    assert "zeus needs" in refusal(gpu_aware("simulate", trace, *plain, config=fitted_site))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--eta", "2"), "--eta '2'"),
        (("--eta", "0.5,x"), "--eta 'x'"),
        (("--eta", "0"), "--eta '0'"),
        (("--slowdown", "0.6"), "--slowdown '0.6': expected shares above 0 up to 0.5"),
        (("--slowdown", "-0.1"), "--slowdown '-0.1'"),
        (("--eta", "none", "--gpu-model", "h100"), "no GPU of model 'h100'"),
    ],
)
def test_a_wrong_limit_or_model_is_one_sentence(fitted_site, args, words):
    done = simulated(fitted_site, "-p", "packed", *args)
    assert done.exit_code != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_without_a_model_are_told_and_their_energy_is_not_known(fitted_site):
    trace = fitted_site.with_name("other.csv")
    trace.write_text("job_id,submit_s,gpus,duration_s,class\n1,0,1,60,B\n")
    args = ("--nodes", "1", "--gpus-per-node", "4", "--gpu-model", "v100", "--eta", "0.5", "--json")
    done = succeeded(gpu_aware("simulate", str(trace), "-p", "packed", *args, config=fitted_site))
    assert "no performance model of class B for v100: 1 job counts" in done.stderr
    assert json.loads(done.stdout)["runs"][0]["energy_kwh"] is None


def test_due_dates_are_drawn_met_and_told(fitted_site):
    policies = ("-p", "packed:no-due", "-p", "packed", "-p", "packed:sts")
    due = ("--eta", "none", "--due", "1-3")
    runs = simulated_runs(fitted_site, *policies, *due)
    assert [r["policy"] for r in runs] == ["packed:no-due", "packed", "packed:sts"]
    assert all(r["due_jobs"] == 20 and 0 < r["due_met"] <= 1 for r in runs)
    assert "due met" in simulated(fitted_site, "-p", "packed", *due).stdout
    assert "due met" not in simulated(fitted_site, "-p", "packed", "--eta", "none").stdout
    failed = simulated(fitted_site, "--eta", "none", "--due", "3")
    assert failed.exit_code != 0
    assert "--due" in failed.stderr


def test_a_table_has_the_sizes_of_earlier_jobs_of_the_name(fitted_site, tmp_path):
    def asking(name, gpus, *sizes):
        return TraceJob(f"{name}{gpus}", 0.0, gpus, 600.0, app_class="A", name=name, sizes=sizes)

    shutil.copy(fitted_site.parent / "store.db", tmp_path)
    with open_store(tmp_path / "store.db") as store:
        ((row, model),) = read_models(store, 1.0)
        model = replace(model, measured=replace(model.measured, most_gpus=2))
        put_models(store, [row._replace(content=json.dumps(model.values()))])
    fitted_site = tmp_path / "config.toml"
    fitted_site.write_text(f'[store]\npath = "{tmp_path}/store.db"\n')
    jobs = (asking("net", 1), asking("net", 2, 2, 4), asking("other", 2, 2, 4))
    cluster = Cluster.uniform(1, 4)
    _, trace = simulated_power(load_config(fitted_site), Trace("t", jobs), cluster, "v100")
    assert [(j.sizes, j.table.gpus.tolist()) for j in trace.jobs[1:]] == [
        ((2, 4), [1, 2, 4]),
        ((2, 4), [2, 4]),
    ]
