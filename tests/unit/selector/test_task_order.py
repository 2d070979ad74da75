"""The order of an array's tasks, and the budget of tasks that a ``%limit`` leaves."""

from typing import Any

from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.selector.candidates import TaskOrder, task_room

FULL = parked("7", licenses="", admin_comment="", state="RUNNING", nodes="n1", slots=[0, 1, 2, 3])


def task(number: int, **fields: Any) -> dict[str, Any]:
    """A parked task of array 98 with a record of its own."""
    own = {"array_job_id": 98, "array_task_id": number, "array_task_str": str(number)}
    return parked(str(200 + number), **(own | fields))


def rest(tasks: str, **fields: Any) -> dict[str, Any]:
    """What is left of array 98, two tasks of which may run at a time."""
    own = {"array_job_id": 98, "array_task_str": tasks, "array_max_tasks": 2}
    return parked("98", **(own | fields))


def room(slurm: SlurmFolder, *records: dict[str, Any]) -> dict[int, int]:
    slurm.write(list(records), ["n1"])
    return task_room(slurm.client().jobs(), "gpuaware")


def test_a_held_task_takes_no_room_from_its_array(slurm: SlurmFolder) -> None:
    """Slurm counts what runs: a parked task, whatever holds it, starts no earlier than we say."""
    assert room(slurm, rest("5-9"), task(4, reason="JobHeldUser")) == {98: 2}


def test_running_and_released_tasks_take_room(slurm: SlurmFolder) -> None:
    runs = task(1, state="RUNNING", nodes="n1", slots=[0])
    released = task(2, licenses="", req_nodes="n1")
    assert room(slurm, rest("5-9"), runs) == {98: 1}
    assert room(slurm, rest("5-9"), runs, released) == {98: 0}


def test_no_more_tasks_are_placed_than_the_limit_lets_start(slurm: SlurmFolder) -> None:
    slurm.write([rest("5-9"), task(3), task(4, priority=300)], ["n1", "n2", "n3"])
    placed = RoundsBench(slurm).rounds.run().placed
    assert len(placed) == 2
    assert "98_4" in placed


def test_a_waiting_rest_blocks_tasks_of_a_lower_priority_only(slurm: SlurmFolder) -> None:
    slurm.write([rest("5-9"), task(3, priority=50), task(4, priority=200)], ["n1"])
    jobs = {job.id: job for job in slurm.client().jobs()}
    order = TaskOrder()
    order.waits(jobs["98"])
    assert order.blocks(jobs["98_3"])
    assert not order.blocks(jobs["98_4"])
    order.waits(jobs["98_4"])
    assert order.blocks(jobs["98_4"])


def test_an_array_that_waits_for_gpus_does_not_name_its_limit(slurm: SlurmFolder) -> None:
    """Two tasks are planned, and say why they wait; that the others wait for them is no news."""
    slurm.write([rest("5-9", tres_per_node="gres/gpu:4"), FULL], ["n1"])
    assert [w["job_id"] for w in RoundsBench(slurm).rounds.run().waiting] == ["98_5", "98_6"]
    two = [task(n, state="RUNNING", nodes="n1", slots=[n]) for n in (1, 2)]
    slurm.write([rest("5-9"), *two], ["n1"])
    (entry,) = RoundsBench(slurm).rounds.run().waiting
    assert (entry["job_id"], "its limit allows" in entry["reason"]) == ("98", True)
