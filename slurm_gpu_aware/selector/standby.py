"""Standby: decides whether this selector works or waits for that of another host.

The selector beside the slurmctld in control works: the filter's and jobcomp's files are on its
host. Another takes over only if the holder of the gate is silent. So exactly one works, and after
a takeover by slurmctld that of its host follows within about a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.licence_gate import gate_reservation, working_elsewhere
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.controllers import Controllers

log = logging.getLogger(__name__)

WAIT_S = 0.5
"""Pause between two decisions."""
CALL_S = 2.5
"""Longest call to Slurm until the gate is taken: 2 s to find that the other host is dead
(TCPTimeout), then the answer. While no slurmctld is in control, calls do not end by themselves, and
after a standby's answer libslurm sleeps for half of SlurmctldTimeout before it asks again."""
_LOOK_S = 5.0  # pause between two looks at the gate's reservation


class Standby:
    """Decides whether this selector may take the gate.

    ``client``: its calls should take at most `CALL_S`.
    """

    def __init__(
        self,
        client: SlurmClient,
        config: Config,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._config = config
        self._clock, self._timer = clock, timer
        self._controllers: Controllers | None = None
        self._looked = -float("inf")
        self._standing_by_for = ""

    def may_work(self) -> bool:
        """Whether this selector may take the gate now. Raises SourceError."""
        if self._controllers is None:
            self._controllers = Controllers(self.client.settings(), self._timer)
        if self._controllers.here():
            self._working("slurmctld of this host is in control")
            return True
        if self._controllers.gone or self._timer() - self._looked < _LOOK_S:
            return False
        found = gate_reservation(self.client, self._config.gate)
        self._looked = self._timer()
        other = working_elsewhere(found, self._controllers.only, self._config, self._clock())
        if other is None:
            self._looked = -float("inf")
            self._working("no other selector holds the gate")
            return True
        if other.host != self._standing_by_for:
            log.info("stands by: the selector of host %s works", other.host)
            self._standing_by_for = other.host
        return False

    def _working(self, why: str) -> None:
        if self._standing_by_for:
            log.info("takes over from the selector of host %s: %s", self._standing_by_for, why)
        self._standing_by_for = ""
