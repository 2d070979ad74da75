"""Child process that measures links of NVIDIA GPUs with CuPy and NCCL.

Reads requests and prints answers, one JSON object a line: ``{"pair": [0, 1]}``,
``{"all_reduce": [0, 2, 3]}``; an answer has the fields of `link_runs.PairReading` or
`AllReduceReading`, or ``error``. GPUs are CUDA's device numbers. It ends with its input.

CUDA events time the copies and all-reduces, a batch of them at a time; the median of the batches
counts. Each result is checked on the GPU. After an error the process should be replaced: CUDA may
refuse everything from then on.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import IO, Any

import numpy as np

from gpu_aware_profile.backends.timing import nccl_library
from slurm_gpu_aware.errors import SourceError

MOST_BYTES = 1 << 28  # Size of a message; less if a GPU has little free memory.
_BATCHES = 5
_BATCH_MS = 40.0  # A batch has as many operations as fit into this time, and at least two.
_MOST_OPERATIONS = 64
_CHASE_BYTES = 1 << 21
_LINE = 32  # Elements of a cache line of 128 bytes.
_CHASE = r"""
extern "C" __global__ void chase(const unsigned int *next, unsigned int steps, unsigned int *end) {
    unsigned int at = 0;
    for (unsigned int i = 0; i < steps; i++)
        at = next[at];
    *end = at;
}
"""


class WrongDataError(Exception):
    """A GPU received other data than were sent."""


class LinkWorker:
    """Measures on GPUs of this process. ``cupy``: the module."""

    def __init__(self, cupy: Any) -> None:
        self.cp = cupy
        self.runtime = cupy.cuda.runtime

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer of one request; failures are in ``error``."""
        try:
            if "pair" in request:
                return self.pair(*request["pair"])
            return self.all_reduce(request["all_reduce"])
        except Exception as exc:  # CuPy's errors have no common base
            return {"error": f"{type(exc).__name__}: {exc}"}

    def pair(self, a: int, b: int) -> dict[str, Any]:
        """Copies a to b, b to a, both at once; loads from the other GPU's memory."""
        peers = self._enable_peers(a, b)
        words = self._message_bytes([a, b]) // 4
        filled, received = {}, {}
        streams = {}
        for device in (a, b):
            with self.cp.cuda.Device(device):
                filled[device] = self._pattern(words, device)
                received[device] = self.cp.zeros(words, dtype=self.cp.uint32)
                streams[device] = self.cp.cuda.Stream(non_blocking=True)
                self.runtime.deviceSynchronize()

        def copy(source: int, target: int) -> None:
            self.runtime.memcpyPeerAsync(
                received[target].data.ptr,
                target,
                filled[source].data.ptr,
                source,
                4 * words,
                streams[source].ptr,
            )

        def both() -> None:
            copy(a, b)
            with self.cp.cuda.Device(b):
                copy(b, a)

        forth = self._batches_ms([a], streams, lambda: copy(a, b))
        back = self._batches_ms([b], streams, lambda: copy(b, a))
        at_once = self._batches_ms([a, b], streams, both)
        for source, target in ((a, b), (b, a)):
            with self.cp.cuda.Device(target):
                if not bool((received[target] == self._pattern(words, source)).all()):
                    raise WrongDataError(
                        f"wrong data after a copy from CUDA device {source} to {target}"
                    )
        latencies = [self._latency_us(*ends) for ends in ((a, b), (b, a))] if peers else []
        return {
            "ab_gbps": _gbps(4 * words, forth),
            "ba_gbps": _gbps(4 * words, back),
            "both_gbps": _gbps(2 * 4 * words, at_once),
            "latency_us": sum(latencies) / 2 if latencies else None,
        }

    def all_reduce(self, devices: Sequence[int]) -> dict[str, Any]:
        """Sum over these GPUs in single precision."""
        from cupy.cuda import nccl

        k = len(devices)
        words = self._message_bytes(devices) // 4
        sent, received, streams = {}, {}, {}
        for rank, device in enumerate(devices):
            with self.cp.cuda.Device(device):
                # Whole numbers below 2^24: their sum is exact in any order.
                sent[device] = self._pattern(words, rank).astype(self.cp.float32)
                received[device] = self.cp.zeros(words, dtype=self.cp.float32)
                streams[device] = self.cp.cuda.Stream(non_blocking=True)
                self.runtime.deviceSynchronize()
        ranks = nccl.NcclCommunicator.initAll(list(devices))

        def reduce() -> None:
            nccl.groupStart()
            for device, rank in zip(devices, ranks, strict=True):
                with self.cp.cuda.Device(device):
                    rank.allReduce(
                        sent[device].data.ptr,
                        received[device].data.ptr,
                        words,
                        nccl.NCCL_FLOAT32,
                        nccl.NCCL_SUM,
                        streams[device].ptr,
                    )
            nccl.groupEnd()

        try:
            took_ms = self._batches_ms(devices, streams, reduce)
        finally:
            for rank in ranks:
                rank.destroy()
        for device in devices:
            with self.cp.cuda.Device(device):
                expected = sum(
                    self._pattern(words, rank).astype(self.cp.float32) for rank in range(k)
                )
                if not bool((received[device] == expected).all()):
                    raise WrongDataError(f"wrong sum on CUDA device {device} of {list(devices)}")
        gbps = 2.0 * (k - 1) / k * _gbps(4 * words, took_ms)
        return {"gbps": gbps, "size_bytes": 4 * words}

    def _pattern(self, words: int, seed: int) -> Any:
        """Words of up to 17 bits on the current device, other ones for each seed."""
        words_32 = self.cp.arange(words, dtype=self.cp.uint32) * self.cp.uint32(2654435761)
        return (words_32 >> self.cp.uint32(15)) ^ self.cp.uint32(seed + 1)

    def _message_bytes(self, devices: Sequence[int]) -> int:
        """An eighth of the free memory of the GPU that has least, at most ``MOST_BYTES``."""
        free = []
        for device in devices:
            with self.cp.cuda.Device(device):
                self.cp.get_default_memory_pool().free_all_blocks()
                free.append(self.runtime.memGetInfo()[0])
        return int(max(1 << 20, min(MOST_BYTES, *(size // 8 for size in free)))) // 4096 * 4096

    def _enable_peers(self, a: int, b: int) -> bool:
        """Let each GPU read the other's memory; False: this pair cannot, copies go by the host."""
        for device, peer in ((a, b), (b, a)):
            if not self.runtime.deviceCanAccessPeer(device, peer):
                return False
            with self.cp.cuda.Device(device), suppress(self.runtime.CUDARuntimeError):
                self.runtime.deviceEnablePeerAccess(peer)  # fails if it is enabled
        return True

    def _batches_ms(
        self, devices: Sequence[int], streams: dict[int, Any], issue: Callable[[], None]
    ) -> float:
        """Time of one ``issue`` on the streams of these devices. Units: ms."""
        first = devices[0]

        def batch(operations: int) -> float:
            with self.cp.cuda.Device(first):
                start, end = (self.cp.cuda.Event() for _ in range(2))
                start.record(streams[first])
                for device in devices[1:]:
                    streams[device].wait_event(start)
                for _ in range(operations):
                    issue()
                for device in devices[1:]:
                    with self.cp.cuda.Device(device):
                        done = self.cp.cuda.Event(disable_timing=True)
                        done.record(streams[device])
                    streams[first].wait_event(done)
                end.record(streams[first])
                end.synchronize()
                return float(self.cp.cuda.get_elapsed_time(start, end)) / operations

        batch(2)  # warm-up: connections are made at first use
        operations = max(2, min(_MOST_OPERATIONS, round(_BATCH_MS / max(batch(2), 1e-3))))
        return median(batch(operations) for _ in range(_BATCHES))

    def _latency_us(self, reader: int, owner: int) -> float:
        """Time of a load of ``reader`` from the memory of ``owner``, each after the one before."""
        lines = _CHASE_BYTES // 4 // _LINE
        # Of NumPy, because random numbers of CuPy need cuRAND, which a site may not have.
        order = np.random.default_rng(1).permutation(lines) * _LINE
        ring = np.zeros(lines * _LINE, np.uint32)
        ring[order] = np.roll(order, -1)
        with self.cp.cuda.Device(owner):
            chain = self.cp.asarray(ring)
            self.runtime.deviceSynchronize()
        with self.cp.cuda.Device(reader):
            kernel = self.cp.RawKernel(_CHASE, "chase")
            end = self.cp.ones(1, dtype=self.cp.uint32)
            stream = self.cp.cuda.Stream(non_blocking=True)
            self.runtime.deviceSynchronize()

            def read() -> None:
                with stream:
                    kernel((1,), (1,), (chain.data.ptr, self.cp.uint32(lines), end))

            took_ms = self._batches_ms([reader], {reader: stream}, read)
            if int(end[0]) != 0:  # the chain is a ring through element 0
                raise WrongDataError(f"wrong data read by CUDA device {reader} from {owner}")
        return 1000.0 * took_ms / lines


def _gbps(size_bytes: int, took_ms: float) -> float:
    return size_bytes / took_ms / 1e6


def main(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until their end."""
    try:
        nccl_library()
        import cupy
    except SourceError as exc:
        worker, missing = None, str(exc)
    else:
        worker, missing = LinkWorker(cupy), ""
    for line in requests:
        answer = worker.answer(json.loads(line)) if worker else {"error": missing}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # NCCL prints to stdout if NCCL_DEBUG is set.
    with os.fdopen(os.dup(1), "w") as original:
        os.dup2(2, 1)
        main(sys.stdin, original)
