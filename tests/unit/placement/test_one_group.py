"""Jobs inside one group of nodes: placement, reasons, and the constraint in other packages."""

from dataclasses import replace

import numpy as np
import pytest
from make import job_request, plan_round, replayed

from slurm_gpu_aware.admission.fitting import fits
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel, RunningJob
from slurm_gpu_aware.model.request import NodeGroups, PreemptionRights, Request
from slurm_gpu_aware.placement.constraints import constrained
from slurm_gpu_aware.placement.facts import InGroup
from slurm_gpu_aware.placement.policy import Policy, make_policy, policy_names
from slurm_gpu_aware.planning.dispatcher import shape_of
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.selector.leaver import fits_by_counts

BLOCKS = NodeGroups(np.array([0, 1, 0, 1]), "block")  # n0 and n2, n1 and n3
SETTINGS = PlanSettings(policy="pal")


def free_but(*busy: int, gpus: int = 2) -> Cluster:
    found = Cluster.uniform(4, gpus, scores={"A": np.ones((4, gpus))})
    found.free[list(busy)] = False
    return found


def wide(job_id: str = "1", groups: NodeGroups | None = BLOCKS, **more: object) -> Request:
    values: dict[str, object] = {"gpus": 4, "gpus_per_node": 2, "min_nodes": 2, "app_class": "A"}
    return job_request(job_id, groups=groups, **{**values, **more})  # type: ignore[arg-type]


def plan_all(queue: list[Request], here: Cluster, now: float = 0.0) -> Plan:
    return plan_round(queue, here, SETTINGS, now)


def holder(job_id: str, node: int, end_s: float, **more: object) -> RunningJob:
    return RunningJob(job_id, ((node, (0, 1)),), end_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_keeps_to_one_block(policy: str):
    here = free_but(0)
    found = constrained(make_policy(policy)).place(wide(), here)
    assert found.nodes == (1, 3)
    assert found.why.text.endswith(
        ("; all nodes in one block", "; all nodes in one block (1 tried)")
    )
    assert constrained(make_policy(policy)).place(wide(), free_but(0, 3)) is None


@pytest.mark.parametrize("policy", ["pal", "pm-first"])  # by levels, and asked block by block
def test_the_least_slowdown_of_all_blocks_wins_and_the_account_counts_them(policy: str):
    here = free_but()
    here.scores["A"][1] = 1.2  # of block 1 a slow node, of block 0 a slower one
    here.scores["A"][2] = 1.4
    found = constrained(make_policy(policy)).place(wide(), here)
    assert found.nodes == (1, 3)
    assert found.why.of(InGroup) == InGroup("block", 2)
    assert "all nodes in one block (2 tried)" in found.why.text


@pytest.mark.parametrize("policy", ["pal", "pm-first"])
def test_of_equal_blocks_the_one_with_less_free_is_taken(policy: str):
    """Four nodes per block; without the constraint the fast nodes 3 and 4 are the best."""
    here = Cluster.uniform(8, 2, scores={"A": np.ones((8, 2))})
    here.scores["A"][[3, 4]] = 0.9
    here.free[5, 0] = here.free[0, 0] = False
    groups = NodeGroups(np.arange(8) // 4, "block")
    here.free[6] = False
    found = constrained(make_policy(policy)).place(wide(groups=groups), here)
    assert found.nodes == (4, 7)
    assert found.why.of(InGroup).tried == 2


def test_the_search_ends_where_the_job_is_as_fast_as_without_the_rule():
    groups = NodeGroups(np.arange(40) % 20, "block")
    here = Cluster.uniform(40, 2, scores={"A": np.ones((40, 2))})
    found = constrained(make_policy("lowest-index")).place(wide(groups=groups), here)
    assert (found.nodes, found.why.of(InGroup).tried) == ((0, 20), 1)


def test_levels_cut_at_the_borders_of_groups_keep_their_names_and_penalties():
    """A level that reaches over two blocks holds only sets of one of them."""
    here = free_but()
    switch = LocalityLevel("switch", 1.2, np.array([0, 0, 1, 1]))  # n0 and n1: two blocks
    here = replace(here, levels=(here.levels[0], switch, here.levels[1]))
    found = constrained(make_policy("pal")).place(wide(), here)
    assert (found.nodes, found.level, found.slowdown) == ((0, 2), "cluster", 1.5)
    same = NodeGroups(np.array([0, 0, 1, 1]), "block")
    found = constrained(make_policy("pal")).place(wide(groups=same), here)
    assert (found.nodes, found.level, found.slowdown) == ((0, 1), "switch", 1.2)


def test_the_reason_says_that_no_block_has_room():
    here = replace(free_but(0, 3), running=(holder("8", 0, 50.0), holder("9", 3, 70.0)))
    plan = plan_all([wide()], here)
    assert not plan.assignments
    (waiting,) = plan.waiting
    assert "no block has room for all of it; where most is free" in waiting.reason
    assert "needs 2 nodes with 2 free GPUs each; 1 node has that many" in waiting.reason
    assert waiting.shadow_start_s == 50.0
    assert "reserved: n0 GPUs 0,1 + n2 GPUs 0,1" in waiting.reason
    # Without the rule it would start at once.
    assert plan_all([wide(groups=None)], here).assignments


def test_where_too_little_is_free_at_all_the_reason_is_the_usual_one():
    plan = plan_all([wide()], free_but(0, 1, 2))
    assert "block" not in plan.waiting[0].reason


class Picky(Policy):
    """Needs three nodes to choose from; a block has two."""

    name = "picky"
    has_rules = True

    def place(self, request: Request, here: Cluster) -> Assignment | None:
        if request.nodes.eligible is not None and int(request.nodes.eligible.sum()) < 3:
            return None
        return make_policy("lowest-index").place(request, here)

    def own_reason(self, request: Request, here: Cluster) -> str | None:
        return "its own rule"


def test_a_rule_of_the_policy_is_named_before_the_block():
    reason = constrained(Picky()).why_not(wide(), free_but())
    assert (reason.text, reason.own) == ("its own rule", True)


def test_backfill_leaves_the_block_of_the_head_alone():
    """The head waits for block 0; a long job may not get n2, but may get n1."""
    here = replace(free_but(0, 3), running=(holder("8", 0, 50.0), holder("9", 3, 70.0)))
    behind = [
        Request("2", 2, app_class="A", time_limit_s=1000.0, priority=-1.0),
        Request("3", 2, app_class="A", time_limit_s=1000.0, priority=-2.0),
    ]
    plan = plan_all([wide(), *behind], here)
    assert [(a.job_id, a.nodes) for a in plan.assignments] == [("2", (1,))]
    assert "reaches past the start of job 1" in plan.waiting[1].reason


def test_victims_are_of_one_block():
    """Cheapest are those of two blocks; they would free nothing that the job could have."""
    running = (
        holder("20", 0, 10.0, preemptable_by=0.0),
        holder("21", 1, 10.0, preemptable_by=0.0),
        holder("22", 2, 10.0, preemptable_by=1.0),
        holder("23", 3, 10.0, preemptable_by=2.0),
    )
    here = replace(free_but(0, 1, 2, 3), running=running)
    (found,) = plan_all([wide(preemption=PreemptionRights(tier=5.0))], here).assignments
    assert found.nodes == (0, 2)
    assert found.victims == ("20", "22")


def test_a_job_that_no_block_can_hold_blocks_no_other():
    here = free_but()
    here.exists[[2, 3]] = here.free[[2, 3]] = False
    plan = plan_all([wide(), Request("2", 1, app_class="A", priority=-1.0)], here)
    assert [a.job_id for a in plan.assignments] == ["2"]
    (waiting,) = plan.waiting
    assert waiting.infeasible
    assert waiting.reason.startswith("cannot start even on an idle cluster: no block has room")
    # Slurm would not start it either: it stays with us.
    assert not fits_by_counts(wide(), here)
    assert fits_by_counts(wide(), free_but())
    assert fits_by_counts(wide(groups=None), here)


def test_fits_counts_each_block_by_itself():
    assert fits(wide(), free_but(0))
    assert not fits(wide(), free_but(0, 3))
    assert fits(wide(), free_but(0, 3).empty())
    assert not fits(wide(required=(0, 1)), free_but().empty())
    crossed = free_but(0)
    crossed.free[1, 0] = crossed.free[3, 1] = False
    assert not fits(wide(gpus=2, gpus_per_node=1), crossed)


def test_requests_of_other_groups_are_of_another_shape():
    same = [wide("1"), wide("2")]
    assert shape_of(same[0]) == shape_of(same[1])
    assert shape_of(wide(groups=None)) != shape_of(same[0])
    assert shape_of(wide(groups=replace(BLOCKS))) != shape_of(same[0])


def test_a_recorded_round_carries_it_and_comes_out_the_same():
    again = replayed(Round([wide(), wide("2", groups=None)], free_but(0), SETTINGS, 0.0))
    first, second = again.asked.queue
    assert (first.nodes.groups.name, first.nodes.groups.of.tolist()) == ("block", [0, 1, 0, 1])
    assert second.nodes.groups is None
    assert again.placed["1"][0] == ("n1", "n3")
