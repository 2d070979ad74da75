"""Performance models as values: to plain values and back, and what they know."""

import json

import numpy as np
import pytest
from energy_samples import power, throughput, true_model

from slurm_gpu_aware.features.models.performance_model import model_from_values
from slurm_gpu_aware.features.models.throughput import Conditions


def test_to_plain_values_and_back():
    model = true_model()
    assert model_from_values(json.loads(json.dumps(model.values()))) == model


@pytest.mark.parametrize(
    ("gpus", "nodes", "sync_s"),
    [
        (1, 1, 0.0),
        (2, 1, 0.03),
        (4, 1, 0.03 + 2 * 1e-3),
        (8, 2, 0.08 + 6 * 5e-4),
    ],
)
@pytest.mark.parametrize(
    ("clock_mhz", "sustained", "slower", "volts"),
    [(1400.0, 1.0, 1.0, 1.3), (700.0, 1.0, 2.0, 1.0), (1400.0, 0.8, 1.25, 1.1)],
)
@pytest.mark.parametrize("batch", [32.0, 8.0])
def test_time_and_energy_are_those_of_the_equations(
    gpus, nodes, sync_s, clock_mhz, sustained, slower, volts, batch
):
    """Equations 2 to 5 and 11 to 15 as `benchmarks/papers.md` reads them, with the samples'
    numbers.
    """
    io = 0.01 + 2e-4 * batch * gpus / nodes
    grad = 0.02 + 8e-3 * batch * (0.2 + 0.8 * slower)
    sync = sync_s * (0.8 + 0.2 * slower)
    total = ((io**1.5 + grad**1.5) ** (3.0 / 1.5) + sync**3.0) ** (1 / 3.0)
    switching = (volts / 1.3) ** 2 / slower
    of_batch = (np.log(batch + 1) + 8.0) / (np.log(32.0 + 1) + 8.0)
    grad_w, sync_w = 200.0 * switching * of_batch, 60.0 * switching
    energy = gpus * (grad_w * grad + sync_w * sync + 100.0 * volts / 1.3 * total)
    model = true_model(throughput(sustained=sustained), power())
    at = Conditions(*(np.array([float(one)]) for one in (gpus, nodes, batch, clock_mhz)))
    (time_s,), (each_w,) = model.predict(at)
    assert time_s == pytest.approx(total)
    assert gpus * each_w * time_s == pytest.approx(energy)


def change(path, value):
    values = part = json.loads(json.dumps(true_model().values()))
    *outer, last = path
    for key in outer:
        part = part[key]
    part[last] = value
    return values


@pytest.mark.parametrize(
    "values",
    [
        *(None, [], "model", {}),
        change(["format"], 2),
        change(["throughput", "io_s"], -1.0),
        change(["throughput", "io_s"], 10**400),
        change(["throughput", "gamma1"], 0.5),
        change(["throughput", "sustained"], 0.0),
        change(["throughput", "reference_mhz"], 0.0),
        change(["throughput", "grad_clock_share"], 1.1),
        change(["power", "static_w"], 0.0),
        change(["quality", "time_samples"], 1e300),
        change(["measured", "most_gpus"], 10**9),
    ],
)
def test_what_is_out_of_bounds_is_refused(values):
    """Wrong types of each field: `test_record_properties`."""
    with pytest.raises(ValueError, match=r"."):
        model_from_values(values)


def test_one_doubling_beyond_the_measured_counts_is_known():
    model = true_model()  # measured from 1 to 32 GPUs
    assert [n for n in (1, 2, 64, 65, 128) if model.knows_gpus(n)] == [1, 2, 64]


def test_confidence_names_the_held_out_errors():
    text = "time within 1.0%, power within 2.0% (10 conditions)"
    assert true_model().confidence() == text
