"""A later start than the one that was promised names its cause."""

from dataclasses import replace

import pytest

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.planning.plan import Waiting
from slurm_gpu_aware.selector.waiting_jobs import Promises

NOW = 1_790_000_000.0


def two_nodes(*running: RunningJob, down: int | None = None) -> Cluster:
    found = Cluster.uniform(["n1", "n2"], 4, running=running)
    if down is None:
        return found
    exists = found.exists.copy()
    exists[down] = False
    return replace(found, exists=exists, free=found.free & exists)


def ending(name: str, end_s: float, node: int = 0) -> RunningJob:
    return RunningJob(name, ((node, (0, 1, 2, 3)),), NOW + end_s)


def head(start_s: float) -> Waiting:
    return Waiting("7", "next", shadow_start_s=NOW + start_s, reserved=((0, (0, 1, 2, 3)),))


def test_a_promise_that_is_kept_says_nothing() -> None:
    promises = Promises()
    for start_s in (600.0, 500.0, 520.0):
        assert promises.told([head(start_s)], two_nodes(ending("5", 600.0))) == {}


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (two_nodes(ending("5", 900.0)), "job 5 got more time"),
        (two_nodes(ending("6", 900.0)), "job 6 started on its nodes"),
        (two_nodes(ending("5", 600.0), ending("6", 60.0)), "job 6 started on its nodes"),
        (two_nodes(ending("5", 600.0), down=0), "node n1 can no longer be used"),
        (two_nodes(ending("5", 600.0)), "job 5 has not ended by its time limit"),
        (two_nodes(), "the GPUs that it waited for are not free"),
    ],
)
def test_a_later_date_names_its_cause(later: Cluster, why: str) -> None:
    promises = Promises()
    promises.told([head(600.0)], two_nodes(ending("5", 600.0)))
    (text,) = promises.told([head(900.0)], later).values()
    assert text.startswith("it was to start by ")
    assert text.endswith(f", but {why}")
    # It is said as long as the job waits.
    assert promises.told([head(900.0)], later) == {"7": text}
    assert promises.told([Waiting("9", "next")], later) == {}
    assert promises.told([head(2000.0)], later) == {}


def test_a_job_that_comes_first_is_named() -> None:
    promises, here = Promises(), two_nodes(ending("5", 600.0))
    promises.told([head(600.0)], here)
    first = Waiting("8", "next", shadow_start_s=NOW + 700, reserved=((0, (0, 1)),))
    told = promises.told([first, Waiting("7", "waits for its turn")], here)
    assert told["7"].endswith("but job 8, which comes first, waits now")
