"""One round of planning: order, guarantee, backfill, placement. Pure."""

from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting

__all__ = ["Plan", "PlanSettings", "Waiting"]
