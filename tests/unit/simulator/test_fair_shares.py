"""Priorities by fair share: Fair Tree, decay of usage, queues that are ordered by them."""

import random
from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.queue_order.simulated import RunOrder
from slurm_gpu_aware.features.queue_order.stage import OrderRule
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.active import FairShares
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.slurm.multifactor import (
    Associations,
    Multifactor,
    fair_tree,
    later_usage,
    not_modelled,
    priorities,
    read_associations,
    read_site,
    summed,
)

SSHARE = """Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare
root|||0.000000|60|1.000000|
 root|root|1|0.200000|0|0.000000|1.000000
 lab||1|0.200000|50|0.833333|
  lab|alice|1|1.000000|50|1.000000|0.250000
 physics||3|0.600000|10|0.166667|
  physics|alice|parent|0.600000|4|0.400000|0.750000
  physics|bob|1|1.000000|6|0.600000|0.500000
"""
CONFIG = """Configuration data as of 2026-01-01T00:00:00
PriorityCalcPeriod      = 00:05:00
PriorityDecayHalfLife   = 7-00:00:00
PriorityFavorSmall      = No
PriorityFlags           =
PriorityMaxAge          = 7-00:00:00
PriorityUsageResetPeriod = NONE
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
PriorityWeightFairShare = 100000
PriorityWeightJobSize   = 0
PriorityWeightQOS       = 10000
PriorityWeightTRES      = (null)
"""
ONE_NODE = Cluster.uniform(["n1"], 4, locality_penalty=1.0)


def random_tree(dice: random.Random) -> tuple[Associations, np.ndarray]:
    names, parent = [("root", "")], [-1]
    for i in range(dice.randrange(1, 14)):
        accounts = [place for place, (_, user) in enumerate(names) if not user]
        parent.append(dice.choice(accounts))
        user = f"u{i}" if dice.random() < 0.6 else ""
        names.append((names[parent[-1]][0] if user else f"a{i}", user))
    shares = [float(dice.choice([0, 1, 1, 2])) for _ in names]
    shares = [np.inf if user and dice.random() < 0.1 else share
              for share, (_, user) in zip(shares, names, strict=True)]  # fmt: skip
    tree = Associations(tuple(names), np.array(parent), np.array(shares))
    return tree, summed(tree, np.array([float(dice.choice([0, 0, 1, 5])) for _ in names]))


def slurms_factors(tree: Associations, usage: np.ndarray) -> dict[int, float]:
    """``_calc_tree_fs`` of fair_tree.c, line by line."""
    users = int(tree.is_user.sum())
    state, found = {"rank": users, "rnt": users}, dict[int, float]()

    def level(place: int) -> float:
        siblings = np.flatnonzero(tree.parent == tree.parent[place])
        total = sum(s for s in tree.shares[siblings] if np.isfinite(s))
        if np.isinf(tree.shares[place]):
            return np.inf
        share = tree.shares[place] / total if total else 0.0
        above = usage[tree.parent[place]]
        used = usage[place] / above if above else 0.0
        return 0.0 if not share else share / used if used else np.inf

    def walk(siblings: list[int], *, account_tied: bool) -> None:
        siblings = sorted(siblings, key=lambda p: (-level(p), not tree.is_user[p]))
        before = None
        for i, place in enumerate(siblings):
            tied = True if i == 0 and account_tied else before == level(place)
            if tree.is_user[place]:
                if not tied:
                    state["rank"] = state["rnt"]
                found[place] = state["rank"] / users
                state["rnt"] -= 1
            else:
                walk(np.flatnonzero(tree.parent == place).tolist(), account_tied=tied)
            before = level(place)

    walk(np.flatnonzero(tree.parent == 0).tolist(), account_tied=False)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_the_tree_is_walked_as_slurm_walks_it(seed: int) -> None:
    tree, usage = random_tree(random.Random(seed))
    ours = fair_tree(tree, usage)
    expected = slurms_factors(tree, usage)
    assert {place: ours[place] for place in expected} == pytest.approx(expected)
    assert not ours[~tree.is_user].any()


def test_sshare_is_read_with_the_factors_that_it_shows() -> None:
    tree = read_associations(SSHARE, "site")
    assert tree.names[4:6] == (("physics", ""), ("physics", "alice"))
    assert tree.parent.tolist() == [-1, 0, 0, 2, 0, 4, 4]
    usage = np.array([60.0, 0, 50, 50, 10, 4, 6])
    assert summed(tree, np.array([0, 0, 0, 50.0, 0, 4, 6])).tolist() == usage.tolist()
    assert fair_tree(tree, usage)[tree.is_user].tolist() == [1.0, 0.25, 0.75, 0.5]
    more = tree.with_users([("lab", "carol"), ("new", "dave"), ("lab", "alice")])
    assert more.names[7:] == (("lab", "carol"), ("new", ""), ("new", "dave"))
    assert more.parent[7:].tolist() == [2, 0, 8]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  lab|alice|1|", "    lab|alice|1|", "not a row of sshare's tree"),
        ("  lab|alice|1|", "  lab|alice|-1|", "not a number of shares"),
        ("  lab|alice|1|", "  lab|alice|99999999999999999999|", "not a number of shares"),
        (" lab||1|", " lab||parent|", "shares of its parent"),
        ("  physics|bob|", "  physics|alice|", "each account and user once"),
        ("Account|User|", "Konto|User|", "no table of sshare"),
        ("priority/multifactor", "priority/basic", "with priority/multifactor"),
        ("PriorityFlags           =", "PriorityFlags = NO_FAIR_TREE", "cannot be simulated"),
        ("= NONE", "= WEEKLY", "cannot be simulated"),
        ("PriorityWeightAge       = 1000", "PriorityWeightAge = 1e9", "expected a whole number"),
        ("PriorityMaxAge          = 7-00:00:00", "PriorityMaxAge = UNLIMITED", "expected a time"),
        ("PriorityCalcPeriod      = 00:05:00", "PriorityCalcPeriod = 00:00:00", "expected a time"),
    ],
)
def test_what_cannot_be_simulated_is_refused(old: str, new: str, says: str) -> None:
    text = CONFIG + SSHARE
    assert old in text
    with pytest.raises(SourceError, match=says):
        read_site(text.replace(old, new), "site.txt")


def test_a_site_is_read() -> None:
    site = read_site(CONFIG + SSHARE, "site.txt")
    assert (site.weight_age, site.weight_fairshare, site.calc_period_s) == (1000.0, 1e5, 300.0)
    assert site.age_per_s == pytest.approx(1000 / (7 * 86_400))
    assert not_modelled(CONFIG) == ["PriorityWeightQOS"]


@pytest.mark.parametrize("half_life_s", [0.0, 3600.0])
def test_usage_decays_as_period_after_period(half_life_s: float) -> None:
    site = Multifactor(half_life_s=half_life_s)
    usage, held = np.array([1000.0, 0.0]), np.array([0.0, 3.0])
    step = usage
    for _ in range(7):
        kept = (1 - 0.693 / half_life_s) ** 300 if half_life_s else 1.0
        step = (step + held * 300) * kept
    assert later_usage(site, usage, held, 7) == pytest.approx(step)
    half = later_usage(replace(site, half_life_s=3600.0), usage, held, 12)[0]
    assert half == pytest.approx(500.0, rel=0.001)


def test_usage_of_a_run_does_not_depend_on_when_it_is_asked() -> None:
    jobs = [TraceJob(str(i), 0.0, 1, 100.0, user=u, account="a") for i, u in enumerate("xyx")]
    site, dice = Multifactor(half_life_s=1800.0), random.Random(1)
    change = lambda: (dice.uniform(0, 9000), dice.randrange(3), dice.choice([1, 2]))  # noqa: E731
    changes = sorted(change() for _ in range(5))
    found = []
    for asked in ([], np.sort(np.random.default_rng(2).uniform(0, 10_000, 300)).tolist()):
        shares = FairShares(site, jobs, ONE_NODE)
        for now, position, gpus in sorted([*changes, *((at, -1, 0) for at in asked)]):
            if position < 0:
                shares.ranked([], now)
            else:
                shares.change(position, gpus, now)
        shares.ranked([], 10_000.0)
        found.append(shares._usage)
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0].max() > 1000.0


def test_points_add_up_as_slurm_adds_them() -> None:
    site = Multifactor(1000.0, 2000.0, 400.0, max_age_s=1000.0)
    values = np.array([500.0, 5000.0, 0.0]), np.array([0.5, 1.0, 0.0])
    shares = np.array([0.25, 1.0, 0.5]), np.array([0.75, 1.0, 0.5])
    more = np.array([0.5, 7.0, -1e9])
    assert priorities(site, *values, *shares, more).tolist() == [1700.0, 3407.0, 1.0]
    small = replace(site, favor_small=True)
    assert priorities(small, *values, *shares, more).tolist() == [1700.0, 3007.0, 1.0]


def one_after_the_other(users: str, **more: float) -> Trace:
    """Jobs on all GPUs of a node, submitted within seconds."""
    jobs = [
        TraceJob(f"{i}{user}", float(i), 4, 1000.0, time_limit_s=5000.0, user=user, **more)
        for i, user in enumerate(users)
    ]
    return Trace.of("users", jobs)


def order_of(trace: Trace, settings: SimSettings) -> list[str]:
    start_s = simulate(trace, ONE_NODE, settings).start_s
    return [trace.jobs[i].job_id for i in np.argsort(start_s)]


def test_who_has_used_less_comes_first_and_age_wins_in_the_end() -> None:
    trace = one_after_the_other("xxxxy")
    by_share = SimSettings(order="multifactor", multifactor=Multifactor(weight_fairshare=1000.0))
    assert order_of(trace, by_share) == ["0x", "4y", "1x", "2x", "3x"]
    aged = Multifactor(weight_age=1e9, weight_fairshare=1000.0)
    assert order_of(trace, replace(by_share, multifactor=aged)) == ["0x", "1x", "2x", "3x", "4y"]


def test_an_order_of_the_queue_rests_on_these_priorities() -> None:
    """A job that is 400 s shorter passes one that is older by less, and no fair share."""
    jobs = [
        TraceJob("0x", 0.0, 4, 1000.0, user="x"),
        TraceJob("1y", 1.0, 4, 500.0, user="y"),
        TraceJob("2y", 50.0, 4, 100.0, user="y"),
        TraceJob("3x", 60.0, 4, 10.0, user="x"),
    ]
    site = Multifactor(weight_age=604_800.0, weight_fairshare=100_000.0)
    base = SimSettings(
        order="multifactor",
        multifactor=site,
        backfill=True,
    ).put(RunEstimates("exact"), RunOrder(OrderRule(age_per_s=site.age_per_s)))
    trace = Trace.of("users", jobs)
    assert order_of(trace, parse_policy("packed", base)) == ["0x", "1y", "2y", "3x"]
    shorter = parse_policy("packed@expected=1", base)
    assert order_of(trace, shorter) == ["0x", "2y", "1y", "3x"]


def test_bounded_slowdown_counts_short_jobs_as_ten_seconds() -> None:
    jobs = [TraceJob(str(i), 0.0, 4, work_s) for i, work_s in enumerate((100.0, 2.0, 2000.0))]
    result = simulate(Trace.of("t", jobs), ONE_NODE, SimSettings())
    assert result.bounded_slowdown().tolist() == [1.0, 10.2, 1.051]
    shortest = simulate(Trace.of("t", jobs[1:2]), ONE_NODE, SimSettings())
    assert shortest.bounded_slowdown().tolist() == [1.0]
    assert result.summary()["avg_bounded_slowdown"] == pytest.approx((1.0 + 10.2 + 1.051) / 3)
