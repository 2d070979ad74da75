"""GPUs of which jobs have shards are not free for whole-GPU jobs, until the last of these ends."""

from dataclasses import replace

import numpy as np
import pytest
from make import (
    NOW,
    PROFILE,
    SLURM,
    asked,
    context_of,
    eligible,
    nodes_for,
    plan_round,
    request_of,
    slurm_job,
    slurm_node,
    why_left,
)

from slurm_gpu_aware.admission.context import CannotPlanError, PreemptionRules
from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.admission.snapshot import build_cluster
from slurm_gpu_aware.features.shards.declared import SHARDS
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.slurm.records import (
    NodeShare,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmReservation,
)

N1 = slurm_node("n1", used=(3,), shards={0: (3, 4), 1: (0, 4), 2: (1, 4), 3: (0, 4)})
LOW = SlurmPartition("low", frozenset(), up=True, preempt_mode=frozenset({"REQUEUE"}))


def shard_job(number: int, shards: dict[int, int], end_s: float) -> SlurmJob:
    share = NodeShare("n1", 2, 500, (), shards=shards)
    return slurm_job(
        number,
        state="RUNNING",
        partitions=("low",),
        nodes=("n1",),
        shares=(share,),
        start_s=9.0,
        end_s=end_s,
    )


def n1_with(*jobs: SlurmJob) -> Cluster:
    slurm = replace(SLURM, preempt_type="partition_prio")
    rules = PreemptionRules(slurm, {"low": LOW})
    return build_cluster([N1], jobs, slurm, PROFILE, rules=rules)


def test_a_gpu_of_which_shards_are_used_is_not_free():
    cluster = n1_with()
    assert cluster.free.tolist() == [[False, True, False, False]]
    assert cluster.exists.all()
    assert cluster.indexed.all()
    assert nodes_for(context_of([N1, slurm_node("n2", used=range(4))])) == {"n1", "n2"}


def test_a_gpu_is_that_of_the_job_whose_shards_end_last():
    jobs = [
        shard_job(1, {0: 1}, NOW + 60),
        shard_job(2, {0: 2, 2: 1}, NOW + 600),
        shard_job(3, {3: 1}, NOW + 900),  # another GPU than the node shows
    ]
    running = n1_with(*jobs).running
    assert [one.gpus for one in running] == [(), ((0, (0, 2)),), ((0, (3,)),)]
    assert [dict(one.cpus) for one in running] == [{0: 2}] * 3
    assert [one.preemptable_by for one in running] == [None] * 3


@pytest.mark.parametrize(("gpus", "starts"), [(1, True), (2, False)])
def test_a_round_gives_no_gpu_away_of_which_shards_are_used(gpus: int, starts: bool):
    cluster = n1_with(shard_job(1, {0: 3}, NOW + 60), shard_job(2, {2: 1}, NOW + 600))
    where = replace(context_of([N1]), cluster=cluster)
    request = request_of(slurm_job(), asked(f"gpu:{gpus}"), where)
    plan = plan_round([request], cluster, PlanSettings(), NOW)
    assert [chosen.gpus for chosen in plan.assignments] == ([((0, (1,)),)] if starts else [])
    assert [one.shadow_start_s for one in plan.waiting] == ([] if starts else [NOW + 60])


# Jobs that ask for shards ------------------------------------------------------------------------

IDLE = dict.fromkeys(range(4), (0, 4))
N2 = slurm_node("n2", shards=IDLE)


def test_free_shards_of_used_gpus():
    shards = context_of([N1, N2, slurm_node("n3")]).cluster.shards
    assert shards.total.tolist() == [[4] * 4, [4] * 4, [0] * 4]
    assert shards.free.tolist() == [[1, 0, 3, 0], [0] * 4, [0] * 4]
    assert context_of([slurm_node("n3")]).cluster.shards is None


def test_shards_of_released_jobs_are_held():
    def hold(job_id: str, slot: int, end_s: float) -> Hold:
        return Hold(job_id, ("n1",), (slot,), 1, 1, 100, end_s, shards=1)

    holds = [hold("7", 0, NOW + 900), hold("8", 1, NOW + 60), hold("9", 2, NOW + 60)]
    jobs = [shard_job(1, {0: 3, 2: 1}, NOW + 600)]
    cluster = build_cluster([N1], jobs, SLURM, PROFILE, holds=holds)
    assert cluster.shards.free.tolist() == [[0, 3, 2, 0]]
    assert not cluster.free.any()
    assert {one.job_id: one.gpus for one in cluster.running} == {
        "1": ((0, (2,)),),  # it ends after job 9
        "7": ((0, (0,)),),
        "8": ((0, (1,)),),
        "9": (),
    }


@pytest.mark.parametrize("shards", [0, 1])
def test_a_released_job_whose_gpu_is_gone(shards: int):
    gone = Hold("7", ("n1",), (9,), 1, 1, 100, NOW + 900, shards=shards)
    cluster = build_cluster([N1], [], SLURM, PROFILE, holds=[gone])
    assert cluster.shards.free.tolist() == [[1, 0, 3, 0]]
    request = request_of(slurm_job(), asked("gpu:2"), replace(context_of([N1]), cluster=cluster))
    assert plan_round([request], cluster, PlanSettings(), NOW).waiting


@pytest.mark.parametrize(
    "wrong",
    [
        slurm_node("n1", used=(0,), shards={0: (1, 4), 1: (0, 4)}),  # Slurm has mixed them up
        slurm_node("n1", shards={0: (1, 4), 1: (0, 4)}, gpus_drained=frozenset({0})),
        slurm_node("n1", shards={0: (1, 4)}, gpus=(("v100", 4),)),
        slurm_node("n1", shards={0: (1, 4)}, untyped_shards=True),
    ],
)
def test_gpus_whose_shards_are_not_given(wrong: SlurmNode):
    shards = context_of([wrong]).cluster.shards
    assert not shards.free.any()


def test_the_request_of_a_job_of_shards():
    where = context_of([N1, N2, slurm_node("n3")])
    request = request_of(slurm_job(), asked("shard:3"), where)
    assert (request.gpus, request.get(SHARDS), request.clock) == (1, 3, "default")
    assert eligible(request, where) == {"n1", "n2"}
    assert (request.preemption.groups, request.preemption.tier) == (frozenset(), None)


@pytest.mark.parametrize(
    ("text", "more", "nodes"),
    [
        ("shard:5", {}, [N2]),
        ("shard:2", {}, [N2, slurm_node("n3", shards={**IDLE, 1: (0, 1)})]),
        ("shard:2", {}, [N2, slurm_node("n3", shards=IDLE, gpus=(("v100", 4),))]),
        ("shard:2", {}, [N2, slurm_node("n3", shards=IDLE, untyped_shards=True)]),
        ("shard:2", {}, [N2, slurm_node("n3", shared_gres=True)]),
        ("shard:2", {}, [slurm_node("n3")]),
        ("shard:2", {"exclusive": True}, [N2]),
        ("shard:2", {"nodes": (2, 2)}, [N2, slurm_node("n3", shards=IDLE)]),
        ("shard:2", {"req_nodes": "n3"}, [N2, slurm_node("n3")]),
    ],
)
def test_shards_that_are_left_to_slurm(text: str, more: dict[str, object], nodes: list[SlurmNode]):
    assert why_left(slurm_job(), asked(text, **more), context_of(nodes))


def test_only_the_node_that_it_names_counts():
    where = context_of([N2, slurm_node("n3", shards=IDLE, gpus=(("v100", 4),))])
    assert nodes_for(where, asked("shard:2", req_nodes="n2")) == {"n2"}
    assert why_left(slurm_job(), asked("shard:2", req_nodes="n3"), where)


def plan_one(request: Request, cluster: Cluster) -> Plan:
    """The plan of one job, with the levels of a site."""
    levels = Cluster.uniform(cluster.nodes, 4).levels
    return plan_round([request], replace(cluster, levels=levels), PlanSettings(), NOW)


def test_nodes_that_are_down_do_not_matter():
    down = slurm_node("n1", shards=IDLE, states=frozenset({"DOWN"}))
    where = context_of([down, N2])
    request = request_of(slurm_job(), asked("shard:3"), where)
    assert np.count_nonzero(where.cluster.exists) == 4
    (placed,) = plan_one(request, where.cluster).assignments
    assert placed.nodes == (1,)


def test_shards_of_a_node_that_is_drained_are_not_given():
    used = {0: (1, 4), 1: (0, 4), 2: (0, 4), 3: (0, 4)}
    drained = slurm_node("n1", shards=used, states=frozenset({"MIXED", "DRAIN"}))
    shards = context_of([drained, N2]).cluster.shards
    assert not shards.free[0].any()


@pytest.mark.parametrize("away", ["DOWN", "DRAIN", "reserved"])
def test_a_job_waits_for_nodes_with_shards_that_are_all_away(away: str):
    """It was left to Slurm for good, which could not start it either."""
    shown = slurm_node("n1", shards=IDLE, states=frozenset({"IDLE", away} - {"reserved"}))
    kept = SlurmReservation("m", NOW, NOW + 60, frozenset({"n1"}), flags=frozenset({"MAINT"}))
    where = context_of([shown, slurm_node("n2")], None, [kept] if away == "reserved" else [])
    request = request_of(slurm_job(), asked("shard:3"), where)
    (waiting,) = plan_one(request, where.cluster).waiting
    assert waiting.reason.endswith("; down, drained or reserved: n1")
    with pytest.raises(CannotPlanError):
        request_of(slurm_job(), asked("shard:5"), where)
