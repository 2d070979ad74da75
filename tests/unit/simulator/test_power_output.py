"""Energy in the results: files, table, page."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.cli.simulation import Inputs
from slurm_gpu_aware.cli.simulation_text import as_json, table_text
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.model.arrays import area_until
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.files import load_results, save_results
from slurm_gpu_aware.simulator.report import write_report
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.simulated_site import synthetic_site
from slurm_gpu_aware.simulator.trace import poisson_trace

SITE = synthetic_site(4, 4, same_indices=False)
TABLE = SizeTable(
    np.array([1, 2, 4, 8, 16]), np.array([1410]), np.ones((5, 1)), np.full((5, 1), 1000.0)
)
SETTINGS = SimSettings().put(RunPower(idle_w=50.0, max_w=400.0, eta=0.75))


def outcome(*settings, table=TABLE):
    trace = poisson_trace(12, 20.0, seed=1)
    trace = replace(trace, jobs=tuple(replace(job, table=table) for job in trace.jobs))
    results = [simulate(trace, SITE.cluster, each) for each in settings]
    return as_json(Inputs(trace, SITE, settings, {}, trace), [results]), results


@pytest.fixture
def saved(tmp_path):
    head, results = outcome(SETTINGS, SimSettings())
    save_results(tmp_path, head, results)
    return tmp_path


def test_the_folder_has_power_and_energy_where_they_are_known(saved):
    head, (known, unknown) = load_results(saved)
    span = np.array([0.0, known.columns["end_s"].max()])
    area = np.diff(area_until(known.power_s, known.power_w, span))[0]
    first = known.columns["submit_s"].min() * 16 * 50.0
    assert (area - first) / 3.6e6 == pytest.approx(head["runs"][0]["energy_kwh"], rel=1e-4)
    assert len(unknown.power_s) == 0
    rows = list(csv.DictReader((saved / "jobs-eft_eta_0.75.csv").open()))
    energy = sum(float(row["energy_kwh"]) for row in rows)
    run = head["runs"][0]
    assert energy == pytest.approx(run["energy_kwh"] - run["idle_energy_kwh"], rel=1e-4)
    assert "energy_kwh" not in (saved / "jobs-eft.csv").read_text()


def test_the_page_draws_power_only_if_it_is_known(saved, tmp_path):
    pytest.importorskip("matplotlib")
    written, _ = write_report(saved)
    assert "power.png" in {path.name for path in written}
    page = written[0].read_text()
    assert "<th>energy, kWh</th>" in page
    assert "<td>4800</td>" in page  # the limit: 0.75 x 16 x 400 W
    head, results = outcome(SimSettings(), SimSettings())
    save_results(tmp_path / "unknown", head, results)
    written, _ = write_report(tmp_path / "unknown")
    assert "power.png" not in {path.name for path in written}
    assert "energy, kWh" not in written[0].read_text()


def test_the_table_has_a_column_of_energy_only_if_it_is_known():
    head, _ = outcome(SETTINGS)
    assert f"{head['runs'][0]['energy_kwh']:.1f}" in table_text(head)
    assert "kWh" in table_text(head)
    assert "kWh" not in table_text(outcome(SETTINGS, table=None)[0])
