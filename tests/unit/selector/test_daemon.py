"""The selector against a small Slurm of ours.

The daemon runs as a process of its own and is killed with SIGKILL at every request it makes.
"""

from collections.abc import Iterator, Set
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from memory_slurm import MemorySlurm, reservation_record
from slurm_folder import SlurmFolder, parked, run_by_slurm

from slurm_gpu_aware.config.settings import Config, EventsConfig, GateConfig, StoreConfig
from slurm_gpu_aware.gate.gated_job import gated_jobs
from slurm_gpu_aware.gate.restore import restore
from slurm_gpu_aware.selector import daemon
from slurm_gpu_aware.selector.candidates import Licences
from slurm_gpu_aware.selector.daemon import Selector
from slurm_gpu_aware.selector.heartbeat import Heartbeat
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.selector.round_state import Outcome
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The daemon's time, which only the test sets: ``now``, and CPU time as ``cpu``."""
    clock = SimpleNamespace(now=1000.0, cpu=0.0)
    clock.time = clock.monotonic = lambda: clock.now
    clock.process_time = lambda: clock.cpu
    monkeypatch.setattr(daemon, "time", clock)
    return clock


@pytest.fixture
def selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> Iterator[Selector]:
    """One of an empty site, in this process."""
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    store, events = tmp_path / "store.db", EventsConfig(submit_file=tmp_path / "submitted")
    made = Selector(Config(store=StoreConfig(path=store), events=events), MemorySlurm(tmp_path))
    yield made
    made.close()


def has_round(selector: Selector, outcome: Outcome | None, trigger: str = "submit") -> None:
    """A round has ended so; None: by a fault of ours."""
    selector._rounds.run = Mock(return_value=outcome, side_effect=None if outcome else KeyError)
    selector._round(trigger)


def test_a_parked_job_is_placed_and_starts(slurm: SlurmFolder) -> None:
    slurm.write([parked()], ["n1", "n2"])
    assert slurm.round() == 0, slurm.said
    job = slurm.jobs["7"]
    assert job["state"] == "RUNNING"
    assert job["licenses"] == ""
    assert slurm.round() == 0
    (decision,) = slurm.ledger("7")
    assert decision.state == "started"
    assert decision.outcome["as_planned"] is True
    assert [list(decision.nodes), list(decision.slots)] == [[job["nodes"]], [job["slots"]]]


@pytest.mark.parametrize(("grows_in_s", "waits_s"), [(-1.0, 1.0), (3.0, 3.0), (1e6, 5.0)])
def test_it_wakes_up_for_a_growth_whose_time_came_during_the_round(
    selector: Selector, clock: SimpleNamespace, grows_in_s: float, waits_s: float
) -> None:
    selector._rounds.site.wake_s = clock.now + grows_in_s
    assert selector._wait_s() == waits_s


def test_own_licences_survive(slurm: SlurmFolder) -> None:
    slurm.write([parked(record=";lic=matlab:2", licenses="matlab:2,gpuaware:1")], ["n1"])
    slurm.round()
    assert slurm.jobs["7"]["licenses"] == "matlab:2"


def test_nodes_with_licences_of_their_own_are_slurms_choice(slurm: SlurmFolder) -> None:
    """A job bound to a node without free ones would never start, and keep its GPUs from others."""
    own = {"gpus": 1, "record": ";lic=power:3", "licenses": "power:3,gpuaware:1"}
    slurm.write([parked("7", **own), parked("8", **own)], ["n1", "n2"])
    slurm.round()
    job = slurm.jobs["7"]
    assert (job["licenses"], job["req_nodes"]) == ("power:3", ""), slurm.said
    assert job["tres_per_node"] == "gres/gpu:1"
    assert slurm.jobs["8"]["licenses"] == "power:3,gpuaware:1"


def test_a_round_asks_for_licences_once(slurm: SlurmFolder) -> None:
    slurm.write([parked(record=";lic=matlab:2", licenses="matlab:2,gpuaware:1")], ["n1"])
    (gated,) = gated_jobs(slurm.client().jobs(), GateConfig())
    slurm.forget_calls()
    licences = Licences(slurm.client())
    licences.use(gated)
    assert (licences.lacking(gated, []), licences.of_nodes(gated)) == (None, None)
    assert [call[0] for call in slurm.calls] == ["licenses"]


def test_licences_that_its_own_reservation_holds_are_there(slurm: SlurmFolder) -> None:
    own = {"record": ";lic=matlab:20", "licenses": "matlab:20,gpuaware:1"}
    slurm.write([parked("7", resv_name="course", **own), parked("8", **own)], ["n1"])
    course = reservation_record("course", node_list="n1", licenses="matlab:20")
    slurm.reserve(reservation_record("gpuaware_gate", licenses="gpuaware:100000"), course)
    slurm.round()
    assert slurm.jobs["7"]["state"] == "RUNNING", slurm.said
    assert slurm.jobs["8"]["licenses"] == "matlab:20,gpuaware:1"


def test_the_gate_is_held_at_once_after_a_long_wait_for_slurm(slurm: SlurmFolder) -> None:
    now = [1000.0]
    pool = HoldingPool(slurm.client())
    heartbeat = Heartbeat(slurm.client(), Config(), pool, clock=lambda: now[0])
    now[0] += 3600.0
    heartbeat.start()
    heartbeat.stop()
    assert heartbeat.held_until == now[0] + Config().gate.lease_s


@pytest.mark.parametrize("reason", ["Dependency", "QOSMaxGRESPerUser", "JobHeldUser", "BeginTime"])
def test_what_something_else_holds_is_left_alone(slurm: SlurmFolder, reason: str) -> None:
    slurm.write([parked(reason=reason)], ["n1"])
    before = slurm.jobs
    slurm.round()
    assert slurm.jobs == before
    assert slurm.ledger("7") == []


def test_what_is_not_ours_is_left_alone(slurm: SlurmFolder) -> None:
    free = {"licenses": "", "stuck": True}
    by_hand = parked("8", record=";sel=opened:0:1", **free)
    slurm.write([parked(admin_comment="site note", **free), by_hand], ["n1"])
    before = slurm.jobs
    slurm.round()
    assert slurm.jobs == before


def test_nodes_typed_with_blanks_are_understood(slurm: SlurmFolder) -> None:
    record = ";rn=n2%20;xn=n3%20n4"
    slurm.write([parked("7", 1, record, req_nodes="n2")], ["n1", "n2"])
    slurm.round()
    assert slurm.jobs["7"]["state"] == "RUNNING", slurm.said
    assert slurm.jobs["7"]["nodes"] == "n2"


@pytest.mark.parametrize("key", ["rn", "xn"])
def test_a_job_that_cannot_be_understood_stops_no_other(slurm: SlurmFolder, key: str) -> None:
    odd = parked("7", 1, f";{key}=n%5B1%3A2", stuck=True)
    opened = parked("9", 1, ";rn=n%5B1%3A2", licenses="", stuck=True)
    slurm.write([odd, opened, parked("8")], ["n1", "n2"])
    assert slurm.round() == 0, slurm.said
    assert slurm.jobs["8"]["state"] == "RUNNING", slurm.said
    assert slurm.jobs["7"]["licenses"] == ""
    # Nodes that are not known cannot be planned, not even by counts.
    phase = {"rn": "released", "xn": "left"}[key]
    assert f";sel={phase}:" in slurm.jobs["7"]["admin_comment"]
    assert slurm.round() == 0, slurm.said


def test_an_amount_that_cannot_be_read_stops_no_other(slurm: SlurmFolder) -> None:
    """Slurm writes some amounts of memory as ``8?``: that job alone is left to Slurm."""
    odd = parked("7", tres_req_str="mem=8?", tres_per_node="gres/gpu:4")
    slurm.write([parked("8"), odd], ["n1", "n2"])
    slurm.round()
    opened = {i: (job["licenses"], bool(job["req_nodes"])) for i, job in slurm.jobs.items()}
    assert opened == {"7": ("", False), "8": ("", True)}, slurm.said


def test_a_ledger_that_fails_oddly_does_not_end_the_selector(selector: Selector) -> None:
    selector._record = Mock(side_effect=RuntimeError("no space left"))
    has_round(selector, Outcome())


def test_no_job_is_bound_if_the_gate_may_open_during_a_command(tmp_path: Path) -> None:
    config = Config()
    rounds = Rounds(
        MemorySlurm(tmp_path),
        config,
        LedgerWriter(tmp_path / "store.db"),
        gate_held_until=lambda: 1000.0,
    )
    assert rounds._gate_held(1000.0 - config.gate.lease_s * 2 / 3)
    assert not rounds._gate_held(1000.0 - config.selector.command_timeout_s)


def test_what_is_left_to_slurm_is_not_touched_again(slurm: SlurmFolder) -> None:
    """Its pins were made by a selector that was killed; once its gate is open it may run."""
    record = ";feat=%5Bx%5D;sel=prepared:0:1"
    pinned = parked("7", record=record, req_nodes="n1", tres_per_node="gres/gpu:g0:1,gres/gpu:g1:1")
    slurm.write([pinned], ["n1"])
    slurm.round()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    assert slurm.get("touched_running") == []
    assert slurm.jobs["7"]["tres_per_node"] == "gres/gpu:2"
    assert ";sel=released:" in slurm.jobs["7"]["admin_comment"]


def test_a_requeued_job_is_parked_with_its_original_request(slurm: SlurmFolder) -> None:
    slurm.write([parked()], ["n1", "n2"])
    slurm.round()
    slurm.change("7", state="PENDING", reason="BeginTime", restart_cnt=1, nodes="")
    slurm.round()
    job = slurm.jobs["7"]
    assert job["licenses"] == "gpuaware:1"
    assert (job["req_nodes"], job["tres_per_node"]) == ("", "gres/gpu:2")
    assert job["tres_freq"] == ""
    assert job["admin_comment"] == "gpuaware/1;tn=gres/gpu:2;mc=1"
    slurm.change("7", reason="Licenses")
    slurm.round()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    assert [d.state for d in slurm.ledger("7")] == ["waiting", "released"]


def test_a_refused_update_leaves_the_job_parked(slurm: SlurmFolder) -> None:
    slurm.write([parked(), parked("8")], ["n1"])
    slurm.set(refuse=["7"])
    slurm.round()
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1"
    assert slurm.jobs["8"]["state"] == "RUNNING"
    decision = slurm.ledger("7")[-1]
    assert (decision.state, bool(decision.outcome["why"])) == ("waiting", True)


def test_a_lost_gate_is_created_again(slurm: SlurmFolder) -> None:
    slurm.reserve()
    slurm.round()
    assert [found["name"] for found in slurm.get("reservations")] == ["gpuaware_gate"]
    with open_store(slurm.store, readonly=True) as store:
        assert [e.kind for e in Ledger(store).events("")] == ["gate_created"]


def test_a_damaged_store_stops_nothing(slurm: SlurmFolder) -> None:
    slurm.store.write_bytes(b"this is no database" * 500)
    slurm.write([parked()], ["n1"])
    slurm.round()
    assert slurm.jobs["7"]["state"] == "RUNNING"
    assert "the store cannot be used" in slurm.said


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_every_request(tmp_path: Path, before: bool) -> None:
    """Whatever request it dies at: the job starts once, on free GPUs, and the ledger knows."""
    count = 1
    while True:
        folder = tmp_path / str(count)
        folder.mkdir()
        slurm = SlurmFolder(folder)
        array = parked("98", array_job_id=98, array_task_str="0,1")
        slurm.write([parked(), parked("8"), array], ["n1", "n2"])
        code = slurm.round(kill_at=count, before=before)
        if code == 0:
            break  # it made fewer requests than that
        slurm.round(4)
        assert slurm.get("touched_running") == []
        held = []
        for job in slurm.jobs.values():
            assert job["state"] == "RUNNING", (count, job, slurm.said)
            assert job["starts"] == 1
            held += [(node, slot) for node in job["nodes"].split(",") for slot in job["slots"]]
            job_id = str(job["job_id"])
            if job["array_job_id"]:
                job_id = f"{job['array_job_id']}_{job['array_task_id']}"
            decision = slurm.ledger(job_id)[-1]
            assert decision.state == "started", (count, decision)
            assert decision.outcome["as_planned"] is True
        assert len(held) == len(set(held)) == 8
        count += 1
    assert count > 8


def test_killed_between_the_two_updates_of_cpus_it_gets_its_own_back(slurm: SlurmFolder) -> None:
    """Slurm ignores a number of CPUs that it has, so with ``DefCpuPerGPU`` another is set first."""
    slurm.set(settings={**slurm.get("settings"), "JobDefaults": "DefCpuPerGPU=3"})
    slurm.write([parked()], ["n1"])
    assert slurm.round() == 0
    first = next(i for i, call in enumerate(slurm.calls, 1) if call[0] == "update")
    slurm.write([parked()], ["n1"])
    assert slurm.round(kill_at=first) != 0
    job = slurm.jobs["7"]
    assert (job["cpus_per_task"], job["req_nodes"]) == (5, "")
    slurm.add(run_by_slurm("8"))
    assert slurm.round() == 0
    job = slurm.jobs["7"]
    assert (job["cpus_per_task"], job["admin_comment"]) == (1, parked()["admin_comment"])


def test_a_job_on_any_number_of_nodes_gets_its_request_back(slurm: SlurmFolder) -> None:
    """``-N1-1000000000`` is a request that Slurm takes; its pins must not outlast its place."""
    bound = {"req_nodes": "n1", "tres_per_node": "gres/gpu:g0:1,gres/gpu:g1:1"}
    slurm.write([parked(record=";nn=1-1000000000;sel=prepared:0:1", **bound)], ["n1"])
    client = slurm.client()
    gated = gated_jobs(client.jobs(), GateConfig())
    assert not restore(client, GateConfig(), gated, 0.0).wrong
    _, sent = [call[2] for call in slurm.calls if call[0] == "update"]
    assert sent["NumNodes"] == "1-500000"
    assert slurm.jobs["7"]["req_nodes"] == ""


def test_after_a_round_that_failed_no_event_starts_the_next_at_once(selector: Selector) -> None:
    has_round(selector, None)
    assert selector._rest_s({"submit"}) > 1.5
    has_round(selector, Outcome())
    assert selector._rest_s({"submit"}) < 0.25


WAITS = {"job_id": "7", "reason": "next in line"}


@pytest.mark.parametrize(("cpu_s", "submit_s"), [(0.1, 0.2), (1.0, 4.0)])
def test_the_pause_after_a_round_follows_its_cpu_time(
    selector: Selector, clock: SimpleNamespace, cpu_s: float, submit_s: float
) -> None:
    """On a busy machine a round waits for its turn, while freed GPUs stand idle."""

    def run() -> Outcome:
        clock.now, clock.cpu = clock.now + 3.0, clock.cpu + cpu_s
        return Outcome(took_s=3.0, waiting=[WAITS])

    selector._rounds.run = run
    selector._round("end")
    assert selector._rest_s({"end"}) == pytest.approx(cpu_s)
    assert selector._rest_s({"submit"}) == pytest.approx(submit_s)


@pytest.mark.parametrize(
    ("outcome", "happened", "pause_s"),
    [
        (Outcome(waiting=[WAITS]), {"end"}, 0.0),
        (Outcome(waiting=[WAITS], ahead=True), {"end"}, 0.4),
        (Outcome(), {"end"}, 0.4),
        (Outcome(untried=1), {"end"}, 0.0),
        (Outcome(), {"end", "submit"}, 0.0),
        (Outcome(), {"end", "woken"}, 0.0),
    ],
)
def test_an_end_starts_a_round_at_once_only_if_a_job_waits_for_its_gpus(
    selector: Selector, outcome: Outcome, happened: Set[str], pause_s: float
) -> None:
    has_round(selector, outcome, "end")
    assert selector._rest_s(happened) == pytest.approx(pause_s)
    selector._round("submit")  # its job may come a moment later
    assert selector._rest_s({"end"}) == 0.0


@pytest.mark.parametrize(
    ("full", "then", "least_s", "most_s"),
    [(False, None, 0.01, 0.25), (True, None, 0.35, 1.5), (True, "end", 0.1, 0.35)],
)
def test_a_job_that_cannot_start_before_a_gpu_is_free_waits_for_others(
    selector: Selector,
    clock: SimpleNamespace,
    full: bool,
    then: str | None,
    least_s: float,
    most_s: float,
) -> None:
    """What a storm of submissions costs must not grow with it; an end is heard at once."""
    has_round(selector, Outcome(full=full, waiting=[WAITS]))
    later = iter([frozenset(), {then} if then else frozenset()])

    def wait(timeout_s: float) -> Set[str]:
        clock.now += min(timeout_s, 0.1) + 1e-3  # as a real clock goes on
        return next(later, frozenset())

    selector._events.wait = wait
    began = clock.now
    assert selector._next(frozenset({"submit"})) == "submit"
    assert least_s <= clock.now - began < most_s


def test_a_new_job_that_was_seen_is_looked_for_once_more(selector: Selector) -> None:
    """Another one may have come right after it, whose event is gone."""

    def sees() -> Outcome:
        selector._rounds.site.ids = {7: "7"}
        return Outcome()

    selector._rounds.run = sees
    selector._round("submit")
    assert len(selector._repeats) == 1
    selector._round("submit")  # none is new
    assert len(selector._repeats) == 3
