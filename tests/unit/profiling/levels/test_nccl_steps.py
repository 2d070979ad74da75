"""Steps of ranks with NCCL, on a fake of it: threads are the ranks."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu_aware_profile.levels import level_step
from gpu_aware_profile.levels.level_step import BATCHES, NcclSteps, Rank
from slurm_gpu_aware.errors import SourceError

KERNEL_S = 0.02
REDUCE_S = 0.005


class Array(np.ndarray):
    """An array with an address, as CuPy has it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self)


class Engine:
    """A GPU whose time is that of its work."""

    def __init__(self, slowness: float = 1.0) -> None:
        stream = SimpleNamespace(ptr=0)
        self.xp = SimpleNamespace(
            float32=np.float32,
            full=lambda *args: np.full(*args).view(Array),
            zeros_like=np.zeros_like,
            cuda=SimpleNamespace(get_current_stream=lambda: stream),
        )
        self.now = 0.0
        self.slowness = slowness
        self.launches = 0

    def launch(self) -> None:
        self.launches += 1
        self.now += KERNEL_S * self.slowness

    def seconds(self, launch: Callable[[], None], count: int) -> float:
        before = self.now
        for _ in range(count):
            launch()
        return self.now - before


class FakeNccl:
    """One group of ranks. ``lost``: error of each sum."""

    NCCL_FLOAT32, NCCL_SUM = 7, 0

    def __init__(self, engines: list[Engine], lost: float = 0.0) -> None:
        self.engines, self.lost = engines, lost
        self.barrier = threading.Barrier(len(engines), timeout=60)
        self.parts: dict[int, tuple[Any, float]] = {}

    def get_unique_id(self) -> bytes:
        return bytes(range(128, 256))

    def NcclCommunicator(self, ranks: int, unique_id: Any, number: int) -> Any:  # noqa: N802
        assert unique_id == self.get_unique_id()
        if ranks != len(self.engines):
            raise RuntimeError("NCCL_ERROR_INVALID_USAGE")
        return SimpleNamespace(allReduce=lambda *args: self._all_reduce(number, *args))

    def _all_reduce(self, number: int, sent: Any, received: Any, count: int, *rest: int) -> None:
        assert rest == (self.NCCL_FLOAT32, self.NCCL_SUM, 0)
        self.parts[number] = sent, self.engines[number].now
        self.barrier.wait()
        received[:] = sum(part for part, _ in self.parts.values()) + self.lost
        self.engines[number].now = REDUCE_S + max(now for _, now in self.parts.values())
        self.barrier.wait()


@pytest.fixture(autouse=True)
def _one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_step, "kernels_of", lambda app_class, engine: [engine])


def steps_ms(nccl: FakeNccl, app_class: str = "A") -> list[list[float]]:
    def rank(number: int) -> list[float]:
        steps = NcclSteps(Rank(number, len(nccl.engines), 0), nccl.engines[number], nccl)
        steps.join(unique_id)
        return steps.times_ms(app_class, 1 << 12)

    unique_id = NcclSteps(Rank(0, 1, 0), nccl.engines[0], nccl).unique_id()
    with ThreadPoolExecutor(len(nccl.engines)) as pool:
        return list(pool.map(rank, range(len(nccl.engines))))


def test_a_step_ends_with_the_slowest_rank() -> None:
    engines = [Engine(), Engine(1.5), Engine()]
    times = steps_ms(FakeNccl(engines))
    assert times == [[pytest.approx(1e3 * (1.5 * KERNEL_S + REDUCE_S))] * BATCHES] * 3
    assert len({engine.launches for engine in engines}) == 1


def test_a_wrong_sum_has_no_time() -> None:
    with pytest.raises(SourceError, match="wrong sum after an all-reduce"):
        steps_ms(FakeNccl([Engine(), Engine()], lost=1.0))


def test_what_nccl_refuses_and_classes_without_kernels() -> None:
    nccl = FakeNccl([Engine(), Engine()])
    steps = NcclSteps(Rank(0, 3, 0), nccl.engines[0], nccl)
    with pytest.raises(SourceError, match="NCCL: NCCL_ERROR_INVALID_USAGE"):
        steps.join(steps.unique_id())
    with pytest.raises(SourceError, match="no kernels of class 'Z'"):
        steps.times_ms("Z", 4)
