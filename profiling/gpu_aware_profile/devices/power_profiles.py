"""Workload power profiles of NVIDIA GPUs: which ones a GPU offers, and which are requested.

Drivers have them for data centre GPUs from Blackwell on. A requested profile changes clocks and
power of all that runs on the GPU, until it is cleared or the driver is loaded anew.
"""

import ctypes

from slurm_gpu_aware.clocks.nvml import Gpu

_Mask = ctypes.c_uint * 8  # nvmlMask255_t: a bit per profile, the lowest one first.
_VERSION = 1 << 24
_NAMES = (
    *("max_p", "max_q", "compute", "memory_bound", "network", "balanced", "llm_inference"),
    *("llm_training", "rbm", "dcpcie", "hmma_sparse", "hmma_dense", "sync_balanced", "hpc", "mig"),
    *("max_q_1", "network_bound", "high_throughput_inference", "medium_throughput_inference"),
    *("low_latency_inference", "training", "inference", "max_q_2", "max_q_3"),
    "low_priority_background",
)
"""Words of nvmlPowerProfileType_t, by number; of a later one the number stands."""


class _CurrentProfiles(ctypes.Structure):
    """nvmlWorkloadPowerProfileCurrentProfiles_v1_t"""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("offered", _Mask),
        ("requested", _Mask),
        ("enforced", _Mask),
    )


def offered_profiles(gpu: Gpu) -> str | None:
    """``max_p max_q compute``; None: this GPU or driver has none. Raises NvmlError."""
    found = _current(gpu)
    return None if found is None else _words(found.offered)


def requested_profiles(gpu: Gpu) -> str | None:
    """``max_q``; empty: none is requested. None, and raises, as `offered_profiles`."""
    found = _current(gpu)
    return None if found is None else _words(found.requested)


def _current(gpu: Gpu) -> _CurrentProfiles | None:
    found = _CurrentProfiles(version=_VERSION | ctypes.sizeof(_CurrentProfiles))
    name = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
    return found if gpu.tried(name, ctypes.byref(found)) else None


def _words(mask: ctypes.Array[ctypes.c_uint]) -> str:
    bits = int.from_bytes(bytes(mask), "little")  # there is no NVML that is not little-endian
    numbers = (number for number in range(bits.bit_length()) if bits >> number & 1)
    return " ".join(_NAMES[n] if n < len(_NAMES) else f"profile_{n}" for n in numbers)
