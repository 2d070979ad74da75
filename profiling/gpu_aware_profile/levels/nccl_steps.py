"""Data-parallel steps of real GPUs: the kernels of a class, then an all-reduce with NCCL."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpu_aware_profile.backends.cupy_library import ensure_compile_cache, nccl_library
from gpu_aware_profile.kernels.arrays import Engine
from gpu_aware_profile.kernels.classes import CLASSES, kernels_of
from gpu_aware_profile.kernels.cuda import CudaEngine
from gpu_aware_profile.levels.level_step import BATCHES, Rank
from slurm_gpu_aware.errors import SourceError

_BATCH_S = 0.5
_MOST_STEPS = 200
_WARM_UP = 3


class NcclSteps:
    """A `level_step.StepTiming` of one GPU per process."""

    def __init__(self, rank: Rank, engine: Engine, nccl: Any) -> None:
        """``engine``: the GPU of this rank. ``nccl``: the module of CuPy."""
        self._rank, self._engine, self._nccl = rank, engine, nccl
        self._group: Any = None

    @classmethod
    def of_this_task(cls, rank: Rank) -> NcclSteps:
        """Raises SourceError that says what is missing."""
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        own = visible[rank.gpu] if rank.gpu < len(visible) else str(rank.gpu)
        os.environ["CUDA_VISIBLE_DEVICES"] = own  # before CUDA starts in this process
        ensure_compile_cache()
        return cls(rank, CudaEngine(), nccl_library())

    def unique_id(self) -> bytes:
        return bytes(self._nccl.get_unique_id())

    def join(self, unique_id: bytes) -> None:
        try:
            self._group = self._nccl.NcclCommunicator(
                self._rank.ranks, unique_id, self._rank.number
            )
        except RuntimeError as exc:
            raise SourceError(f"NCCL: {exc}") from None

    def times_ms(self, app_class: str, size_bytes: int) -> list[float]:
        xp = self._engine.xp
        if app_class not in CLASSES:
            raise SourceError(f"there are no kernels of class {app_class!r}")
        try:
            kernels = kernels_of(app_class, self._engine)
            sent = xp.full(max(1, size_bytes // 4), self._rank.number + 1, xp.float32)
            received = xp.zeros_like(sent)

            def step() -> None:
                for kernel in kernels:
                    kernel.launch()
                self._all_reduce(sent, received)

            times = self._batches(step)
        except (MemoryError, RuntimeError) as exc:
            raise SourceError(f"{type(exc).__name__}: {exc}") from None
        expected = self._rank.ranks * (self._rank.ranks + 1) / 2
        if not bool((received == expected).all()):
            raise SourceError("wrong sum after an all-reduce")
        return times

    def _batches(self, step: Callable[[], None]) -> list[float]:
        xp = self._engine.xp
        self._engine.seconds(step, _WARM_UP)
        # All ranks must do the same number of steps: the mean of their times decides.
        mine = xp.full(1, self._engine.seconds(step, 2) / 2, xp.float32)
        total = xp.zeros_like(mine)
        self._all_reduce(mine, total)
        mean_s = float(total[0]) / self._rank.ranks
        steps = max(2, min(_MOST_STEPS, round(_BATCH_S / max(mean_s, 1e-6))))
        return [1e3 * self._engine.seconds(step, steps) / steps for _ in range(BATCHES)]

    def _all_reduce(self, sent: Any, received: Any) -> None:
        """Sum over the ranks, on the stream of the kernels."""
        self._group.allReduce(
            sent.data.ptr,
            received.data.ptr,
            sent.size,
            self._nccl.NCCL_FLOAT32,
            self._nccl.NCCL_SUM,
            self._engine.xp.cuda.get_current_stream().ptr,
        )
