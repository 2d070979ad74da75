"""QOS, read from slurmdbd beside the rounds: a slurmdbd that hangs holds up no round."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmQos

__all__ = ["QosReader"]

log = logging.getLogger(__name__)

_WAIT_S = 0.5
"""So long a round waits for an answer; usual ones take 0.05 s."""


class QosReader:
    """What was last known; each `refresh` asks anew unless the last question is still open."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._thread: threading.Thread | None = None
        self.known: Mapping[str, SlurmQos] = {}
        """QOS by name."""

    def refresh(self) -> None:
        """Ask, and wait a moment for the answer; a later one counts as soon as it is there."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="qos", daemon=True)
            self._thread.start()
        self._thread.join(_WAIT_S)

    def _read(self) -> None:
        try:
            self.known = {qos.name: qos for qos in self._client.qos()}
        except SourceError as exc:
            log.warning("which QOS preempt others is not known anew: %s", exc)
        except Exception:
            log.exception("which QOS preempt others is not known anew")
