"""Stages of the features, in the order in which a round takes them.

This module loads all of the planner, so programs that plan nothing do not import it.
"""

from importlib import import_module
from importlib.util import find_spec

from slurm_gpu_aware.features import FEATURES as NAMES
from slurm_gpu_aware.features import load_facts, wrong_entry
from slurm_gpu_aware.planning.stages import Stage

load_facts()  # Records of rounds and what a move keeps hold those of all.


def _stage(entry: str) -> Stage:
    """The stage of an entry of the list. Raises ConfigError."""
    folder, _, name = entry.partition(".")
    path = f"slurm_gpu_aware.features.{folder}.stage"
    there = vars(import_module(path)).values() if find_spec(path) is not None else ()
    own = (one for one in there if isinstance(one, type) and one.__module__ == path)
    kinds = {one.__name__: one for one in own if issubclass(one, Stage)}
    if name not in kinds:
        known = ", ".join(kinds) or "none"
        raise wrong_entry(entry, f"a stage of {folder}/stage.py; known: {known}")
    return kinds[name]()


FEATURES: tuple[Stage, ...] = tuple(_stage(name) for name in NAMES if "." in name)
