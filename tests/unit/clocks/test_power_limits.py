"""Power limits of jobs on fake GPUs: set, undone, and never above the site's own."""

import json
import random
import signal
import time

import pytest
from clock_hooks import Hooks, until
from fake_nvml import FakeNode, machines
from hypothesis import given
from hypothesis import strategies as st
from test_agent import AgentNode

from slurm_gpu_aware.clocks.notes import is_ours, lowered
from slurm_gpu_aware.store.report import parse_report

SITE_W = 300


def limits_of(node):
    """GPU -> limit that was set, in W, where it is not the machine's own."""
    found = {gpu: node.set_to(gpu, "power_limit") for gpu in range(4)}
    watts = {gpu: int(text[0]) / 1e3 for gpu, text in found.items() if text}
    return {gpu: w for gpu, w in watts.items() if w != SITE_W}


def site_sets(node, gpu, watts):
    node.state.mkdir(exist_ok=True)
    (node.state / f"gpu{gpu}.power_limit").write_text(f"{1000 * watts}\n")


@pytest.fixture
def capped(library, tmp_path):
    return Hooks(FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1]), tmp_path)


@pytest.fixture
def agent_node(library, tmp_path):
    return AgentNode(FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1]), tmp_path)


def test_a_job_gets_clock_and_limit_and_gives_both_back(capped):
    capped.run("prolog", 17, "0,3", "freq=900:200@0+3")
    assert limits_of(capped.node) == {0: 200, 3: 200}
    assert capped.locked() == {0: 900, 3: 900}
    (done,) = capped.records()
    assert (done["event"], done["gpus"], done["mhz"]) == ("clock_set", [0, 3], 900)
    assert (done["limit_w"], done["asked_limit_w"]) == (200, 200)
    capped.run("epilog", 17, "0,3")
    assert (limits_of(capped.node), capped.locked(), capped.notes()) == ({}, {}, [])


def test_a_limit_alone_touches_no_clock_of_the_site(capped):
    capped.node.state.mkdir()
    site = capped.node.state / "gpu1.locked_clocks"
    site.write_text("1200 1200\n")
    capped.run("prolog", 17, "1", "freq=0:200")
    assert limits_of(capped.node) == {1: 200}
    capped.run("epilog", 17, "1")
    assert limits_of(capped.node) == {}
    assert site.read_text() == "1200 1200\n"


def test_the_sites_own_limit_comes_back_and_is_never_exceeded(capped):
    for gpu, watts in ((0, 250), (1, 180)):
        site_sets(capped.node, gpu, watts)
    capped.run("prolog", 17, "0,1", "freq=900:200@0+1")
    assert limits_of(capped.node) == {0: 200, 1: 180}
    assert [(r["gpus"], r["limit_w"]) for r in capped.records()] == [([1], 180), ([0], 200)]
    capped.run("epilog", 17, "0,1")
    assert limits_of(capped.node) == {0: 250, 1: 180}


def test_a_limit_that_the_site_sets_meanwhile_stays(capped):
    capped.run("prolog", 17, "0", "freq=0:250")
    site_sets(capped.node, 0, 160)
    capped.run("epilog", 17, "0")
    assert limits_of(capped.node) == {0: 160}
    assert capped.notes() == []


@pytest.mark.parametrize("watts", [149, 10])
def test_a_limit_below_the_range_of_the_card_is_refused(capped, watts):
    capped.run("prolog", 17, "0", f"freq=900:{watts}")
    assert (limits_of(capped.node), capped.locked(), capped.notes()) == ({}, {}, [])
    (failed,) = capped.records()
    assert failed["event"] == "clock_failed"
    assert failed["error"] == f"{watts} W is not in 150 to 300 W"


def test_the_lowest_limit_of_a_node_report_is_one_that_hooks_set(capped):
    done = capped.node.run("gpu_aware_profile.cli", "node", "--json", "--no-timings")
    least_w = parse_report(json.loads(done.stdout)).gpus[0].min_limit_w
    capped.run("prolog", 17, "0", f"freq=0:{least_w:.0f}")
    assert limits_of(capped.node) == {0: 150}


def test_above_the_card_the_sites_limit_stays(capped):
    capped.run("prolog", 17, "0", "freq=0:4000")
    assert limits_of(capped.node) == {}
    assert capped.records()[0]["limit_w"] == SITE_W


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("nvmlDeviceGetPowerManagementLimit", "NOT_SUPPORTED"),
        ("nvmlDeviceSetPowerManagementLimit", "NO_PERMISSION"),
    ],
)
def test_a_gpu_that_refuses_the_limit_keeps_its_clock_and_the_others_get_theirs(
    capped, call, error
):
    machines.add_fault(capped.node.state, call, minor=0, error=error)
    capped.run("prolog", 17, "0,1", "freq=900:200@0+1")
    assert (limits_of(capped.node), capped.locked()) == ({1: 200}, {1: 900})
    told = {(r["event"], *r["gpus"]) for r in capped.records()}
    assert told == {("clock_failed", 0), ("clock_set", 1)}
    capped.run("epilog", 17, "0,1")
    assert (limits_of(capped.node), capped.notes()) == ({}, [])


def test_a_clock_that_fails_after_the_limit_leaves_no_limit(capped):
    machines.add_fault(capped.node.state, "nvmlDeviceSetGpuLockedClocks", error="NO_PERMISSION")
    capped.run("prolog", 17, "0", "freq=900:200")
    capped.run("epilog", 17, "0")
    assert (limits_of(capped.node), capped.notes()) == ({}, [])


def test_what_an_epilog_could_not_undo_a_later_hook_does(capped):
    capped.run("prolog", 17, "0", "freq=900:200")
    machines.add_fault(capped.node.state, "nvmlDeviceSetPowerManagementLimit", error="UNKNOWN")
    capped.run("epilog", 17, "0")
    assert (limits_of(capped.node), capped.locked()) == ({0: 200}, {})  # the clock is undone
    assert capped.notes() == ["gpu0"]
    machines.heal(capped.node.state)
    capped.run("prolog", 18, "1")
    assert (limits_of(capped.node), capped.notes()) == ({}, [])


def test_a_node_that_died_is_reset_at_its_start(capped):
    site_sets(capped.node, 0, 250)
    capped.run("prolog", 17, "0", "freq=900:200")
    capped.command("reset-all", "--every")
    assert (limits_of(capped.node), capped.locked(), capped.notes()) == ({0: 250}, {}, [])


def test_the_cap_lowers_clock_and_power(capped):
    content = json.loads(capped.node.machine.read_text())
    content["load"] = 1
    machines.write_json(capped.node.machine, content)
    read = """
import json
from slurm_gpu_aware.clocks.driver import read_states
print(json.dumps([vars(s) for s in read_states(5) if s.index == 0]))"""
    (before,) = capped.node.python(read)
    capped.run("prolog", 17, "0", "freq=0:200")
    (after,) = capped.node.python(read)
    assert before["power_mw"] > 200_000 >= after["power_mw"] > 180_000
    assert after["sm_mhz"] < before["sm_mhz"]
    assert (before["throttle"], after["throttle"]) == (0, 4)


def test_orders_move_limits_and_clocks_alone_keep_them(agent_node):
    agent_node.run("prolog", 17, "0,3", "freq=900:250@0+3")
    agent_node.obey(5, "17 1200:200 0+3")
    assert limits_of(agent_node.node) == {0: 200, 3: 200}
    agent_node.order(6, "17 600 0+3")  # a clock alone: the limit is that of the start
    agent_node.turn()
    assert limits_of(agent_node.node) == {0: 250, 3: 250}
    assert set(agent_node.locked().values()) <= set(range(590, 611))
    agent_node.obey(7, "17 0:0 0+3")
    assert (limits_of(agent_node.node), agent_node.locked()) == ({}, {})
    agent_node.obey(8, "17 0:180 0+3")
    assert limits_of(agent_node.node) == {0: 180, 3: 180}
    agent_node.orders.joinpath("n1.orders").unlink()  # back to the start
    agent_node.turn()
    assert limits_of(agent_node.node) == {0: 250, 3: 250}
    assert agent_node.locked() == {0: 900, 3: 900}
    agent_node.run("epilog", 17, "0,3")
    assert (limits_of(agent_node.node), agent_node.locked(), agent_node.notes()) == ({}, {}, [])


def test_an_order_out_of_range_changes_nothing(agent_node):
    agent_node.run("prolog", 17, "0", "freq=900:250")
    agent_node.obey(5, "17 600:100 0")
    assert (limits_of(agent_node.node), agent_node.locked()) == ({0: 250}, {0: 900})
    (failed,) = agent_node.said("clock_failed")
    assert "100 W is not in 150 to 300 W" in failed["error"]


@pytest.mark.parametrize(
    ("call", "order", "reached"),
    [("lock_clocks", "17 900 0", ({}, {0: 900})), ("limit_power", "17 0:200 0", ({0: 200}, {}))],
)
def test_a_lock_and_a_limit_are_noted_before_they_are_set(agent_node, call, order, reached):
    """The agent ends right after the driver call; the epilog knows of it."""
    agent_node.run("prolog", 17, "0")
    ends = f"do = agent.{call}; agent.{call} = lambda *a, **k: (do(*a, **k), os._exit(0))"
    agent_node.obey(5, order, before=ends)
    assert (limits_of(agent_node.node), agent_node.locked()) == reached
    agent_node.run("epilog", 17, "0")
    assert (limits_of(agent_node.node), agent_node.locked()) == ({}, {})


def test_killed_at_any_moment_nothing_is_left(agent_node):
    chance = random.Random(39)
    for job in range(20, 32):
        agent_node.run("prolog", job, "0,1", chance.choice(["", "freq=900:250@0+1"]))
        with agent_node.start() as agent:
            agent.stdout.readline()
            for step, setting in enumerate(("600:200", "0:180", "1200:0", "0")):
                agent_node.order(10 * job + step, f"{job} {setting} 0+1")
                time.sleep(chance.uniform(0, 0.06))
            agent.send_signal(signal.SIGKILL)
        agent_node.run("epilog", job, "0,1")
        # A driver call that was under way ends.
        until(lambda: (limits_of(agent_node.node), agent_node.locked()) == ({}, {}))
        assert agent_node.notes() == []


WATTS = st.integers(100, 700)


@given(st.lists(st.one_of(WATTS, st.tuples(WATTS)), max_size=30), WATTS)
def test_no_limit_is_above_the_sites_and_the_sites_comes_back(steps, site_w):
    """Ours (numbers) and the site's (tuples) in any order; the driver takes each."""
    present, site, noted = 1000 * site_w, 1000 * site_w, ()
    for step in steps:
        if isinstance(step, tuple):
            if is_ours(1000 * step[0], noted):
                continue  # not to be told from ours
            present = site = 1000 * step[0]
        else:
            noted = lowered(noted, present, step)
            assert noted[-1] <= site
            present = noted[-1]
        assert len(noted) <= 10
    if is_ours(present, noted):
        present = noted[0]
    assert present == site
