"""GPUs of which jobs have shards are not free for whole-GPU jobs, until the last of these ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_jobs import request_of, slurm_job
from test_translate import NOW, SLURM, asked, eligible, job, node, site

from slurm_gpu_aware.admission.preemption import PreemptionRules
from slurm_gpu_aware.admission.snapshot import SiteProfile, build_cluster
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.round import plan_round
from slurm_gpu_aware.slurm.records import NodeShare, SlurmJob, SlurmPartition

N1 = node("n1", used=(3,), shards={0: (3, 4), 1: (0, 4), 2: (1, 4), 3: (0, 4)})
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


def cluster_of(*jobs: SlurmJob) -> Cluster:
    slurm = replace(SLURM, preempt_type="partition_prio")
    rules = PreemptionRules(slurm, {"low": LOW})
    profile = SiteProfile(Config(), {"cluster": 1.5})
    return build_cluster([N1], jobs, slurm, profile, rules=rules)


def test_a_gpu_of_which_shards_are_used_is_not_free():
    cluster = cluster_of()
    assert cluster.free.tolist() == [[False, True, False, False]]
    assert cluster.exists.all()
    assert cluster.indexed.all()
    where = site([N1, node("n2", used=range(4))])
    assert eligible(request_of(job(), asked(), where), where) == {"n1", "n2"}


def test_a_gpu_is_that_of_the_job_whose_shards_end_last():
    jobs = [
        shard_job(1, {0: 1}, NOW + 60),
        shard_job(2, {0: 2, 2: 1}, NOW + 600),
        shard_job(3, {3: 1}, NOW + 900),  # another GPU than the node shows
    ]
    running = cluster_of(*jobs).running
    assert [one.gpus for one in running] == [(), ((0, (0, 2)),), ((0, (3,)),)]
    assert [dict(one.cpus) for one in running] == [{0: 2}] * 3
    assert [one.preemptable_by for one in running] == [None] * 3


@pytest.mark.parametrize(("gpus", "starts"), [(1, True), (2, False)])
def test_a_round_gives_no_gpu_away_of_which_shards_are_used(gpus: int, starts: bool):
    cluster = cluster_of(shard_job(1, {0: 3}, NOW + 60), shard_job(2, {2: 1}, NOW + 600))
    where = replace(site([N1]), cluster=cluster)
    request = request_of(job(), asked(f"gpu:{gpus}"), where)
    plan = plan_round([request], cluster, PlanSettings(), NOW)
    if starts:
        (chosen,) = plan.assignments
        assert isinstance(chosen, Assignment)
        assert chosen.gpus == ((0, (1,)),)
    else:
        (waiting,) = plan.waiting
        assert waiting.shadow_start_s == NOW + 60
