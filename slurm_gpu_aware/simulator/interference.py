"""How jobs that share a machine slow each other down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.placement.drb.interference import InterferenceProfile
from slurm_gpu_aware.simulator.trace import TraceJob

__all__ = ["Interference", "Kind"]

Kind = tuple[str, int]
"""Model of a job (``TraceJob.model``) and its GPU count."""


@dataclass(frozen=True)
class Interference:
    """Measured pairs: co-located time / solo time of a job beside another (Amaral et al., SC'17,
    section 3.2)."""

    pairs: Mapping[tuple[Kind, Kind], float]
    """(job, neighbour) -> factor on the job's time. A pair that was not measured counts as 1."""

    @classmethod
    def of(cls, profile: InterferenceProfile) -> Interference:
        """The measured pairs of a profile."""
        found = {pair: profile.slowdown(*pair) for pair in profile.together}
        return cls({pair: ratio for pair, ratio in found.items() if ratio is not None})

    def factor(self, job: TraceJob, others: Sequence[TraceJob]) -> float:
        """Slowdown >= 1 of ``job`` beside ``others``.

        With several neighbours the excess over 1 of each is added: only pairs were measured.
        A measured gain (noise) counts as no interference.
        """
        own = (job.model or "", job.gpus)
        excess = 0.0
        for other in others:
            pair = self.pairs.get((own, (other.model or "", other.gpus)), 1.0)
            excess += max(pair - 1.0, 0.0)
        return 1.0 + excess
