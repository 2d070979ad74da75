"""How many jobs of a kind are opened after a limit has held one of it."""

from typing import Any

import pytest
from make import slurm_job
from memory_slurm import node_record
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.model.request import Postponement
from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.candidates import OVER_LIMIT, Candidates
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
    """Of as many again as run, those that are open and have not started are a part."""
    bench = LimitBench()
    bench.held()
    assert [bench.room(*counts) for counts in ((0,), (0, 1), (1,), (2,), (4, 2), (8,))] == [
        *(1, 0, 1, 2, 2, 8)
    ]


def test_an_open_job_counts_for_its_kind_only() -> None:
    """Its binding changes what its record asks for; a stream of other jobs says nothing."""
    bench = LimitBench()
    bench.held()
    assert bench.room(running=4) == 4
    running = [slurm_job(number, state="RUNNING") for number in range(3)]
    other = slurm_job(8, req_tres={"gres/gpu": 2})
    bound = slurm_job(bench.parked.pop().raw_id, req_tres={"gres/gpu": 1, "node": 1})
    for released, room in (([other, bound], 0), ([other], 1)):
        assert [*bench.kinds.rooms(bench.parked, released, running).values()] == [room]


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


ON_N2 = {
    "priority": 900,
    "req_nodes": "n2",
    "admin_comment": "gpuaware/1;tn=gres/gpu:2;rn=n2;mc=1",
}
FULL = ",".join(f"gpu:g{slot}:1(IDX:{slot})" for slot in range(4))


def room_for_one(slurm: SlurmFolder, *jobs: dict[str, Any], used: str = "") -> RoundsBench:
    """A limit has held job 9, the last one, and has room for one job like it."""
    slurm.write([*jobs, parked("8"), parked("9")], ["n1"])
    slurm.set(nodes=[node_record("n1"), node_record("n2", gres_used=used)])
    bench = RoundsBench(slurm)
    bench.rounds._backoff.punish("9", blocked=True, held_by="AssocGrpGRES")
    bench.steady += 60.0
    return bench


def round_of(bench: RoundsBench) -> tuple[list[str], set[str]]:
    """(The jobs that a round places, those that are over the limit)."""
    outcome = bench.run()
    over = {one["job_id"] for one in outcome.waiting if one["reason"] == OVER_LIMIT}
    return outcome.placed, over


def test_a_job_that_waits_for_its_node_leaves_the_room_to_others(slurm: SlurmFolder) -> None:
    assert round_of(room_for_one(slurm, parked("7", **ON_N2), used=FULL)) == (["8"], {"9"})


def test_the_room_goes_to_the_first_that_can_start(slurm: SlurmFolder) -> None:
    assert round_of(room_for_one(slurm, parked("7", **ON_N2))) == (["7"], {"8", "9"})


def test_a_job_that_is_held_back_leaves_the_room_to_others(slurm: SlurmFolder) -> None:
    bench = room_for_one(slurm, parked("7"))
    bench.rounds._backoff.punish("7", blocked=True, unexplained=True)
    assert round_of(bench) == (["8"], {"9"})


def test_a_job_that_is_open_until_it_starts_leaves_the_room_to_others(slurm: SlurmFolder) -> None:
    comment = "gpuaware/1;tn=gres/gpu:2;mc=1;sel=released:0:1790000000"
    bench = room_for_one(slurm, parked("7", licenses="", admin_comment=comment, stuck=True))
    bench.rounds._turns.lasting = {"7"}
    assert round_of(bench) == (["8"], {"9"})


def test_a_job_that_waits_by_choice_leaves_the_room_to_others(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, planned = room_for_one(slurm, parked("7")), list[list[str]]()
    wait = Postponement(100.0, 160.0, 900.0, (), "postponed")

    def plan(_: object, candidates: Candidates, *rest: object) -> tuple[Plan, Any]:
        planned.append([*candidates.to_plan])
        return Plan(
            (), tuple(Waiting(i, wait.reason, postponement=wait) for i in planned[-1])
        ), dict

    monkeypatch.setattr(bench.rounds.planner, "plan", plan)
    for _ in range(2):
        bench.run()
    assert planned == [["7"], ["7", "8"]]
