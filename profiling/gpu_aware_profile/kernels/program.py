"""Process that measures the kernels of a class on the only GPU that it sees.

It writes one JSON object a line: ``ready`` after the first results are checked, ``begin``, ``end``
and ``kernel`` of each kernel's measured part, ``done``; or ``wrong`` (result), ``unusable``
(device). Until its standard input says something, and after ``done`` until that ends, it keeps the
GPU working.
"""

from __future__ import annotations

import json
import os
import select
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from gpu_aware_profile.kernels.arrays import Engine, Kernel, WrongResultError
from gpu_aware_profile.kernels.classes import NEEDED_SHARE, kernels_of
from gpu_aware_profile.kernels.sampling import Sampler
from slurm_gpu_aware.errors import SourceError

_OTHER_PRECISIONS = (
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
)
"""Variables by which cuBLAS computes with other numbers than it is asked for."""
_CHUNK_S = 0.05
"""Time of one kernel in a row while the GPU is kept working."""


class _Parent:
    """What the parent says by standard input: something, then its end."""

    def __init__(self) -> None:
        self.told = False
        self.gone = False

    def listen(self) -> None:
        while not self.gone and select.select([0], [], [], 0)[0]:
            self.told = True
            self.gone = not os.read(0, 4096)


def say(event: str, **fields: Any) -> None:
    """Write a line to the parent."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def measure_class(engine: Engine, kernels: Sequence[Kernel], sampler: Sampler) -> None:
    """Measure kernels, in conversation with the parent. Raises WrongResultError."""
    parent = _Parent()
    expected = [sampler.prepare(kernel) for kernel in kernels]
    say("ready")
    _work_until(lambda: parent.told, parent, engine, kernels)
    for kernel, result in zip(kernels, expected, strict=True):
        if parent.gone:
            return
        sampled = sampler.measure(kernel, result, say)
        say("kernel", samples=sampled.samples, spread=sampled.spread, **sampled.time._asdict())
        parent.listen()
    say("done")
    _work_until(lambda: parent.gone, parent, engine, kernels)


def _work_until(
    ended: Callable[[], bool], parent: _Parent, engine: Engine, kernels: Sequence[Kernel]
) -> None:
    """Keep the GPU working, with all kernels in turn."""
    while not ended():
        for kernel in kernels:
            worked_s = 0.0
            while worked_s < _CHUNK_S:
                worked_s += engine.seconds(kernel.launch, 1)
            parent.listen()
            if ended():
                return


def main(argv: Sequence[str]) -> int:
    """``main(["A"])``; without a class only check that CuPy finds its libraries."""
    warnings.simplefilter("ignore")
    for name in _OTHER_PRECISIONS:
        os.environ.pop(name, None)
    try:
        from gpu_aware_profile.backends.cupy_library import libraries
        from gpu_aware_profile.kernels.cuda import CudaEngine

        if not argv:
            libraries()
            return 0
        engine = CudaEngine()
        free, needed = engine.free_bytes(), NEEDED_SHARE * engine.memory_bytes
        if free < needed:
            raise SourceError(
                f"only {free / 2**30:.1f} GiB of its memory are free, {needed / 2**30:.1f} GiB are"
                " needed: does another process use the GPU?"
            )
        measure_class(engine, kernels_of(argv[0], engine), Sampler(engine))
    except WrongResultError as exc:
        say("wrong", error=str(exc))
    except SourceError as exc:
        say("unusable", error=str(exc))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
