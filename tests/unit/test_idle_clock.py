"""The clock by which the Slurm tests wait: other processes hold it up, and it never stops."""

import os
from dataclasses import replace
from itertools import count

import pytest
from idle_clock import LEAST_SHARE, IdleClock, Reading, Stopwatch, read_machine, share

NOTHING = Reading(wanting=0, busy=1000, stolen=10, disk_s=5.0)


@pytest.mark.parametrize(
    ("wanting", "expected"), [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2 / 3), (8, 0.25), (1000, None)]
)
def test_processes_share_the_cpus(wanting: int, expected: float | None) -> None:
    now = replace(NOTHING, wanting=wanting, busy=1400)
    assert share(NOTHING, now, 2.0, cpus=2) == (expected or LEAST_SHARE)


def test_a_hypervisor_and_a_disk_take_time() -> None:
    stolen = replace(NOTHING, busy=1300, stolen=110)
    assert share(NOTHING, stolen, 2.0, cpus=2) == pytest.approx(0.75)
    waited = replace(NOTHING, disk_s=6.5)
    assert share(NOTHING, waited, 2.0, cpus=2) == pytest.approx(0.25)
    assert share(NOTHING, replace(NOTHING, disk_s=9.0), 2.0, cpus=2) == LEAST_SHARE


def test_it_counts_at_the_speed_that_it_finds() -> None:
    cpus = os.cpu_count() or 1
    found = iter([NOTHING, replace(NOTHING, wanting=2 * cpus), replace(NOTHING, wanting=4 * cpus)])
    times = (10.0 * n for n in count())
    clock = IdleClock(lambda: next(found), lambda: next(times))
    assert clock.now() == pytest.approx(5.0)
    assert clock.now() == pytest.approx(7.5)


def test_this_machine_is_read() -> None:
    before, watch = read_machine(), Stopwatch()
    sum(range(3_000_000))
    now = read_machine()
    assert now.busy >= before.busy > 0
    assert now.disk_s >= before.disk_s
    assert 0 < watch.share <= 1
    assert watch.idle_s > 0
