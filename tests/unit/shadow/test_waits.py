"""Which wait for whole nodes is charged to which start."""

from slurm_gpu_aware.features.shadow.losses import Charge, WholeNodeJob, charges

A, B = ("7", 10.0), ("8", 11.0)
ALL = frozenset({"n1", "n2", "n3"})


def whole_node_job(number: int, nodes: int = 1, eligible: frozenset[str] = ALL) -> WholeNodeJob:
    return WholeNodeJob(str(number), nodes, eligible)


def test_a_job_that_a_broken_node_alone_keeps_waiting() -> None:
    assert charges([whole_node_job(20)], set(), {"n1": [A]}) == [Charge("20", A)]
    assert charges([whole_node_job(20, 2)], {"n2"}, {"n1": [A]}) == [Charge("20", A)]


def test_a_job_that_waits_for_something_else_is_not_charged() -> None:
    assert charges([whole_node_job(20)], {"n2"}, {"n1": [A]}) == []  # a whole node is free
    assert charges([whole_node_job(20, 3)], {"n2"}, {"n1": [A]}) == []  # it would wait all the same
    assert charges([whole_node_job(20, 1, frozenset({"n3"}))], set(), {"n1": [A]}) == []


def test_a_node_serves_one_job_and_a_wait_is_charged_once() -> None:
    two = [whole_node_job(20), whole_node_job(21)]
    assert charges(two, set(), {"n1": [A]}) == [Charge("20", A)]
    assert charges([whole_node_job(20, 2)], set(), {"n1": [A], "n2": [B]}) == [Charge("20", A)]
    assert charges(two, {"n2"}, {"n1": [A]}) == [Charge("21", A)]
