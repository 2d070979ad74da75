"""How many jobs of a kind are opened after a limit has held one of it."""

from make import slurm_job

from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.holding_pool import alike
from slurm_gpu_aware.selector.limited_kinds import LimitedKinds


class LimitBench:
    """Ten parked jobs of one user, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.backoff = Backoff(60.0, lambda: self.now)
        self.kinds = LimitedKinds(self.backoff)
        self.parked = [slurm_job(number) for number in range(20, 30)]

    def held(self, reason: str = "AssocGrpGRES") -> None:
        """One of them was opened and parked again."""
        self.now += 1.0
        self.backoff.punish("20", blocked=True, held_by=reason)

    def room(self, running: int, opened: int = 0) -> int | None:
        """How many may be opened beside so many that run and are open; None: as many as fit."""
        jobs = [slurm_job(number, state="RUNNING") for number in range(running)]
        released = [slurm_job(number) for number in range(opened)]
        found = self.kinds.rooms(self.parked, released, jobs)
        assert found.keys() <= {alike(self.parked[0])}
        return next(iter(found.values()), None)


def test_without_a_limit_as_many_start_as_fit() -> None:
    bench = LimitBench()
    assert bench.room(running=2) is None
    bench.held("BadConstraints")
    assert bench.room(running=2) is None


def test_as_many_start_as_ran_when_the_limit_was_met() -> None:
    """Each end frees one place; all others would keep GPUs from other users in vain."""
    bench = LimitBench()
    bench.held()
    found = [bench.room(*counts) for counts in ((4,), (3,), (3, 1), (1,), (1, 2), (0,))]
    assert found == [4, 1, 0, 3, 1, 4]


def test_a_higher_limit_is_found_by_doubling() -> None:
    """None is opened before Slurm has shown what it does with those before."""
    bench = LimitBench()
    bench.held()
    assert [bench.room(*counts) for counts in ((0,), (0, 1), (1,), (2,), (4, 2), (8,))] == [
        *(1, 0, 1, 2, 0, 8)
    ]


def test_a_lower_limit_is_found_at_the_next_job_that_it_holds() -> None:
    bench = LimitBench()
    bench.held()
    assert bench.room(running=8) == 8
    bench.held()
    assert [bench.room(running=2), bench.room(running=1)] == [2, 1]


def test_after_ten_minutes_it_is_forgotten() -> None:
    bench = LimitBench()
    bench.held()
    assert bench.room(running=2) == 2
    bench.now += 600.0
    assert bench.room(running=2) is None
