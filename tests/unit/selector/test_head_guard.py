"""Guard of the head: what Slurm reserves, in use or not (26.05), and against which jobs."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from make import NOW, context_of, slurm_job, slurm_node
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.admission.snapshot import NODE_TAKEN
from slurm_gpu_aware.config.settings import Config, EventsConfig, SiteConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.request import in_tier
from slurm_gpu_aware.planning.plan import Guarded
from slurm_gpu_aware.selector.head_guard import HeadGuard
from slurm_gpu_aware.selector.passers import highest, need_a_part, outside, passers
from slurm_gpu_aware.slurm.records import NodeShare, SlurmReservation
from slurm_gpu_aware.slurm.updates import JobUpdate, NewReservation


class Reservations:
    """Of one node with four GPUs, and two threads on each core."""

    def __init__(self, free: int, *, whole: bool = False) -> None:
        self.free, self.whole, self.guard = free, whole, HeadGuard(self)
        self.cores = 16
        """Free ones."""
        self.there: dict[str, str] = {}
        self.created = self.gaps = 0

    def create_reservation(self, wanted: NewReservation) -> None:
        gpus = int(found[1]) if (found := re.search(r"gpu=(\d+)", wanted.tres)) else 0
        if self.there and "OVERLAP" not in wanted.flags:
            raise SourceError("Slurm, create reservation: Requested nodes not available")
        cpus = int(found[1]) if (found := re.search(r"cpu=(\d+)", wanted.tres)) else 0
        if (gpus > self.free or cpus > self.cores) and not self.whole:
            raise SourceError("Slurm, create reservation: Requested nodes are busy")
        self.there[wanted.name] = str(wanted.tres)
        self.created += 1

    def shown(self) -> list[SlurmReservation]:
        """As Slurm lists them: one of whole nodes without a number of GPUs."""
        found = []
        for name, tres in self.there.items():
            held = dict(part.split("=") for part in tres.split(",")) if tres else {"cpu": "16"}
            cpus, gpus = int(held["cpu"]) + int(held["cpu"]) % 2, held.get("gres/gpu")
            of_node = SlurmReservation(name, 0.0, 100.0, frozenset({"n1"}), cpus=cpus)
            found.append(replace(of_node, gpus=None if gpus is None else int(gpus)))
        return found

    def delete_reservation(self, name: str) -> None:
        del self.there[name]
        self.gaps += not self.there

    @property
    def held(self) -> list[str]:
        """What is held of the node."""
        return list(self.there.values())

    def move_reservation(self, name: str, end_s: float, **_: Any) -> bool:
        return name in self.there

    def guarded(self, gpus: int, free: int, whole: bool = False, cpus: int | None = 0) -> list[str]:
        """What is held after a round that guards so much of the node."""
        self.guard.take_over(self.shown())
        self.guard.keep({"n1": Guarded(gpus, free, whole, cpus)}, 100.0)
        return self.held


def test_the_filter_is_told_whether_a_job_waits(
    slurm: SlurmFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs of whole nodes that Slurm starts at their submission begin some seconds later then."""
    events = EventsConfig(submit_file=tmp_path / "submitted")
    slurm.add(*(parked(one, gpus=4) for one in "789"))
    bench = RoundsBench(slurm, Config(events=events))
    bench.run()
    assert float(events.waiting_file.read_text()) == int(bench.wall + 60.0)
    slurm.change("9", state="CANCELLED")
    bench.run(1.0)
    assert float(events.waiting_file.read_text()) == 0.0
    events.waiting_file.unlink()
    bench.run(1.0)
    assert not events.waiting_file.exists()
    lost = RoundsBench(slurm, Config(events=EventsConfig(submit_file=tmp_path / "gone" / "file")))
    assert [lost.run().placed for _ in range(2)] == [[], []]
    assert caplog.text.count("Slurm starts jobs of whole nodes before GPUs are guarded") == 1


@pytest.mark.parametrize("whole", [True, False])
def test_it_holds_the_free_gpus_where_slurm_refuses_those_in_use(whole: bool) -> None:
    slurm = Reservations(2, whole=whole)
    for free in (1, 1, 2, 2):
        slurm.free = free
        slurm.guarded(3, free)
    held = 3 if whole else 2
    assert (slurm.held, slurm.gaps) == ([f"gres/gpu={held},cpu={held}"], 0)
    slurm.guard.keep({}, 100.0)
    assert slurm.there == {}


def test_it_holds_a_node_of_which_the_head_gets_all_gpus() -> None:
    slurm = Reservations(2)
    for _ in range(4):
        slurm.guarded(4, 2, whole=True)
    assert (slurm.there, slurm.created) == ({"gpuaware_head_n1": ""}, 1)


def test_nothing_is_reserved_where_no_gpu_is_free() -> None:
    slurm = Reservations(0)
    assert [slurm.guarded(3, 0) for _ in range(3)] == [[]] * 3


def test_it_holds_the_cpus_of_a_head_that_jobs_without_gpus_hold_up() -> None:
    """It is made once, though Slurm shows whole cores, and anew for another job."""
    slurm = Reservations(4)
    for cpus, created in ((7, 1), (7, 1), (5, 2), (0, 3)):
        assert slurm.guarded(4, 4, True, cpus) == [f"gres/gpu=4,cpu={max(4, cpus)}"]
        assert (slurm.created, slurm.gaps) == (created, 0)
    for _ in range(2):
        slurm.guarded(4, 4, True, None)
    assert (slurm.held, slurm.created, slurm.gaps) == ([""], 4, 0)


def test_one_that_another_selector_left_beside_its_successor_goes() -> None:
    slurm = Reservations(4)
    slurm.there = {"gpuaware_head_n1": "", "gpuaware_head__n1": "gres/gpu=4,cpu=4"}
    assert slurm.guarded(4, 4, whole=True) == ["gres/gpu=4,cpu=4"]


def silent(monkeypatch: pytest.MonkeyPatch, slurm: Reservations, call: str) -> None:
    monkeypatch.setattr(slurm, call, Mock(side_effect=SourceError("timeout")))


def test_what_is_held_stays_where_slurm_does_not_answer_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Reservations(4)
    held = slurm.guarded(3, 3)
    silent(monkeypatch, slurm, "create_reservation")
    assert slurm.guarded(4, 4, True, None) == held == ["gres/gpu=3,cpu=3"]


def test_one_whose_removal_failed_goes_and_its_successor_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Reservations(4)
    slurm.guarded(4, 4, True, None)
    with monkeypatch.context() as failing:
        silent(failing, slurm, "delete_reservation")
        assert len(slurm.guarded(3, 3)) == 2
    slurm.there = dict(reversed(slurm.there.items()))  # in whichever order Slurm lists them
    assert (slurm.guarded(3, 3), slurm.gaps) == (["gres/gpu=3,cpu=3"], 0)


def test_what_is_held_goes_where_slurm_refuses_another_share() -> None:
    """Else it would keep more than the head needs, until its end."""
    slurm = Reservations(4)
    slurm.guarded(4, 4, True, None)
    slurm.free = 0
    for held in ([""], []):  # 26.05 refuses those in use
        assert slurm.guarded(3, 0) == held


PARKED = {"admin_comment": "gpuaware/1;tn=gres/gpu:1;mc=1", "tres_per_node": "gres/gpu:1"}

OPENED = {"admin_comment": "gpuaware/1;tn=gres/gpu:1;mc=1;sel=left:0:1790000000"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tres_per_node": "gres/gpu:1"}, True),
        ({"tres_per_node": "gres/gpu:1", "partitions": ("cpu", "gpu")}, True),
        ({"tres_per_node": "gres/gpu:1", "partitions": ("cpu",)}, False),
        ({"tres_per_node": "gres/gpu:1", "state": "RUNNING"}, False),
        (PARKED, False),
        ({**PARKED, "exclusive": True}, False),
        ({**OPENED, "tres_per_node": "gres/gpu:1"}, True),
        (OPENED, True),  # Slurm hides the GPUs of a job in an update that it refuses
        ({"exclusive": True}, True),
        # With one CPU it has the node, whatever is reserved there
        ({"exclusive_user": True}, False),
        ({"exclusive": True, "priority": 0, "reason": "JobHeldUser"}, False),
        ({"exclusive": True, "dependency": "afterok:5(unfulfilled)"}, False),
        ({"exclusive": True, "reason": "BeginTime", "eligible_s": NOW + 30.0}, False),
        ({"exclusive": True, "reason": "BeginTime", "eligible_s": NOW + 5.0}, True),
        # Its time has come, and Slurm has not tried it yet.
        ({"tres_per_node": "gres/gpu:1", "reason": "BeginTime", "eligible_s": NOW - 1.0}, True),
        ({"exclusive": True, "reason": "Resources"}, True),
        ({"exclusive": True, "partitions": ("cpu",)}, False),
        ({"partitions": ("own",)}, False),
        ({}, False),
    ],
)
def test_jobs_that_may_take_gpus_past_the_gate(fields: dict[str, Any], expected: bool) -> None:
    nodes = [slurm_node("n1"), slurm_node("c1", gpus=())]
    parts = {"gpu": ("n1",), "cpu": ("c1",), "own": ("n1",)}
    context = context_of(nodes, parts, told={"own": {"exclusive_user": True}})
    assert bool(passers([slurm_job(**fields)], context)) is expected


@pytest.mark.parametrize(
    "fields",
    [
        {"dependency": "afterany:5(unfulfilled)"},
        {"reason": "BeginTime", "eligible_s": NOW + 1e6},
        {"reason": "JobHeldUser", "priority": 0},
    ],
    ids=str,
)
def test_who_waits_for_something_may_start_at_any_time(fields: dict[str, Any]) -> None:
    """Another job ends, is cancelled or released; or users change what they wait for."""
    context = context_of([slurm_node("n1")], {"gpu": ("n1",)})
    jobs = [slurm_job(exclusive=True, **fields)]
    assert passers(jobs, context, later=True)
    assert not passers(jobs, context)  # backfill goes on beside the head


@pytest.mark.parametrize(("managed", "counts"), [((), True), (("gpu",), True), (("a",), False)])
def test_who_needs_a_part_of_a_node_is_let_go_in_a_moment(
    managed: tuple[str, ...], counts: bool
) -> None:
    """Another job backfilled on the node takes its guard away; of whole nodes none fits beside."""
    context = context_of([slurm_node("n1")], {"gpu": ("n1",)})
    context = replace(context, config=Config(site=SiteConfig(partitions=managed)))
    for waits in ({"priority": 0}, {"dependency": "afterany:5(unfulfilled)"}):
        job = slurm_job(tres_per_node="gres/gpu:1", **waits)
        assert bool(passers([job], context)) is counts
        assert not passers([replace(job, eligible_s=NOW + 60.0)], context)
        assert not passers([replace(job, tres_per_node="gres/gpu:5")], context)


@pytest.mark.parametrize(
    "fields",
    [
        *({"tres_per_node": "gres/gpu:zzz:1"}, {"tres_per_node": "gres/gpu:5"}),
        *({"req_nodes": ("d1",)}, {"req_nodes": ("c1",)}, {"cpus": 17}, {"features": "none"}),
    ],
    ids=str,
)
def test_no_number_of_jobs_that_can_take_none_counts(fields: dict[str, Any]) -> None:
    nodes = [slurm_node("n1"), slurm_node("c1", gpus=())]
    nodes.append(slurm_node("d1", states=frozenset({"DOWN"})))
    context = context_of(nodes)
    usual: dict[str, Any] = {"tres_per_node": "gres/gpu:1", **fields}
    jobs = [slurm_job(i, time_limit_s=60.0 * i, **usual) for i in range(1, 150)]
    if fields == {"tres_per_node": "gres/gpu:5"}:
        jobs += [replace(one, memory_mb_per_node=one.raw_id) for one in jobs]
    assert passers(jobs, context) == []
    last = slurm_job(150, tres_per_node="gres/gpu:1")
    assert passers([*jobs, last], context) == [last]
    fixed = "req_nodes" not in fields and "features" not in fields
    assert passers(jobs, context, later=True) == ([] if fixed else jobs)
    if fixed:  # users change what others ask for
        jobs = [replace(one, licenses=(("a", 1), ("b", 1))) for one in jobs]
        assert passers(jobs, context, later=True) == jobs


@pytest.mark.parametrize(("first", "expected"), [(PARKED, False), ({}, True)])
def test_later_components_start_with_the_first(first: dict[str, Any], expected: bool) -> None:
    context = context_of([slurm_node("n1")], {"gpu": ("n1",)})
    jobs = [slurm_job(7, het_id=7, **first), slurm_job(8, het_id=7, tres_per_node="gres/gpu:1")]
    assert bool(passers(jobs, context)) is expected


@pytest.mark.parametrize(
    ("phase", "fields", "expected"),
    [
        ("released", {"exclusive": True}, True),
        ("released", {"exclusive": True, "tres_per_node": "gres/gpu:4"}, False),  # on its nodes
        ("released", {}, False),
        ("waiting", {"exclusive": True}, False),
    ],
)
def test_components_of_whole_nodes_pass_when_their_job_is_opened(
    phase: str, fields: dict[str, Any], expected: bool
) -> None:
    """It is opened while nodes without GPUs have room for it, but Slurm may give it others."""
    context = context_of([slurm_node("n1")], {"gpu": ("n1",)})
    record = f"gpuaware/1;mc=1;lf=het;sel={phase}:0:1790000000"
    jobs = [slurm_job(7, het_id=7, admin_comment=record), slurm_job(8, het_id=7, **fields)]
    assert bool(passers(jobs, context)) is expected


@pytest.mark.parametrize("why", [{}, {"6": "refused"}], ids=["opened", "refused"])
def test_a_job_is_released_before_its_guard_goes(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, why: dict[str, str]
) -> None:
    """In between Slurm would start what the guard has kept off. A refused job keeps its guard."""
    slurm.write([parked("6")], ["n1"])
    done: list[str] = []
    dropped = lambda guard, nodes: done.extend(f"{node} dropped" for node in nodes)  # noqa: E731
    monkeypatch.setattr(HeadGuard, "open", dropped)
    bench = RoundsBench(slurm)
    send = bench.client.update_jobs

    def update_jobs(updates: Sequence[JobUpdate]) -> dict[str, str]:
        if any("sel=released" in value for one in updates for _, value in one.fields):
            done.append("released")
            return why or send(updates)
        return send(updates)

    monkeypatch.setattr(bench.client, "update_jobs", update_jobs)
    bench.run()
    assert done == (["released"] if why else ["released", "n1 dropped"])


def test_cpus_are_held_without_gpus() -> None:
    slurm = Reservations(4)
    slurm.guarded(4, 4, True, 16)
    assert slurm.guarded(0, 0, cpus=12) == slurm.guarded(0, 0, cpus=12) == ["cpu=12"]
    assert (slurm.created, slurm.gaps) == (2, 0)
    assert slurm.guarded(0, 0) == []


def test_a_node_of_which_slurm_gives_no_share_with_more_cpus_is_held() -> None:
    """It reserves the cores of one socket with one GPU."""
    slurm = Reservations(4)
    slurm.free = 0
    assert slurm.guarded(1, 1, cpus=9) == [""]
    assert slurm.guarded(0, 0, cpus=12) == ["cpu=12"]  # without GPUs it does


def test_a_node_is_held_as_long_as_it_has_too_few_cores_for_its_gpus() -> None:
    """A job without GPUs has them. 26.05 refuses cores in use, too."""
    slurm = Reservations(4)
    slurm.cores = 2
    for now, held in ((0.0, ""), (5.0, ""), (20.0, "gres/gpu=3,cpu=3")):
        slurm.guard.timer = lambda now=now: now
        assert slurm.guarded(3, 4) == [held]
        slurm.cores = 16
    assert slurm.gaps == 0


MIXED = {"gpu": ("n1", "n2"), "mixed": ("n1", "n2", "x1")}
HIGH = in_tier(1, 0)
ONE_GPU = {"tres_per_node": "gres/gpu:1"}


@pytest.mark.parametrize(
    ("jobs", "part"),
    [
        ([], False),
        ([{"exclusive": True}], False),
        ([{"exclusive": True, "exclusive_by": "topo"}], False),
        ([{"exclusive": True, "exclusive_by": "topo", **ONE_GPU}], True),
        ([{"exclusive": True, **ONE_GPU}], False),
        ([{"exclusive": True}, ONE_GPU], True),
    ],
)
def test_who_needs_a_part_of_a_node(jobs: list[dict[str, Any]], part: bool) -> None:
    context = context_of([slurm_node("n1")], {"gpu": ("n1",)})
    found = passers([slurm_job(**fields) for fields in jobs], context, later=True)
    assert (len(found), need_a_part(found)) == (len(jobs), part)


def test_a_node_on_which_a_job_starts_keeps_a_core() -> None:
    """No job of whole nodes starts there meanwhile, however long the other takes."""
    slurm = Reservations(4)
    slurm.guarded(4, 4, whole=True)
    slurm.guard.cores = {"n1"}
    slurm.guard.open(["n1", "n2"])
    assert (slurm.held, slurm.gaps) == (["cpu=1"], 0)
    assert slurm.guarded(0, 0, cpus=1) == ["cpu=1"]
    assert (slurm.guarded(4, 3, whole=True), slurm.gaps) == (["gres/gpu=4,cpu=4"], 0)
    slurm.guard.cores = frozenset()
    slurm.guard.open(["n1"])
    assert slurm.held == []


@pytest.mark.parametrize("hidden", [True, False])
def test_a_core_is_held_where_no_filter_sees_who_gets_whole_nodes(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """--core-spec=1 before 26.05 started at once, past the first job that waits."""
    slurm.write([parked(one, gpus=4) for one in "78"], ["n1"])
    bench, seen = RoundsBench(slurm), list[Any]()
    known = replace(bench.client.config(), hides_core_spec=hidden)
    monkeypatch.setattr(bench.client, "config", lambda: known)
    keep = lambda guard, kept, until_s, **_: seen.append(dict(kept))  # noqa: E731
    monkeypatch.setattr(HeadGuard, "keep", keep)
    bench.run()
    bench.run(60.0)
    assert seen[-1] == ({"n1": Guarded(0, 0, False, 1)} if hidden else {})


def test_a_node_without_a_free_core_is_held_against_whole_nodes() -> None:
    """26.05 refuses a core that is in use. The next try comes after some seconds."""
    slurm = Reservations(0)
    slurm.cores = 0
    for now, held in ((0.0, ""), (5.0, ""), (20.0, "cpu=1")):
        slurm.guard.timer = lambda now=now: now
        assert slurm.guarded(0, 0, cpus=1) == [held]
        slurm.cores = 1
    assert slurm.gaps == 0
    slurm.cores = 0
    slurm.guard.cores = {"n1"}
    slurm.guarded(4, 0, whole=True)
    slurm.guard.open(["n1"])
    assert slurm.held == []


@pytest.mark.parametrize("after", [(4, 0, True), (3, 0, False), (3, 2, False)])
def test_what_is_held_stays_whatever_is_wanted_next(after: tuple[int, int, bool]) -> None:
    """Slurm has refused two shares before."""
    slurm = Reservations(1)
    assert slurm.guarded(3, 2) == [""]
    assert slurm.guarded(*after) == ([] if after[1:] == (0, False) else [""])


@pytest.mark.parametrize(
    ("jobs", "above"),
    [
        ([], -math.inf),
        ([{"exclusive": True}], -math.inf),
        ([{"tres_per_node": "gres/gpu:1", "priority": 0}], -math.inf),  # it is held
        ([{"tres_per_node": "gres/gpu:1", "priority": 7}, {"exclusive": True}], HIGH + 7),
    ],
)
def test_who_takes_a_part_of_a_node_comes_by_priority(
    jobs: list[dict[str, Any]], above: float
) -> None:
    context = context_of([slurm_node("n1")], {"gpu": ("n1",)})
    found = passers([slurm_job(**fields) for fields in jobs], context, later=True)
    assert (len(found), highest(found, context)) == (len(jobs), above)


@pytest.mark.parametrize(
    ("fields", "now"),
    [
        ({}, True),
        ({"req_nodes": ("x1",)}, False),
        ({"req_nodes": ("x1",), "min_nodes": 2}, True),
        ({"req_nodes": ("x1", "n1"), "min_nodes": 2}, True),
        ({"min_nodes": 3}, True),  # with x1
        ({"min_nodes": 2, "req_nodes": ("n1", "x2")}, False),  # x2 is down
        ({"min_nodes": 3, "partitions": ("gpu",)}, False),
        ({"tres_per_node": "gres/gpu:5"}, False),
        ({"tres_per_node": "gres/gpu:zzz:1"}, False),
        ({"tres_per_node": "gres/gpu:4", "req_nodes": ("n2",)}, False),  # n2 is not free
    ],
)
def test_who_gets_no_node_of_the_round_does_not_pass(fields: dict[str, Any], now: bool) -> None:
    nodes = [slurm_node("n1"), slurm_node("n2"), slurm_node("x1", gpus=())]
    nodes.append(slurm_node("x2", gpus=(), states=frozenset({"DOWN"})))
    context = context_of(nodes, {**MIXED, "mixed": ("n1", "n2", "x1", "x2")})
    context.cluster.free[1] = False
    jobs = [slurm_job(**{"partitions": ("mixed",), "exclusive": True, **fields})]
    assert bool(passers(jobs, context)) is now
    assert passers(jobs, context, later=True) == jobs  # its user may change what it asks for


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({}, (True, True)),
        ({"reason": NODE_TAKEN}, (True, True)),
        ({"reason": "ReqNodeNotAvail,_UnavailableNodes:n9"}, (True, True)),
        ({"exc_nodes": ("n1",)}, (False, True)),
        ({"features": "a100"}, (True, False)),
        ({"reason": "AssocGrpCpuLimit"}, None),
        ({"priority": 0}, None),
        ({"dependency": "afterany:5(unfulfilled)"}, None),
        ({"eligible_s": NOW + 1.0}, None),
        ({"partitions": ("cpu",)}, None),
        (PARKED, None),
        ({"het_id": 7}, (True, True)),
    ],
)
def test_jobs_that_wait_at_no_gate(fields: dict[str, Any], nodes: tuple[bool, bool] | None) -> None:
    there = [
        slurm_node("n1", features=frozenset({"a100"})),
        slurm_node("n2"),
        slurm_node("c1", gpus=()),
    ]
    context = context_of(there, {"gpu": ("n1", "n2"), "cpu": ("c1",)})
    found = [*outside([slurm_job(**{"reason": "Resources", **fields})], context)]
    eligible = [tuple(map(bool, one.nodes.eligible)) for one in found]
    assert eligible == ([] if nodes is None else [nodes])


@pytest.mark.parametrize(("states", "least"), [({"IDLE"}, 1), ({"DOWN"}, 2)])
def test_of_a_job_on_other_nodes_too_the_rest_counts(states: set[str], least: int) -> None:
    nodes = [slurm_node("n1"), slurm_node("n2"), slurm_node("x1", gpus=(), states=states)]
    job = slurm_job(partitions=("mixed",), reason="Resources", min_nodes=2, cpus=8, tasks=4)
    (found,) = outside([job], context_of(nodes, MIXED))
    (part,) = found.left.parts
    assert (part.min_nodes, part.cpus, part.tasks) == (least, 4 * least, 2 * least)
    (found,) = outside([replace(job, min_cpus_node=16)], context_of(nodes, MIXED))
    assert found.left.parts[0].cpus == 16 * least
    (found,) = outside([replace(job, unsupported=("--contiguous",))], context_of(nodes, MIXED))
    assert found.left.parts[0].whole


def test_of_many_jobs_some_are_looked_at() -> None:
    """Of those that wait at no gate the first by tier and priority; the rest may pass."""
    parts = dict.fromkeys(("gpu", "high"), ("n1",))
    context = context_of([slurm_node("n1")], parts, told={"high": {"priority_tier": 9}})
    many = [slurm_job(i, reason="Resources", priority=1000 + i) for i in range(1, 201)]
    before = slurm_job(201, reason="Resources", priority=5, partitions=("gpu", "high"))
    found = [job.job_id for job in outside([*many, before], context)]
    assert (len(found), found[:2]) == (100, ["201", "200"])
    large = [slurm_job(i, tres_per_node="gres/gpu:1", features=f"f{i}") for i in range(1, 201)]
    assert len(passers(large, context)) == 100


def test_a_job_of_several_partitions_gets_gpus_with_whole_nodes_only() -> None:
    parts = dict.fromkeys(("gpu", "ex"), ("n1",))
    context = context_of([slurm_node("n1")], parts, told={"ex": {"exclusive": True}})
    for names in (("ex",), ("gpu", "ex")):
        found = passers([slurm_job(partitions=names)], context)
        assert (len(found), need_a_part(found)) == (1, False)


BARE = {"admin_comment": "gpuaware/1;mc=1;lf=het;sel=left:0:1790000000", "het_id": 7}


@pytest.mark.parametrize("more", [{}, {"tres_per_node": "gres/gpu:1"}], ids=str)
def test_an_opened_heterogeneous_job_passes_with_gpus_only(more: dict[str, Any]) -> None:
    """Without any it comes before the head like other jobs that wait at no gate."""
    context = context_of([slurm_node("n1")], {"gpu": ("n1",)})
    jobs = [slurm_job(7, reason="None", **BARE), slurm_job(8, reason="None", **{**BARE, **more})]
    assert bool(passers(jobs, context)) is bool(more)
    assert [job.job_id for job in outside(jobs, context)] == (["7"] if more else ["7", "8"])


def test_a_job_that_shares_no_node_with_other_users_gets_none_of_theirs() -> None:
    running = slurm_job(1, state="RUNNING", user="bob", shares=(NodeShare("n1", 1, 0, ()),))
    nodes = [slurm_node("n1"), slurm_node("n2")]
    context = context_of(nodes, jobs=[running])
    (found,) = outside([slurm_job(reason="Resources", exclusive_user=True)], context)
    assert [*map(bool, found.nodes.eligible)] == [False, True]


@pytest.mark.parametrize(
    ("user", "limit_s", "passes"),
    [("bob", 600.0, False), ("alice", 600.0, True), ("bob", 5.0, True)],
)
def test_a_job_passes_in_the_room_of_those_that_its_user_may_end(
    user: str, limit_s: float, passes: bool
) -> None:
    shares = (NodeShare("n1", 16, 0, (0, 1, 2, 3)),)
    running = slurm_job(1, state="RUNNING", user=user, shares=shares, end_s=NOW + limit_s)
    context = context_of([slurm_node("n1", (0, 1, 2, 3), cpus_used=16)], jobs=[running])
    assert bool(passers([slurm_job(tres_per_node="gres/gpu:1")], context)) is passes
