"""Due dates over rounds of the selector: sizes, growth at its time, and what is told."""

import math
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from commands import words
from memory_slurm import node_record
from slurm_folder import SlurmFolder, parked, run_by_slurm
from store_samples import fit_models, ingest, put_net, report
from test_sizes import NET, NODES, PLACED, gpus

from slurm_gpu_aware.admission.context import BeforeMove
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.features.due_dates.declared import IMPOSSIBLE
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.features.estimates.history import JobKind, RunHistory
from slurm_gpu_aware.features.estimates.live import Estimates
from slurm_gpu_aware.features.moves.live import Mover
from slurm_gpu_aware.features.moves.under_way import MovesUnderWay
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.store.database import open_store

H = 3600.0
MOVES = "[moves]\nenabled = true\nmargin_s = 100000000.0\n"
"""No job moves to end sooner."""


class DueBench:
    """A selector whose time is set, and that knows runs of the jobs' name."""

    def __init__(self, slurm: SlurmFolder, runs: tuple[tuple[int, float], ...]) -> None:
        self.slurm, self.runs = slurm, runs
        self.now = float(slurm.jobs["7"]["submit_time"])
        self.restart()

    def restart(self) -> None:
        """A new selector, which knows what is in the ledger."""
        self.ledger = LedgerWriter(self.slurm.store)
        times = {"clock": lambda: self.now, "timer": lambda: self.now}
        client, config = self.slurm.client(), load_config(self.slurm.config)
        held = lambda: self.now + 60.0  # noqa: E731
        self.rounds = Rounds(client, config, self.ledger, gate_held_until=held, **times)
        history = RunHistory()
        job = self.slurm.client().jobs()[0]
        for count, seconds in self.runs:
            kind = JobKind(job.user, job.name, job.account or "", count, job.time_limit_s)
            history.add(kind, seconds, node="n1")
        self.rounds.site.of(Estimates).reader.history = history
        self.rounds.load()

    def round(self, after_s: float = 0.0, times: int = 1) -> None:
        """Rounds, each of them so much later."""
        for _ in range(times):
            self.now += after_s
            self.rounds.run()
            self.rounds.start_monitor.poll()

    def at_growth(self) -> None:
        """The round in which the job is to grow."""
        self.round(self.rounds.site.wake_s - self.now + 1.0)

    def job(self, number: str = "7") -> dict[str, Any]:
        return self.slurm.jobs[number]


def bench(
    slurm: SlurmFolder,
    comment: str,
    runs: tuple[tuple[int, float], ...],
    more: str = MOVES,
    deadline_s: float | None = None,
) -> DueBench:
    """Job 7 with a limit of 10 h; job 9 waits behind it for all GPUs of both nodes."""
    slurm.configure(more)
    name = "" if "model=" in comment else f"{NET},"
    one = parked(comment=f"{name}{comment}", admin_comment=PLACED, time_limit=600, priority=9_000)
    one["submit_time"] = int(time.time())
    one["deadline"] = 0 if deadline_s is None else one["submit_time"] + int(deadline_s)
    all_gpus = {"record": ";nn=2-2", "num_nodes": 2, "max_nodes": 2, "priority": 1}
    slurm.write([one, parked("9", 4, time_limit=60, **all_gpus)], NODES)
    return DueBench(slurm, runs)


RUNS = ((1, 2 * H), (1, 3 * H))


@pytest.mark.parametrize(
    ("comment", "runs", "count"),
    [
        ("gpus=1-4,due=12h", RUNS, 1),
        ("gpus=1-4,due=8h", RUNS, 2),
        ("gpus=1-4,due=1h", RUNS, 4),
        ("gpus=2-4,due=1h", RUNS, 4),
        ("gpus=2-4,due=1h", (), 2),
        ("gpus=1-4", RUNS, 1),
        ("gpus=1-4,due=1h", (), 1),
        ("due=1h", RUNS, 2),
        ("gpus=1-4,due=30h,epochs=10x30m", (), 1),
        ("gpus=1-4,due=6h,epochs=10x30m", (), 2),  # 5 h with two GPUs, as the job asks
        ("gpus=1-4,due=4h,epochs=10x30m", (), 4),
    ],
)
def test_a_job_starts_with_the_size_that_its_due_date_needs(
    net_site: SlurmFolder,
    comment: str,
    runs: tuple[tuple[int, float], ...],
    count: int,
) -> None:
    one = bench(net_site, comment, runs)
    one.round(times=2)
    assert (one.job()["state"], gpus(one.job())) == ("RUNNING", count)
    (decided,) = net_site.ledger("7")
    assert ("due" in decided.why) == ("due" in comment)


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which GPUs of ``n2`` are four times as fast at three times the power."""
    path = tmp_path_factory.mktemp("two") / "store.db"
    with open_store(path) as store:
        for node, model in (("n1", "v100"), ("n2", "a100")):
            ingest(store, report(node, model=model))
        put_net(store)
        put_net(store, "a100", speed=4.0, each_w=0.3)
    fit_models(path)
    return path


@pytest.mark.parametrize("order", ["slurm", "together"])
@pytest.mark.parametrize(
    ("comment", "node", "count"),
    [
        ("model=net,gpus=1-4,due=12h", "n2", 1),  # three quarters of the energy
        ("model=net,gpus=1-4,due=2h", "n2", 2),  # its limit does for n1
        ("model=other,gpus=1-4,due=12h", "n1", 2),  # no model of it: as without a due date
    ],
)
def test_of_several_gpu_models_the_one_that_costs_least_is_chosen(
    slurm: SlurmFolder, two_models: Path, order: str, comment: str, node: str, count: int
) -> None:
    """Its runs of 2 h and 3 h were on ``n1``."""
    shutil.copy(two_models, slurm.store)
    one = bench(slurm, comment, RUNS * 3, f'{MOVES}[due_dates]\norder = "{order}"\n')
    slurm.set(nodes=[node_record("n1"), node_record("n2", features="gpu_a100")])
    one.round(times=2)
    assert (one.job()["state"], one.job()["nodes"], gpus(one.job())) == ("RUNNING", node, count)
    (decided,) = slurm.ledger("7")
    assert ("of 2 GPU models" in Facts.read(decided.why).text) == (node == "n2")


@pytest.mark.parametrize(
    ("comment", "count"),
    [("gpus=1-4", 2), ("gpus=1-4,due=1h", 4), ("gpus=1-4,due=12h", 1), ("gpus=1-4,move=10s", 2)],
)
def test_a_deadline_of_slurm_is_a_due_date_where_the_comment_has_none(
    net_site: SlurmFolder,
    comment: str,
    count: int,
) -> None:
    one = bench(net_site, comment, RUNS, deadline_s=8 * H)
    one.round(times=2)
    assert gpus(one.job()) == count
    assert one.rounds.site.wake_s > one.now + 10 * H  # it may not grow


def alone(site: SlurmFolder, comment: str) -> DueBench:
    """Job 7 runs with 1 GPU, alone."""
    one = bench(site, comment, RUNS * 5)
    one.round(times=2)
    assert (one.job()["state"], gpus(one.job())) == ("RUNNING", 1)
    site.change("9", state="COMPLETED")
    site.change("7", start_time=int(one.now), end_time=int(one.now + 10 * H))
    return one


def test_it_grows_at_its_time_and_a_killed_selector_loses_nothing(
    net_site: SlurmFolder,
) -> None:
    one = alone(net_site, "gpus=1-4,due=2h,move=10s")
    at = one.rounds.site.wake_s
    assert one.now < at < one.now + 2 * H
    submitted = one.job()["submit_time"]
    one.round(60.0)
    assert one.rounds.site.wake_s == pytest.approx(at, abs=60.0)
    assert not one.slurm.events("move_begun")
    one.restart()
    one.round(at - one.now + 1.0)
    (begun,) = one.slurm.events("move_begun")
    assert begun.detail["work_done"] > 0
    assert (begun.detail["submit_s"], begun.detail["gpus"]) == (submitted, 1)
    run_s = dict(begun.detail["run_s"])
    assert run_s[1] == pytest.approx(at - one.job()["start_time"], abs=5.0)
    assert run_s[1] > run_s[2] > run_s[4] > 0
    net_site.change("7", submit_time=int(one.now))  # as Slurm does at a requeue
    one.restart()  # killed while the job is on its way
    one.round(5.0, times=4)
    assert (one.job()["state"], one.job()["starts"]) == ("RUNNING", 2)
    assert gpus(one.job()) == len(begun.detail["slots"]) > 1
    assert net_site.ledger("7")[-1].why["due"]["due_s"] == submitted + 2 * H
    # A later submission of the requeue does not change the due date, nor what was done.
    one.restart()
    one.round(5.0)
    moves = one.rounds.site.of(MovesUnderWay)
    assert moves.before["7"] == BeforeMove(submitted, 1)
    assert moves.last("7").work_done == begun.detail["work_done"]
    # After a requeue by its owner it counts anew.
    net_site.change("7", restart_cnt=one.job()["restart_cnt"] + 1)
    for again in (False, True):
        if again:
            one.restart()
        one.round(5.0)
        assert (one.rounds.site.of(MovesUnderWay).before, moves.last("7")) == ({}, None)


def test_a_growth_that_did_not_begin_counts_no_work(
    net_site: SlurmFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The selector is killed after it has recorded the move, before Slurm was asked."""
    one = alone(net_site, "gpus=1-4,due=2h,move=10s")

    one.now = one.rounds.site.wake_s
    with monkeypatch.context() as patch:
        killed = Mock(side_effect=KeyboardInterrupt)
        patch.setattr(type(one.rounds.site.of(MovesUnderWay).client), "requeue_job", killed)
        with pytest.raises(KeyboardInterrupt):
            one.round(1.0)
    one.restart()
    dated = seen_due_dates(one, monkeypatch)
    one.round(25.0)
    assert [event.detail["step"] for event in one.slurm.events("error")] == ["move"]
    one.round(31.0)
    done = [event.detail["work_done"] for event in one.slurm.events("move_begun")]
    assert done[1] == pytest.approx(done[0], rel=0.05)
    assert {due.done for due in dated} == {0.0}


def seen_due_dates(one: DueBench, monkeypatch: pytest.MonkeyPatch) -> list[DueDate]:
    """The due dates that the rounds of a selector count with from now on."""
    found: list[DueDate] = []
    mover = one.rounds.site.of(Mover)
    real = mover._restarted

    def noted(gated: GatedJob, request: Request) -> Request:
        request = real(gated, request)
        assert request.get(DUE_DATE) is not None
        found.append(request.get(DUE_DATE))
        return request

    monkeypatch.setattr(mover, "_restarted", noted)
    return found


def test_after_a_growth_a_changed_due_date_counts(
    net_site: SlurmFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = alone(net_site, "gpus=1-4,due=2h,move=10s")
    submitted = one.job()["submit_time"]
    one.at_growth()
    one.round(5.0, times=4)
    assert one.job()["starts"] == 2
    net_site.change("7", comment=f"{NET},gpus=1-4,due=200h,move=10s")
    dated = seen_due_dates(one, monkeypatch)
    one.round(31.0)
    assert {due.due_s for due in dated} == {submitted + 200 * H}
    assert min(due.done for due in dated) > 0
    moves = one.rounds.site.of(MovesUnderWay)
    assert set(moves.before) == set(moves.began) == {"7"}
    with net_site.state() as state:
        state["jobs"] = []
    one.round(5.0)
    assert (moves.before, moves.began) == ({}, {})


def growing(site: SlurmFolder) -> DueBench:
    """Job 7 asks for 1 GPU, has run with 2, and is on its way to 4."""
    one = bench(site, "gpus=1-4,due=300m,move=10s", ((1, 2 * H), (1, 0.5 * H)))
    record = site.jobs["7"]["admin_comment"].replace("gpu:2", "gpu:1")
    site.change("7", tres_per_node="gres/gpu:1", admin_comment=record)
    one.round(times=2)
    site.change("9", state="COMPLETED")
    site.change("7", start_time=int(one.now), end_time=int(one.now + 10 * H))
    assert gpus(one.job()) == 2
    one.round(60.0)
    one.at_growth()
    (begun,) = one.slurm.events("move_begun")
    assert len(begun.detail["slots"]) == 4
    return one


def test_a_growing_job_whose_start_failed_keeps_its_gpus(net_site: SlurmFolder) -> None:
    one = growing(net_site)
    one.rounds._backoff.punish("7", misplaced=True)
    one.round(31.0, times=12)
    assert (one.job()["starts"], gpus(one.job())) == (2, 2)


def test_a_growing_job_that_waits_for_long_keeps_its_gpus(net_site: SlurmFolder) -> None:
    """Its due date is far by then. One GPU is free, and later two."""
    one = growing(net_site)
    net_site.add(run_by_slurm("3", slots=[0, 1, 2]), run_by_slurm("4", "n2"))
    one.round(31.0)
    net_site.change("7", comment=f"{NET},gpus=1-4,due=400h,move=10s")
    one.round(4_000.0)
    assert not one.rounds.site.of(MovesUnderWay).jobs
    net_site.change("7", eligible_time=0, reason="Licenses")
    for again in (False, True):
        if again:
            one.restart()
        one.round(31.0, times=2)
        assert one.job()["starts"] == 1
    net_site.change("3", slots=[0, 1])
    one.round(31.0, times=2)
    assert (one.job()["starts"], gpus(one.job())) == (2, 2)


@pytest.mark.parametrize(("weights", "first"), [("", "7"), ("weights = { high = 2.0 }", "8")])
def test_by_pressure_the_weight_of_the_qos_goes_first(
    net_site: SlurmFolder,
    weights: str,
    first: str,
) -> None:
    """Each of jobs 7 and 8 needs two of the three free GPUs; 8 comes first in Slurm."""
    settings = f'{MOVES}[due_dates]\norder = "pressure"\n{weights}'
    one = bench(net_site, "gpus=2-4,due=4h", ((2, 2 * H), (2, 3 * H)), settings)
    high = {"job_id": 8, "comment": f"{NET},gpus=2-4,due=5h", "qos": "high", "priority": 9_001}
    jobs = [net_site.jobs["7"], net_site.jobs["7"] | high, run_by_slurm("9", slots=[0])]
    net_site.write(jobs, NODES[:1])
    one.restart()
    one.round(times=2)
    assert [i for i in ("7", "8") if net_site.jobs[i]["state"] == "RUNNING"] == [first]


def test_the_time_of_a_growth_is_forgotten_with_its_job(net_site: SlurmFolder) -> None:
    one = alone(net_site, "gpus=1-4,due=2h,move=10s")
    at = one.rounds.site.wake_s
    net_site.change("7", state="COMPLETED")
    one.round(at - one.now + 1.0)
    assert one.rounds.site.wake_s == math.inf


def test_without_move_it_never_grows(net_site: SlurmFolder) -> None:
    one = alone(net_site, "gpus=1-4,due=11h")
    one.round(1.0 * H)
    net_site.change("7", comment=f"{NET},gpus=1-4,due=90m")
    one.round(60.0, times=3)
    assert (one.job()["starts"], gpus(one.job())) == (1, 1)


def test_an_impossible_due_date_is_told_once(net_site: SlurmFolder) -> None:
    one = bench(net_site, "gpus=1-4,due=10m", RUNS)
    net_site.add(run_by_slurm("3", "n1"), run_by_slurm("4", "n2"))
    one.round()
    one.restart()
    one.round(5.0)
    (event,) = one.slurm.events(IMPOSSIBLE)
    assert event.detail["in_time"] == 0
    assert ";st=due-impossible,next:" in one.job()["admin_comment"]
    one.ledger.close()
    net_site.round()  # records what waits
    shown = words("explain", "7", config=net_site.config)
    assert "it cannot be met by what 2 earlier runs needed" in shown
