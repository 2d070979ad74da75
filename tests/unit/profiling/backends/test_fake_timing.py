"""Times of fake GPUs: seeded, and as the machine file says."""

import json

import pytest
from fake_gpus import FakeTiming
from fake_nvml import machines

from gpu_aware_profile.backends.timing import RunSpec, median_and_spread, timing_backend
from slurm_gpu_aware.errors import SourceError


def machine_with(tmp_path, **changes):
    file = tmp_path / "machine.json"
    machines.write_json(file, {**machines.build("two-socket-4", "n1"), **changes})
    return file


def iterations(tmp_path, number=0):
    """Times of a run of class A on GPU 2."""
    file = tmp_path / "machine.json"
    content = json.loads(file.read_text())
    uuid = next(gpu["uuid"] for gpu in content["gpus"] if gpu["minor"] == 2)
    run = RunSpec(2, uuid, {}, "A", "idle", number)
    return FakeTiming(file, tmp_path / "state").iterations(run, content["classes"]["A"])


def test_noise_has_the_size_that_the_file_says(tmp_path):
    machine_with(tmp_path, noise=0.02, run_noise=0.01)
    medians, spreads = zip(
        *(median_and_spread(iterations(tmp_path, number=n)) for n in range(400)), strict=True
    )
    assert sum(spreads) / 400 == pytest.approx(0.02, rel=0.1)
    # Of the median of 25 iterations: 0.02 x 1.25 / 5 beside that of the run.
    assert median_and_spread(medians)[1] == pytest.approx((0.01**2 + 0.005**2) ** 0.5, rel=0.15)


def test_the_median_is_not_moved_by_disturbed_iterations(tmp_path):
    machine_with(tmp_path, noise=0.0, outliers=0.2)
    times = iterations(tmp_path)
    assert max(times) == pytest.approx(1.5 * min(times))
    assert median_and_spread(times) == (pytest.approx(min(times)), 0.0)


def test_a_backend_that_cannot_work_here_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NVML_MACHINE", str(tmp_path / "absent.json"))
    with pytest.raises(SourceError, match="no timing backend 'fake' works here"):
        timing_backend("fake")


def test_median_and_spread_by_hand():
    assert median_and_spread([10.0, 11.0, 9.0, 30.0, 10.0]) == (10.0, pytest.approx(0.14826))
    assert median_and_spread([5.0]) == (5.0, 0.0)
