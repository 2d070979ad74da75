"""Planning of one round: order, guaranteed prefix, placement, preemption, backfill."""

from slurm_gpu_aware.planning.plan import Plan, PlanSettings, Waiting
from slurm_gpu_aware.planning.round import plan_round

__all__ = ["Plan", "PlanSettings", "Waiting", "plan_round"]
