"""Which GPUs a job gets: one policy per file behind the base class of ``policy``."""

from slurm_gpu_aware.placement.policy import Policy
from slurm_gpu_aware.placement.registry import make_policy, policy_names

__all__ = ["Policy", "make_policy", "policy_names"]
