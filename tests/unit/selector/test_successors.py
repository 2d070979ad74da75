"""Jobs that are opened ahead while every GPU is in use and jobs end quickly."""

from dataclasses import replace
from typing import Any

import pytest
from memory_slurm import node_record, partition_record
from rounds_bench import RoundsBench, rounds_with
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import ClassConfig, Config, SelectorConfig
from slurm_gpu_aware.slurm.read_cluster import partition_of

SLOTS = range(4)


def short(job_id: str, slot: int, **fields: Any) -> dict[str, Any]:
    """A running job of one GPU of n1."""
    usual = {"state": "RUNNING", "nodes": "n1", "slots": [slot], "licenses": ""}
    times = {"start_time": 1_789_999_990, "end_time": 1_790_000_290}
    return one_gpu(job_id, **{**usual, **times, **fields})


def one_gpu(job_id: str, gpus: int = 1, **fields: Any) -> dict[str, Any]:
    usual = {"priority": 1000 - int(job_id), "stuck": True}
    return parked(job_id, gpus, **{**usual, **fields})


def ones(first: int, last: int, **fields: Any) -> list[dict[str, Any]]:
    return [one_gpu(str(number), **fields) for number in range(first, last + 1)]


def whole(job_id: str, **fields: Any) -> dict[str, Any]:
    return one_gpu(job_id, 4, **fields)


LAST = [whole(str(number), priority=1) for number in range(900, 908)]


def quick(
    slurm: SlurmFolder,
    *waiting: dict[str, Any],
    ended: int = 5,
    config: Config | None = None,
    nodes: tuple[str, ...] = ("n1",),
) -> RoundsBench:
    """Rounds of a full node, of which the last one has seen ``ended`` jobs end at once.

    The queue is long, and none of its last jobs is ever opened ahead.
    """
    waiting = (*waiting, *LAST)
    old = [short(str(100 + slot), slot) for slot in SLOTS]
    gone = [short(str(200 + n), 0, state="SUSPENDED") for n in range(max(0, ended - 4))]
    slurm.write([*old, *gone, *waiting], [*nodes])
    bench = RoundsBench(slurm, config)
    bench.run()
    new = [short(str(300 + slot), slot) for slot in SLOTS]
    slurm.write([*(new if ended else old), *waiting], [*nodes])
    bench.steady += 1.0
    return bench


FIRST = {"10", "11", "12", "13", "14"}


def opened(slurm: SlurmFolder) -> set[str]:
    return {i for i, job in slurm.jobs.items() if job["state"] == "PENDING" and not job["licenses"]}


def test_the_next_ones_are_opened_and_no_more(slurm: SlurmFolder) -> None:
    bench = quick(slurm, *ones(10, 18))
    bench.run()
    assert opened(slurm) == FIRST
    assert all(not slurm.jobs[i]["req_nodes"] for i in opened(slurm))
    bench.run(1.0)
    assert opened(slurm) == FIRST


def test_a_held_job_without_gpus_that_shares_no_node_changes_nothing(slurm: SlurmFolder) -> None:
    """A user could leave it there and slow all others down."""
    fields = {"admin_comment": "", "tres_per_node": "", "tres_req_str": "cpu=1", "licenses": ""}
    held = one_gpu("9", exclusive=2, priority=0, reason="JobHeldUser", **fields)
    bench = quick(slurm, held, *ones(10, 18))
    bench.run()
    assert opened(slurm) - {"9"} == FIRST


@pytest.mark.parametrize(
    "fields",
    [{}, {"priority": 0}, {"eligible_time": 1_790_000_900, "reason": "BeginTime"}],
    ids=str,
)
def test_none_is_opened_while_one_that_passes_the_gate_needs_a_part_of_a_node(
    slurm: SlurmFolder, fields: dict[str, Any]
) -> None:
    """No GPU is guarded meanwhile; one of licences with | took the next that was free."""
    usual: dict[str, Any] = {"admin_comment": "", "licenses": "", "priority": 1}
    passer = one_gpu("9", **{**usual, **fields})
    bench = quick(slurm, passer, *ones(10, 18))
    bench.run()
    assert opened(slurm) - {"9"} == set()


def test_none_is_opened_behind_one_to_which_a_node_is_closed(slurm: SlurmFolder) -> None:
    """Slurm would start the next user's there first."""
    of_bob = short("99", 3, user_name="bob", exclusive=2)
    bench = quick(slurm, of_bob, one_gpu("10", user_name="bob"), one_gpu("11"), one_gpu("12"))
    bench.run()
    assert opened(slurm) == {"10"}


def test_none_is_opened_where_jobs_run_for_long(slurm: SlurmFolder) -> None:
    bench = quick(slurm, *ones(10, 18), ended=0)
    bench.run()
    assert opened(slurm) == set()


@pytest.mark.parametrize(
    "first",
    [
        whole("10"),
        one_gpu("10", reason="AssocGrpGRES"),
        one_gpu("10", reason="Dependency"),
        one_gpu("10", partition="gpu,other"),
        one_gpu("10", num_cpus=1000, tres_req_str="cpu=1000,mem=500M,node=1,gres/gpu=1"),
        one_gpu("10", exclusive=2),
    ],
    ids=["wide", "limited", "dependent", "two partitions", "impossible", "exclusive=user"],
)
def test_none_passes_a_job_that_waits_for_more(slurm: SlurmFolder, first: dict[str, Any]) -> None:
    bench = quick(slurm, first, one_gpu("11"), one_gpu("12"))
    bench.run()
    assert opened(slurm) == set()


def test_those_before_it_are_opened(slurm: SlurmFolder) -> None:
    bench = quick(slurm, one_gpu("10"), whole("11"), one_gpu("12"))
    bench.run()
    assert opened(slurm) == {"10"}


def test_they_are_parked_again_behind_one_that_comes_first(slurm: SlurmFolder) -> None:
    bench = quick(slurm, *ones(10, 13))
    bench.run()
    assert opened(slurm) == {"10", "11", "12", "13"}
    slurm.add(whole("12000", priority=990))
    bench.run()
    assert bench.poll() == 3
    assert opened(slurm) == {"10"}
    assert [slurm.jobs[i]["licenses"] for i in ("11", "12", "13")] == ["gpuaware:1"] * 3
    assert not bench.rounds.start_monitor.backoff.knows("11")


def test_they_wait_as_long_as_the_gpus_are_in_use(slurm: SlurmFolder) -> None:
    """A placed job that does not start is parked again after some seconds, and held back."""
    bench = quick(slurm, one_gpu("10"))
    bench.run()
    slurm.change("10", reason="Resources", last_sched_eval=int(bench.wall) + 7)
    for _ in range(9):
        bench.wait(2.0)
        bench.run()
        assert bench.poll() == 0
    assert opened(slurm) == {"10"}
    bench.steady += 5.0  # no job has ended for 20 s
    bench.turn()
    assert opened(slurm) == set()


def test_they_are_recalled_if_they_leave_a_gpu_free(slurm: SlurmFolder) -> None:
    bench = quick(slurm, one_gpu("10"))
    bench.run()
    assert opened(slurm) == {"10"}
    slurm.write([short("301", 1), slurm.jobs["10"], short("302", 2), *LAST], ["n1"])
    for _ in range(3):
        bench.turn(2.0)
    assert slurm.jobs["10"]["licenses"] == "gpuaware:1"
    bench.run()
    assert slurm.jobs["10"]["req_nodes"] == "n1"


def test_they_run_at_the_clock_of_their_class(slurm: SlurmFolder) -> None:
    config = replace(Config(), classes={"A": ClassConfig(clock_mhz=1005)})
    job = one_gpu("10", comment="class=A", extra="mine")
    bench = quick(slurm, job, whole("11"), config=config)
    bench.run()
    asked = slurm.jobs["10"]
    clock = asked["tres_freq"], asked["extra"]
    assert (asked["licenses"], *clock) == ("", "gpu:1005", "mine,freq=1005")
    slurm.add(whole("9", priority=2000))
    bench.turn()
    asked = slurm.jobs["10"]
    assert (asked["licenses"], asked["tres_freq"], asked["extra"]) == ("gpuaware:1", "", "mine")


def test_tasks_of_an_array_are_opened_in_their_order(slurm: SlurmFolder) -> None:
    tasks = {"array_job_id": 10, "array_task_str": "0-8", "array_max_tasks": 0}
    bench = quick(slurm, one_gpu("10", **tasks), one_gpu("11"))
    assert sorted(bench.run().placed) == [f"10_{task}" for task in range(5)]


def test_a_throttled_array_keeps_its_place(slurm: SlurmFolder) -> None:
    """A job's end lets its next task start, which a job behind it must not pass."""
    tasks = {"array_job_id": 10, "array_task_str": "0-8", "array_max_tasks": 2}
    bench = quick(slurm, one_gpu("10", **tasks), one_gpu("11"))
    assert sorted(bench.run().placed) == ["10_0", "10_1"]


def test_a_site_may_forbid_it(slurm: SlurmFolder) -> None:
    config = replace(Config(), selector=SelectorConfig(ahead_s=0.0))
    bench = quick(slurm, one_gpu("10"), config=config)
    assert bench.run().placed == []


def test_none_passes_a_job_of_a_higher_tier(slurm: SlurmFolder) -> None:
    """Slurm tries partitions of a higher tier first, whatever their jobs' priority."""
    bench = quick(slurm, one_gpu("10"), whole("11", partition="express"))
    partitions = [partition_record("gpu", "n1"), partition_record("express", "n1", priority_tier=9)]
    bench.client.partitions = lambda: [partition_of(one) for one in partitions]  # type: ignore[method-assign]
    bench.run()
    assert opened(slurm) == set()


def test_none_stays_open_behind_one_that_is_not_opened(slurm: SlurmFolder) -> None:
    """Regression: once fewer were wanted, jobs of a higher priority were not opened for lack of
    room, and the ones behind them stayed open."""
    bench = quick(slurm, *ones(10, 18))
    bench.run()
    assert opened(slurm) == FIRST
    slurm.add(*ones(20, 26, priority=9000))
    bench.turn()
    assert opened(slurm) == {"20", "21", "22", "23", "24"}


@pytest.mark.parametrize("released", [False, True])
def test_one_that_comes_is_seen_before_the_round_plans(slurm: SlurmFolder, released: bool) -> None:
    """A user's changes of jobs make rounds long, and so the time in which others are open."""
    wide = whole("99", priority=9000)
    held = [{**wide, "priority": 0}] if released else []
    bench = quick(slurm, *ones(10, 12), *held)
    bench.run()
    assert opened(slurm) == {"10", "11", "12"}
    others = [job for job in slurm.jobs.values() if job["job_id"] != 99]
    slurm.write([*others, wide], ["n1"])
    bench.rounds._read()
    assert bench.poll() == 3
    assert opened(slurm) == set()


def test_none_is_open_while_owners_change_jobs(slurm: SlurmFolder) -> None:
    bench = quick(slurm, *ones(10, 12))
    bench.run()
    assert opened(slurm) == {"10", "11", "12"}
    slurm.change("12", licenses="gpuaware:2")
    bench.turn()
    assert opened(slurm) == set()
    bench.run(6.0)
    assert {"10", "11"} <= opened(slurm)


OFF_N2 = {"exc_nodes": "n2", "record": ";xn=n2"}


def closed_n2(
    slurm: SlurmFolder,
    monkeypatch: pytest.MonkeyPatch,
    *waiting: dict[str, Any],
    closed_by: dict[str, Any],
) -> RoundsBench:
    """n1 is full of short jobs, n2 is idle, and the last jobs of the queue exclude n2."""
    last = [whole(str(number), priority=1, **OFF_N2) for number in range(900, 908)]
    monkeypatch.setattr("test_successors.LAST", [*last, *([closed_by] if closed_by else [])])
    return quick(slurm, *waiting, nodes=("n1", "n2"))


BY_BOB = short(
    "99", 0, nodes="n2", slots=[], user_name="bob", exclusive=2, tres_per_node="", tres_req_str=""
)
"""One CPU, and by it the whole node (``--exclusive=user``)."""


@pytest.mark.parametrize("why", ["user", "excluded", "features"])
def test_idle_gpus_that_it_cannot_get_keep_no_job_closed(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Regression: by ``--exclusive=user`` on one CPU any user kept all others from it."""
    fields = {
        "user": {},
        "excluded": OFF_N2,
        "features": {"features": "fast", "record": ";feat=fast"},
    }[why]
    jobs = ones(10, 14, **fields)
    bench = closed_n2(slurm, monkeypatch, *jobs, closed_by=BY_BOB if why == "user" else {})
    if why == "features":
        slurm.set(nodes=[node_record("n1", features="fast"), node_record("n2")])
    for _ in range(4):  # nor do these GPUs look as if opened jobs left them free
        bench.turn()
        assert opened(slurm) == FIRST
        bench.steady += 1.0
    slurm.add(one_gpu("20", priority=1, user_name="bob", time_limit=1))
    bench.run()
    assert slurm.jobs["20"]["req_nodes"] == "n2"
    assert opened(slurm) - {"20"} == FIRST


def two_full(slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, closed: bool) -> RoundsBench:
    """Job 11 is bob's, whose jobs hold n2, ``closed`` to others; all would fit on its next GPU."""
    fields = {"nodes": "n2", "user_name": "bob", "exclusive": 2 * closed}
    full = [short(str(400 + slot), slot, **fields) for slot in SLOTS]
    monkeypatch.setattr("test_successors.LAST", [*LAST[:8], *full])
    waiting = one_gpu("10"), one_gpu("11", user_name="bob"), one_gpu("12")
    return quick(slurm, *waiting, ended=9, nodes=("n1", "n2"))


def test_none_is_open_that_could_start_on_a_node_that_is_closed_to_one_before_it(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has to wait for another user's job; one that is open is parked again."""
    two_full(slurm, monkeypatch, closed=True).run()
    assert opened(slurm) == {"10"}
    bench = two_full(slurm, monkeypatch, closed=False)
    bench.run()
    assert opened(slurm) == {"10", "11", "12"}
    slurm.change("400", exclusive=2)
    bench.turn()
    assert opened(slurm) == {"10"}


def test_a_node_that_opens_is_theirs_and_no_job_behind_is_placed_there(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = closed_n2(slurm, monkeypatch, one_gpu("10"), closed_by=BY_BOB)
    bench.run()
    assert opened(slurm) == {"10"}
    slurm.add(one_gpu("20", priority=1))
    slurm.change("99", state="COMPLETED")
    bench.run()
    assert opened(slurm) == {"10", "20"}  # Slurm starts them in this order
    assert slurm.jobs["20"]["req_nodes"] == ""


def test_none_is_opened_behind_a_head_that_needs_the_closed_node(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other user's job is placed there that would delay it."""
    head = whole("10", req_nodes="n2", record=";rn=n2")
    bobs = one_gpu("13", user_name="bob")
    jobs = (head, one_gpu("11"), one_gpu("12"), bobs)
    bench = closed_n2(slurm, monkeypatch, *jobs, closed_by=BY_BOB)
    bench.run()
    assert opened(slurm) == set()


def test_idle_gpus_that_it_can_get_keep_it_closed(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks something else there."""
    job = one_gpu("10", num_cpus=1000, tres_req_str="cpu=1000,mem=500M,node=1,gres/gpu=1")
    bench = closed_n2(slurm, monkeypatch, job, one_gpu("11"), closed_by={})
    bench.run()
    assert opened(slurm) - {"11"} == set()


def test_none_is_opened_where_few_wait(slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_successors.LAST", [])
    bench = quick(slurm, *ones(10, 16))
    bench.run()
    assert opened(slurm) == set()


def test_a_round_tells_whether_as_many_are_open_as_end_at_once(slurm: SlurmFolder) -> None:
    bench = quick(slurm, *ones(10, 14))
    assert (bench.run().ahead, len(opened(slurm))) == (True, 5)
    bench = quick(slurm, *ones(10, 13))
    assert (bench.run().ahead, len(opened(slurm))) == (False, 4)


@pytest.mark.parametrize(("waits_s", "parked_again"), [(5.0, True), (1.0, False)])
def test_a_job_that_slurm_does_not_start_keeps_no_gpus_from_one_that_comes(
    slurm: SlurmFolder, waits_s: float, parked_again: bool
) -> None:
    """A user could make such a job at will: with another one on the cores that it needs."""
    left = {"comment": "place=off", "reason": "Priority"}
    bench = rounds_with(slurm, whole("10", **left))
    bench.run()
    assert opened(slurm) == {"10"}
    bench.run()
    slurm.add(whole("9", priority=2000))
    bench.steady += waits_s
    bench.turn()
    assert opened(slurm) == (set() if parked_again else {"10"})
    if parked_again:
        bench.run()
        assert slurm.jobs["9"]["req_nodes"] == "n1"


def test_a_job_that_slurm_does_not_start_stays_open_before_those_that_were_there(
    slurm: SlurmFolder,
) -> None:
    """A heterogeneous job is tried by backfill only; each round would park it again."""
    left = {"comment": "place=off", "reason": "Priority"}
    full = [short(str(100 + slot), slot, nodes="n2") for slot in SLOTS]
    two = {"num_nodes": 2, "num_cpus": 2, "num_tasks": 2, "record": ";nn=2-2"}
    first = whole("9", priority=2000, **two)
    bench = rounds_with(slurm, *full, first, whole("10", time_limit=1, **left), nodes=["n1", "n2"])
    bench.run()
    assert opened(slurm) == {"10"}
    for _ in range(3):
        bench.turn(3.0)
    assert opened(slurm) == {"10"}
