"""What Slurm shows at one moment, for metrics: jobs, nodes, the gate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.licence_gate import gate_reservation, is_silent
from slurm_gpu_aware.selector.live_jobs import LiveJob, live_job
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmNode


@dataclass(frozen=True)
class GateView:
    """The gate's reservation. Times are Unix seconds."""

    exists: bool
    """It is there and has not ended: parked jobs wait."""
    silent: bool
    """The last heartbeat is older than that of a running selector."""
    start_s: float | None = None
    """None: there is no reservation."""
    end_s: float | None = None
    heartbeat_s: float | None = None
    """Of the last heartbeat."""
    used: bool = True
    """False: there is no reservation, and no selector has worked on this host."""


@dataclass(frozen=True)
class SlurmView:
    """One answer of Slurm."""

    at: float
    jobs: Sequence[LiveJob]
    nodes: Sequence[SlurmNode]
    gate: GateView | None
    """None: Slurm hides reservations from this user."""


def slurm_view(
    client: SlurmClient, config: Config, clock: Callable[[], float] = time.time
) -> SlurmView:
    """Ask Slurm. Raises SourceError; takes at most the client's time limit for each of 4 calls."""
    client.parking_licence = config.gate.licence
    jobs = [live_job(job, config) for job in client.jobs()]
    nodes = client.nodes()
    found = gate_reservation(client, config.gate)
    now = clock()
    gate: GateView | None
    if found is not None:
        silent = is_silent(found.end_s, config, now)
        beat = found.end_s - config.gate.lease_s
        gate = GateView(found.end_s > now, silent, found.start_s, found.end_s, beat)
    else:
        hidden = client.config().private_reservations
        gate = None if hidden else GateView(exists=False, silent=True)
    return SlurmView(now, jobs, nodes, gate)
