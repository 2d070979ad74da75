"""Verdicts that a job is impossible: one counts when two rounds in a row come to the same.

Each round reads Slurm anew. What one reading alone shows (a node between two states, a record that
is just being written) takes no job its gate and is told to no user.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slurm_gpu_aware.planning.plan import Plan

DOUBTFUL = "no place was found for it; the next round looks again"


@dataclass
class Verdicts:
    """The verdicts of the last round: job -> reason."""

    _before: dict[str, str] = field(default_factory=dict)

    def confirmed(self, plan: Plan, *, complete: bool) -> tuple[Plan, int]:
        """(The plan with only the verdicts that the last round came to, too; how many the next one
        may confirm). ``complete``: whether every record of Slurm was read."""
        found = {one.job_id: one.reason for one in plan.waiting if one.infeasible}
        old = {job_id for job_id, why in found.items() if self._before.get(job_id) == why}
        self._before = found if complete else {}
        waiting = tuple(
            replace(one, infeasible=False, reason=DOUBTFUL)
            if one.infeasible and not (complete and one.job_id in old)
            else one
            for one in plan.waiting
        )
        return replace(plan, waiting=waiting), len(found) - len(old) if complete else 0
