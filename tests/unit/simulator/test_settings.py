"""Names of policies, orders and modes of a run, and settings that are refused."""

from dataclasses import replace

import pytest
from small_sizes import POWER
from small_traces import FLAT

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.trace import Trace
from slurm_gpu_aware.slurm.multifactor import Multifactor

BASE = SimSettings()
MOVING = parse_policy("packed:moves", BASE)


@pytest.mark.parametrize(
    ("base", "text", "label"),
    [
        (BASE, "pal", "pal"),
        (BASE, "packed:moves", "packed:moves"),
        (BASE, "packed:non-sticky", "packed:non-sticky"),
        (SimSettings(mode="non-sticky"), "packed:sticky", "packed"),
        (MOVING, "packed", "packed:moves"),
        (MOVING, "packed:sticky", "packed"),
        (MOVING, "packed:non-sticky", "packed:non-sticky"),
        (BASE, "packed:afs", "packed:afs"),
        (BASE, "packed@backfill", "packed@backfill"),
        (BASE, "eft:moves@expected=0.3", "eft:moves@expected=0.3"),
    ],
)
def test_a_policy_is_named_with_its_mode_and_order(base, text, label):
    found = parse_policy(text, base)
    assert (found.label, found.mode == "moves") == (label, ":moves" in label)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pal:often", "expected NAME, .*NAME:non-sticky, NAME:moves, .* or NAME:sts-preempt"),
        ("eft@fast", "order"),
        ("eft@expected=", "order"),
        ("eft@expected=101", "order"),
        ("eft@expected=x", "order"),
        ("eft@equal=1", "order"),
        ("eft@", "order"),
    ],
)
def test_another_mode_or_order_is_refused(text, said):
    with pytest.raises(PolicyError, match=said):
        parse_policy(text, BASE)


def test_an_unknown_policy_is_refused_at_once():
    with pytest.raises(PolicyError, match="unknown policy 'pal2'"):
        simulate(Trace.of("t", []), FLAT, SimSettings(policy="pal2"))


BY_SHARES = {"order": "multifactor", "multifactor": Multifactor()}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"order": "lifo"}, "unknown order"),
        ({"overrun": "nothing"}, "unknown overrun 'nothing'; known: kill, extend"),
        ({"mode": "other"}, "unknown mode"),
        ({"order": "multifactor"}, "give --fairshare"),
        ({"multifactor": Multifactor()}, "give --fairshare"),
        ({**BY_SHARES, "mode": "non-sticky"}, "only sticky"),
    ],
)
def test_settings_that_do_not_suit_each_other_are_refused(settings, said):
    with pytest.raises(PolicyError, match=said):
        SimSettings(**settings)


def test_unknown_estimates_are_refused():
    with pytest.raises(PolicyError, match="unknown estimate 'oracle'; known: history, limit"):
        RunEstimates("oracle")


@pytest.mark.parametrize("wrong", [{"idle_w": 500.0}, {"idle_w": -1.0}, {"eta": 0.0}])
def test_power_settings_are_checked(wrong):
    with pytest.raises(PolicyError):
        replace(POWER, **wrong)
