"""Stages of the features, in the order in which a round takes them.

This module loads all of the planner, so programs that plan nothing do not import it.
"""

from importlib import import_module

from slurm_gpu_aware.features import FEATURES as NAMES
from slurm_gpu_aware.features import load_facts
from slurm_gpu_aware.planning.stages import Stage

load_facts()  # Records of rounds and what a move keeps hold those of all.


def _stage(folder: str, name: str) -> Stage:
    made: Stage = getattr(import_module(f"slurm_gpu_aware.features.{folder}.stage"), name)()
    return made


FEATURES: tuple[Stage, ...] = tuple(_stage(*name.split(".")) for name in NAMES if "." in name)
