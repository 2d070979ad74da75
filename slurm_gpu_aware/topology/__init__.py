"""Links inside a machine: hardware graphs, communication patterns and their matching.

========== ==============================================================
machines   known machines by name
patterns   ring, tree, ring+tree, all-to-all, none, edge lists
bandwidth  AggBW, EffBW, PreservedBW (MAPA, eqs. 1 to 3), refit of eq. 2
locality   locality levels of a cluster
distances  path lengths of the physical graph (topo-aware)
matching   best embedding on every set of up to 16 GPUs
rings, trees, general, orders, extend, subsets   the searches behind ``matching``
========== ==============================================================
"""

from slurm_gpu_aware.model.hardware_graph import HardwareGraph, uniform_graph
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, PAPER, EffBwModel, eq2, fit_eq2
from slurm_gpu_aware.topology.machines import machine, machine_names
from slurm_gpu_aware.topology.matching import Match, match
from slurm_gpu_aware.topology.patterns import NAMED_PATTERNS, Pattern, parse_pattern

__all__ = [
    "BOTTLENECK",
    "NAMED_PATTERNS",
    "PAPER",
    "EffBwModel",
    "HardwareGraph",
    "Match",
    "Pattern",
    "eq2",
    "fit_eq2",
    "machine",
    "machine_names",
    "match",
    "parse_pattern",
    "uniform_graph",
]
