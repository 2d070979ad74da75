"""What is promised to placed jobs that have not started is not promised twice."""

from dataclasses import replace

import pytest
from make import PROFILE, SLURM, slurm_job, slurm_node

from slurm_gpu_aware.admission.context import PreemptionRules
from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.admission.snapshot import build_cluster
from slurm_gpu_aware.model.cluster import PreemptionOrder
from slurm_gpu_aware.slurm.records import NodeShare, SlurmPartition

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


@pytest.mark.parametrize("exclusive", [True, False])
def test_no_gpu_is_free_beside_a_job_that_shares_its_node_with_none(exclusive: bool) -> None:
    """``--exclusive=topo`` and ``mcs``: Slurm gives it one GPU, and the others to no job."""
    share = NodeShare("n1", 1, 500, (2,))
    fields = {"state": "RUNNING", "nodes": ("n1",), "shares": (share,), "end_s": 90.0}
    nodes = [slurm_node("n1", gpus_used=frozenset({2})), slurm_node("n2")]
    jobs = [slurm_job(exclusive=exclusive, **fields)]
    cluster = build_cluster(nodes, jobs, SLURM, PROFILE)
    assert cluster.free.sum(axis=1).tolist() == [0 if exclusive else 3, 4]
    (running,) = cluster.running
    assert running.gpus == ((0, (0, 1, 2, 3) if exclusive else (2,)),)
    assert running.end_s == 90.0


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
