"""Features: each stands in one folder, and in one line of the list here."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from slurm_gpu_aware.errors import ConfigError

FEATURES = (
    "sizes",
    "power",
    "models",
    "queue_order.QueueOrder",
    "energy.Clocks",
    "shards.Sharing",
    "moves.Returns",
    "moves.Moves",
    "power.Limit",
    "due_dates.DueDates",
    "power.Sizing",
    "due_dates.Bounds",
    "estimates",
    "baselines",
    "waiting",
    "classes",
    "shadow",
)
"""Folders, and classes of their ``stage.py`` in the order in which a round takes the stages.

Keys of the comment stand in messages in the order in which the list names their folders first. The
order of stages counts: all others see the turns of the queue, clocks that save
energy count in all run times, shards take nothing from moves, and power is counted after both.
"""


def folders() -> list[str]:
    """The folders of the list, each once. Raises ConfigError for one that is not there."""
    there = [module.name for module in iter_modules(__path__) if module.ispkg]
    for entry in FEATURES:
        if entry.partition(".")[0] not in there:
            raise wrong_entry(entry, f"a folder with an __init__.py; known: {', '.join(there)}")
    return list(dict.fromkeys(one.partition(".")[0] for one in FEATURES))


def wrong_entry(entry: str, what: str) -> ConfigError:
    """The error that an entry of the list does not name ``what``."""
    return ConfigError(f"{__file__}: FEATURES: {entry!r} does not name {what}")


def found(module: str, name: str) -> Iterator[Any]:
    """What the modules of a name in the folders of features have under a name, if they have it."""
    for folder in folders():
        path = f"{__name__}.{folder}.{module}"
        if find_spec(path) is not None and hasattr(there := import_module(path), name):
            yield getattr(there, name)


@cache
def load_facts() -> None:
    """Load the facts of policies, the planner and features: `Facts.read` knows those loaded.

    Who reads facts that others have stated (of the ledger, of a record of a round) needs all.
    """
    policies = import_module("slurm_gpu_aware.placement.policy")
    for name in policies.policy_names():
        policies.policy_class(name)
    for room in ("placement", "planning"):
        import_module(f"slurm_gpu_aware.{room}.facts")
    list(found("declared", "FACTS"))
