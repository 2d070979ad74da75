"""Controllers: the hosts of slurmctld, and which of them is in control."""

import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_HOST = re.compile(r"SlurmctldHost\[([0-9]+)\]\Z")
_HEARTBEAT = struct.Struct("!QQ")
"""Content of slurmctld's heartbeat file: Unix time, number of the SlurmctldHost."""
_LONGEST_BEAT_S = 30.0  # slurmctld writes the file after a quarter of SlurmctldTimeout, or this
_LATE_S = 5.0


class Controllers:
    """Hosts that ``SlurmctldHost`` names; ``settings``: Slurm's configuration."""

    def __init__(
        self, settings: Mapping[str, str], timer: Callable[[], float] = time.monotonic
    ) -> None:
        found = {int(m[1]): settings[m[0]] for m in map(_HOST.match, settings) if m}
        self.hosts = [found[number].partition("(")[0] for number in sorted(found)]
        """In the order of slurm.conf: the first is the primary."""
        self.heartbeat_file = Path(settings.get("StateSaveLocation", ""), "heartbeat")
        """Written by the slurmctld in control, if there are several; SlurmUser can read it."""
        seconds = re.match(r"[0-9]+", settings.get("SlurmctldTimeout", ""))
        self.timeout_s = float(seconds[0]) if seconds else 120.0
        """SlurmctldTimeout."""
        self._timer = timer
        self._beat: tuple[int, int] | None = None
        self._changed = timer()

    def in_control(self) -> str | None:
        """Host of the slurmctld in control, or of the last one; None: not known."""
        if len(self.hosts) < 2:
            return next(iter(self.hosts), None)
        try:
            with self.heartbeat_file.open("rb") as file:
                at, number = _HEARTBEAT.unpack(file.read(_HEARTBEAT.size))
        except (OSError, struct.error):  # slurmctld replaces it, or it is not there
            return None
        if (at, number) != self._beat and number < len(self.hosts):
            self._beat, self._changed = (at, number), self._timer()
        return self.hosts[number] if number < len(self.hosts) else None

    @property
    def only(self) -> str | None:
        """The host, if there is one only."""
        return self.hosts[0] if len(self.hosts) == 1 else None

    @property
    def elsewhere(self) -> bool:
        """Whether this host runs no slurmctld; False: it does, or its hosts are not known."""
        return bool(self.hosts) and len(self.others) == len(self.hosts)

    @property
    def others(self) -> list[str]:
        """Hosts beside this one."""
        here = socket.gethostname()
        return [host for host in self.hosts if not same_host(host, here)]

    def here(self) -> bool:
        """Whether the slurmctld of this host is in control; False: not, or not known."""
        host = self.in_control()
        return host is not None and same_host(host, socket.gethostname())

    @property
    def gone(self) -> bool:
        """Whether none is in control, so that a call to Slurm would hang; by `in_control`."""
        beat_s = min(self.timeout_s / 4, _LONGEST_BEAT_S)
        return self._beat is not None and self._timer() - self._changed > beat_s + _LATE_S


def same_host(one: str, other: str) -> bool:
    """Whether two names, with or without domain, are of one host."""
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()
