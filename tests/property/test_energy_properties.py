"""Times and powers of every model are positive, and continuous in the clock."""

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.features.models.performance_model import PowerParameters, gpu_power
from slurm_gpu_aware.features.models.throughput import (
    Conditions,
    ThroughputParameters,
    iteration_times,
)

SHARES = {"grad_clock_share", "sync_clock_share"}
BOUNDS = {
    "gamma1": (1.0, 20.0),
    "gamma2": (1.0, 20.0),
    "sustained": (0.3, 1.0),
    "knee": (0.2, 1.2),
    "slope": (0.01, 20.0),
    "reference_mhz": (500.0, 3000.0),
    "reference_batch": (1e-3, 1e6),
    "static_w": (1e-3, 1e4),
    "batch_offset": (0.1, 1e4),
}


def values_of(name):
    least, most = (0.0, 1.0) if name in SHARES else BOUNDS.get(name, (0.0, 1e4))
    return st.floats(least, most, allow_subnormal=False)


def parameters(kind):
    return st.builds(kind, **{f.name: values_of(f.name) for f in fields(kind)})


@given(
    parameters(ThroughputParameters),
    parameters(PowerParameters),
    st.integers(1, 4096),
    st.integers(1, 64),
    st.floats(1e-3, 1e6),
    st.floats(50.0, 4000.0),
)
def test_positive_and_continuous(throughput, power, gpus, per_node, batch, clock):
    clocks = clock * np.array([1.0, 1.0 + 1e-9])
    nodes = -(-gpus // per_node)
    at = Conditions(np.full(2, float(gpus)), np.full(2, float(nodes)), np.full(2, batch), clocks)
    times = iteration_times(throughput, at)
    watts = gpu_power(power, times, at.batch_size)
    for values in (times.total, watts):
        assert np.isfinite(values).all()
        assert (values > 0).all()
        assert abs(values[1] / values[0] - 1.0) < 1e-6
    assert times.total[1] <= times.total[0] * (1 + 1e-12)
    assert times.total[0] >= max(times.io[0], times.grad[0], times.sync[0]) * (1 - 1e-9)
