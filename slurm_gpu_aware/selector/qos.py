"""Reader of QOS in a thread, so that a slurmdbd that hangs does not delay rounds."""

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
"""Longest wait of a round for an answer, which usually takes 0.05 s."""


class QosReader:
    """The last known QOS; `refresh` asks again unless a question is open."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._thread: threading.Thread | None = None
        self.known: Mapping[str, SlurmQos] = {}
        """QOS by name."""

    def refresh(self) -> None:
        """Ask, and wait a moment for the answer; a later answer counts when it arrives."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="qos", daemon=True)
            self._thread.start()
        self._thread.join(_WAIT_S)

    def _read(self) -> None:
        try:
            self.known = {qos.name: qos for qos in self._client.qos()}
        except SourceError as exc:
            log.warning("QOS cannot be read; the last known ones count: %s", exc)
        except Exception:
            log.exception("QOS cannot be read; the last known ones count")
