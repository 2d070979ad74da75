"""Licences of users: a placed job that lacks one would wait with its gate open."""

from __future__ import annotations

from collections.abc import Sequence, Set

from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation
from slurm_gpu_aware.slurm.values import parse_licenses

__all__ = ["Licences", "own_licences"]


def own_licences(job: SlurmJob, reservations: Sequence[SlurmReservation]) -> frozenset[str]:
    """Licences that the reservations named by a job hold."""
    names = (job.reservation or "").split(",")
    return frozenset(name for r in reservations if r.name in names for name, _ in r.licenses)


class Licences:
    """Free licences, less those of the jobs that this round places."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._free: dict[str, int] | None = None

    def lacking(self, text: str | None, own: Set[str] = frozenset()) -> str | None:
        """Name of a licence of which too few are free; None: there are enough of each.

        ``own``: licences that the job's reservation holds for it, which never count as free.
        """
        for name, count in self._wanted(text):
            if name not in own and self._known().get(name, count) < count:
                return name
        return None

    def take(self, text: str | None) -> None:
        """Count a job's licences as in use."""
        for name, count in self._wanted(text):
            if name in self._known():
                self._known()[name] -= count

    def _known(self) -> dict[str, int]:
        if self._free is None:
            self._free = self._client.free_licenses()
        return self._free

    @staticmethod
    def _wanted(text: str | None) -> tuple[tuple[str, int], ...]:
        try:
            return parse_licenses(text or "")
        except ValueError:
            return ()
