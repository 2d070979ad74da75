"""Licences of the users' jobs in a round: those that are free, and those that it gives away."""

from collections.abc import Sequence
from functools import cached_property

from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmReservation
from slurm_gpu_aware.slurm.words import parse_licenses


class Licences:
    """Free licences, less those of the jobs that this round places; asks Slurm once."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client

    @cached_property
    def _free(self) -> dict[tuple[str, frozenset[str]], int]:
        return {(one.name, one.nodes): one.free for one in self._client.licenses()}

    def _counted(self, gated: GatedJob, name: str) -> list[tuple[str, frozenset[str]]]:
        """Where the licence is counted for nodes that the job may get; empty: nowhere."""
        asked, off = {*gated.job.req_nodes}, {*gated.job.exc_nodes}
        named = ((one, nodes) for one, nodes in self._free if one == name)
        return [
            (one, nodes)
            for one, nodes in named
            if not nodes or (not nodes.isdisjoint(asked) if asked else nodes - off)
        ]

    def lacking(self, gated: GatedJob, reservations: Sequence[SlurmReservation]) -> str | None:
        """Name of a licence of which too few are free; None: there are enough of each.

        Licences that Slurm counts by node: too few for each node that the job may get.
        """
        names = (gated.job.reservation or "").split(",")
        # Licences that the job's reservation holds for it never count as free.
        own = {name for r in reservations if r.name in names for name, _ in r.licenses}
        for name, count in _licences(gated):
            free = [self._free[key] for key in self._counted(gated, name)]
            if name not in own and max(free, default=count) < count:
                return name
        return None

    def of_nodes(self, gated: GatedJob) -> str | None:
        """Why only Slurm knows the nodes that a job's licences leave; None: they leave all."""
        by_node = {name for name, nodes in self._free if nodes}
        names = (name for name, _ in _licences(gated) if name in by_node)
        return next((f"licence {name} is counted by node" for name in names), None)

    def use(self, gated: GatedJob) -> None:
        """Count a job's licences as in use."""
        for name, count in _licences(gated):
            for key in self._counted(gated, name):
                self._free[key] -= count


def _licences(gated: GatedJob) -> tuple[tuple[str, int], ...]:
    try:
        return parse_licenses(gated.original.licenses or "")
    except ValueError:
        return ()
