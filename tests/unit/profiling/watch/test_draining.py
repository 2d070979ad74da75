"""Which nodes watch drains and resumes: budget, hysteresis, and whose drains it touches."""

import pytest

from gpu_aware_profile.watch.draining import (
    AGAIN,
    Budget,
    Node,
    parse_nodes,
    plan_drains,
    reason_of,
)
from slurm_gpu_aware.model.profile import GpuHealth
from slurm_gpu_aware.store.watch_state import PREFIX, UNDER_JOB, Drained, GpuState, Reading, Trouble

NOW = 1000.0


def gpu(node, state="well", by=0.0, slot=0, at=NOW, **more):
    return GpuState(
        node, slot, state, by, why=f"{by:.1%}", reading=Reading("x", GpuHealth(), at=at), **more
    )


def nodes_of(*names, partitions=("p",), state="idle", reason=""):
    return [Node(name, partitions, state, reason) for name in names]


def drain_plan(states, there, before=None, budget=None):
    return plan_drains(states, there, before or {}, budget or Budget(100, 100.0), NOW)


def test_ill_and_slow_nodes_are_drained_and_drifted_ones_are_not():
    states = [gpu("n1", "ill"), gpu("n2", "slow", 0.1), gpu("n3", "drifted", 0.1), gpu("n4")]
    done = drain_plan([*states, gpu("n5", "unknown")], nodes_of("n1", "n2", "n3", "n4", "n5"))
    assert [name for name, _ in done.drain] == ["n1", "n2"]
    assert done.resume == ()
    assert done.drained == {"n1": Drained(NOW), "n2": Drained(NOW)}


def test_throttling_under_a_users_job_drains_no_node():
    hot = Trouble(UNDER_JOB, "throttles: it is too hot", NOW)
    ecc = Trouble("ecc", "1 uncorrectable memory error", NOW)
    states = [gpu("n1", "ill", troubles=(hot,)), gpu("n2", "ill", troubles=(hot, ecc))]
    done = drain_plan([*states, gpu("n1", "slow", 0.1, slot=1)], nodes_of("n1", "n2"))
    assert [name for name, _ in done.drain] == ["n2", "n1"]
    assert "GPU 1 slow:" in dict(done.drain)["n1"]
    alone = drain_plan(states[:1], nodes_of("n1"))
    assert (alone.drain, alone.held_back, alone.drained) == ((), (), {})
    there = nodes_of("n1", state="drained", reason=f"{PREFIX}slow")
    assert drain_plan(states[:1], there, {"n1": Drained(500.0)}).resume == ("n1",)


def test_the_drain_comes_once():
    states = [gpu("n1", "slow", 0.1)]
    first = drain_plan(states, nodes_of("n1"))
    there = nodes_of("n1", state="drained", reason=first.drain[0][1])
    again = drain_plan(states, there, first.drained)
    assert (again.drain, again.resume, again.drained) == ((), (), first.drained)


def test_half_of_the_cluster_is_slow():
    """Of ten nodes five are slow: ill ones first, then the slowest, and never more than two."""
    names = [f"n{i}" for i in range(10)]
    states = [gpu(name, "slow", 0.03 + 0.01 * i) for i, name in enumerate(names[:4])]
    states += [gpu("n4", "ill", 0.0), *map(gpu, names[5:])]
    done = drain_plan(states, nodes_of(*names), budget=Budget(2, 100.0))
    assert [name for name, _ in done.drain] == ["n4", "n3"]
    why = "budget: 2 of at most 2 nodes are drained"
    assert dict(done.held_back) == dict.fromkeys(("n0", "n1", "n2"), why)


def test_the_budget_counts_what_is_drained_already():
    there = [*nodes_of("n1", state="draining", reason=f"{PREFIX}slow"), *nodes_of("n2", "n3")]
    states = [gpu(name, "slow", 0.1) for name in ("n1", "n2", "n3")]
    done = drain_plan(states, there, {"n1": Drained(1.0)}, Budget(2, 100.0))
    assert [name for name, _ in done.drain] == ["n2"]


def test_the_share_of_a_partition_is_rounded_down():
    states = [gpu(f"n{i}", "slow", 0.1) for i in range(10)]
    there = nodes_of(*(f"n{i}" for i in range(10)))
    assert len(drain_plan(states, there, budget=Budget(100, 29.9)).drain) == 2
    done = drain_plan(states, there[:9], budget=Budget(100, 10.0))
    assert done.drain == ()
    assert done.held_back[0][1] == "budget: at most 10% of the 9 nodes of p, which is 0"


def test_each_partition_of_a_node_must_have_room():
    wide = [Node(f"n{i}", ("all",), "idle", "") for i in range(8)]
    small = [Node(f"m{i}", ("all", "small"), "idle", "") for i in range(2)]
    states = [gpu(node.name, "slow", 0.1) for node in [*small, *wide]]
    done = drain_plan(states, [*small, *wide], budget=Budget(100, 30.0))
    assert [name for name, _ in done.drain] == ["n0", "n1", "n2"]


def test_a_node_is_resumed_when_it_was_measured_well_after_the_drain():
    there = nodes_of("n1", state="drained", reason=f"{PREFIX}slow")
    before = {"n1": Drained(500.0)}
    assert drain_plan([gpu("n1", at=400.0)], there, before).resume == ()
    done = drain_plan([gpu("n1", at=600.0)], there, before)
    assert (done.resume, done.drained) == (("n1",), {})


def test_one_gpu_that_is_not_well_keeps_the_node_drained():
    there = nodes_of("n1", state="drained", reason=f"{PREFIX}slow")
    states = [gpu("n1", at=600.0), gpu("n1", "slow", 0.1, slot=1, at=600.0)]
    assert drain_plan(states, there, {"n1": Drained(500.0)}).resume == ()
    unread = GpuState("n1", 1, "unknown", reading=Reading("x", None, at=600.0))
    assert drain_plan([states[0], unread], there, {"n1": Drained(500.0)}).resume == ()


@pytest.mark.parametrize("reason", ["Kill task failed", "my gpu-aware: x", "", "GPU-AWARE: x"])
def test_a_node_that_another_drained_is_not_touched(reason):
    there = nodes_of("n1", state="drained", reason=reason)
    assert drain_plan([gpu("n1")], there, {"n1": Drained(1.0)}).resume == ()
    assert drain_plan([gpu("n1", "ill")], there).drain == ()


def test_a_node_that_an_admin_resumed_is_left_alone_until_it_was_well():
    bad, before = [gpu("n1", "slow", 0.1)], {"n1": Drained(500.0)}
    first = drain_plan(bad, nodes_of("n1"), before)
    assert first.drain == ()
    assert first.held_back == (("n1", "an admin resumed it; left alone until it was well"),)
    second = drain_plan(bad, nodes_of("n1"), first.drained)
    assert second.drain == ()
    well = drain_plan([gpu("n1")], nodes_of("n1"), second.drained)
    assert well.drained == {}
    assert [name for name, _ in drain_plan(bad, nodes_of("n1"), well.drained).drain] == ["n1"]


def test_a_node_whose_trial_was_cut_off_was_resumed_by_no_admin():
    """It is drained again, at a full budget, too, and though its GPU could not be read."""
    before = {"n1": Drained(500.0), "n2": Drained(500.0), "n3": Drained(500.0, left=True)}
    unread = GpuState("n2", 0, "unknown", reading=Reading("x", None, at=600.0))
    states = [gpu("n1", "slow", 0.1), unread, gpu("n3", "slow", 0.2), gpu("n4", "ill")]
    there = nodes_of("n1", "n2", "n3", "n4")
    full = Budget(2, 100.0)
    done = plan_drains(states, there, before, full, NOW, ["n1", "n2"])
    assert done.drain == (("n1", f"{PREFIX}GPU 0 slow: 10.0%"), ("n2", AGAIN))
    assert done.drained == before
    assert [name for name, _ in done.held_back] == ["n4", "n3"]
    well = plan_drains([gpu("n1")], there, {"n1": Drained(500.0)}, full, NOW, ["n1"])
    assert (well.drain, well.drained) == ((), {})


def test_the_reason_is_one_short_line():
    state = gpu("n1", "ill")
    why = "XID 79\n'quoted' | \"x\" " + "y" * 500
    text = reason_of([GpuState("n1", 3, "ill", why=why), state])
    assert text.startswith(f"{PREFIX}GPU 3 ill (and 1 more): XID 79  quoted ")
    assert len(text) <= 200
    assert not set(text) & set("\n'\"|")


def test_nodes_of_sinfo():
    text = (
        "n1|debug|drained*|30:00|gpu-aware: a | b\n"
        "n1|gpu*|drained*|1-00:00:00|gpu-aware: a | b\n"
        "n1|all|drained*|infinite|gpu-aware: a | b\n"
        "n2|gpu*|idle~|1-00:00:00|none\n"
        "$(reboot)|gpu|idle|infinite|none\nbroken"
    )
    assert parse_nodes(text) == [
        Node("n1", ("all", "gpu", "debug"), "drained", "gpu-aware: a | b"),
        Node("n2", ("gpu",), "idle", ""),
    ]
    assert parse_nodes(text)[0].ours


@pytest.mark.parametrize("numbers", [(-1, 10.0), (1, -1.0), (1, 101.0)])
def test_wrong_budgets(numbers):
    with pytest.raises(ValueError, match="percent between 0 and 100"):
        Budget(*numbers)
