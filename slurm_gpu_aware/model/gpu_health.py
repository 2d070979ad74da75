"""State of a GPU's hardware as its driver tells it, without any kernel of ours."""

from __future__ import annotations

from dataclasses import dataclass

THROTTLED = frozenset(
    ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
)
"""Reasons for a lower clock that no well GPU has: heat, or a power supply that is overloaded."""


@dataclass(frozen=True)
class GpuHealth:
    """Readings of one GPU. None: the GPU or its driver does not support the reading."""

    pcie_gen: int | None = None
    """Generation of the PCIe link now; idle GPUs lower it in states other than P0."""
    pcie_gen_most: int | None = None
    """The best generation of this GPU in this slot."""
    pcie_gen_gpu: int | None = None
    """The best generation of the GPU itself, in whatever slot."""
    pcie_lanes: int | None = None
    """Width of the link now."""
    pcie_lanes_most: int | None = None
    """The best width of this GPU in this slot."""
    performance_state: int | None = None
    """0: full clocks (P0)."""
    active_nvlinks: int | None = None
    """Those to CPUs and switches, too; 0: the GPU has links and none is active."""
    ecc_now: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remapped: int | None = None
    """Rows of memory that were replaced after uncorrectable errors, over the GPU's life."""
    remap_pending: bool | None = None
    """Whether a row, or before Ampere a page, waits for a reset to be replaced."""
    remap_failed: bool | None = None
    """Whether a row could not be replaced."""
    throttle: str | None = None
    """Reasons for a lower clock at this moment, separated by blanks; empty: none."""
