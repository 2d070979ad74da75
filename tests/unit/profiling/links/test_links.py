"""Measurement of links: the fake backend, and the real worker on a fake CuPy."""

import sys
import threading
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import COPY_SHARE, RING_SHARE, FakeLinks, FakeMachine
from fake_nvml import machines
from idle_clock import Stopwatch

from gpu_aware_profile.links.link_runs import AllReduceReading, LinkRuns, NcclLinks, PairReading
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.topology.machines import machine

FAKE_CUPY = Path(__file__).parents[2] / "fake_cupy"
UUIDS = {slot: f"GPU-{slot}" for slot in (0, 1, 2, 5)}
GPUS = list(UUIDS)
VISIBLE = "CUDA_VISIBLE_DEVICES"


def fake(tmp_path: Path, graph: HardwareGraph, **changes: Any) -> FakeLinks:
    file = tmp_path / "machine.json"
    machines.write_json(file, {"noise": 0.0, "seed": 1, "node": "n1", **changes})
    return FakeLinks(FakeMachine(file, tmp_path / "state"), range(graph.n), graph)


@pytest.fixture(autouse=True)
def _compile_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(FAKE_CUPY))
    links = NcclLinks(UUIDS, VISIBLE, threading.Event())
    yield links
    links.close()


def test_the_fake_follows_link_and_ring(tmp_path: Path) -> None:
    links = fake(tmp_path, machine("dgx-1-v100"))
    assert links.pair(0, 3, 1.0) == PairReading(*(50 * COPY_SHARE * x for x in (1, 1, 2)), 0.9)
    assert links.pair(0, 5, 1.0).latency_us == 1.8
    # A ring of three with one link through the host, and one with NVLinks only.
    assert links.all_reduce([0, 1, 4], 1.0).gbps == pytest.approx(12 * RING_SHARE)
    assert links.all_reduce([0, 2, 3], 1.0).gbps == pytest.approx(25 * RING_SHARE)


def test_the_fake_repeats_its_noise_and_knows_slow_links(tmp_path: Path) -> None:
    graph = machine("dgx-a100")
    noisy = fake(tmp_path, graph, noise=0.01)
    values = [noisy.pair(a, b, 1.0).ab_gbps for a, b in combinations(range(8), 2)]
    assert len(set(values)) == 28
    again = fake(tmp_path, graph, noise=0.01)
    assert [again.pair(a, b, 1.0).ab_gbps for a, b in combinations(range(8), 2)] == values
    machines.write_json(tmp_path / "state" / "override.json", {"link_slowness": {"0-1": 4.0}})
    slow = fake(tmp_path, graph)
    assert slow.pair(0, 1, 1.0).ab_gbps == slow.pair(1, 0, 1.0).ab_gbps == 75 * COPY_SHARE
    assert slow.all_reduce([0, 1], 1.0).gbps == 75 * RING_SHARE
    assert slow.all_reduce([0, 1, 2], 1.0).gbps == 75 * RING_SHARE  # no ring of 3 avoids it
    assert slow.all_reduce([0, 1, 2, 3], 1.0).gbps == 300 * RING_SHARE


def test_the_worker_measures_what_the_devices_do(nccl: NcclLinks) -> None:
    found = nccl.pair(0, 2, 20.0)
    # Copies of the fake come one after the other, so both at once are no faster.
    assert found == pytest.approx((40.0, 40.0, 40.0, 1.0))
    assert nccl.pair(1, 5, 20.0).latency_us is None  # the fourth device reaches no other's memory
    for k in (2, 3, 4):
        assert nccl.all_reduce(GPUS[:k], 20.0) == AllReduceReading(pytest.approx(20.0), 2 << 20)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("2", "WrongDataError: wrong data after a copy from CUDA device 0 to 2"),
        ("0", "WrongDataError: wrong data after a copy from CUDA device 2 to 0"),
    ],
)
def test_wrong_data_of_a_copy(
    nccl: NcclLinks, monkeypatch: pytest.MonkeyPatch, device: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_CUPY_WRONG", device)
    with pytest.raises(SourceError, match=words):
        nccl.pair(0, 2, 20.0)


def test_a_wrong_sum(nccl: NcclLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUPY_WRONG", "2")
    with pytest.raises(SourceError, match=r"wrong sum on CUDA device 2 of \[0, 1, 2\]"):
        nccl.all_reduce([0, 1, 2], 20.0)
    assert nccl.all_reduce([0, 1], 20.0).gbps == pytest.approx(20.0)  # in a new process


def test_a_worker_that_hangs_or_dies_costs_one_set(
    nccl: NcclLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCCL_HANGS", "[0, 1]")
    monkeypatch.setenv("FAKE_NCCL_DIES", "[1, 2]")
    nccl.all_reduce([0, 2], 20.0)
    watch = Stopwatch()
    with pytest.raises(SourceError, match="no end within 1 s"):
        nccl.all_reduce([0, 1], 1.0)
    assert watch.idle_s < 20.0  # the hanging process would have slept for 60 s
    with pytest.raises(SourceError, match="ended with 134"):
        nccl.all_reduce([1, 2], 20.0)
    assert nccl.all_reduce([0, 2], 20.0).gbps == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ImportError('no libcudart')", "CuPy with NCCL cannot be loaded: no libcudart"),
        (
            "import sys, types\n"  # as CuPy does where it finds no NCCL
            "cuda = sys.modules['cupy.cuda'] = types.ModuleType('cupy.cuda')\n"
            "cuda.nccl = types.SimpleNamespace(available=False)\n",
            "CuPy finds no NCCL: .* pip install nvidia-nccl-cu12",
        ),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "cupy.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    links = NcclLinks(UUIDS, VISIBLE, threading.Event())
    with pytest.raises(SourceError, match=words):
        links.pair(0, 1, 20.0)
    links.close()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('[1]')", "ended without an answer"),
        ("print('{')", "ended without an answer"),
        ("print('{}')", "gave no bandwidth"),
        ("print('x' * 100_000)", "ended without an answer"),
        ("sys.exit('out of memory')", "ended with 1: out of memory"),
        ("print('{\"error\": \"' + 'x' * 5000 + '\"}')", "^x{400}$"),
    ],
)
def test_answers_that_cannot_be_used(program: str, words: str) -> None:
    argv = [sys.executable, "-c", f"import sys; input(); {program}"]
    links = NcclLinks(UUIDS, VISIBLE, threading.Event(), argv)
    with pytest.raises(SourceError, match=words):
        links.all_reduce([0, 1], 20.0)
    links.close()


class Broken:
    """A backend with a broken GPU."""

    name = "broken"

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu

    def pair(self, a: int, b: int, limit_s: float) -> PairReading:
        if self.gpu in (a, b):
            raise SourceError("out of order")
        return PairReading(47.0, None, None, None)

    def all_reduce(self, gpus: Any, limit_s: float) -> AllReduceReading:
        return AllReduceReading(12.345678, 1 << 28)

    def close(self) -> None:
        pass


def test_a_gpu_that_fails_again_and_again_costs_the_others_nothing() -> None:
    faults: list[dict[str, Any]] = []
    runs = LinkRuns(time.monotonic() + 60.0, lambda text: None, threading.Event(), faults)
    backend = Broken(gpu=0)
    rows = runs.pairs(backend, range(8))
    assert {(row["a"], row["b"]) for row in rows} == set(combinations(range(1, 8), 2))
    assert [fault["error"] for fault in faults] == [
        f"pair {b} of 28: GPU 0 and {b}: out of order" for b in (1, 2, 3)
    ]
    assert faults[0] | {"error": ""} == {"index": None, "call": "links", "error": ""}
    assert runs.left_out == 4
    assert runs.all_reduces(backend, [[0, 1], [1, 2]]) == [
        {"gpus": [1, 2], "operation": "all_reduce", "gbps": 12.346, "size_bytes": 1 << 28}
    ]


def test_a_signal_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE_CUPY))
    monkeypatch.setenv("FAKE_NCCL_HANGS", "[0, 1]")
    faults: list[dict[str, Any]] = []
    stopped = threading.Event()
    links = NcclLinks(UUIDS, VISIBLE, stopped)
    runs = LinkRuns(time.monotonic() + 60.0, lambda text: None, stopped, faults)
    threading.Timer(1.0, stopped.set).start()
    watch = Stopwatch()
    assert runs.all_reduces(links, [[0, 1], [0, 2]]) == []
    links.close()
    assert watch.idle_s < 30.0
    assert (faults, runs.left_out) == ([], 1)


def test_nothing_begins_after_the_budget() -> None:
    faults: list[dict[str, Any]] = []
    runs = LinkRuns(time.monotonic(), lambda text: None, threading.Event(), faults)
    assert runs.pairs(Broken(0), [0, 1]) == runs.all_reduces(Broken(0), [[0, 1], [0, 2]]) == []
    assert (faults, runs.left_out) == ([], 3)
