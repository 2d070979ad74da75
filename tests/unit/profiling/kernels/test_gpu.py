"""The kernels, NVML and clocks of a real GPU: ``pytest -m gpu``."""

import json
import statistics
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest
from needs import needs_root

from gpu_aware_profile.devices.driver import open_driver
from gpu_aware_profile.kernels.arrays import WrongResultError
from gpu_aware_profile.kernels.classes import CLASSES, kernels_of
from gpu_aware_profile.kernels.program import Sampler
from slurm_gpu_aware.errors import DeviceError
from slurm_gpu_aware.store.report import parse_report

pytestmark = pytest.mark.gpu
RUN_S = 300.0
"""Limit of one run; a usual one takes 20 to 60 seconds."""


@pytest.fixture(scope="module")
def gpus():
    """How many there are. This process does not use them: their compute mode may be exclusive."""
    try:
        with open_driver() as driver:
            count = len(list(driver.devices()))
    except DeviceError as exc:
        pytest.skip(f"no GPU here: {exc}")
    if find_spec("cupy") is None:
        pytest.skip("the extra gpu is not installed")
    return count


def probe_gpus(*options, limit_s):
    program = [sys.executable, "-m", "gpu_aware_profile.cli", "node", "--json", "--node-name", "n1"]
    done = subprocess.run([*program, *options], capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    parse_report(report)
    return report


def test_medians_of_three_runs_agree(gpus):
    classes = ["--class", "A", "--class", "C"]
    report = probe_gpus("--backend", "kernels", *classes, "--no-loaded", limit_s=RUN_S * 6 * gpus)
    assert report["errors"] == []
    runs = {}
    for row in report["timings"]:
        print(row)
        runs.setdefault((row["index"], row["class"]), []).append(row)
    for rows in runs.values():
        times = [row["value_ms"] for row in rows]
        assert len(times) == 3
        assert max(times) / min(times) < 1.01
        assert statistics.fmean(row["power_w"] for row in rows) > 50
        assert all(row["sm_mhz"] > 200 for row in rows)


@needs_root
def test_clocks_are_swept_and_reset(gpus, tmp_path, monkeypatch):
    conf = tmp_path / "clock.conf"
    conf.write_text(f"spool = {tmp_path / 'spool'}\nlocks = {tmp_path / 'locks'}\n")
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(conf))
    report = probe_gpus(
        *["--backend", "kernels", "--class", "A", "--runs", "1", "--no-loaded"],
        *["--clocks", "3", "--allow-clock-changes"],
        limit_s=RUN_S * 4 * gpus,
    )
    if report["errors"]:
        pytest.skip(f"clocks cannot be locked here: {report['errors'][0]}")
    locked = [row for row in report["timings"] if row["clock_mhz"] and row["index"] == 0]
    assert len(locked) == 3
    assert [row["value_ms"] for row in locked] == sorted(row["value_ms"] for row in locked)
    assert not list((tmp_path / "locks").glob("gpu*"))


def test_copies_and_all_reduces_between_two_gpus(gpus):
    """Links of a node with two GPUs or more: right results, and rates that a link can have."""
    from gpu_aware_profile.links.link_runs import NcclLinks

    if gpus < 2:
        pytest.skip("needs two GPUs")
    with open_driver() as driver:
        variable = driver.visible_variable
        uuids = {
            index: device.identity().uuid
            for index, device in driver.devices()
            if not isinstance(device, DeviceError)
        }
    uuids = dict(sorted(uuids.items()))
    links = NcclLinks(uuids, variable, threading.Event())
    try:
        pair = links.pair(*list(uuids)[:2], 60.0)
        print(pair)
        assert min(pair.ab_gbps, pair.ba_gbps) > 1.0
        assert pair.ab_gbps / pair.ba_gbps == pytest.approx(1.0, rel=0.2)
        assert max(pair.ab_gbps, pair.ba_gbps) < pair.both_gbps * 1.05
        assert pair.latency_us is None or 0.1 < pair.latency_us < 20.0
        for count in range(2, len(uuids) + 1):
            ring = links.all_reduce(list(uuids)[:count], 60.0)
            print(count, ring)
            assert 1.0 < ring.gbps < 2000.0
    finally:
        links.close()


@pytest.fixture(scope="module")
def engine(gpus):
    from gpu_aware_profile.kernels.cuda import CudaEngine

    return CudaEngine()


@pytest.mark.parametrize("app_class", CLASSES)
def test_kernels_compute_right_results_and_take_a_millisecond(engine, app_class):
    sampler = Sampler(engine, least_s=0.2, most_s=1.0)
    for kernel in kernels_of(app_class, engine):
        found = sampler.measure(kernel, sampler.prepare(kernel), lambda event: None)
        print(found)
        assert found.time.value_ms >= 1.0
        # Reads of PageRank are scattered: most of a cache line is not used.
        least = 0.05 if kernel.name == "pagerank" else 0.4
        assert found.time.share is None or least < found.time.share < 1.05
        kernel.result.reshape(-1)[-1] = 1e4
        with pytest.raises(WrongResultError):
            kernel.check()
    engine.xp.get_default_memory_pool().free_all_blocks()
