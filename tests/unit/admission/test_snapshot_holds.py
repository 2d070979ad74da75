"""What is promised to placed jobs that have not started is not promised twice."""

from dataclasses import replace
from typing import Any

import pytest
from make import PROFILE, SLURM, job_request, slurm_job, slurm_node

from slurm_gpu_aware.admission.context import PreemptionRules
from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.admission.snapshot import build_cluster
from slurm_gpu_aware.model.cluster import PreemptionOrder
from slurm_gpu_aware.model.request import TIER, Sharing
from slurm_gpu_aware.slurm.records import (
    NodeShare,
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
)

PLAIN = (("v100", 4),)


def hold_of(job_id: str, gpus: int) -> Hold:
    return Hold(job_id, ("n1",), (), gpus, cpus_per_node=1, memory_mb_per_node=500, end_s=100.0)


def test_holds_on_a_plain_node_add_up():
    cluster = build_cluster(
        [slurm_node("n1", gpus=PLAIN), slurm_node("n2", gpus=PLAIN)],
        [],
        SLURM,
        PROFILE,
        holds=[hold_of("1", 2), hold_of("2", 1)],
    )
    assert cluster.free.sum(axis=1).tolist() == [1, 4]
    taken = [g for job in cluster.running for _, slots in job.gpus for g in slots]
    assert len(taken) == len(set(taken)) == 3


def cluster_users(nodes: list[SlurmNode], job: SlurmJob) -> Any:
    return build_cluster(nodes, [job], SLURM, PROFILE).users


def test_a_job_that_shares_its_node_with_none_holds_what_it_has_and_closes_the_rest() -> None:
    """``--exclusive=topo`` and ``mcs``: Slurm gives it one GPU, and the others to no job.

    Not while it ends, and a plain ``--exclusive`` job has all GPUs of its nodes as they are.
    """
    one, every = NodeShare("n1", 1, 500, (2,)), NodeShare("n1", 1, 500, (0, 1, 2, 3))
    nodes = [slurm_node("n1", gpus_used=frozenset({2})), slurm_node("n2")]

    def closed(share: NodeShare, slurm: SlurmConfig = SLURM, **fields: object) -> list[bool] | None:
        told = {"state": "RUNNING", "nodes": ("n1",), "end_s": 90.0, **fields}
        job = slurm_job(shares=(share,), user="bob", **told)
        cluster = build_cluster(nodes, [job], slurm, PROFILE)
        assert cluster.free.sum(axis=1).tolist() == [3, 4]
        assert [job.gpus for job in cluster.running] == [((0, (2,)),)]
        if cluster.users is None:
            return None
        mine, other = (job_request("8", 1, user=who) for who in ("bob", "eve"))
        assert cluster.users.open_to(mine).tolist() == cluster.users.open_to(other).tolist()
        return [not is_open for is_open in cluster.users.open_to(mine)]

    assert closed(one, exclusive=True) == [True, False]
    for told in ((one, {}), (every, {"exclusive": True})):
        assert closed(told[0], **told[1]) is None
    assert closed(one, exclusive=True, state="COMPLETING") is None
    topo = replace(SLURM, exclusive_kinds=frozenset({"topo"}))  # the site has no MCS
    assert closed(one, topo, exclusive=True, exclusive_by="topo") == [True, False]
    assert closed(one, topo, exclusive=True, exclusive_by="mcs") is None
    nodes[0] = slurm_node("n1", gpus_used=frozenset({2}), gpus_drained=frozenset({0, 1, 3}))
    assert cluster_users(nodes, slurm_job(shares=(one,), exclusive=True, state="RUNNING")) is None


def test_users_are_told_apart_only_where_a_job_may_take_a_node_for_itself() -> None:
    """Each round costs more then, so a job elsewhere, or one that waits without GPUs, must not."""
    nodes = [slurm_node("n1")]
    waiting = {"exclusive_user": True, "user": "bob", "state": "PENDING"}
    alone = [
        slurm_job(admin_comment="gpuaware/1;tn=gres/gpu:1", **waiting),
        slurm_job(req_tres={"cpu": 1, "gres/gpu": 1}, **waiting),
        slurm_job(**{**waiting, "state": "RUNNING"}, shares=(NodeShare("n1", 1, 500, ()),)),
    ]
    assert all(cluster_users(nodes, job).names == ("bob",) for job in alone)
    elsewhere = slurm_job(**{**waiting, "state": "RUNNING"}, shares=(NodeShare("c1", 1, 500, ()),))
    for job in (slurm_job(req_tres={"cpu": 1}, **waiting), elsewhere):
        assert cluster_users(nodes, job) is None


@pytest.mark.parametrize("alone", [True, False])
def test_a_job_that_ends_closes_its_node_no_more(alone: bool) -> None:
    """As with its GPUs: Slurm starts the next job when the epilog is done, which wakes no round."""
    bobs = slurm_job(
        1, user="bob", state="COMPLETING", exclusive_user=alone, shares=(NodeShare("n1", 1, 1, ()),)
    )
    waits = slurm_job(2, admin_comment="gpuaware/1;tn=gres/gpu:1", exclusive_user=not alone)
    users = build_cluster([slurm_node("n1")], [bobs, waits], SLURM, PROFILE).users
    assert users is None or users.open_for("alice", alone=True, sharing=Sharing()).all()


def test_running_jobs_have_a_place_by_tier_and_priority() -> None:
    """On the scale of waiting jobs, so that a job without GPUs can be told to have passed one."""
    parts = {"high": SlurmPartition("high", frozenset({"n1"}), up=True, priority_tier=3)}
    given = {"state": "RUNNING", "shares": (NodeShare("n1", 4, 500, ()),), "start_s": 50.0}
    jobs = [slurm_job(n, priority=7, partitions=p, **given) for n, p in enumerate((("high",), ()))]
    rules = PreemptionRules(SLURM, parts)
    found = build_cluster([slurm_node("n1")], jobs, SLURM, PROFILE, rules=rules).running
    assert [job.standing for job in found] == [3 * TIER + 7, TIER + 7]


def test_victims_of_a_placed_job_are_not_chosen_again():
    """Not even those that hold none of its GPUs: Slurm takes them along."""
    slurm = replace(
        SLURM, preempt_type="partition_prio", preemption=PreemptionOrder(youngest_first=True)
    )
    low = SlurmPartition("low", frozenset(), up=True, preempt_mode=frozenset({"REQUEUE"}))
    shares = (NodeShare("n1", 2, 500, ()), NodeShare("login", 1, 500, ()))
    jobs = [
        slurm_job(
            number, state=state, partitions=("low",), nodes=("n1",), shares=shares, start_s=9.0
        )
        for number, state in ((1, "RUNNING"), (2, "SUSPENDED"), (3, "RUNNING"))
    ]
    cluster = build_cluster(
        [slurm_node("n1", gpus=PLAIN)],
        jobs,
        slurm,
        PROFILE,
        holds=[replace(hold_of("9", 1), victims=frozenset({"1"}))],
        rules=PreemptionRules(slurm, {"low": low}),
    )
    assert cluster.preemption == slurm.preemption
    known = {job.job_id: job for job in cluster.running}
    assert [known[name].preemptable_by is None for name in "123"] == [True, False, False]
    assert [known[name].cpus[0] for name in "123"] == [2, 0, 2]
    assert {(known[name].start_s, known[name].node_count) for name in "123"} == {(9.0, 2)}
