"""Explorations: which jobs try several clocks, which ones, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.selector.exploration_power import ExplorationPower
from slurm_gpu_aware.selector.explorations import Explorations, tried_clocks
from slurm_gpu_aware.selector.job_clocks import JobClocks
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.store.ledger import Event

CLOCKS = (*range(600, 1530, 15), 1530)
TRIED = (1530, 1365, 1185, 1020, 840)
CLUSTER = Cluster.build(("n1",), np.ones((1, 4), dtype=np.bool_), model=("v100",))
Found = tuple[Explorations, JobClocks]


def asked(*job_ids: str, name: str = "ada/bert") -> dict[str, tuple[str, str, tuple[int, ...]]]:
    return dict.fromkeys(job_ids, (name, "v100", TRIED))


@pytest.fixture
def explorations(tmp_path: Path) -> Callable[[], Found]:
    """Makes explorations of 100 s on one ledger, and the clocks of jobs 1 to 3."""

    def make() -> Found:
        clocks = JobClocks()
        for job_id in ("1", "2", "3"):
            clocks.start(job_id, 1400, ["n1"])
        return Explorations(100.0, LedgerWriter(tmp_path / "state.db")), clocks

    return make


def renewed(found: Found, jobs: dict[str, tuple[str, str, tuple[int, ...]]], now: float) -> None:
    one, clocks = found
    one.renew(jobs, clocks, ExplorationPower(CLUSTER, PlanSettings(), None), now)


def test_clocks_are_supported_ones_from_the_highest_down() -> None:
    assert tried_clocks(CLOCKS) == TRIED
    assert tried_clocks((900, 1000)) == (1000, 900)
    assert tried_clocks((900,)) == (900,)
    assert tried_clocks(()) == ()


def test_one_job_of_a_name_is_explored_at_a_time(explorations: Callable[[], Found]) -> None:
    found = explorations()
    renewed(found, asked("1", "2") | asked("3", name="bob/bert"), 0.0)
    assert [job_id for job_id in "123" if found[0].of(job_id)] == ["1", "3"]
    found[0].keep(["2"])  # job 1 has ended before all clocks were tried
    renewed(found, asked("2"), 10.0)
    assert found[0].of("2") is not None


def test_one_clock_is_no_choice(explorations: Callable[[], Found]) -> None:
    found = explorations()
    renewed(found, {"1": ("ada/bert", "v100", (900,))}, 0.0)
    assert found[0].of("1") is None


def test_the_clocks_of_a_job_over_time(explorations: Callable[[], Found]) -> None:
    found = explorations()
    renewed(found, asked("1"), 50.0)
    one = found[0].of("1")
    assert one is not None
    assert [one.clock(50.0 + 20 * step) for step in range(6)] == [*TRIED, 1400]
    assert [one.is_over(at) for at in (50.0, 149.0, 150.0, 40.0)] == [False, False, True, True]
    assert found[0].looks(found[1], 51.0)  # 1530 is not ordered yet
    found[1].order("1", "n1", 1530, 1, 51.0)
    assert not found[0].looks(found[1], 60.0)
    assert found[0].looks(found[1], 75.0)
    # Another selector goes on with it.
    later = explorations()
    later[0].restore("1", [Event("1", "exploring", one.detail(), 50.0)])
    assert later[0].of("1") == one


def test_neither_job_nor_model_is_explored_again_at_once(
    explorations: Callable[[], Found],
) -> None:
    found = explorations()
    renewed(found, asked("1"), 50.0)
    renewed(found, {}, 160.0)  # its clock is back
    assert found[0].of("1") is None
    later = explorations()
    later[0].load(170.0)
    later[0].restore("1", [Event("1", "explored", {}, 160.0)])
    for one in (found, later):
        renewed(one, asked("1", "2"), 170.0)
        assert one[0].of("2") is None
        renewed(one, asked("1", "2"), 160.0 + 86_400.0)
        assert one[0].of("1") is None  # a job is explored once
        assert one[0].of("2") is not None


@pytest.mark.parametrize("detail", [{}, {"clocks_mhz": ["x"]}, {"clocks_mhz": 5, "step_s": 1}])
def test_a_damaged_event_begins_nothing(
    explorations: Callable[[], Found], detail: dict[str, object]
) -> None:
    found, _ = explorations()
    found.restore("1", [Event("1", "exploring", detail, 0.0)])
    assert found.of("1") is None
