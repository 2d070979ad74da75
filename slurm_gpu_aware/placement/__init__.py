"""Placement of one job: policies, constraints and the search for sets of GPUs."""

from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.registry import make_policy, policy_names

__all__ = ["Policy", "make_policy", "policy_names"]
