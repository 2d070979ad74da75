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


def iterations(tmp_path, app_class="A", number=0, neighbours="idle", state="state", slot=2):
    file = tmp_path / "machine.json"
    content = json.loads(file.read_text())
    uuid = next(gpu["uuid"] for gpu in content["gpus"] if gpu["minor"] == slot)
    run = RunSpec(slot, uuid, {}, app_class, neighbours, number)
    return FakeTiming(file, tmp_path / state).iterations(run, content["classes"][app_class])


def test_equal_machines_give_equal_times_in_any_order(tmp_path):
    machine_with(tmp_path)
    a, b = iterations(tmp_path, "A"), iterations(tmp_path, "B")
    assert iterations(tmp_path, "B") == b
    assert iterations(tmp_path, "A") == a
    assert len(set(a)) == len(a)


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


def test_an_override_changes_slowness(tmp_path):
    machine_with(tmp_path, noise=0.0, run_noise=0.0)
    machines.set_slowness(tmp_path / "state", 2, {"A": 3.0})
    assert set(iterations(tmp_path)) == {330.0}
    assert set(iterations(tmp_path, state="absent")) != {330.0}


def test_an_unlucky_run_is_one_of_several(tmp_path):
    machine_with(tmp_path, noise=0.0, run_noise=0.0)
    usual = iterations(tmp_path)[0]
    machines.slow_run(tmp_path / "state", 2, 1, {"A": 1.5})
    times = [iterations(tmp_path, number=n)[0] for n in range(3)]
    assert times == pytest.approx([usual, 1.5 * usual, usual])
    assert iterations(tmp_path, number=1, slot=3) == iterations(tmp_path, slot=3)


def test_a_loaded_gpu_and_a_locked_clock_take_longer(tmp_path):
    machine_with(tmp_path, noise=0.0, run_noise=0.0)
    usual = iterations(tmp_path)[0]
    assert iterations(tmp_path, neighbours="loaded")[0] / usual == pytest.approx(1.03)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "gpu2.locked_clocks").write_text("656 656\n")  # half of the default
    assert iterations(tmp_path)[0] / usual == pytest.approx(0.05 + 0.95 * 2)


def test_a_backend_that_cannot_work_here_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NVML_MACHINE", str(tmp_path / "absent.json"))
    with pytest.raises(SourceError, match="no timing backend 'fake' works here"):
        timing_backend("fake")


def test_median_and_spread_by_hand():
    assert median_and_spread([10.0, 11.0, 9.0, 30.0, 10.0]) == (10.0, pytest.approx(0.14826))
    assert median_and_spread([5.0]) == (5.0, 0.0)
