"""How long jobs that could not start are held back."""

from dataclasses import dataclass, field

from rounds_bench import reasons_of, rounds_with
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.cli.job_text import held_words
from slurm_gpu_aware.selector.backoff import TRIES, Backoff


@dataclass
class BackoffBench:
    """A back-off and its clock."""

    now: float = 1000.0
    backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self.backoff = Backoff(60.0, lambda: self.now)

    def held(self) -> float:
        """Hold job 7 back as one that Slurm shows as held, wait that long; return how long."""
        wait_s = self.backoff.punish("7", blocked=True)
        self.now += wait_s
        assert self.backoff.wait_s("7", "Licenses") is None
        return wait_s


def test_it_doubles_up_to_sixteen_times() -> None:
    bench = BackoffBench()
    assert [bench.backoff.punish("7") for _ in range(6)] == [60, 120, 240, 480, 960, 960]
    bench.now += 959.0
    assert bench.backoff.wait_s("7") == 1.0
    bench.now += 1.0
    assert bench.backoff.wait_s("7") is None


def test_what_never_starts_is_not_tried_again_at_each_end_of_a_job() -> None:
    """Each try binds its GPUs in vain for seconds."""
    bench, tries = BackoffBench(), 0
    for _ in range(100):
        if bench.backoff.wait_s("7") is None:
            tries += 1
            bench.backoff.punish("7", unexplained=True, nodes=["n1"])
        bench.now += 1.0
        bench.backoff.freed({"n1"})
    assert tries == TRIES + 1


def test_no_end_of_a_job_ends_the_wait_of_one_whose_try_keeps_jobs_off_all_nodes() -> None:
    bench = BackoffBench()
    bench.backoff.punish("7", unexplained=True, nodes=None)
    bench.backoff.freed({"n1"})
    assert bench.backoff.wait_s("7") == 60


def test_a_job_that_is_gone_is_forgotten() -> None:
    bench = BackoffBench()
    bench.backoff.punish("7", blocked=True)
    bench.backoff.forget(set())
    assert bench.backoff.wait_s("7") is None
    assert bench.held() == 2


def test_a_reason_that_shows_only_while_bound_is_tried_ever_more_seldom() -> None:
    """Parked it shows Licenses again and again: each try pins it and blocks its node."""
    bench = BackoffBench()
    assert [bench.held() for _ in range(11)] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 960, 960]


def test_what_shows_its_reason_while_parked_is_tried_soon() -> None:
    """A limit of its QOS: when its reason is Licenses again, the limit is free."""
    bench = BackoffBench()
    for _ in range(4):
        assert bench.held() == 2
        bench.now += 10.0
        bench.backoff.shown("7")


def test_a_reason_left_over_from_the_binding_says_nothing() -> None:
    bench = BackoffBench()
    assert bench.held() == 2
    bench.backoff.shown("7")
    assert bench.held() == 4


def test_a_task_of_an_unsplit_array_is_not_forgotten() -> None:
    bench = BackoffBench()
    bench.backoff.punish("98_0")
    bench.backoff.forget({"98"})
    assert bench.backoff.wait_s("98_0") == 60.0
    bench.backoff.forget({"99"})
    assert bench.backoff.wait_s("98_0") is None


def test_the_wait_names_its_cause(slurm: SlurmFolder) -> None:
    """Parked again, the job shows Slurm's reason no more, and "it could not start" says nothing."""
    bench = rounds_with(slurm, parked("7"), parked("8"))
    bench.rounds._backoff.punish("7", blocked=True, why="held by QOSMaxGRESPerUser")
    bench.rounds._backoff.punish("8")
    waiting = reasons_of(bench.run())
    assert waiting["7"] == "held by QOSMaxGRESPerUser; tried again in 2 s"
    assert held_words(waiting["7"]).startswith("a limit of its QOS is reached (QOSMaxGRESPerUser);")
    assert waiting["8"] == "it could not start; tried again in 60 s"
