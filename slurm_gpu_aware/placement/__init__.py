"""Which GPUs a job gets: one policy per module behind the protocol of ``policy``."""

from slurm_gpu_aware.placement.policy import Policy, make_policy, policy_names

__all__ = ["Policy", "make_policy", "policy_names"]
