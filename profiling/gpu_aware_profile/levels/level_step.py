"""One rank of a run that measures a locality penalty: a data-parallel step of each class.

A step is the kernels of the class and an all-reduce over the ranks. ``srun`` starts a rank per GPU.
Rank 0 prints the unique id of the ranks' group; the driver (`level_runs`) gives it to all of them
through ``srun``, on standard input. So no rank needs to know an address or a port of another one;
NCCL's own connections use the network that it finds (``NCCL_SOCKET_IFNAME``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol

from gpu_aware_profile.backends.timing import brought, ensure_compile_cache, nccl_library
from gpu_aware_profile.kernels.arrays import Engine
from gpu_aware_profile.kernels.classes import CLASSES, kernels_of
from slurm_gpu_aware.errors import SourceError

BATCHES = 5  # Times of a class in one run.
UNIQUE_ID = re.compile(r"[0-9a-f]{2,1024}\Z")
_BATCH_S = 0.5
_MOST_STEPS = 200
_WARM_UP = 3


class Rank(NamedTuple):
    """One rank of the run."""

    number: int
    ranks: int
    gpu: int  # Index of its GPU among those of the job on its node.

    @classmethod
    def of_slurm(cls, gpus: Sequence[int]) -> Rank:
        """From the variables of a task. ``gpus``: of the ranks on a node. Raises SourceError."""
        try:
            number, ranks, local = (
                int(os.environ[f"SLURM_{name}"]) for name in ("PROCID", "NTASKS", "LOCALID")
            )
            return cls(number, ranks, gpus[local])
        except (KeyError, ValueError, IndexError):
            raise SourceError(
                "not a task of srun with one task per GPU: 'gpu-aware-profile levels' starts it"
            ) from None


class StepTiming(Protocol):
    """A backend. All ranks call it in the same order."""

    def unique_id(self) -> bytes:
        """Id of the group; of rank 0."""

    def join(self, unique_id: bytes) -> None:
        """Join the group. Raises SourceError."""

    def times_ms(self, app_class: str, size_bytes: int) -> list[float]:
        """Time of a step in each of `BATCHES` batches. Raises SourceError.

        ``size_bytes``: message of the all-reduce.
        """


def step_backend(rank: Rank, level: str) -> StepTiming:
    """The backend that works on this node. Raises SourceError if none does."""
    other: StepTiming | None = brought("steps", rank, level)
    return NcclSteps.of_this_task(rank) if other is None else other


def run_rank(
    rank: Rank, level: str, messages: Mapping[str, int], requests: IO[str], answers: IO[str]
) -> None:
    """Measure the classes of ``messages`` (class -> bytes of the message); print a line for each.

    Raises SourceError if the rank cannot join the group.
    """
    backend = step_backend(rank, level)
    if rank.number == 0:
        _print(answers, {"id": backend.unique_id().hex()})
    line = requests.readline().strip()
    if not UNIQUE_ID.match(line):
        raise SourceError("no id of the group on standard input")
    backend.join(bytes.fromhex(line))
    for app_class, size_bytes in messages.items():
        answer: dict[str, Any] = {"rank": rank.number, "class": app_class}
        try:
            answer["times_ms"] = [
                float(f"{ms:.6g}") for ms in backend.times_ms(app_class, size_bytes)
            ]
        except SourceError as exc:
            answer["error"] = str(exc)[:400]
        _print(answers, answer)


def _print(answers: IO[str], value: Mapping[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


class NcclSteps:
    """A `level_step.StepTiming` of one GPU per process."""

    def __init__(self, rank: Rank, engine: Engine, nccl: Any) -> None:
        """``engine``: the GPU of this rank. ``nccl``: the module of CuPy."""
        self._rank, self._engine, self._nccl = rank, engine, nccl
        self._group: Any = None

    @classmethod
    def of_this_task(cls, rank: Rank) -> NcclSteps:
        """Raises SourceError that says what is missing."""
        from gpu_aware_profile.kernels.cuda import CudaEngine  # imports NumPy

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
