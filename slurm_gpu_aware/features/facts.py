"""Modules of facts: `Facts.read` knows the facts of those that are loaded.

Who reads facts that others have stated (of the ledger, of a record of a round) loads all of them.
"""

from functools import cache
from importlib import import_module

from slurm_gpu_aware.features import found


@cache
def load_facts() -> None:
    """Load the facts of policies, the planner and features, whatever the policy of a row is."""
    from slurm_gpu_aware.placement.policy import policy_class, policy_names

    for name in policy_names():
        policy_class(name)
    for room in ("placement", "planning"):
        import_module(f"slurm_gpu_aware.{room}.facts")
    list(found("declared", "FACTS"))
