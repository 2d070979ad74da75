"""Explorations: which jobs try several clocks, which ones, and for how long."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.profile import GpuRecord, Profile
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.explorations import Explorations, tried_clocks
from slurm_gpu_aware.selector.job_tables import JobTables

CLOCKS = (*range(600, 1530, 15), 1530)


@pytest.fixture
def tables() -> JobTables:
    """A node of four GPUs without any model."""
    gpus = {("n1", slot): GpuRecord(model="v100", clocks_mhz=CLOCKS) for slot in range(4)}
    found = JobTables()
    cluster = Cluster.build(("n1",), np.ones((1, 4), dtype=np.bool_), model=("v100",))
    found.renew(None, Profile({}, {}, gpus, {}, {}, {}), cluster)
    return found


def job(job_id: str, *, model: str | None = "bert", clock: str | int | None = "auto", user="ada"):
    return Request(job_id, 1, performance_model=model, clock=clock, user=user)


def test_clocks_are_supported_ones_from_the_highest_down() -> None:
    assert tried_clocks(CLOCKS) == (1530, 1365, 1185, 1020, 840)
    assert tried_clocks((900, 1000)) == (1000, 900)
    assert tried_clocks((900,)) == (900,)
    assert tried_clocks(()) == ()


def test_one_job_of_a_user_and_name_is_explored_at_a_time(tables: JobTables) -> None:
    found = Explorations(150.0)
    queue = [job("1"), job("2"), job("3", user="bob"), job("4", model="gpt")]
    queue += [job("5", model=None), job("6", clock=900), job("7", clock=None)]
    found.choose(queue, tables, 0.0)
    assert [r.job_id for r in queue if found.is_chosen(r.job_id)] == ["1", "3", "4"]
    found.placed("1", 1400)
    found.placed("2", None)
    found.choose(queue[1:], tables, 5.0)
    assert [r.job_id for r in queue if found.is_chosen(r.job_id)] == ["3", "4"]
    found.keep(["2"])  # job 1 has ended before its start was seen
    found.choose(queue[1:], tables, 10.0)
    assert found.is_chosen("2")


def test_a_site_that_explores_nothing(tables: JobTables) -> None:
    found = Explorations(0.0)
    found.choose([job("1")], tables, 0.0)
    assert not found.is_chosen("1")


def test_the_clocks_of_a_job_over_time(tables: JobTables) -> None:
    found = Explorations(100.0)
    found.choose([job("1")], tables, 0.0)
    found.placed("1", 1400)
    one = found.of("1")
    assert one is not None
    assert one.clock(50.0) == 1400
    assert not one.is_over(1e6)
    one = found.begin("1", 50.0)
    assert [one.clock(50.0 + 20 * step) for step in range(6)] == [1530, 1365, 1185, 1020, 840, 1400]
    assert [one.is_over(at) for at in (50.0, 149.0, 150.0, 40.0)] == [False, False, True, True]
    assert not found.looks(lambda _: 1530, 60.0)
    assert found.looks(lambda _: 1530, 75.0)
    assert found.looks(lambda _: 1400, 151.0)
    # Another selector goes on with it.
    other = Explorations(100.0)
    other.restore("1", one.detail(), 50.0)
    assert other.of("1") == one
    # It is not repeated within a day.
    found.end("1", 160.0)
    assert found.of("1") is None
    found.choose([job("2")], tables, 170.0)
    assert not found.is_chosen("2")
    found.choose([job("2")], tables, 160.0 + 86_400.0)
    assert found.is_chosen("2")


@pytest.mark.parametrize("detail", [{}, {"clocks_mhz": ["x"]}, {"clocks_mhz": 5, "step_s": 1}])
def test_a_damaged_event_is_refused(detail: dict[str, object]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        Explorations(100.0).restore("1", detail, 0.0)
