"""Power on the site: the records of its nodes, and what the ledger keeps of it."""

import math
import time
from collections.abc import Mapping
from typing import Any

from slurm_gpu_aware.features.energy.live import JobEnergies
from slurm_gpu_aware.features.power.clock_spool import ClockSpool
from slurm_gpu_aware.features.power.metrics import PowerReading, reading_text
from slurm_gpu_aware.features.power.site_power import SitePower
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.live import Live, Site

_AGAIN_S = 60.0  # longest time between two records of power under a limit


class NodeRecords(Live):
    """Takes the records of the nodes; tells the power of a round."""

    name = "records of nodes"

    def __init__(self, site: Site) -> None:
        self.site, self._power, self._energies = site, site.of(SitePower), site.of(JobEnergies)
        note = site.config.store.path.parent / "clocks.offsets"
        self._spool = None if site.spool is None else ClockSpool(site.spool, note)
        self._last: object = "unknown"
        self._written = -math.inf

    def load(self) -> None:
        """Take what the agents have reported so far."""
        if self._spool is not None:
            self._power.clocks.reported(self._spool.agents)

    def before_round(self) -> None:
        """Take new records while an answer is awaited."""
        if self._power.awaits:
            self._collect()

    def after_round(self) -> Mapping[str, float | None]:
        """Take new records; the power of the site under a limit."""
        with contained("records of clocks"):
            self._collect()
        power = self._power.reading()
        self._tell(power)
        if power is None:
            return {}
        watts = power.limit_w, power.planned_w, power.all_measured_w
        return dict(zip(("limit_w", "planned_w", "measured_w"), watts, strict=True))

    def _tell(self, power: PowerReading | None) -> None:
        """Write it for ``gpu-aware status``: a change, or now and then while there is a limit."""
        changed = _kept(power) != self._last
        again = changed or (power is not None and time.monotonic() - self._written >= _AGAIN_S)
        if again:
            self._last, self._written = _kept(power), time.monotonic()
            self.site.ledger.power(reading_text(power))
            self.site.news |= power is not None

    def _collect(self) -> None:
        if self._spool is not None:
            ids = self.site.ids
            self._spool.collect(self.site.ledger, lambda raw: ids.get(raw, str(raw)), self._heard)
            self._power.clocks.reported(self._spool.agents)

    def _heard(self, job_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        self._power.clocks.heard(job_id, kind, detail)
        if kind == "energy":
            self._energies.heard(job_id)


def _kept(power: PowerReading | None) -> object:
    """What of a reading is recorded at once when it changes; the measured power is not."""
    return power and (
        *(power.limit, power.limit_w, power.planned_w, power.keeps_clock),
        *(power.agents, power.no_model),
    )


LIVES = (SitePower, NodeRecords)
