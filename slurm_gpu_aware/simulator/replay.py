"""Replay: plans recorded rounds of the live selector again and compares the placements."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu_aware.planning.record import Placed, RecordedRound, read_round
from slurm_gpu_aware.planning.round import plan_round
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ledger import Ledger

__all__ = ["Difference", "replay", "replay_ledger"]


@dataclass(frozen=True)
class Difference:
    """A job with another placement in the replay; a placement of None: it waits."""

    now: float
    """Time of the round."""
    job_id: str
    then: object
    """(node names, slots) in the recorded round."""
    again: object


def replay(recorded: RecordedRound) -> list[Difference]:
    """Plan a round as the simulator does; return every job with another placement."""
    plan = plan_round(
        recorded.queue,
        recorded.cluster,
        recorded.settings,
        recorded.now,
        policy_options=recorded.policy_options,
    )
    again: Placed = {
        a.job_id: (tuple(recorded.cluster.nodes[n] for n in a.nodes), a.slots)
        for a in plan.assignments
    }
    return [
        Difference(recorded.now, job, recorded.placed.get(job), again.get(job))
        for job in sorted(recorded.placed.keys() | again.keys())
        if recorded.placed.get(job) != again.get(job)
    ]


def replay_ledger(store: Store) -> tuple[int, list[Difference]]:
    """Replay every recorded round of the store; return their number and all differences.

    Raises StoreError or ValueError if a recorded round is damaged.
    """
    rounds = [read_round(content) for content in Ledger(store).snapshots()]
    return len(rounds), [difference for one in rounds for difference in replay(one)]
