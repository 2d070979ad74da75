"""The live world and the simulated one: stages are told the same, and jobs get the same GPUs."""

import math
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from memory_slurm import node_record
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked
from store_samples import fit_models, ingest, put_net, report

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.features.power.declared import PowerConfig
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.features.queue_order.declared import QueueConfig
from slurm_gpu_aware.features.queue_order.simulated import RunOrder
from slurm_gpu_aware.features.queue_order.stage import rule_of
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.facets import Facet, named
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.profile import GpuScore
from slurm_gpu_aware.model.size_table import TABLE, SizeTable
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.simulator.engine import Simulator
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import put_scores

NODES = ["n1", "n2"]
SCORES = {"n1": (1.0, 1.0, 1.25, 1.25), "n2": (0.8, 1.25, 1.0, 0.8)}
MAX_W, IDLE_W = 300.0, 50.0


class Told(Stage):
    """What a round is told, and what it plans; first of the stages."""

    name = "told"

    def __init__(self, *asks: Facet[Any]) -> None:
        self.inputs = asks  # type: ignore[misc]
        self.asked: list[Round] = []
        self.planned: list[Round] = []

    def before(self, one: Round) -> Round:
        self.asked.append(one)
        return one

    def after(self, one: Round) -> Round:
        self.planned.append(one)
        return one


@dataclass(frozen=True)
class Job:
    """A job of both worlds."""

    name: str
    gpus: int
    priority: int = 100
    limit_min: int = 60
    sizes: tuple[int, ...] = ()
    hints: str = ""
    """Of the comment, but those above."""

    def live(self, now: float) -> dict[str, Any]:
        """As the filter leaves it."""
        gpus = f"gres/gpu:{self.gpus}"
        sizes = f",gpus={self.sizes[0]}-{self.sizes[-1]}" if self.sizes else ""
        return parked(
            self.name,
            comment=f"class=A,model=net{sizes}{self.hints and ','}{self.hints}",
            tres_per_node=gpus,
            admin_comment=f"gpuaware/1;tn={gpus};mc=1;rs=nodes",
            tres_req_str=f"cpu=1,mem=500M,node=1,billing=1,gres/gpu={self.gpus}",
            priority=self.priority,
            time_limit=self.limit_min,
            submit_time=int(now),
            stuck=True,
        )

    def simulated(self, table: SizeTable | None) -> TraceJob:
        """With the table that the live round has for it."""
        hints = dict[str, Any](part.split("=") for part in self.hints.split(",") if part)
        due, move = hints.pop("due", None), hints.pop("move", None)
        if "slower" in hints:
            hints["slower"] = int(hints["slower"])
        limit_s = 60.0 * self.limit_min
        job = TraceJob(self.name, 0.0, self.gpus, limit_s, "A", time_limit_s=limit_s, table=table)
        return replace(
            job,
            priority=float(self.priority),
            nodes=1,
            sizes=self.sizes,
            hints=JobHints(hints),
            elastic=True if move else None,
            restart_s=10.0 if move else None,
            deadline_s=None if due is None else 3600.0 * int(due.removesuffix("h")),
        )


class Live:
    """A selector over a Slurm of ours; its second node is slower in parts."""

    def __init__(self, slurm: SlurmFolder, net_store: Path, more: str) -> None:
        shutil.copy(net_store, slurm.store)
        with slurm.config.open("a") as config:
            config.write(f'[placement]\npolicy = "pal"\nbackfill = true\n{more}\n')
        self.slurm, self.config = slurm, load_config(slurm.config)
        self.bench = RoundsBench(slurm, self.config)

    def plan(self, jobs: Iterable[Job], *stages: Stage) -> Round:
        """The first round of jobs that wait."""
        told = Told()
        self.bench.rounds.planner.features = (told, *FEATURES, *stages)
        self.slurm.write([job.live(self.bench.wall) for job in jobs], NODES)
        self.bench.rounds.run()
        (asked,), (planned,) = told.asked, told.planned
        self.cluster = asked.cluster
        self.tables = {one.job_id: one.get(TABLE) for one in asked.queue}
        return planned


class Simulated:
    """A simulation of what a live round has seen."""

    def __init__(self, live: Live) -> None:
        self.live, config = live, live.config
        power = config.of(PowerConfig)
        eta = math.inf if power.eta is None else power.eta
        self.settings = SimSettings(
            policy="pal",
            order="priority",
            backfill=True,
            sections=config.sections,
            mode="moves" if config.of(MovesConfig).enabled else "sticky",
        ).put(
            RunEstimates("limit"),
            RunOrder(rule_of(config.of(QueueConfig), 0.0)),
            RunPower(IDLE_W, MAX_W, eta),
        )

    def plan(self, jobs: Iterable[Job], *stages: Stage) -> Round:
        """The first round of jobs that wait."""
        told = Told()
        trace = Trace.of("both", [job.simulated(self.live.tables[job.name]) for job in jobs])
        cluster = self.live.cluster
        Simulator(trace, cluster, self.settings, stages=(told, *FEATURES, *stages)).run()
        return told.planned[0]


@pytest.fixture(scope="module")
def net_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the scores of all GPUs, in which ``net`` has a model."""
    path = tmp_path_factory.mktemp("fitted") / "store.db"
    with open_store(path) as store:
        for node, scores in SCORES.items():
            ingest(store, report(node, times={i: 100 * s for i, s in enumerate(scores)}))
        put_net(store)
        scored = [
            GpuScore(node, slot, "A", 100 * score, score, score, 0, 0, 1000.0)
            for node, scores in SCORES.items()
            for slot, score in enumerate(scores)
        ]
        put_scores(store, scored)
    fit_models(path)
    return path


def places_and_clocks(one: Round) -> dict[str, Any]:
    """Job -> (nodes, GPUs, clock)."""
    return {a.job_id: (a.nodes, a.slots, a.clock_mhz) for a in one.whole_plan.assignments}


def waits(one: Round) -> list[str]:
    return sorted(waiting.job_id for waiting in one.plan.waiting)


MOLDABLE = (1, 2, 4)
CASES: dict[str, tuple[str, Sequence[Job], dict[str, tuple[int, int | None]]]] = {
    "best GPUs, by priority": (
        "",
        [Job("1", 2), Job("2", 2, priority=200), Job("3", 3)],
        {"1": (2, None), "2": (2, None)},
    ),
    "backfill": (
        "",
        [
            Job("1", 3, priority=400),
            Job("2", 4, priority=300),
            Job("3", 4, priority=200),
            Job("4", 1, limit_min=50),
            Job("5", 1, limit_min=90),
        ],
        {"1": (3, None), "2": (4, None), "4": (1, None)},
    ),
    "shortest first": (
        '[queue]\norder = "expected"\nrun_time_weight = 10.0\n',
        [Job("1", 4), Job("2", 4, limit_min=30), Job("3", 4, limit_min=20)],
        {"2": (4, None), "3": (4, None)},
    ),
    "spare GPUs": (
        "",
        [Job("1", 1, sizes=MOLDABLE), Job("2", 2)],
        {"1": (4, None), "2": (2, None)},
    ),
    "saved energy": (
        "[energy]\nslowdown = 0.2\n",
        [Job("1", 2), Job("2", 1)],
        {"1": (2, 1312), "2": (1, 1312)},
    ),
    "less speed asked": (
        "",
        [Job("1", 2, hints="slower=20"), Job("2", 1)],
        {"1": (2, 1312), "2": (1, None)},
    ),
    "power limit": (
        f"[power]\neta = 0.35\nclocks = 'auto'\nmargin = 0.0\nidle_watts = {IDLE_W}\n",
        [Job("1", 1, sizes=MOLDABLE), Job("2", 2), Job("3", 4)],
        {"1": (2, 1312), "2": (2, 1312), "3": (4, 135)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_both_worlds_start_the_same_jobs_on_the_same_gpus(
    slurm: SlurmFolder, net_store: Path, case: str
) -> None:
    more, jobs, started = CASES[case]
    live = Live(slurm, net_store, more)
    found = live.plan(jobs)
    again = Simulated(live).plan(jobs)
    assert {
        name: (len(gpus), mhz) for name, (_, (gpus,), mhz) in places_and_clocks(found).items()
    } == started
    assert (places_and_clocks(found), waits(found)) == (places_and_clocks(again), waits(again))


EVERYTHING = f"""
[queue]
order = "expected"
[energy]
slowdown = 0.2
[power]
eta = 0.9
idle_watts = {IDLE_W}
[moves]
enabled = true
first_s = 0.0
last_s = 0.0
"""
TOLD = {"energy", "moving", "power", "queue order", "returning", "due date", "hints", "table"}
"""Facets that these rounds or their jobs have in both worlds; those of several GPU models:
``test_due_jobs``."""
ONLY_LIVE = {"shards", "own clock", "GPUs before its move"}
"""A trace has neither shards nor clocks; a simulated job is back from its move at once."""
ASKS = "due=99h,slower=10,move=10s"


def told_live(slurm: SlurmFolder, net_store: Path) -> list[Round]:
    """Rounds in which job 1 moves from n1 to n2, where job 9 has ended."""
    live, told = Live(slurm, net_store, EVERYTHING), Told()
    bench, now = live.bench, int(time.time())
    bench.wall = time.time()
    bench.rounds.planner.features = (told, *FEATURES)
    other = parked("9", state="RUNNING", licenses="", admin_comment="", nodes="n2", slots=[0, 3])
    record = "gpuaware/1;tn=gres/gpu:1;mc=1;rs=nodes"
    moves = Job("1", 2, sizes=(1, 2), hints=ASKS).live(now) | {"stuck": False}
    clock = parked("2", admin_comment=f"{record};tf=gpu:1312", stuck=True)
    shard = {"tres_per_node": "gres/shard:2", "admin_comment": "gpuaware/1;tn=gres/shard:2"}
    shards = parked("3", **shard, stuck=True)
    slurm.write([moves, clock, shards, other], NODES)
    used = "gpu:g0:0(IDX:N/A),shard:g0:0(0/4)"
    shared = node_record("n3", gres="gpu:g0:1(S:0),shard:g0:4(S:0)", gres_used=used)
    slurm.set(nodes=[*slurm.get("nodes"), shared])
    bench.rounds.run()
    assert slurm.jobs["1"]["state"] == "RUNNING"
    slurm.change("1", start_time=now - 5_000, end_time=now + 90_000)
    slurm.change("9", state="COMPLETED", nodes="")
    for _ in range(5):
        bench.steady, bench.wall = bench.steady + 60.0, time.time()
        bench.rounds.run()
        bench.rounds.start_monitor.poll()
    return told.asked


def told_simulated(slurm: SlurmFolder, net_store: Path) -> list[Round]:
    """Rounds in which job 1 moves to the GPUs that job 9 has left."""
    live, told = Live(slurm, net_store, EVERYTHING), Told()
    jobs = [Job("9", 4, priority=200), Job("1", 2, limit_min=900, sizes=(1, 2), hints=ASKS)]
    live.plan(jobs)
    trace = Trace.of("both", [job.simulated(live.tables[job.name]) for job in jobs])
    settings = Simulated(live).settings
    Simulator(trace, live.cluster, settings, stages=(told, *FEATURES)).run()
    return told.asked


@pytest.mark.parametrize(
    ("world", "known"), [(told_live, TOLD | ONLY_LIVE), (told_simulated, TOLD)]
)
def test_stages_are_told_all_that_they_ask_for(
    slurm: SlurmFolder,
    net_store: Path,
    world: Callable[[SlurmFolder, Path], list[Round]],
    known: set[str],
) -> None:
    asked = world(slurm, net_store)
    facets = {facet for stage in FEATURES for facet in (*stage.inputs, *stage.reads)}
    there = [*asked, *(request for one in asked for request in one.queue)]
    assert {f.name for f in facets if any(named(f, one.get(f)) for one in there)} >= known


def test_an_input_that_a_world_does_not_know_is_an_error(
    slurm: SlurmFolder, net_store: Path
) -> None:
    live, unknown = Live(slurm, net_store, ""), Told(Facet("weather", "", str))
    live.plan(jobs := [Job("1", 2)])
    for world in (live, Simulated(live)):
        with pytest.raises(LookupError, match="weather"):
            world.plan(jobs, unknown)
