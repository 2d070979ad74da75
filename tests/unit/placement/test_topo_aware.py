"""The policies topo-aware and topo-aware-p: choices, constraints, thresholds, accounts."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from make import job_request, plan_round

from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel, RunningJob
from slurm_gpu_aware.model.hardware_graph import uniform_graph
from slurm_gpu_aware.model.request import PreemptionRights, Request
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.placement.policies.topo_aware import Utility
from slurm_gpu_aware.placement.policy import make_policy, option_names
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.topology.machines import machine

MINSKY = machine("ibm-minsky-4xp100")
COMMUNICATION = {"weights": [0.6, 0.2, 0.2]}


def minsky(nodes=1, busy=(), **other):
    cluster = Cluster.uniform(nodes, 4, graph=MINSKY, **other)
    for node, slots in busy:
        cluster.take(node, slots)
    return cluster


def place(cluster, gpus, policy="topo-aware", options=None, own=None, **request):
    """``options`` are the policy's, ``own`` the request's."""
    asked = job_request("1", gpus, options=own or {}, **request)
    return make_policy(policy, options).place(asked, cluster)


def chosen(found):
    return found.nodes, found.slots


def test_every_machine_is_looked_at():
    cluster = minsky(40, [(n, [1, 3]) for n in range(39)])
    assert chosen(place(cluster, 2)) == ((39,), ((0, 1),))


def test_equal_utility_goes_to_the_fuller_machine():
    cluster = minsky(3, [(1, [0, 1])])
    assert chosen(place(cluster, 2)) == ((1,), ((2, 3),))


def test_several_machines_share_their_slots_under_slurms_rule():
    cluster = minsky(3, [(0, [0]), (1, [1]), (2, [0])])
    assert chosen(place(cluster, 4, gpus_per_node=2)) == ((0, 1), ((2, 3), (2, 3)))
    free = replace(minsky(2, [(0, [0, 1]), (1, [2, 3])]), same_indices=False)
    assert chosen(place(free, 4, gpus_per_node=2)) == ((0, 1), ((2, 3), (0, 1)))
    assert chosen(place(free, 4)) == ((0, 1), ((2, 3), (0, 1)))


def test_machines_of_one_switch_are_preferred():
    base = minsky(4)
    switch = LocalityLevel("switch", 1.1, np.array([0, 1, 0, 1]))
    cluster = replace(base, levels=(base.levels[0], switch, base.levels[1]))
    cluster.take(0, [0])
    found = place(cluster, 8)
    assert found.nodes == (1, 3)
    assert found.why.of(Utility).terms["communication"]["t"] == 2 * 82 + 16 * 100


def test_more_machines_than_a_switch_has_fill_few_switches():
    base = minsky(6)
    switch = LocalityLevel("switch", 1.1, np.array([0, 1, 0, 1, 0, 2]))
    cluster = replace(base, levels=(base.levels[0], switch, base.levels[1]))
    found = place(cluster, 20, gpus_per_node=4)
    assert found.nodes == (0, 1, 2, 3, 4)


def test_single_node_and_anti_collocation():
    cluster = minsky(2, [(0, [0]), (1, [0])])
    assert place(cluster, 4).nodes == (0, 1)
    assert place(cluster, 4, options={"single_node": True}) is None
    found = place(minsky(3), 3, options={"anti_collocation": True})
    assert chosen(found) == ((0, 1, 2), ((0,), (0,), (0,)))
    free = replace(minsky(3), same_indices=False)
    assert place(free, 3, options={"anti_collocation": True}).nodes == (0, 1, 2)
    assert place(free, 4, options={"anti_collocation": True}) is None
    assert place(free, 3, options={"anti_collocation": True}, max_nodes=2) is None


def test_bandwidth_is_a_constraint():
    across = minsky(busy=[(0, [0, 2])])
    assert place(across, 2).slots == ((1, 3),)
    assert place(across, 2, options={"min_bandwidth_gbps": 40.0}) is None
    dgx = Cluster.uniform(1, 8, graph=machine("dgx-1-v100"))
    dgx.take(0, [0, 1, 2])
    got = place(dgx, 2, options={"min_bandwidth_gbps": 50.0})
    assert machine("dgx-1-v100").gbps[got.slots[0]] >= 50.0
    assert place(dgx, 3, options={"min_bandwidth_gbps": 50.0}) is None  # no triangle of doubles


PCIE = uniform_graph(8, "PIX")


def test_a_job_that_asks_for_bandwidth_stays_off_the_network():
    """One GPU on each node has no narrow link inside a node, but the network between them."""
    cluster = Cluster.uniform(4, 8, graph=PCIE)
    need = {"min_bandwidth_gbps": 25.0}
    assert place(cluster, 4, options=need) is None
    for network, same in product((0.0, 24.9), (True, False)):
        here = replace(cluster, same_indices=same)
        assert place(here, 4, options={**need, "network_gbps": network}) is None
        assert place(here, 4, options={**need, "network_gbps": network}, min_nodes=2) is None
    found = place(cluster, 4, options={**need, "network_gbps": 25.0})
    assert len(found.nodes) == 4
    apart = {**need, "network_gbps": 25.0, "anti_collocation": True}
    assert len(place(cluster, 2, options=apart).nodes) == 2
    assert len(place(cluster, 1, options=need).slots[0]) == 1


WIDE_NETWORK = {"min_bandwidth_gbps": 20.0, "network_gbps": 25.0}


@pytest.mark.parametrize("switches", [1, 12])
def test_no_index_set_with_links_is_cut_away(switches):
    """C(8, 3) = 56 sets; on the commonest nodes all are equally near and none is linked."""
    dgx = machine("dgx-1-v100")
    cluster = replace(Cluster.uniform(12, 8), graphs=(PCIE,) * 10 + (dgx,) * 2)
    if switches > 1:
        switch = LocalityLevel("switch", 1.1, np.array([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]))
        cluster = replace(cluster, levels=(cluster.levels[0], switch, cluster.levels[1]))
    cluster.free[10:, :4] = False
    found = place(cluster, 6, options=WIDE_NETWORK, gpus_per_node=3)
    assert chosen(found) == ((10, 11), ((4, 5, 6), (4, 5, 6)))
    also = place(cluster, 6, options=WIDE_NETWORK, gpus_per_node=3, required=(11,))
    assert chosen(also) == chosen(found)
    assert place(cluster, 6, options=WIDE_NETWORK, gpus_per_node=3, required=(0,)) is None
    whole = place(cluster, 16, options=WIDE_NETWORK, gpus_per_node=8)
    assert whole is None


def test_a_half_may_block_the_only_linked_pair():
    """Bipartition keeps 0..3 together; the only double link left goes across."""
    dgx = Cluster.uniform(1, 8, graph=machine("dgx-1-v100"))
    dgx.take(0, [2, 3, 4, 6, 7])  # 0, 1, 5 are free; 1-5 is a double link, 0-1 a single one
    assert place(dgx, 2, options={"min_bandwidth_gbps": 50.0}).slots == ((1, 5),)


def test_plain_nodes_and_exclusive():
    plain = replace(minsky(2, [(0, [0])]), indexed=np.array([False, False]))
    found = place(plain, 2)
    assert (found.nodes, found.slots, found.exact) == ((0,), ((1, 2),), False)
    assert found.why.of(Utility).terms["communication"]["t"] == 20  # the worst that Slurm may pick
    whole = place(minsky(2, [(0, [0])]), 1, whole=True)
    assert (whole.nodes, whole.slots) == ((1,), ((0, 1, 2, 3),))
    assert whole.why.of(Utility).utility == 1.0


PROFILE = InterferenceProfile(
    {("loud", 1): 10.0, ("quiet", 1): 10.0, ("job", 1): 10.0},
    {
        (("job", 1), ("loud", 1)): 20.0,
        (("loud", 1), ("job", 1)): 20.0,
        (("job", 1), ("quiet", 1)): 10.0,
        (("quiet", 1), ("job", 1)): 10.0,
    },
)


def test_a_job_keeps_away_from_loud_neighbours():
    running = (
        RunningJob("1", ((0, (0,)),), 1e9, application="loud"),
        RunningJob("2", ((1, (0,)),), 1e9, application="quiet"),
    )
    cluster = replace(minsky(2, [(0, [0]), (1, [0])]), running=running)
    options = {"interference": PROFILE}
    assert chosen(place(cluster, 1)) == ((0,), ((1,),))
    found = place(cluster, 1, options=options, application="job")
    assert chosen(found) == ((1,), ((1,),))
    assert found.why.of(Utility).terms["interference"] == {"I": 1.0, "worst": 2.0, "cost": 0.0}
    assert found.why.of(Utility).alternatives[0].i == 2.0


@pytest.mark.parametrize(("scope", "slot", "worth"), [("socket", 2, 1.0), ("machine", 1, 2.0)])
def test_a_job_takes_the_quiet_socket_of_a_machine(scope, slot, worth):
    """By machine every GPU is as loud, so the job fills the socket."""
    running = (RunningJob("1", ((0, (0,)),), 1e9, application="loud"),)
    cluster = replace(minsky(1, [(0, [0])]), running=running)
    options = {"interference": PROFILE, "weights": (0.2, 0.6, 0.2), "interference_scope": scope}
    found = place(cluster, 1, options=options, application="job")
    assert chosen(found) == ((0,), ((slot,),))
    assert found.why.of(Utility).terms["interference"]["I"] == worth


def test_postponing_waits_for_links_and_ages():
    across = minsky(busy=[(0, [0, 2])])
    calm = place(across, 2, options=COMMUNICATION)
    assert calm.why.of(Utility).utility == pytest.approx(0.25)
    late = {**COMMUNICATION, "patience_s": 1000.0}
    assert place(across, 2, "topo-aware-p", late) is None
    assert place(across, 2, "topo-aware-p", late, waited_s=499.0) is None
    aged = place(across, 2, "topo-aware-p", late, waited_s=501.0)
    assert aged.slots == ((1, 3),)
    assert aged.why.of(Utility).threshold == pytest.approx(0.2495)
    never = {**COMMUNICATION, "patience_s": float("inf")}
    assert place(across, 2, "topo-aware-p", never, waited_s=1e9) is None
    assert place(across, 1, "topo-aware-p", late) is not None  # 0.3 for one GPU


def test_a_jobs_own_threshold_goes_before_the_default():
    across = minsky(busy=[(0, [0, 2])])
    for utility, placed in ((0.25, True), (0.26, False)):
        own = {"minimal_utility": utility}
        found = place(across, 2, "topo-aware-p", COMMUNICATION, own=own)
        assert (found is not None) == placed


def test_the_planner_tells_how_long_a_job_has_waited():
    across = minsky(busy=[(0, [0, 2])])
    settings = PlanSettings(policy="topo-aware-p")
    options = {"topo-aware-p": {**COMMUNICATION, "patience_s": 1000.0}}
    queue = [Request("1", 2, submit_s=100.0, max_nodes=1)]
    for now, placed in ((100.0, 0), (590.0, 0), (610.0, 1), (9e9, 1)):
        plan = plan_round(queue, across, settings, now, policy_options=options)
        assert len(plan.assignments) == placed
        if not placed:
            assert "waits for better GPUs" in plan.waiting[0].reason


def test_an_idle_machine_may_be_below_the_threshold_but_is_never_impossible():
    """One GPU of an idle Minsky leaves its socket half empty: utility 0.5."""
    picky = job_request("1", 1, options={"minimal_utility": 0.6})
    settings = PlanSettings(policy="topo-aware-p")
    plan = plan_round([picky, Request("2", 2, submit_s=1.0)], minsky(), settings, 0.0)
    assert [a.job_id for a in plan.assignments] == ["2"], "it keeps no other job from starting"
    (waits,) = plan.waiting
    assert waits.reason.startswith("postponed: the policy waits for better GPUs")
    assert waits.shadow_start_s is None


def test_a_postponed_job_gets_the_first_reservation_by_room_alone():
    """At 100 s a GPU per socket is free, below the threshold; at 200 s the machine is idle."""
    cluster = minsky(busy=[(0, [0, 2, 3])])
    running = [
        RunningJob("a", ((0, (2,)),), 100.0),
        RunningJob("b", ((0, (0,)),), 200.0),
        RunningJob("c", ((0, (3,)),), 200.0),
    ]
    cluster = replace(cluster, running=tuple(running))
    settings = PlanSettings(policy="topo-aware-p")
    picky = job_request("1", 2, max_nodes=1, options={"minimal_utility": 0.9})
    (waits,) = plan_round([picky], cluster, settings, 0.0).waiting
    assert waits.shadow_start_s == 100.0
    assert waits.reason.startswith("next in line: needs 2 free GPUs")


def test_a_postponed_job_preempts_no_job():
    cluster = minsky(busy=[(0, [0, 2])])
    running = tuple(RunningJob(f"r{s}", ((0, (s,)),), 100.0, preemptable_by=0.0) for s in (0, 2))
    picky = job_request(
        "1", 2, max_nodes=1, preemption=PreemptionRights(tier=1.0), options={"minimal_utility": 0.9}
    )
    settings = PlanSettings(policy="topo-aware-p")
    plan = plan_round([picky], replace(cluster, running=running), settings, 0.0)
    assert [w.reason.split(":")[0] for w in plan.waiting] == ["postponed"]
    cluster.take(0, [1])
    running += (RunningJob("r1", ((0, (1,)),), 100.0, preemptable_by=0.0),)
    plan = plan_round([picky], replace(cluster, running=running), settings, 0.0)
    (found,) = plan.assignments
    assert len(found.victims) == 1


def test_behind_a_postponed_job_one_that_waited_longer_may_ask_for_less():
    across = minsky(busy=[(0, [0, 2])])
    settings = PlanSettings(policy="topo-aware-p")
    options = {"topo-aware-p": {**COMMUNICATION, "patience_s": 1000.0}}
    queue = [
        Request("1", 2, submit_s=900.0, max_nodes=1, priority=2.0),
        Request("2", 2, submit_s=900.0, max_nodes=1, priority=1.0),
        Request("3", 2, submit_s=0.0, max_nodes=1),
    ]
    plan = plan_round(queue, across, settings, 1000.0, policy_options=options)
    assert [a.job_id for a in plan.assignments] == ["3"]


def test_the_account():
    cluster = minsky(3, [(0, [0]), (1, [0, 2])])
    found = place(cluster, 2, "topo-aware-p")
    json.dumps(found.why.plain())
    why = found.why.of(Utility)
    assert why.weights == (0.5, 0.0, 0.5)
    assert why.interference_known is False
    assert why.terms["communication"] == {"t": 1, "best": 1, "worst": 20, "cost": 0.0}
    assert [a.set for a in why.alternatives] == ["n2 GPUs 0,1", "n1 GPUs 1,3"]
    assert [a.utility for a in why.alternatives] == [1.0, 0.5]
    assert why.threshold == 0.5
    assert found.why.text == "the highest utility, 1.00"


PAGE = (Path(__file__).parents[3] / "docs" / "policies" / "topo-aware.md").read_text()
ROWS = re.findall(
    r"^\| ([\d,]+) \| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE
)


def test_the_page_has_its_tables():
    assert [len(row[1].split(",")) for row in ROWS] == [2, 2, 2, 1, 1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:2]))
def test_the_tables_of_the_page(row):
    free, takes, t, w, utility = row
    busy = sorted(set(range(4)) - {int(s) for s in free.split(",")})
    found = place(minsky(busy=[(0, busy)]), len(takes.split(",")))
    assert found.slots == (tuple(int(s) for s in takes.split(",")),)
    terms = found.why.of(Utility).terms
    assert (terms["communication"]["t"], terms["fragmentation"]["w"]) == (int(t), float(w))
    assert found.why.of(Utility).utility == float(utility)
    assert found.why.of(Utility).weights == (0.5, 0.0, 0.5)


def test_the_page_names_every_option():

    assert [name for name in sorted(option_names("topo-aware-p")) if f"`{name}`" not in PAGE] == []
