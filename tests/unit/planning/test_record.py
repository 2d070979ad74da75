"""A recorded round, planned again, gives the same places."""

import math
import random
from dataclasses import fields, replace

import numpy as np
import pytest
from make import job_request, plan_round, replayed, stored_round, with_fields

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.features.due_dates.due_date import DueDate
from slurm_gpu_aware.features.moves.declared import MoveSettings
from slurm_gpu_aware.features.moves.movable import MOVING, RETURNING, Movable, Moving
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, PreemptionOrder, RunningJob, Shards
from slurm_gpu_aware.model.facts import Facts, Summary
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import (
    LeftToSlurm,
    Memory,
    NodeGroups,
    Part,
    Postponement,
    PreemptionRights,
    Request,
)
from slurm_gpu_aware.model.size_table import TABLE, TABLES, LimitedSettings, SizeTable
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.record import read_round, record_round, replay
from slurm_gpu_aware.planning.stages import plan_stages
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import KEEP, KEEP_BYTES, Ledger
from slurm_gpu_aware.topology.machines import machine

ONES = (np.ones((2, 1)), np.ones((2, 1)))


def a_round(seed):
    """A busy cluster with links, a queue that does not fit, and the plan."""
    rng = np.random.default_rng(seed)
    scores = {c: rng.choice([0.9, 1.0, 1.2], size=(6, 8)) for c in "ABC"}
    cluster = Cluster.uniform(6, 8, scores=scores, graph=machine("dgx-1-v100"), cpus_per_node=64)
    running = []
    for node in range(6):
        slots = tuple(sorted(rng.choice(8, size=rng.integers(1, 5), replace=False).tolist()))
        cluster.take(node, slots, 4, 100)
        end = math.inf if node == 0 else float(rng.integers(100, 900))
        running.append(
            RunningJob(
                f"r{node}",
                ((node, slots),),
                end,
                {node: 4},
                {node: 100},
                app_class="B",
                preemptable_by=2.0 if node == 1 else None,
                preempt_group="low" if node == 2 else None,
                start_s=float(node),
                node_count=1 + node % 2,
            )
        )
    order = PreemptionOrder(youngest_first=bool(seed % 2), reorder_count=seed)
    cluster = replace(cluster, running=tuple(running), cpus=np.full(6, 64), preemption=order)
    if seed % 3:
        installed = np.pad(cluster.exists[:5], ((0, 1), (0, 0)), constant_values=True)
        totals = {"memory_mb": np.full(6, 1 << 40), "installed": installed}
        cluster.exists[5], cluster.free[5] = False, False
        cluster = replace(cluster, **totals)
    if rng.random() < 0.5:
        cluster = replace(cluster, asleep=np.array([False, True, True, False, False, False]))
    eligible = np.array([True, True, True, True, False, True])
    queue = [
        job_request(
            f"{i}_{i % 3}",
            int(rng.choice([1, 2, 4, 8, 16])),
            app_class=str(rng.choice(list("ABC"))),
            bandwidth_sensitive=bool(i % 2),
            eligible=eligible if i % 4 == 0 else None,
            allowed=np.ones(6, dtype=bool) if i % 8 == 0 else None,
            memory=Memory(whole=i == 9),
            required=(1,) if i == 5 else (),
            cpus=2,
            time_limit_s=math.inf if i == 3 else float(rng.integers(50, 2000)),
            priority=float(rng.integers(5)),
            submit_s=float(i),
            whole=i == 6,
            preemption=(
                PreemptionRights(tier=3.0),
                PreemptionRights(groups=frozenset({"low", "scavenger"})),
                PreemptionRights(lower_groups=frozenset({"low"})),
            )[i]
            if i < 3
            else PreemptionRights(),
            postponed=Postponement(1.0, gpus=(("n1", (0, 3)),)) if i == 3 else None,
        )
        for i in range(14)
    ]
    settings = PlanSettings(policy=("packed", "eft", "pal", "pal+mapa")[seed % 4])
    return planned(queue, cluster, settings)


def planned(queue, cluster, settings):
    """A round at 50 s, and its plan."""
    asked = Round(queue, cluster, settings, 50.0)
    return asked, plan_round(queue, cluster, settings, 50.0)


def check_replay(asked, plan):
    """The round as it is read again: it has the same plan, with the same reasons."""
    recorded = replayed(asked, plan)
    read = recorded.asked
    again = plan_round(read.queue, read.cluster, read.settings, read.now)
    assert (again.assignments, again.waiting) == (plan.assignments, plan.waiting)
    assert len(recorded.placed) == len(plan.assignments) > 0
    return read


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_is_identical(seed):
    asked, plan = a_round(seed)
    again = check_replay(asked, plan)
    assert [r.wait.postponed for r in again.queue] == [r.wait.postponed for r in asked.queue]
    assert again.cluster.running == asked.cluster.running
    assert again.cluster.preemption == asked.cluster.preemption


def test_a_record_of_an_earlier_release_is_read():
    """It has no totals of memory, no GPUs of nodes that are down, and no jobs that Slurm places."""
    content = stored_round(*a_round(1))
    for name in ("memory_mb", "installed", "by_slurm", "starting"):
        del content["asked"]["cluster"][name]
    assert read_round(content, FEATURES).asked.cluster.installed is None
    content = stored_round(*a_round(2))
    for name in ("by_slurm", "starting"):
        assert content["asked"]["cluster"].pop(name) is None
    assert replay(read_round(content, FEATURES), FEATURES) == []


def test_a_round_with_jobs_that_slurm_places_is_replayed():
    """What such a job asks for, and what Slurm may give to released ones, is in the record."""
    cluster = Cluster.uniform(4, 4)
    free = cluster.free.copy()
    free[1] = False
    by_slurm = np.zeros_like(free)
    by_slurm[1] = True
    starting = np.array([False, False, True, False])
    cluster = replace(cluster, free=free, by_slurm=by_slurm, starting=starting)
    part = Part(gpus=5, per_node=None, min_nodes=1, max_nodes=3, cpus=5, memory_mb=50)
    queue = [
        Request("1", 2, priority=9.0, time_limit_s=90.0),
        Request("2", 5, left=LeftToSlurm("place=off", (part,)), priority=8.0, time_limit_s=90.0),
        Request("3", 1, left=LeftToSlurm("MPS", (Part(1, 1, shards=2),), again=True), priority=7.0),
        Request("4", 2, left=LeftToSlurm("too long", (Part(1, 1), Part(1)), fixed=True)),
        Request("5", 16, priority=5.0, time_limit_s=90.0),
    ]
    asked, plan = planned(queue, cluster, PlanSettings(policy="packed"))
    assert {"1", "2", "3"} <= {one.job_id for one in plan.assignments}
    again = check_replay(asked, plan)
    assert [r.left for r in again.queue] == [r.left for r in queue]
    for name in ("by_slurm", "starting"):
        was, found = (getattr(one, name) for one in (cluster, again.cluster))
        assert np.array_equal(found, was)
        assert found.dtype == np.bool_


def test_the_record_keeps_the_fits_of_effbw():
    asked, _ = a_round(1)
    dgx = machine("dgx-1-v100")
    fitted = HardwareGraph.build(dgx.gbps, dgx.classes, dgx.groups, range(14))
    cluster = replace(asked.cluster, graphs=(fitted, *asked.cluster.graphs[1:]))
    found = replayed(*planned(asked.queue, cluster, asked.settings))
    assert found.asked.cluster.graphs == cluster.graphs


def test_a_difference_is_named():
    asked, plan = a_round(1)
    content, job = stored_round(asked, plan), plan.assignments[0].job_id
    content["placed"][job] = [["n5"], [[7]]]
    (found,) = replay(read_round(content, FEATURES), FEATURES)
    assert found.job_id == job
    assert found.then == (("n5",), ((7,),))


def test_the_ledger_keeps_rounds_and_replays_them(tmp_path):
    with open_store(tmp_path / "store.db") as store:
        ledger = Ledger(store)
        for seed in range(3):
            ledger.add_snapshot(seed, record_round(*a_round(seed), FEATURES))
        kept = [read_round(content, FEATURES) for content in ledger.snapshots()]
        assert [replay(one, FEATURES) for one in kept] == [[], [], []]
        for i in range(KEEP):
            ledger.add_snapshot(100.0 + i, {"i": i})
        assert [content["i"] for content in ledger.snapshots()] == list(range(KEEP))
        large = [random.Random(i).randbytes(KEEP_BYTES // (2 - i)).hex() for i in (0, 1)]
        ledger.add_snapshot(900.0, {"large": large[0]})
        ledger.add_snapshot(901.0, {"large": large[1]})
        assert ledger.snapshots() == [{"large": large[1]}]
        store.execute("UPDATE snapshots SET content = x'00'")
        with pytest.raises(StoreError, match="damaged"):
            ledger.snapshots()


def test_what_is_no_round_is_refused():
    for wrong in ({}, {"settings": 3}, {"settings": {}, "queue": []}):
        with pytest.raises(ValueError, match="not a recorded round"):
            read_round(wrong, FEATURES)


def test_a_whole_round_is_replayed():
    """Jobs that share GPUs, one that is back from a move, one that begins to move."""
    scores = {"A": np.array([[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]])}
    cluster = Cluster.uniform(3, 2, scores=scores, cpus_per_node=8)
    cluster.take(0, (0,))
    shards = Shards(np.full((3, 2), 4), np.array([[0, 0], [0, 3], [0, 0]]))
    cluster.take(1, (1,))
    job = RunningJob("9", ((0, (0,)),), 50_000.0, app_class="A", start_s=-9000.0)
    cluster = replace(cluster, running=(job,), shards=shards)
    moving = Moving(MoveSettings(), [Movable(Request("9", 1, app_class="A"), job)], [(0.0, "bob")])
    back = Assignment("1", (2,), ((1,),), "", 0.0, "", 0.0, why=Facts((Summary("moved"),)))
    queue = [
        Request("1", 1, app_class="A"),
        job_request("2", 1, shards=2),
        job_request("3", 1, shards=2),
    ]
    settings = PlanSettings(policy="pal")
    asked = Round(queue, cluster, settings, 50.0).put(RETURNING, {"1": back}).put(MOVING, moving)
    plan = plan_stages(asked, FEATURES)
    content = stored_round(asked, plan)
    assert content["placed"].keys() == {"1", "2", "3"}
    assert content["placed"]["2"] == content["placed"]["3"] == [["n0"], [[1]]]
    assert content["moved"].keys() == {"9"}
    assert replay(read_round(content, FEATURES), FEATURES) == []
    for part in ("returning", "moving"):
        without = {**content["asked"], part: {} if part == "returning" else None}
        assert replay(read_round({**content, "asked": without}, FEATURES), FEATURES)
    del content["asked"]["cluster"]["shards"]
    assert replay(read_round(content, FEATURES), FEATURES)


def test_a_record_holds_every_field_and_facet_of_a_request():
    limited = LimitedSettings(*map(np.array, ([900], [250])), *ONES, np.zeros(1))
    table = SizeTable(*map(np.array, ([1, 2], [900])), *ONES, limited=limited)
    cluster = Cluster.uniform(3, 4)
    mask, groups = np.array([True, False, True]), NodeGroups(np.array([0, -1, 0]), "rack")
    usual = job_request("1", 1, memory=Memory(per_cpu_mb=7), table=table)
    full = with_fields(
        usual,
        eligible=mask,
        allowed=~mask,
        required=(2,),
        groups=groups,
        whole=True,
        gpu_model="a100",
        bound=True,
        several=4,
        gpus_each=2,
        fills=True,
        cpus=8,
        cpus_per_gpu=3,
        task_per_gpu=True,
        refused=True,
        waited_s=5.0,
        postponed=Postponement(1.0),
        relaxed=True,
        policy="pal",
        options={"a": 1},
        due=DueDate(90.0, ((1, 60.0),), ("a",), epochs=(9, 1, 60.0), weight=2.0),
        tables={"a": table},
        had_gpus=2,
        shards=3,
        preemption=PreemptionRights(groups=frozenset({"low"})),
    )
    queue = [usual, full, Request("2", 1), with_fields(Request("3", 1), groups=groups)]
    asked = Round(queue, cluster, PlanSettings(), 50.0)
    content = stored_round(asked, plan_stages(asked, ()))
    assert [len(content["shared"][kind]) for kind in ("masks", "groups", "tables")] == [2, 1, 1]
    assert content["asked"]["queue"][2] == {"job_id": "2", "gpus": 1}
    one, found, bare, other = read_round(content, FEATURES).asked.queue
    assert found.get(TABLE) is one.get(TABLE) is not None
    assert found.get(TABLES)["a"].gpus.tolist() == [1, 2]
    assert found.nodes.groups is other.nodes.groups is not None
    assert (found.nodes.eligible.tolist(), found.nodes.allowed.tolist()) == (
        mask.tolist(),
        (~mask).tolist(),
    )
    shared = {"groups": None, "eligible": None, "allowed": None, "table": None, "tables": {}}
    for was, again in zip((full, usual), (found, one), strict=True):
        was, again = (with_fields(request, **shared) for request in (was, again))
        for field in fields(Request):
            if field.name != "nodes":
                assert getattr(again, field.name) == getattr(was, field.name), field.name
        assert vars(again.nodes) == vars(was.nodes)
    assert bare.facets == {}
    content["asked"]["queue"][2]["facets"] = {"of no feature": 1}
    with pytest.raises(ValueError, match="not a recorded round"):
        read_round(content, FEATURES)
