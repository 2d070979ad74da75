"""Order in which the site's Slurm preempts jobs, and which it never preempts, by configuration."""

import math
from dataclasses import replace

import pytest
from make import slurm_job

from slurm_gpu_aware.admission.context import PreemptionRules
from slurm_gpu_aware.model.cluster import PreemptionOrder, RunningJob
from slurm_gpu_aware.slurm.read_cluster import config_of
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmPartition, SlurmQos

HELD = RunningJob("7", (), math.inf)


def preempting_slurm(preempting: str, scheduling: str = "(null)") -> SlurmConfig:
    return config_of(
        {
            "SLURM_VERSION": "24.11.5",
            "PreemptMode": "REQUEUE",
            "PreemptParameters": preempting,
            "PreemptType": "preempt/partition_prio",
            "SchedulerParameters": scheduling,
        }
    )


@pytest.mark.parametrize(
    ("preempting", "scheduling", "order"),
    [
        ("(null)", "(null)", PreemptionOrder()),
        ("youngest_first", "bf_interval=3", PreemptionOrder(youngest_first=True)),
        ("Strict_Order,Reorder_Count=3", "", PreemptionOrder(strict=True, reorder_count=3)),
        ("reorder_count=-4", "(null)", PreemptionOrder()),
        ("reorder_count=x", "(null)", PreemptionOrder(reorder_count=0)),
        (
            "(null)",
            "preempt_youngest_first,preempt_strict_order,preempt_reorder_count=2",
            PreemptionOrder(youngest_first=True, strict=True, reorder_count=2),
        ),
        ("reorder_count=0", "preempt_reorder_count=2", PreemptionOrder(reorder_count=0)),
    ],
)
def test_order(preempting: str, scheduling: str, order: PreemptionOrder) -> None:
    assert preempting_slurm(preempting, scheduling).preemption == order


@pytest.mark.parametrize(
    ("setting", "priority", "spared"),
    [
        ("(null)", 1 << 31, False),
        ("min_exempt_priority=500", 500, False),
        ("youngest_first,min_exempt_priority=500", 501, True),
        ("min_exempt_priority=0", 1, True),
    ],
)
def test_jobs_of_high_priority_are_spared(setting: str, priority: int, spared: bool) -> None:
    slurm = preempting_slurm(setting)
    assert math.isinf(slurm.spared_above) is (setting == "(null)")
    low = SlurmPartition("low", frozenset(), up=True, preempt_mode=frozenset({"REQUEUE"}))
    rules = PreemptionRules(slurm, {"low": low})
    job = slurm_job(state="RUNNING", partitions=("low",), nodes=("n1",), priority=priority)
    assert (rules.with_standing(HELD, job, 0.0).preemptable_by is None) is spared


def test_priorities_of_qos_count_up_to_what_slurm_compares() -> None:
    slurm = replace(preempting_slurm("(null)"), preempt_type="qos")
    job = slurm_job(state="RUNNING", nodes=("n1",), qos="q")
    costs = [
        PreemptionRules(slurm, {}, {"q": SlurmQos("q", priority=priority)}).with_standing(
            HELD, job, 0.0
        )
        for priority in (3, 65535, 70000, 100000)
    ]
    assert [cost.preemptable_by for cost in costs] == [3.0, 65535.0, 65535.0, 65535.0]


@pytest.mark.parametrize(
    ("own", "cluster", "known", "keeps"),
    [
        ("SUSPEND", "REQUEUE", True, True),
        ("CANCEL", "SUSPEND,GANG", True, False),
        ("", "SUSPEND,GANG", True, True),
        ("OFF", "REQUEUE", False, False),
    ],
)
def test_jobs_that_slurm_only_suspends(own: str, cluster: str, known: bool, keeps: bool) -> None:
    slurm = replace(
        preempting_slurm("(null)"), preempt_type="qos", preempt_mode=frozenset(cluster.split(","))
    )
    qos = SlurmQos("q", priority=1, preempt_mode=frozenset({own} if own else ()))
    rules = PreemptionRules(slurm, {}, {"q": qos})
    for state in ("RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING"):
        job = slurm_job(state=state, nodes=("n1",), qos="q")
        held = rules.with_standing(HELD, job, 0.0)
        assert (held.preempt_group == "q") is known
        assert held.keeps_gpus is keeps
    ending = slurm_job(state="COMPLETING", nodes=("n1",), qos="q")
    assert rules.with_standing(HELD, ending, 0.0).preempt_group is None
