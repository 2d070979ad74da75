"""Orders of the queue on a site's history: the one to propose, and who pays for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu_aware.simulator.result import Result, ended_in_all
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.simulator.tuning import Verdict, compare, interval, verdict

SLURM = "slurm"
"""The order that all others are compared with."""
COMPARED = ("equal", "backfill", "expected=0.1", "expected=0.3", "expected=1")
"""Orders that are compared unless others are named."""
_LEAST_SHARE = 0.005
"""A smaller change of a completion time is none."""
Found = Mapping[str, Sequence[Mapping[str, float]]]
"""Order -> per seed measure, or payer, -> value."""


@dataclass(frozen=True)
class Change:
    """How much longer the jobs of one payer take: shares, 0.04 is 4%."""

    mean: float
    """Geometric mean over the seeds."""
    low: float
    """Ends of the 95% interval."""
    high: float

    @property
    def pays(self) -> bool:
        """Whether its jobs take longer beyond the uncertainty."""
        return self.low > 0.0 and self.mean > _LEAST_SHARE


def payers_of(jobs: Sequence[TraceJob]) -> list[str]:
    """Who each job belongs to: its account, or its user if the history has one account or none.

    Empty texts: it is not known.
    """
    accounts = [job.account or "" for job in jobs]
    several = len(set(filter(None, accounts))) > 1
    return accounts if several else [job.user or "" for job in jobs]


def paid(results: Sequence[Result]) -> list[dict[str, float]]:
    """Payer -> average completion time in each run, over the jobs that ended in all. Units: s."""
    among = ended_in_all(results)
    payers = np.array(payers_of(results[0].trace.jobs), dtype=np.str_)
    names, codes = np.unique(payers, return_inverse=True)
    counts = np.bincount(codes[among], minlength=len(names))
    sums = [np.bincount(codes[among], r.jct_s(among), len(names)) for r in results]
    return [
        {
            str(name): float(total / count)
            for name, total, count in zip(names, each, counts, strict=True)
            if name and count
        }
        for each in sums
    ]


def changes(payers: Found, order: str) -> dict[str, Change]:
    """Payer -> what an order costs it against Slurm's, the largest mean first.

    Payers that are not in every seed, which have few jobs, are left out.
    """
    ours, theirs = payers[order], payers[SLURM]
    found = {}
    for name in set.intersection(*(set(seed) for seed in theirs)):
        pairs = zip(ours, theirs, strict=True)
        logs = [math.log(max(a[name], 1.0) / max(b[name], 1.0)) for a, b in pairs]
        found[name] = Change(*np.expm1(interval(np.array(logs))).tolist())
    return dict(sorted(found.items(), key=lambda item: (-item[1].mean, item[0])))


def proposal(found: Found, present: str) -> Verdict:
    """The order to propose. ``found``: order -> measures per seed, `SLURM` among them."""
    gains = any(compare(of, found[SLURM]).low > 0 for name, of in found.items() if name != SLURM)
    nothing = "No order is proposed" if gains else "There is nothing to gain by another order"
    return verdict(found, SLURM, present, nothing)
