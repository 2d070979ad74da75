"""The rolling change of GRES types on a simulated Slurm that dies under us at every step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from make import slurm_job

from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.deploy import rollout, rollout_site
from slurm_gpu_aware.deploy.indexing import SiteFiles, read_site
from slurm_gpu_aware.deploy.rollout import Rollout, Summary
from slurm_gpu_aware.deploy.rollout_site import REASON, RolloutNodes, RolloutState, unfinished_run
from slurm_gpu_aware.errors import SourceError, StoppedError
from slurm_gpu_aware.slurm.conffile import read_conf
from slurm_gpu_aware.slurm.gres import parse_gres
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode, SlurmReservation

CONF = """\
ClusterName=test  # a comment
NodeName=n[1-3] CPUs=8 Gres=gpu:v100:2,nic:1 Feature=ib
NodeName=login CPUs=2
"""
GRES = "NodeName=n[1-3] Name=gpu Type=v100 File=/dev/nvidia[0-1]\n"
NODES = ["n1", "n2", "n3"]
INDEXED = (("g0", 1), ("g1", 1))
PLAIN = (("v100", 2),)


class KilledError(BaseException):
    """The process is gone; nothing catches it."""


@dataclass
class World:
    """A Slurm and a site's folder. Jobs are ticks that they still need; a pause is a tick."""

    folder: Path
    jobs_left: dict[str, list[int]] = field(default_factory=dict)
    """Node -> ticks left of each job."""
    drained: dict[str, str] = field(default_factory=dict)
    """Node -> reason."""
    registered: dict[str, tuple[tuple[str | None, int], ...]] = field(default_factory=dict)
    typed_jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Pending jobs that cannot be changed to ask for a feature."""
    killed_jobs: int = 0
    refuses: set[str] = field(default_factory=set)
    """Nodes whose slurmd does not register with index types."""
    invalid: set[str] = field(default_factory=set)
    features: dict[str, frozenset[str]] = field(default_factory=dict)
    steps: int = 0
    dies_at: int | None = None
    hangs_at: int | None = None
    """Which reconfigure, from 1, slurmctld does not survive; it is back after 100 s."""
    reconfigured: int = 0
    on_hang: Callable[[], None] = lambda: None
    clock: float = 0.0
    on_pause: Callable[[], None] = lambda: None
    distributed: int = 0

    def step(self) -> None:
        """A call that changes something: the process may be killed before or after it."""
        self.steps += 1
        if self.dies_at == self.steps:
            raise KilledError

    # Client

    unread = frozenset[int]()

    def nodes(self) -> list[SlurmNode]:
        out = []
        for name in NODES:
            states = {"ALLOCATED" if self.jobs_left.get(name) else "IDLE"}
            states |= {"DRAIN"} if name in self.drained else set()
            states |= {"INVALID_REG"} if name in self.invalid else set()
            out.append(
                SlurmNode(
                    name,
                    frozenset(states),
                    self.features.get(name, frozenset()),
                    self.registered[name],
                    frozenset(),
                    reason=self.drained.get(name, ""),
                    slurmd_start_s=1.0,
                )
            )
        return out

    def jobs(self) -> list[SlurmJob]:
        held = [node for node, left in self.jobs_left.items() for _ in left]
        running = [slurm_job(i, state="RUNNING", nodes=(node,)) for i, node in enumerate(held)]
        return [*running, *(slurm_job(i, **asked) for i, asked in self.typed_jobs.items())]

    def settings(self) -> Mapping[str, str]:
        return {"StateSaveLocation": str(self.folder / "state")}  # no script: srun or salloc

    def update_jobs(self, updates: list[Any]) -> dict[str, str]:
        assert updates == []
        return {}

    def reservations(self) -> list[SlurmReservation]:
        return []

    def drain_node(self, node: str, reason: str) -> None:
        self.step()
        self.drained[node] = reason
        self.step()

    def resume_node(self, node: str) -> None:
        self.step()
        del self.drained[node]
        self.step()

    def reconfigure(
        self,
        ready: Callable[[], object],
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        ready()
        self.step()
        self.reconfigured += 1
        if self.reconfigured == self.hangs_at:
            say("slurmctld has not answered for 40 s")
            if stopping():
                raise StoppedError("slurmctld does not answer")
            self.clock += 100
            self.on_hang()
            ready()
        self.take_over()
        self.step()

    def take_over(self) -> None:
        """What the files say is true from now on."""
        for name, record in read_conf(self.folder / "slurm.conf").nodes().items():
            gres = [g for g in parse_gres(record.get("gres", "")) if g.name == "gpu"]
            if gres:
                words = record.get("features") or record.get("feature") or ""
                self.features[name] = frozenset(words.split(","))
                new = tuple((g.kind, g.count) for g in gres)
                if new != self.registered[name] and self.jobs_left.get(name):
                    self.killed_jobs += len(self.jobs_left.pop(name))
                if new == INDEXED and name in self.refuses:
                    self.invalid.add(name)
                else:
                    self.invalid.discard(name)
                    self.registered[name] = new

    # Site

    def read(self) -> SiteFiles:
        return read_site(self.folder / "slurm.conf", self.folder / "gres.conf", {})

    def apply(self, changes: Mapping[Path, str]) -> None:
        for path, text in changes.items():
            self.step()
            path.write_text(text)
            self.step()
        if changes:
            self.distribute()

    def distribute(self) -> None:
        self.distributed += 1

    def filter_models(self, models: frozenset[str]) -> None:
        """From now on requests ask for the feature: Slurm must know it."""
        for name in NODES:
            assert {f"gpu_{m}" for m in models} <= self.features.get(name, frozenset())
        self.step()

    # Time

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        self.on_pause()
        for name, left in self.jobs_left.items():
            self.jobs_left[name] = [ticks - 1 for ticks in left if ticks > 1]

    def texts(self) -> Mapping[str, str]:
        return {p: (self.folder / p).read_text() for p in ("slurm.conf", "gres.conf")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "slurm.conf").write_text(CONF)
    (tmp_path / "gres.conf").write_text(GRES)
    jobs = {"n1": [3, 1], "n3": [2]}
    return World(tmp_path, jobs_left=jobs, registered=dict.fromkeys(NODES, PLAIN))


class Said(list[str]):
    """Lines of progress; ``heard`` is called with each."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        super().__init__()
        self._heard = heard

    def append(self, text: str) -> None:
        super().append(text)
        self._heard(text)


def run(
    world: World,
    *,
    undo: bool = False,
    scope: list[str] | None = None,
    stopping: Callable[[], bool] = lambda: False,
    said: list[str] | None = None,
    strand: bool = False,
) -> Summary:
    def reconfiguration(*arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(
            run=lambda ready=bool, node=None: world.reconfigure(ready, *arguments[1:])
        )

    time = SimpleNamespace(monotonic=lambda: world.clock, sleep=world.pause)
    client: Any = world
    clock = mock.patch.object(rollout_site, "time", time)
    with clock, mock.patch.object(rollout, "Reconfiguration", reconfiguration):
        nodes = RolloutNodes(client, (said if said is not None else []).append, stopping, 120.0)
        state = world.folder / "rollout.json"
        config = Config(store=StoreConfig(path=world.folder / "store.db"))
        rollout_run = Rollout(nodes, client, state, undo=undo, config=config, strand=strand)
        return rollout_run.run(NODES if scope is None else scope)


def results(summary: Summary) -> dict[str, str]:
    return {o.node: o.result for o in summary.nodes}


def test_there_and_back(world: World):
    summary = run(world)
    assert results(summary) == dict.fromkeys(NODES, "changed")
    assert world.registered == dict.fromkeys(NODES, INDEXED)
    assert world.drained == {}
    assert world.killed_jobs == 0
    assert world.distributed == 4  # features first, then each node
    conf = read_conf(world.folder / "slurm.conf")
    values = {n: (of.get("gres"), of.get("features")) for n, of in conf.nodes().items()}
    moved = dict.fromkeys(NODES, ("gpu:g0:1,gpu:g1:1,nic:1", "ib,gpu_v100"))
    assert values == {**moved, "login": (None, None)}
    assert results(run(world)) == dict.fromkeys(NODES, "already")
    assert results(run(world, undo=True)) == dict.fromkeys(NODES, "changed")
    assert world.registered == dict.fromkeys(NODES, PLAIN)
    assert world.texts() == {"slurm.conf": CONF, "gres.conf": GRES}
    assert not (world.folder / "rollout.json").exists()


def test_idle_nodes_come_first(world: World):
    assert [o.node for o in run(world).nodes] == ["n2", "n1", "n3"]


@pytest.mark.parametrize("undo", [False, True])
def test_killed_at_every_step(world: World, undo: bool):
    """However often it is killed, starting it again ends where one run would have."""
    if undo:
        run(world)
        world.jobs_left = {"n1": [3, 1], "n3": [2]}
    world.steps = 0
    deaths = 0
    while True:
        world.steps, world.dies_at = 0, deaths % 7 + 1
        try:
            summary = run(world, undo=undo)
            break
        except KilledError:
            deaths += 1
            assert deaths < 200
    assert deaths > 10
    assert world.drained == {}
    assert world.killed_jobs == 0
    assert world.registered == dict.fromkeys(NODES, PLAIN if undo else INDEXED)
    assert not summary.interrupted
    if undo:
        assert world.texts() == {"slurm.conf": CONF, "gres.conf": GRES}


@pytest.mark.parametrize("step", range(1, 40))
@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_killed_and_the_node_resumed_by_hand(world: World, step: int, undo: bool, back: bool):
    """Jobs start there with the old GPUs, and no later reconfigure changes these under them."""
    if undo:
        run(world)
    world.steps, world.dies_at = 0, step
    try:
        run(world, undo=undo)
    except KilledError:
        assert world.steps == step
    world.dies_at = None
    for name in world.drained:
        world.jobs_left[name] = [4]
    world.drained.clear()
    end = undo != back  # the other direction is asked for the next time
    summary = run(world, undo=end)
    assert world.drained == {}
    assert world.killed_jobs == 0
    assert set(results(summary).values()) <= {"changed", "already"}
    assert world.registered == dict.fromkeys(NODES, PLAIN if end else INDEXED)


@pytest.mark.parametrize("step", range(1, 40))
def test_killed_once_and_undone_instead(world: World, step: int):
    world.dies_at = step
    try:
        run(world)
    except KilledError:
        assert world.steps == step
    world.dies_at = None
    run(world, undo=True)
    assert world.drained == {}
    assert world.killed_jobs == 0
    assert world.registered == dict.fromkeys(NODES, PLAIN)
    assert world.texts() == {"slurm.conf": CONF, "gres.conf": GRES}


def test_a_node_of_another_scope_is_not_left_drained(world: World):
    world.dies_at = 12
    with pytest.raises(KilledError):
        run(world, scope=["n2"])
    assert world.drained == {"n2": REASON}
    world.dies_at = None
    run(world, scope=["n3"])
    assert world.drained == {}
    assert world.registered["n3"] == INDEXED


def test_what_others_drained_is_left_alone(world: World):
    world.drained["n2"] = "broken fan"
    summary = run(world)
    assert results(summary) == {"n1": "changed", "n2": "skipped", "n3": "changed"}
    assert world.drained == {"n2": "broken fan"}
    assert world.registered["n2"] == PLAIN


def test_drained_by_an_admin_while_it_waits(world: World):
    def admin() -> None:
        if "n1" in world.drained:
            world.drained["n1"] = "needs a new disk"

    world.on_pause = admin
    summary = run(world, scope=["n1"])
    assert results(summary) == {"n1": "skipped"}
    assert world.drained == {"n1": "needs a new disk"}
    assert world.registered["n1"] == PLAIN


def test_resumed_by_an_admin_while_it_waits(world: World):
    world.on_pause = lambda: world.drained.pop("n1", None) and None
    summary = run(world, scope=["n1"])
    assert results(summary) == {"n1": "skipped"}
    assert world.registered["n1"] == PLAIN
    assert world.killed_jobs == 0


def test_a_node_that_does_not_register_is_put_back_and_the_run_ends(world: World):
    world.refuses = {"n2"}
    summary = run(world)
    assert results(summary) == {"n2": "failed"}
    assert "INVALID_REG" in summary.nodes[0].why
    assert "moved back" in summary.nodes[0].why
    assert world.drained == {}
    assert world.invalid == set()
    assert world.registered == dict.fromkeys(NODES, PLAIN)
    world.refuses = set()
    assert results(run(world)) == dict.fromkeys(NODES, "changed")


def test_a_failing_distribution_puts_the_node_back(world: World, monkeypatch):
    calls = 0

    def distribute() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise SourceError("rsync: n2: no route to host")

    monkeypatch.setattr(world, "distribute", distribute)
    summary = run(world)
    assert results(summary) == {"n2": "failed"}
    assert "no route to host" in summary.nodes[0].why
    assert world.registered == dict.fromkeys(NODES, PLAIN)
    assert world.drained == {}


def test_interrupted_while_waiting_gives_the_node_back(world: World):
    said: list[str] = []
    summary = run(world, scope=["n1"], stopping=lambda: world.clock > 0, said=said)
    assert summary.interrupted
    assert results(summary) == {"n1": "left"}
    assert world.drained == {}
    assert world.registered["n1"] == PLAIN
    assert any("waiting for 2 jobs" in line for line in said)
    last = unfinished_run(world.folder / "rollout.json")
    assert last == RolloutState("rollout", ("n1",), "n1")


@pytest.mark.parametrize("hangs_at", range(1, 5))
def test_stopped_while_slurmctld_hangs(world: World, hangs_at: int):
    """A node whose files are written stays drained, with a message; the next run goes on."""
    world.hangs_at = hangs_at
    hung = False

    def say(text: str) -> None:
        nonlocal hung
        hung |= "has not answered" in text

    summary = run(world, stopping=lambda: hung, said=Said(say))
    assert summary.interrupted
    left = [(o.node, o.why) for o in summary.nodes if o.result == "left"]
    assert [node for node, _ in left] == list(world.drained)
    assert len(left) == (hangs_at > 1)
    assert all("still drained: slurmctld does not answer" in why for _, why in left)
    assert set(results(run(world)).values()) <= {"changed", "already"}
    assert world.registered == dict.fromkeys(NODES, INDEXED)
    assert world.drained == {}
    assert world.killed_jobs == 0


@pytest.mark.parametrize("undo", [False, True])
def test_resumed_by_an_admin_who_restarts_slurmctld(world: World, undo: bool):
    """slurmctld then has what the files said; a job that began there is not killed."""
    if undo:
        run(world)
    world.hangs_at = world.reconfigured + (1 if undo else 2)

    def admin() -> None:
        world.take_over()
        (node,) = world.drained
        del world.drained[node]
        world.jobs_left[node] = [10**6]

    world.on_hang = admin
    said: list[str] = []
    summary = run(world, undo=undo, said=said)
    assert world.killed_jobs == 0
    assert list(results(summary).values()) == ["skipped", "changed", "changed"]
    assert any("it was resumed meanwhile" in line for line in said)
    assert world.registered == dict.fromkeys(NODES, PLAIN if undo else INDEXED)
    conf = read_site(world.folder / "slurm.conf", world.folder / "gres.conf", {})
    assert conf.indexed_by_us() == (frozenset() if undo else frozenset(NODES))


def test_resumed_while_it_is_put_back(world: World):
    """It is not changed any more, and no message says that it is drained."""
    world.refuses = {"n2"}

    def admin() -> None:
        if world.clock > 100:
            world.drained.pop("n2", None)

    world.on_pause = admin
    said: list[str] = []
    summary = run(world, scope=["n2"], said=said)
    assert results(summary) == {"n2": "failed"}
    assert "it was resumed meanwhile" in summary.nodes[0].why
    assert not any("stays drained" in line for line in said)


def test_a_node_of_another_scope_is_resumed_while_slurmctld_hangs(world: World):
    """It is left as it is, and the run goes on."""
    world.drained["n3"] = REASON
    world.jobs_left.clear()
    world.hangs_at = 1

    def admin() -> None:
        del world.drained["n3"]
        world.jobs_left["n3"] = [10**6]

    world.on_hang = admin
    summary = run(world, scope=["n1"])
    assert results(summary) == {"n1": "changed"}
    assert world.killed_jobs == 0


def test_a_state_file_of_no_use_is_ignored(tmp_path: Path):
    file = tmp_path / "rollout.json"
    for text in (
        "",
        "{",
        "[]",
        '{"direction": "up", "scope": [], "in_hand": null}',
        '{"direction": "rollout", "scope": ["a;b"], "in_hand": null}',
    ):
        file.write_text(text)
        assert unfinished_run(file) is None


TYPED: dict[str, Any] = {"tres_per_node": "gres/gpu:v100:2"}


def pauses(world: World, number: int, then: Callable[[], object]) -> None:
    """Call it at a pause; the run has to come so far."""
    count = 0

    def pause() -> None:
        nonlocal count
        count += 1
        assert count < number + 50, "it waits for ever"
        if count == number:
            then()

    world.on_pause = pause


def test_the_last_node_with_a_type_waits_for_the_jobs_that_need_it(world: World):
    world.jobs_left = {}
    world.typed_jobs = {70: TYPED, 71: {**TYPED, "min_nodes": 2}}
    plain: list[list[str]] = []

    def start(number: int) -> None:
        plain.append([n for n in NODES if world.registered[n] == PLAIN and n not in world.drained])
        del world.typed_jobs[number]

    said: list[str] = []
    pauses(world, 5, lambda: (start(71), pauses(world, 5, lambda: start(70))))
    summary = run(world, said=said)
    assert plain == [["n2", "n3"], ["n3"]]
    assert results(summary) == dict.fromkeys(NODES, "changed")
    assert summary.stranded_jobs == {}
    waits = [line for line in said if "stays plain until" in line]
    assert [line.split(":")[0] for line in waits] == ["n2", "n3"]
    assert "71" in waits[0]
    assert "70" in waits[1]


def test_a_job_that_comes_while_its_node_is_drained_gets_the_node_back(world: World):
    """Requeued, for example; the node is not changed under it."""
    world.jobs_left = {"n3": [3]}
    resumed = False

    def come() -> None:
        world.typed_jobs = {70: TYPED}
        pauses(world, 5, go)

    def go() -> None:
        nonlocal resumed
        resumed = "n3" not in world.drained and world.registered["n3"] == PLAIN
        world.typed_jobs = {}

    pauses(world, 1, come)
    assert results(run(world)) == dict.fromkeys(NODES, "changed")
    assert resumed


def test_a_job_that_comes_while_files_are_distributed_gets_the_node_back(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    world.jobs_left = {}
    before: list[dict[str, Any]] = []

    def distribute() -> None:
        files = world.read()
        if not before and len(files.indexed_by_us()) == len(NODES):  # the last node with the type
            world.typed_jobs = {70: TYPED}
            before.append(dict(world.registered))
            pauses(world, 3, go)

    def go() -> None:
        assert world.registered == before[0], "its last plain node was changed"
        assert len(world.read().indexed_by_us()) == len(NODES) - 1
        assert world.drained == {}
        world.typed_jobs = {}

    monkeypatch.setattr(world, "distribute", distribute)
    summary = run(world)
    assert before
    assert results(summary) == dict.fromkeys(NODES, "changed")
    assert summary.stranded_jobs == {}


def test_jobs_that_are_not_waited_for_are_named(world: World):
    world.typed_jobs = {70: TYPED}
    summary = run(world, strand=True)
    assert results(summary) == dict.fromkeys(NODES, "changed")
    assert list(summary.stranded_jobs) == ["70"]
    assert "no script" in summary.stranded_jobs["70"]


def test_an_unusable_node_is_not_waited_for(world: World):
    """It stays plain, so the job can start when the node is back."""
    world.drained["n2"] = "broken fan"
    world.typed_jobs = {70: TYPED}
    pauses(world, 10_000, lambda: None)
    summary = run(world)
    assert results(summary) == {"n1": "changed", "n2": "skipped", "n3": "changed"}
    assert summary.stranded_jobs == {}


def test_a_wait_for_jobs_can_be_interrupted(world: World):
    world.jobs_left = {}
    world.typed_jobs = {70: TYPED}
    summary = run(world, stopping=lambda: world.clock > 5)
    assert summary.interrupted
    assert list(results(summary).values()) == ["changed", "changed"]
    assert world.drained == {}


@pytest.mark.parametrize("step", range(1, 40, 3))
def test_killed_with_jobs_that_need_a_type(world: World, step: int):
    """A node that a killed run left drained is resumed if a job needs it."""
    world.typed_jobs = {70: {**TYPED, "min_nodes": 3}}
    world.dies_at = step
    try:
        run(world, stopping=lambda: world.clock > 50)
    except KilledError:
        assert world.steps == step
    world.dies_at = None
    summary = run(world, stopping=lambda: world.clock > 150)
    assert summary.interrupted
    assert world.registered == dict.fromkeys(NODES, PLAIN)
    assert world.drained == {}
