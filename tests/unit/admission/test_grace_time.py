"""GraceTime: a job whose victims are given time to end is not parked again meanwhile."""

from dataclasses import replace
from pathlib import Path

import pytest
from make import slurm_job
from memory_slurm import partition_record
from slurm_folder import SlurmFolder, parked
from store_samples import decision

from slurm_gpu_aware.admission.context import PreemptionRules
from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import gated_jobs
from slurm_gpu_aware.model.cluster import RunningJob
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.job_tracker import JobTracker, Tracked
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.start_monitor import StartMonitor
from slurm_gpu_aware.slurm.read_cluster import parse_qos, partition_of
from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmPartition, SlurmQos

SLURM = SlurmConfig(version=(24, 11), cluster="c", counts_memory=True, counts_cpus=True)
RELEASED_AT = 1000.0
JOB = slurm_job(partitions=("high",), req_nodes=("n1",), tres_per_node="gres/gpu:g1:1")
BOUND = {
    "reason": "Resources",
    "licenses": "",
    "req_nodes": "n1",
    "tres_per_node": "gres/gpu:g1:1",
    "admin_comment": "gpuaware/1;tn=gres/gpu:1;sel=released:0:1000",
    "stuck": True,
}
"""Job 7 as it waits for its start, bound to a GPU of n1."""


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("90", 90), ("00:02:00", 120)])
def test_grace_time_of_partition_and_qos(text: str, expected: int):
    assert partition_of(partition_record("low", "n1", grace_time=expected)).grace_s == expected
    assert parse_qos(f"low||requeue|5|00:00:00|{text}\n")[0].grace_s == expected


def test_a_line_of_another_form_is_refused():
    with pytest.raises(SourceError, match="six values"):
        parse_qos("low||requeue|5|00:00:00\n")


@pytest.mark.parametrize(("kind", "expected"), [("partition_prio", 90.0), ("qos", 45.0), ("", 0.0)])
def test_the_longest_of_the_rule_that_holds(kind: str, expected: float):
    rules = PreemptionRules(
        replace(SLURM, preempt_type=kind),
        {
            "low": SlurmPartition("low", frozenset(), up=True, grace_s=90.0),
            "mid": SlurmPartition("mid", frozenset(), up=True, grace_s=20.0),
        },
        {"scavenge": SlurmQos("scavenge", grace_s=45.0)},
    )
    assert rules.grace_s == expected


@pytest.mark.parametrize(
    ("cluster_mode", "mode", "expected"),
    [
        ("REQUEUE", "requeue", ()),
        ("REQUEUE", "within,requeue", ("low",)),
        ("WITHIN,REQUEUE", "requeue", ("low",)),
        ("WITHIN,REQUEUE", "cluster", ("low",)),
    ],
)
def test_preemption_within_a_qos(cluster_mode: str, mode: str, expected: tuple[str, ...]):
    slurm = replace(SLURM, preempt_type="qos", preempt_mode=frozenset(cluster_mode.split(",")))
    (own,) = parse_qos(f"low||{mode}|5|00:00:00|0\n")
    job = replace(JOB, qos="low")
    assert PreemptionRules(slurm, {}, {"low": own}).preempts_lower(job) == set(expected)
    by_tier = replace(slurm, preempt_type="partition_prio")
    assert not PreemptionRules(by_tier, {}, {"low": own}).preempts_lower(job)
    running = replace(job, state="RUNNING", nodes=("n1",))
    rules = PreemptionRules(slurm, {}, {"low": own})
    assert rules.with_standing(RunningJob("7", (), 0.0), running, 0.0).preempt_group == "low"


@pytest.fixture
def tracker(tmp_path: Path) -> JobTracker:
    return JobTracker(LedgerWriter(tmp_path / "store.db"))


def parked_again(slurm: SlurmFolder, tracker: JobTracker, after_s: float, grace_s: float) -> int:
    """What the start monitor does, so long after the gate was opened, with job 7 on n1."""
    now = [RELEASED_AT]
    backoff = Backoff(60.0, lambda: now[0])
    client = slurm.client()
    monitor = StartMonitor(client, Config(), tracker, backoff, lambda _: True)
    (released,) = gated_jobs(client.jobs(), GateConfig())
    monitor.watch([released], frozenset(), grace_s=grace_s)
    now[0] += after_s
    return monitor.poll()


@pytest.mark.parametrize(
    ("preempts", "after_s", "again"),
    [(False, 29.0, False), (False, 31.0, True), (True, 119.0, False), (True, 121.0, True)],
)
def test_only_a_job_with_victims_is_given_the_time(
    slurm: SlurmFolder, tracker: JobTracker, preempts: bool, after_s: float, again: bool
):
    victims = frozenset({"5"} if preempts else ())
    tracker.placed["7"] = Tracked(
        None, JobPhase.RELEASED, ("n1",), (1,), 0, released_s=RELEASED_AT, victims=victims
    )
    slurm.write([parked(**BOUND)], ["n1"])
    assert bool(parked_again(slurm, tracker, after_s, grace_s=90.0)) is again
    assert (slurm.jobs["7"]["licenses"] == "gpuaware:1") is again


@pytest.mark.parametrize("victims", [[], ["5"]])
def test_a_selector_that_starts_anew_knows_which_jobs_have_victims(
    tracker: JobTracker, victims: list[str]
):
    tracker.ledger.decide(decision("7", victims=victims, state="released"))
    tracker.load()
    assert tracker.placed["7"].victims == set(victims)
