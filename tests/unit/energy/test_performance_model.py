"""Performance models as values: to plain values and back, and what they know."""

import json

import pytest
from energy_samples import true_model

from slurm_gpu_aware.energy.performance_model import model_from_values


def test_to_plain_values_and_back():
    model = true_model()
    assert model_from_values(json.loads(json.dumps(model.values()))) == model


def change(path, value):
    values = json.loads(json.dumps(true_model().values()))
    *outer, last = path
    part = values
    for key in outer:
        part = part[key]
    part[last] = value
    return values


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "model",
        {},
        change(["format"], 2),
        change(["name"], 7),
        change(["gpu_model"], None),
        change(["throughput"], []),
        change(["throughput", "io_s"], "0"),
        change(["throughput", "io_s"], True),
        change(["throughput", "io_s"], None),
        change(["throughput", "io_s"], float("nan")),
        change(["throughput", "io_s"], -1.0),
        change(["throughput", "io_s"], 10**400),
        change(["throughput", "gamma1"], 0.5),
        change(["throughput", "sustained"], 0.0),
        change(["throughput", "reference_mhz"], 0.0),
        change(["throughput", "grad_clock_share"], 1.1),
        change(["power", "static_w"], 0.0),
        change(["power", "knee"], float("inf")),
        change(["quality", "time_samples"], None),
        change(["quality", "time_samples"], 1e300),
        change(["measured", "most_gpus"], 10**9),
    ],
)
def test_anything_else_is_refused(values):
    with pytest.raises(ValueError, match=r"."):
        model_from_values(values)


def test_one_doubling_beyond_the_measured_counts_is_known():
    model = true_model()  # measured from 1 to 32 GPUs
    assert [n for n in (1, 2, 64, 65, 128) if model.knows_gpus(n)] == [1, 2, 64]


def test_confidence_names_the_held_out_errors():
    text = "time within 1.0%, power within 2.0% (10 conditions)"
    assert true_model().confidence() == text
