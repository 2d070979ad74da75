"""Options of ``topo-aware`` and ``topo-aware-p``, checked in one place.

====================== ====================================================================
weights                a_cc, a_b, a_d, sum 1; default a third each
interference           an ``InterferenceProfile``; None: interference is not known
application            the job's name in that profile
minimal_utility        threshold of the job (topo-aware-p), 0..1; default 0.3 for one GPU, 0.5
                       for more
waited_s               how long the job has waited already, s; the caller's clock
patience_s             a threshold shrinks to 0 over this time, s; default one hour, inf: never
single_node            all GPUs on one machine
anti_collocation       every GPU on a machine of its own
min_bandwidth_gbps     least link between any two of the job's GPUs, GB/s
network_gbps           rate of a link between two machines, GB/s; default 0: not known, too
                       narrow for any min_bandwidth_gbps
====================== ====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.placement.drb.interference import InterferenceProfile
from slurm_gpu_aware.placement.drb.utility import Weights

__all__ = ["OPTION_NAMES", "TopoOptions", "read_options"]

OPTION_NAMES = frozenset(
    {
        "weights",
        "interference",
        "application",
        "minimal_utility",
        "waited_s",
        "patience_s",
        "single_node",
        "anti_collocation",
        "min_bandwidth_gbps",
        "network_gbps",
    }
)


@dataclass(frozen=True)
class TopoOptions:
    """Checked options; see the module."""

    weights: Weights = field(default_factory=Weights)
    interference: InterferenceProfile | None = None
    application: str | None = None
    minimal_utility: float | None = None
    waited_s: float = 0.0
    patience_s: float = 3600.0
    single_node: bool = False
    anti_collocation: bool = False
    min_bandwidth_gbps: float = 0.0
    network_gbps: float = 0.0

    @property
    def one_machine(self) -> bool:
        """All GPUs on one machine: asked for, or the network is too narrow."""
        return self.single_node or self.network_gbps < self.min_bandwidth_gbps

    def threshold(self, gpus: int) -> float:
        """The utility that a job of ``gpus`` GPUs asks for now.

        It falls linearly from the job's threshold to 0 while the job waits for ``patience_s``, so
        that no postponed job starves.
        """
        wanted = self.minimal_utility
        if wanted is None:
            wanted = 0.3 if gpus == 1 else 0.5
        if math.isinf(self.patience_s):
            return wanted
        return wanted * max(0.0, 1.0 - self.waited_s / self.patience_s)


def read_options(policy: str, options: Mapping[str, Any]) -> TopoOptions:
    """Check options.

    Raises
    ------
    PolicyError
        An unknown name or a bad value; says what is valid.
    """
    unknown = sorted(set(options) - OPTION_NAMES)
    if unknown:
        known = ", ".join(sorted(OPTION_NAMES))
        raise PolicyError(f"policy {policy!r} has no option {unknown[0]!r}; its options: {known}")
    values = {name: _READERS[name](policy, name, value) for name, value in options.items()}
    read = TopoOptions(**values)
    if read.single_node and read.anti_collocation:
        raise PolicyError(
            f"policy {policy!r}: single_node and anti_collocation exclude each other; give one"
        )
    if read.anti_collocation and read.one_machine:
        raise PolicyError(
            f"policy {policy!r}: anti_collocation excludes a min_bandwidth_gbps of more than"
            f" network_gbps ({read.network_gbps:g})"
        )
    return read


def _bad(policy: str, name: str, wanted: str, value: object) -> PolicyError:
    return PolicyError(f"policy {policy!r}: {name} must be {wanted}, not {value!r}")


def _weights(policy: str, name: str, value: object) -> Weights:
    if isinstance(value, Weights):
        return value
    wanted = "three numbers of at least 0 with sum 1 (communication, interference, fragmentation)"
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 3:
        raise _bad(policy, name, wanted, value)
    try:
        return Weights(*(float(v) for v in value))
    except (TypeError, ValueError):
        raise _bad(policy, name, wanted, value) from None


def _profile(policy: str, name: str, value: object) -> InterferenceProfile | None:
    if value is None or isinstance(value, InterferenceProfile):
        return value
    raise _bad(policy, name, "an InterferenceProfile or None", value)


def _name(policy: str, name: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise _bad(policy, name, "a name in the interference profile", value)


def _number(value: object) -> float:
    """The value as a float; nan for what is no number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else math.nan  # type: ignore[arg-type]


def _share(policy: str, name: str, value: object) -> float | None:
    if value is not None and not 0.0 <= _number(value) <= 1.0:
        raise _bad(policy, name, "a number from 0 to 1", value)
    return None if value is None else _number(value)


def _positive(policy: str, name: str, value: object) -> float:
    if not _number(value) > 0.0:
        raise _bad(policy, name, "a number of more than 0", value)
    return _number(value)


def _not_negative(policy: str, name: str, value: object) -> float:
    if not 0.0 <= _number(value) < math.inf:
        raise _bad(policy, name, "a number of at least 0", value)
    return _number(value)


def _flag(policy: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _bad(policy, name, "True or False", value)
    return value


_READERS: Mapping[str, Any] = {
    "weights": _weights,
    "interference": _profile,
    "application": _name,
    "minimal_utility": _share,
    "waited_s": _not_negative,
    "patience_s": _positive,
    "single_node": _flag,
    "anti_collocation": _flag,
    "min_bandwidth_gbps": _not_negative,
    "network_gbps": _not_negative,
}
