"""The site just before each of several starts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from make import context_of, slurm_job, slurm_node

from slurm_gpu_aware.features.shadow.moments import Moment, holds_gpus, in_order
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.selector.site_reader import SiteState
from slurm_gpu_aware.slurm.records import NodeShare, SlurmJob


def running(number: int, start_s: float, *gpus: int, node: str = "n1", **fields: Any) -> SlurmJob:
    share = NodeShare(node, 2, 1000, gpus)
    return slurm_job(
        number, state="RUNNING", start_s=start_s, nodes=(node,), shares=(share,), **fields
    )


@dataclass
class Bench:
    moment: Moment
    now: Cluster

    def before(self, job: SlurmJob) -> Cluster:
        return self.moment.before(job, self.now)

    def used(self, job: SlurmJob) -> set[int]:
        """GPUs of n1 that are not free just before it starts."""
        return set(np.flatnonzero(~self.before(job).free[0]).tolist())


def moment(*jobs: SlurmJob, used: tuple[int, ...], cpus: int = 0, **fields: Any) -> Bench:
    node = slurm_node("n1", used, cpus_used=cpus, memory_used_mb=500 * cpus)
    other = slurm_node("n2")
    seen = SiteState(list(jobs), {"n1": node, "n2": other}, {}, (), 200.0)
    now = context_of([node, other], jobs=jobs).cluster
    return Bench(Moment(seen, in_order(jobs), **fields), now)


def test_each_start_finds_those_before_it_and_not_those_after_it() -> None:
    first, second, third = running(1, 100.0, 0), running(2, 101.0, 1), running(3, 102.0, 2)
    found = moment(third, first, second, used=(0, 1, 2, 3), cpus=6)
    assert found.used(second) == {0, 3}  # none of these holds GPU 3
    before = found.before(second)
    assert (before.free_cpus[0], before.free_memory_mb[0]) == (14, 63000)
    assert [job.job_id for job in before.running] == ["1"]
    assert found.used(first) == {3}
    assert found.used(third) == {0, 1, 3}
    assert found.before(first).free[1].all()
    assert found.now.free_cpus[0] == 10  # unchanged


def test_in_one_second_the_higher_priority_starts_first() -> None:
    low, high = running(1, 100.0, 0, priority=1), running(2, 100.0, 1, priority=9)
    assert [job.id for job in in_order([low, high])] == ["2", "1"]


def test_a_job_that_ended_after_the_start_held_its_gpus() -> None:
    started = running(2, 101.0, 1)
    gone = running(1, 50.0, 2, 3)
    for end_s, held in ((101.0, True), (150.0, True), (90.0, False)):
        found = moment(started, used=(1,), cpus=2, ended=[(gone, end_s)])
        assert (found.used(started) == {2, 3}) is held
        assert found.before(started).free_cpus[0] == (14 if held else 16)


def test_its_own_gpus_were_free_whoever_ended_in_the_same_second() -> None:
    started, gone = running(2, 101.0, 1), running(1, 50.0, 1, 2)
    found = moment(started, used=(1,), ended=[(gone, 101.0)])
    assert found.used(started) == {2}
    whole = moment(started, used=(1,), cpus=2, ended=[(gone, 101.0)] * 8)
    assert whole.before(started).free_cpus[0] == 2  # at least what it got


def test_only_whole_gpus_count() -> None:
    assert holds_gpus(running(1, 100.0, 0))
    assert not holds_gpus(running(1, 100.0))
    assert not holds_gpus(slurm_job(1))
