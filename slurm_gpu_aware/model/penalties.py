"""Locality penalties: configured and measured values, combined.

L of a level is the iteration time on GPUs that need this level over that on GPUs within the
tightest level (PAL, eq. 1, ``L_within`` = 1). PAL uses 1.7 as a first estimate and measured values
per application. Here L is measured per class: the same program on the same number of GPUs, once at
each level. A configured value overrides a measured one, which overrides the default.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import NamedTuple

NETWORK_LEVELS = ("switch", "rack", "row")
"""Levels of Slurm's topology, tightest first; ``switch``: leaf switches or blocks."""
INSIDE_NODE = ("nvlink", "socket", "node")  # Levels within a node, tightest first.
LEVELS = (*INSIDE_NODE, *NETWORK_LEVELS, "cluster")
"""All levels that may have a penalty, tightest first."""


class Penalty(NamedTuple):
    """L of a level."""

    value: float  # >= 1.
    source: str = ""
    """``configured``, ``measured``, ``default``, or ``as LEVEL``; after a comma the bound that
    replaced the value: ``not below LEVEL``, ``not above LEVEL``. Empty: 1, or not known."""


class LevelTime(NamedTuple):
    """One run of a class at a level."""

    app_class: str
    level: str  # Tightest level that holds the GPUs of the run.
    value_ms: float  # Time of an iteration or any fixed work; > 0.
    model: str = ""  # GPU model; empty: the site has one.


@dataclass(frozen=True)
class LevelPenalties:
    """L of every used level, tightest first, for every class."""

    general: Mapping[str, Penalty]  # Level -> L for classes that were not measured.
    by_class: Mapping[str, Mapping[str, Penalty]] = field(default_factory=dict)
    """Class -> level -> L, for measured classes; the same levels."""

    def of(self, app_class: str) -> Mapping[str, Penalty]:
        """Level -> L of a class."""
        return self.by_class.get(app_class, self.general)


def reference_of(levels: Iterable[str]) -> str | None:
    """The innermost of ``levels`` within a node, the reference of ratios; None: there is none.

    The time of a level that spans nodes does not show the gain of a set within a node.
    """
    return min(set(INSIDE_NODE).intersection(levels), key=INSIDE_NODE.index, default=None)


def level_medians(times: Iterable[LevelTime]) -> dict[tuple[str, str], dict[str, float]]:
    """(class, model) -> level -> median time in ms, tightest level first."""
    runs: dict[tuple[str, str], dict[str, list[float]]] = {}
    for time in times:
        levels = runs.setdefault((time.app_class, time.model), {})
        levels.setdefault(time.level, []).append(time.value_ms)
    return {
        key: {name: median(levels[name]) for name in LEVELS if name in levels}
        for key, levels in sorted(runs.items())
    }


def level_ratios(times: Iterable[LevelTime]) -> dict[str, dict[str, float]]:
    """Class -> level -> median time / median time at the innermost level, tightest first.

    Ratios are formed per GPU model; the class gets their median. Models without a time at the
    innermost level of the class and classes without a level within a node are left out.

    Examples
    --------
    >>> runs = [("node", 100.0), ("node", 104.0), ("switch", 127.5), ("cluster", 153.0)]
    >>> level_ratios(LevelTime("A", level, ms) for level, ms in runs)
    {'A': {'node': 1.0, 'switch': 1.25, 'cluster': 1.5}}
    """
    of_class: dict[str, list[dict[str, float]]] = {}
    for (app_class, _), medians in level_medians(times).items():
        of_class.setdefault(app_class, []).append(medians)
    found = {}
    for app_class, models in of_class.items():
        inner = reference_of(name for medians in models for name in medians)
        if inner is not None:
            rows = [medians for medians in models if inner in medians]
            ratios = {name: [m[name] / m[inner] for m in rows if name in m] for name in LEVELS}
            found[app_class] = {name: median(of) for name, of in ratios.items() if of}
    return found


def combine(
    configured: Mapping[str, float],
    measured: Mapping[str, Mapping[str, float]],
    *,
    across: float,
) -> LevelPenalties:
    """L of every level that is configured or was measured, and of ``node`` and ``cluster``.

    ``configured``: level -> L, ascending from tight to loose, >= 1. ``measured``: class -> level ->
    :func:`level_ratios`. ``across``: default L of ``cluster``; the default of ``node`` is 1.

    Per class and level the first of these counts: the configured L; the measured ratio times the
    configured L of its reference level (else 1); the default; the L of the next looser level.

    No L is below that of a tighter level: an outer group contains the inner ones, so a lower time
    is noise and would spread jobs without gain. No measured L is above that of a looser configured
    level. A value outside these bounds is moved to the bound.

    Examples
    --------
    >>> measured = {"A": {"node": 1.0, "switch": 1.2, "cluster": 1.6}}
    >>> found = combine({"switch": 1.3}, measured, across=1.5)
    >>> [(name, *penalty) for name, penalty in found.of("A").items()]
    [('node', 1.0, 'measured'), ('switch', 1.3, 'configured'), ('cluster', 1.6, 'measured')]
    >>> [(name, *penalty) for name, penalty in found.of("B").items()]
    [('node', 1.0, ''), ('switch', 1.3, 'configured'), ('cluster', 1.5, 'default')]
    """
    levels = {"node", "cluster", *configured}.union(*measured.values())
    used = [name for name in LEVELS if name in levels]
    default = {"node": Penalty(1.0), "cluster": Penalty(across, "default")}

    def of(ratios: Mapping[str, float]) -> dict[str, Penalty]:
        base = configured.get(reference_of(ratios) or "", 1.0)
        row = dict(default)
        row |= {name: Penalty(base * ratio, "measured") for name, ratio in ratios.items()}
        row |= {name: Penalty(value, "configured") for name, value in configured.items()}
        return _ordered(row, used)

    return LevelPenalties(of({}), {name: of(ratios) for name, ratios in measured.items()})


def _ordered(row: Mapping[str, Penalty], used: Sequence[str]) -> dict[str, Penalty]:
    """The complete row in the order of ``used``, ascending."""
    known = [name for name in used if name in row]
    found: dict[str, Penalty] = {}
    floor = (1.0, used[0])
    for at, name in enumerate(known):
        value, source = row[name]
        fixed = [(row[n].value, n) for n in known[at:] if row[n].source == "configured"]
        ceiling = min(fixed, default=(inf, ""))
        if value > ceiling[0]:
            value, source = ceiling[0], f"{source}, not above {ceiling[1]}"
        if value < floor[0]:
            value, source = floor[0], f"{source}, not below {floor[1]}"
        floor = (value, name)
        found[name] = Penalty(value, source)
    for at, name in enumerate(used):
        looser = next(n for n in used[at:] if n in row)
        found.setdefault(name, Penalty(found[looser].value, f"as {looser}"))
    return {name: found[name] for name in used}
