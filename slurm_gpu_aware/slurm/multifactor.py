"""Priorities as Slurm's priority/multifactor computes them, with Fair Tree. Pure functions.

The formulas are those of Slurm's src/plugins/priority/multifactor: ``fair_tree.c`` (`fair_tree`),
``set_priority_factors`` (`priorities`), ``_apply_new_usage`` and ``_apply_decay`` (`later_usage`).
A tied account is not merged with its sibling there, and its first user gets the rank of the user
before it; so here. Usage counts GPU seconds where Slurm counts its billing unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.arrays import BoolArray, FloatArray, IntArray
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.read_cluster import parse_settings
from slurm_gpu_aware.slurm.words import parse_duration

COMMAND = "(scontrol show config; sshare --all --parsable2)"
_MOST = 100_000  # Associations of a site.
_MOST_LEVELS = 32
_TIMEOUT_S = 60.0
_SHARES = 2**31
_NO_TIE = -1.0
_COLUMNS = ("Account", "User", "RawShares", "RawUsage")
_NOT_MODELLED = (
    *("PriorityWeightAssoc", "PriorityWeightPartition", "PriorityWeightQOS"),
    "PriorityWeightTRES",
)


@dataclass(frozen=True, eq=False)
class Associations:
    """Accounts and users with their shares. A parent stands before its children."""

    names: tuple[tuple[str, str], ...]
    """(account, user) of each; user empty: an account. The first one is the root account."""
    parent: IntArray  # (n,) place of the account above; -1 for the root.
    shares: FloatArray  # (n,) raw shares; inf: a user with the shares of its account (``parent``).

    @cached_property
    def places(self) -> Mapping[tuple[str, str], int]:
        """(account, user) -> place."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def is_user(self) -> BoolArray:
        """(n,) whether it is a user's."""
        return np.array([bool(user) for _, user in self.names], dtype=np.bool_)

    def with_users(self, wanted: Sequence[tuple[str, str]]) -> Associations:
        """Also those of these (account, user); what is not known gets one share."""
        names, parent = list(self.names), self.parent.tolist()
        known = dict(self.places)
        for account, user in wanted:
            for name in ((account, ""), (account, user)):
                if name not in known:
                    known[name] = len(names)
                    parent.append(known[account, ""] if name[1] else 0)
                    names.append(name)
        new = np.ones(len(names) - len(self.names))
        shares = np.concatenate([self.shares, new])
        return Associations(tuple(names), np.array(parent, dtype=np.int64), shares)


NO_ASSOCIATIONS = Associations((("root", ""),), np.array([-1]), np.ones(1))


def fair_tree(tree: Associations, usage: FloatArray) -> FloatArray:
    """(n,) fair-share factor of each user, 0 to 1; 0 of accounts.

    ``usage``: (n,) decayed usage, of an account with that of all below it.
    """
    parent, shares = tree.parent, tree.shares
    above = np.maximum(parent, 0)
    counted = np.where(np.isfinite(shares), shares, 0.0)
    level_shares = np.bincount(above[1:], counted[1:], minlength=len(parent))[above]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(counted / level_shares)
        used = np.where(usage[above] > 0, usage / usage[above], 0.0)
        level = np.where(share > 0, share / used, 0.0)
    level[np.isinf(shares)] = np.inf
    # siblings by level, users before accounts
    ordered = np.lexsort((~tree.is_user, -level, parent))
    children: list[list[int]] = [[] for _ in parent]
    for place in ordered[1:].tolist():
        children[above[place]].append(place)
    found, users = np.zeros(len(parent)), int(tree.is_user.sum())
    is_user, levels = tree.is_user.tolist(), level.tolist()
    rank = next_rank = users
    stack = _with_ties(children[0], levels, first=False)
    while stack:
        place, tied = stack.pop()
        if not is_user[place]:
            stack += _with_ties(children[place], levels, first=tied)
            continue
        if not tied:
            rank = next_rank
        found[place] = rank / users
        next_rank -= 1
    return found


def _with_ties(
    siblings: Sequence[int], levels: Sequence[float], *, first: bool
) -> list[tuple[int, bool]]:
    """(place, tied with the one before it), the last of them first."""
    before = [_NO_TIE, *(levels[place] for place in siblings)]
    pairs = [(place, levels[place] == old) for place, old in zip(siblings, before, strict=False)]
    if pairs and first:
        pairs[0] = (pairs[0][0], True)
    return pairs[::-1]


def summed(tree: Associations, usage: FloatArray) -> FloatArray:
    """(n,) usage of users, with that of all below it for each account."""
    total = np.where(tree.is_user, usage, 0.0)
    for place in range(len(total) - 1, 0, -1):  # children stand behind their parents
        total[tree.parent[place]] += total[place]
    return total


@dataclass(frozen=True)
class Multifactor:
    """Settings of priority/multifactor. Units: s, points."""

    weight_age: float = 0.0
    weight_fairshare: float = 0.0
    weight_job_size: float = 0.0
    max_age_s: float = 7 * 86_400.0
    half_life_s: float = 7 * 86_400.0  # 0: usage does not decay.
    calc_period_s: float = 300.0
    favor_small: bool = False
    associations: Associations = NO_ASSOCIATIONS

    @property
    def age_per_s(self) -> float:
        """What a second of age adds to a priority."""
        return self.weight_age / self.max_age_s

    @property
    def decay(self) -> float:
        """What a second leaves of usage, with Slurm's approximation of ln 2."""
        return 1.0 - 0.693 / self.half_life_s if self.half_life_s else 1.0


def later_usage(site: Multifactor, usage: FloatArray, held: FloatArray, periods: int) -> FloatArray:
    """(n,) usage after so many calculation periods in which ``held`` GPUs are in use."""
    kept = site.decay**site.calc_period_s
    series = periods if kept == 1.0 else (1.0 - kept**periods) / (1.0 - kept)
    return np.asarray(usage * kept**periods + held * site.calc_period_s * kept * series)


def priorities(
    site: Multifactor,
    age_s: FloatArray,
    factor: FloatArray,
    nodes: FloatArray,
    gpus: FloatArray,
    more: FloatArray,
) -> FloatArray:
    """(m,) priorities of jobs, whole numbers from 1 to 2^32 - 1.

    ``factor``: fair-share factor of the job's association; ``nodes``, ``gpus``: the job's share of
    the cluster's (Slurm: CPUs); ``more``: points of QOS, partition and association, less nice.
    """
    age = np.clip(age_s / site.max_age_s, 0.0, 1.0)
    size = (nodes + gpus) / 2.0
    size = np.clip(1.0 - size if site.favor_small else size, 0.0, 1.0)
    points = site.weight_age * age + site.weight_fairshare * factor + site.weight_job_size * size
    return np.asarray(np.clip(np.floor(points + more), 1.0, 2.0**32 - 1.0))


def read_site(text: str, name: str) -> Multifactor:
    """The site of the output of `COMMAND`. Raises SourceError."""
    settings = parse_settings(text)
    if not settings.get("PriorityType", "").endswith("multifactor"):
        raise SourceError(f"{name}: not the output of {COMMAND} with priority/multifactor")
    flags = settings.get("PriorityFlags", "").upper()
    for refused in ("NO_FAIR_TREE", "DEPTH_OBLIVIOUS", "SMALL_RELATIVE_TO_TIME"):
        if refused in flags:
            raise SourceError(f"{name}: PriorityFlags={refused} cannot be simulated")
    if (reset := settings.get("PriorityUsageResetPeriod", "NONE")).upper() != "NONE":
        raise SourceError(f"{name}: PriorityUsageResetPeriod={quoted(reset)} cannot be simulated")

    def points(key: str) -> float:
        value = settings.get(key, "0")
        if not (value.isascii() and value.isdigit() and len(value) <= 10):
            raise SourceError(f"{name}: {key}={quoted(value)}: expected a whole number")
        return float(value)

    def seconds(key: str, least: float) -> float:
        value = parse_duration(settings.get(key, ""))
        if not least <= value < np.inf:
            raise SourceError(f"{name}: {key}={quoted(settings.get(key, ''))}: expected a time")
        return value

    return Multifactor(
        points("PriorityWeightAge"),
        points("PriorityWeightFairShare"),
        points("PriorityWeightJobSize"),
        seconds("PriorityMaxAge", 1.0),
        seconds("PriorityDecayHalfLife", 0.0),
        seconds("PriorityCalcPeriod", 1.0),
        settings.get("PriorityFavorSmall", "No").upper() in ("YES", "1"),
        read_associations(text, name),
    )


def live_site() -> str:
    """Output of `COMMAND` on this cluster. Raises SourceError."""
    commands = ["scontrol", "show", "config"], ["sshare", "--all", "--parsable2"]
    return "".join(run_command(command, _TIMEOUT_S)[0] for command in commands)


def not_modelled(text: str) -> list[str]:
    """Settings of the output of `COMMAND` that count live, and not in a simulation."""
    settings = parse_settings(text)
    return [key for key in _NOT_MODELLED if settings.get(key, "0") not in ("0", "(null)", "")]


def read_associations(text: str, name: str) -> Associations:
    """The tree of ``sshare --all --parsable2``; a level is a space. Raises SourceError."""
    lines = iter(text.splitlines())
    header = next((line.split("|") for line in lines if line.startswith("Account|")), [])
    if not set(_COLUMNS) <= set(header):
        raise SourceError(f"{name}: no table of sshare with the columns {', '.join(_COLUMNS)}")
    account_at, user_at, shares_at, _ = map(header.index, _COLUMNS)
    names, parent, shares = list[tuple[str, str]](), list[int](), list[float]()
    path: list[int] = []  # the accounts above, one a level
    for line in lines:
        cells = line.split("|")
        account = cells[account_at].strip()
        level = len(cells[account_at]) - len(cells[account_at].lstrip(" "))
        levels = range(1 if names else 0, min(len(path), _MOST_LEVELS) + 1)
        if len(cells) != len(header) or not account or level not in levels or len(names) == _MOST:
            raise SourceError(f"{name}: {quoted(line)} is not a row of sshare's tree")
        user, share = cells[user_at].strip(), _shares(cells[shares_at], name)
        if share == np.inf and not user:
            raise SourceError(
                f"{name}: account {quoted(account)} with the shares of its parent "
                "cannot be simulated"
            )
        del path[level:]
        parent.append(path[-1] if path else -1)
        if not user:
            path.append(len(names))
        names.append((account, user))
        shares.append(share)
    if not names or len(set(names)) < len(names):
        raise SourceError(f"{name}: expected each account and user once in sshare's table")
    return Associations(tuple(names), np.array(parent, dtype=np.int64), np.array(shares))


def _shares(text: str, name: str) -> float:
    if text == "parent":
        return np.inf
    if not (text.isascii() and text.isdigit() and int(text[:11]) < _SHARES) and text:
        raise SourceError(f"{name}: {quoted(text)} is not a number of shares")
    return float(text or 1)  # the root account has none
