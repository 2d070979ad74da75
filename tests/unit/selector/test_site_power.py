"""A power limit over rounds of the selector: each round is a selector of its own, as if killed."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import gpu_aware, succeeded, words
from rounds_bench import reasons_of
from slurm_folder import SlurmFolder, parked
from store_samples import fit_models, ingest_sweep

from slurm_gpu_aware.agent_reports import AgentReport
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.features.energy.stage import best_setting
from slurm_gpu_aware.features.models.store import read_models
from slurm_gpu_aware.features.models.tables import size_table
from slurm_gpu_aware.features.power.metrics import PowerReading
from slurm_gpu_aware.features.power.power_budget import LOWERING
from slurm_gpu_aware.features.power.site_power import SitePower
from slurm_gpu_aware.model.facts import Facts
from slurm_gpu_aware.node_orders import parse_orders
from slurm_gpu_aware.selector.job_answers import waiting_of
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

NODES = ["n1", "n2"]
CLOCKS = (900, 1000, 1100, 1200, 1312, 1400, 1530)
IDLE_W = 8 * 50.0
ASKED = "class=A,model=bert,freq=auto"
"""A job whose model is missing."""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which class A has a model on the 8 GPUs of n1 and n2."""
    path = tmp_path_factory.mktemp("fitted") / "store.db"
    with open_store(path) as store:
        for node in NODES:
            ingest_sweep(store, CLOCKS, node)
    fit_models(path)
    return path


@pytest.fixture
def powered(slurm: SlurmFolder, fitted: Path) -> SlurmFolder:
    """Clock agents work beside that store."""
    folder = slurm.config.parent
    (folder / "clock.conf").write_text(f"orders = {folder}/orders\nspool = {folder}/clocks\n")
    (folder / "clocks").mkdir()
    shutil.copy(fitted, slurm.store)
    for node in NODES:
        report_of_agent(slurm, node)
    return slurm


def model_table(site: SlurmFolder) -> Any:
    """What the model says of 2 GPUs."""
    with open_store(site.store, readonly=True) as store:
        model = read_models(store, 0.15).of(None, "A", "v100")
    return size_table(model, (2,), CLOCKS, 4)


def known_reading(rounds: Rounds) -> PowerReading:
    return rounds.site.of(SitePower).reading()


def limit(site: SlurmFolder, watts: float, margin: float = 0.0) -> None:
    budget = f'power_budget_watts = {watts}\nclocks = "auto"\nmargin = {margin}'
    site.configure(f"[power]\n{budget}\nidle_watts = 50.0")


def set_limit(site: SlurmFolder, limit: str) -> None:
    succeeded(gpu_aware("power", "set", limit, config=site.config))


def class_a(job_id: str, **fields: Any) -> dict[str, Any]:
    return parked(job_id, **{"comment": "class=A", **fields})


def orders(site: SlurmFolder) -> dict[str, tuple[int, list[str]]]:
    """Node -> sequence number and lines of its file."""
    found = {}
    for path in (site.config.parent / "orders").glob("*.orders"):
        file = parse_orders(path.read_bytes())
        assert file.valid_until > time.time() + 300
        found[path.name.removesuffix(".orders")] = file.seq, [str(one) for one in file.orders]
    return found


def answer(site: SlurmFolder, node: str, event: str = "clock_set", **detail: Any) -> None:
    """A record of the agent on a node."""
    record = {"event": event, "at": time.time(), "node": node, **detail}
    with (site.config.parent / "clocks" / f"{node}.jsonl").open("a") as spool:
        spool.write(json.dumps(record) + "\n")


def report_of_agent(site: SlurmFolder, node: str, **fields: Any) -> None:
    """A report of the agent on a node, which has carried out no orders."""
    nothing: dict[str, Any] = {"gpus": [], "power_w": [], "clock_gpus": [], "clock_mhz": []}
    answer(site, node, "agent", job_id=0, **{"seq": 0, "error": "", **nothing, **fields})


def show(site: SlurmFolder) -> dict[str, Any]:
    return json.loads(words("power", "show", "--json", config=site.config))


def last_reasons(site: SlurmFolder) -> dict[str, str]:
    with open_store(site.store, readonly=True) as store:
        (last,) = Ledger(store).last_rounds(1)
    return {job_id: entry["reason"] for job_id, entry in waiting_of(last).each()}


def efficient_w(site: SlurmFolder) -> float:
    """Power of 2 GPUs at the most efficient clock, above that of idle ones."""
    sizes = model_table(site)
    best = int(np.argmin(sizes.time_s[0] * sizes.power_w[0]))
    return float(sizes.power_w[0, best]) - 2 * 50.0


def running_clock(site: SlurmFolder, job_id: str) -> int | None:
    return site.ledger(job_id)[-1].clock_mhz


def test_a_job_waits_for_power_and_status_shows_it(powered: SlurmFolder) -> None:
    limit(powered, IDLE_W + 1.5 * efficient_w(powered))
    powered.write([class_a("7"), class_a("8")], NODES)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["7"]["state"] == "RUNNING"
    assert powered.jobs["8"]["state"] == "PENDING"
    assert "waits for power: it needs" in last_reasons(powered)["8"]
    clock = running_clock(powered, "7")
    assert f"freq={clock}@" in powered.jobs["7"]["extra"]
    shown = show(powered)
    planned = float(model_table(powered).power_w[0, CLOCKS.index(clock)]) - 100.0 + IDLE_W
    assert shown["last"]["planned_w"] == pytest.approx(planned, abs=0.2)
    assert shown["last"]["planned_w"] <= shown["last"]["limit_w"]
    assert shown["last"]["measured_w"] is None
    assert shown["day"][-1]["planned_w"] == shown["last"]["planned_w"]
    told = words("explain", "7", config=powered.config)
    assert f"2 GPUs at {clock} MHz (" in told
    assert "sooner_percent" not in told
    status = words("status", config=powered.config)
    assert f"planned {planned:.0f} W of {shown['last']['limit_w']:.0f} W" in status


@pytest.mark.parametrize(("margin", "state"), [(0.0, "RUNNING"), (0.1, "PENDING")])
def test_the_margin_stays_free(powered: SlurmFolder, margin: float, state: str) -> None:
    limit_w = IDLE_W + 2.2 * efficient_w(powered)
    limit(powered, limit_w, margin)
    powered.write([class_a("7"), class_a("8")], NODES)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == state
    last = show(powered)["last"]
    assert last["limit_w"] == pytest.approx(limit_w, abs=0.1)
    assert last["planned_w"] <= (1 - margin) * limit_w + 0.1


def rounds_at(site: SlurmFolder, clock: Callable[[], float] = time.time) -> Rounds:
    """A selector in this process, with ledger and orders as others left them."""
    config, ledger = load_config(site.config), LedgerWriter(site.store)
    more = {"orders": site.config.parent / "orders", "clock": clock}
    held = lambda: clock() + 600  # noqa: E731
    rounds = Rounds(site.client(), config, ledger, gate_held_until=held, **more)
    rounds.load()
    return rounds


def selector(site: SlurmFolder) -> Rounds:
    """The same, and its agents have reported."""
    rounds = rounds_at(site)
    rounds.site.of(SitePower).clocks.reported({node: AgentReport(time.time(), 0) for node in NODES})
    return rounds


def start_one(site: SlurmFolder) -> tuple[str, str]:
    """Job 7 runs at a high clock, then job 8 comes; return node and line of job 7."""
    limit(site, IDLE_W + 2.2 * efficient_w(site))
    site.write([class_a("7")], NODES)
    assert site.round(2) == 0, site.said
    (node,) = site.jobs["7"]["nodes"].split(",")
    slots = site.ledger("7")[-1].slots[0]
    gpus = "+".join(map(str, slots))
    site.add(class_a("8"))
    return node, gpus


def test_a_start_waits_until_a_running_clock_has_fallen(powered: SlurmFolder) -> None:
    node, gpus = start_one(powered)
    high = running_clock(powered, "7")
    assert powered.round() == 0, powered.said
    assert powered.jobs["8"]["state"] == "PENDING"
    assert last_reasons(powered)["8"] == LOWERING
    seq, (line,) = orders(powered)[node]
    low = int(line.split()[1])
    assert line == f"7 {low} {gpus}"
    assert high is None or low < high
    # Without an answer nothing goes on, whichever selector looks.
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == "PENDING"
    assert orders(powered)[node] == (seq, [line])
    # An answer to an older order is none.
    answer(powered, node, job_id=7, mhz=high or 0, gpus=[0, 1], seq=seq - 1)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == "PENDING"
    # Nor is an answer to orders that were never written.
    report_of_agent(powered, node, seq=seq + 10**9)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == "PENDING"
    answer(powered, node, job_id=7, mhz=low, gpus=[0, 1], seq=seq)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == "RUNNING", powered.said
    assert show(powered)["last"]["planned_w"] <= show(powered)["last"]["limit_w"]


@pytest.mark.parametrize(("ago_s", "error"), [(200, ""), (0, "orders are refused")])
def test_no_start_waits_for_an_agent_that_obeys_no_orders(
    powered: SlurmFolder, ago_s: int, error: str
) -> None:
    start_one(powered)
    for node in NODES:
        report_of_agent(powered, node, at=time.time() - ago_s, error=error)
    assert powered.round(2) == 0, powered.said  # the first one may know of the agents' last reports
    assert "waits for power: it needs" in last_reasons(powered)["8"]  # and not for clocks to fall
    for node in NODES:
        report_of_agent(powered, node)
    assert powered.round(2) == 0, powered.said
    assert last_reasons(powered)["8"] == LOWERING


def test_a_silent_agent_is_shown_where_there_are_orders_for_it(powered: SlurmFolder) -> None:
    node, _ = start_one(powered)
    assert powered.round() == 0, powered.said
    report_of_agent(powered, node, at=time.time() - 200)
    assert powered.round(2) == 0, powered.said
    assert show(powered)["last"]["agents"] == {node: "its clock agent has said nothing for 150 s"}


def test_a_clock_that_is_refused_keeps_its_power_and_the_job_waits(powered: SlurmFolder) -> None:
    node, _ = start_one(powered)
    assert powered.round() == 0, powered.said
    seq, _ = orders(powered)[node]
    answer(powered, node, "clock_failed", job_id=7, call="lock", error="Not Supported", seq=seq)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == "PENDING"
    assert "waits for power: it needs" in last_reasons(powered)["8"]
    last = show(powered)["last"]
    assert (last["keeps_clock"], last["keeping"]) == ({"7": "Not Supported"}, 1)
    assert "Not Supported" in words("explain", "7", config=powered.config)
    # When job 7 has ended, 8 starts.
    powered.change("7", state="COMPLETED", nodes="")
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == "RUNNING"


def test_without_a_limit_running_clocks_go_back_to_the_default(powered: SlurmFolder) -> None:
    node, gpus = start_one(powered)
    assert powered.round() == 0, powered.said
    before, _ = orders(powered)[node]
    set_limit(powered, "off")
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["8"]["state"] == "RUNNING"
    seq, (line, *_) = orders(powered)[node]
    assert line == f"7 0 {gpus}"
    assert seq > before
    assert show(powered)["last"] is None
    done = succeeded(gpu_aware("power", "set", "auto", config=powered.config))
    assert "as configured" in done.stderr


def test_a_missing_model_is_said_and_the_job_runs(powered: SlurmFolder) -> None:
    limit(powered, 5000.0)
    named = class_a("7", comment="class=A,model=nothing")
    powered.write([named, class_a("8", comment="class=B")], NODES)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["7"]["state"] == powered.jobs["8"]["state"] == "RUNNING"
    why = powered.ledger("7")[-1].why["model"]["reason"]
    assert why == "no performance model nothing for v100 is in the store; that of A counts"
    # Job 8 has no model: it counts with the limits of its GPUs, 300 W each.
    clock = running_clock(powered, "7")
    column = len(CLOCKS) - 1 if clock is None else CLOCKS.index(clock)
    needed = min(float(model_table(powered).power_w[0, column]), 2 * 300)
    planned = needed - 100 + 2 * 250 + IDLE_W
    last = show(powered)["last"]
    assert last["planned_w"] == pytest.approx(planned, abs=0.2)
    assert (last["no_model"], last["without_model"]) == ({"7": why}, 1)
    status = words("status", config=powered.config)
    assert "1 job has no model: gpu-aware power show" in status
    shown = words("power", "show", config=powered.config)
    assert "no performance model nothing for v100" in shown


def test_a_job_that_exceeds_the_limit_runs_alone_and_says_so(powered: SlurmFolder) -> None:
    limit(powered, IDLE_W + 10.0)
    powered.write([class_a("7"), class_a("8")], NODES)
    assert powered.round(2) == 0, powered.said
    (started,) = (i for i in ("7", "8") if powered.jobs[i]["state"] == "RUNNING")
    assert show(powered)["last"]["unmet"]
    why = powered.ledger(started)[-1].why
    assert "cannot be met" in Facts.read(why).text
    assert running_clock(powered, started) == CLOCKS[0]


def test_measured_power_of_all_nodes_is_shown_and_recorded(powered: SlurmFolder) -> None:
    limit(powered, 3000.0)
    powered.write([class_a("7")], NODES)
    assert powered.round() == 0, powered.said
    for node, power_w in (("n1", 210.5), ("n2", 300.0)):
        values = [power_w / 4] * 4
        report = {"gpus": [0, 1, 2, 3], "power_w": values}
        report_of_agent(powered, node, error="no orders" * (node == "n2"), **report)
    report_of_agent(powered, "n9", error="no node of the site", **report)
    powered.add(class_a("8"))
    assert powered.round() == 0, powered.said
    last = show(powered)
    assert (last["last"]["measured_w"], last["last"]["measured_gpus"]) == (510.5, 8)
    assert last["day"][-1]["measured_w"] == 510.5
    assert last["last"]["agents"] == {"n2": "no orders"}
    picture = powered.config.parent / "power.png"
    arguments = ["report", "--power", str(picture)]
    succeeded(gpu_aware(*arguments, config=powered.config))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert gpu_aware(*arguments, "results", config=powered.config).exit_code != 0


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("call", range(1, 5))
def test_a_selector_killed_between_lowering_and_start_goes_on(
    powered: SlurmFolder, call: int, before: bool
) -> None:
    node, _ = start_one(powered)
    powered.round(kill_at=call, before=before)
    for _ in range(3):
        assert powered.round(2) == 0, powered.said
        for name, (seq, lines) in orders(powered).items():
            for line in lines:
                number, mhz, _ = line.split()
                answer(powered, name, job_id=int(number), mhz=int(mhz), gpus=[0], seq=seq)
    assert powered.jobs["8"]["state"] == "RUNNING", powered.said
    assert node in orders(powered)
    last = show(powered)["last"]
    assert last["planned_w"] <= last["limit_w"]
    paths = list(Path(powered.config.parent / "orders").iterdir())
    assert all(path.name.endswith(".orders") for path in paths)


def test_orders_that_cannot_be_written_hold_up_no_job(powered: SlurmFolder) -> None:
    node, _ = start_one(powered)
    folder = powered.config.parent / "orders"
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("no folder")
    rounds = selector(powered)
    rounds.run()
    found = reasons_of(rounds.run())
    assert "waits for power: it needs" in found["8"]  # and not for clocks that never fall
    assert "cannot be written" in known_reading(rounds).agents[node]
    folder.unlink()
    rounds.run()  # writes what it wants first of all
    assert {entry["reason"] for entry in rounds.run().waiting} == {LOWERING}
    assert not known_reading(rounds).agents


def test_an_end_and_a_new_limit_start_a_round_although_no_job_waits(powered: SlurmFolder) -> None:
    rounds = selector(powered)
    power = rounds.site.of(SitePower)
    assert power.wants_round((), 0.0)  # it may have to take back what a selector before it ordered
    rounds.run()
    assert not power.wants_round((), 0.0)
    assert power.reading() is None
    limit(powered, 3000.0)
    rounds = selector(powered)
    rounds.run()
    reading = known_reading(rounds)
    assert (reading.limit_w, reading.planned_w, reading.idle_nodes) == (3000.0, IDLE_W, "n[1-2]")
    powered.write([class_a("7")], NODES)
    for _ in range(3):
        rounds.run()
    reading = known_reading(rounds)
    assert reading.planned_w > IDLE_W
    assert {powered.jobs["7"]["nodes"], reading.idle_nodes} == set(NODES)
    powered.change("7", state="COMPLETED", nodes="")
    rounds.run()
    assert known_reading(rounds).planned_w == IDLE_W


def test_the_clock_of_a_job_is_planned_as_soon_as_it_has_started(powered: SlurmFolder) -> None:
    """Regression: clocks were balanced up to 100 s after the starts."""
    limit(powered, 3000.0)
    powered.write([class_a("7", stuck=True)], NODES)
    rounds = selector(powered)
    rounds.run()
    rounds.run()
    assert powered.jobs["7"]["state"] == "PENDING"
    assert not rounds.site.of(SitePower).wants_round((), 0.0)
    decided = powered.ledger("7")[-1]
    node = decided.nodes[0]
    powered.change("7", state="RUNNING", nodes=node, slots=list(decided.slots[0]))
    assert not orders(powered)
    rounds.run()
    assert [line.split()[0] for line in orders(powered)[node][1]] == ["7"]
    assert not rounds.site.of(SitePower).wants_round((), 0.0)


@pytest.mark.parametrize("late", [False, True])
def test_clocks_rise_as_soon_as_a_waiting_job_is_gone(powered: SlurmFolder, late: bool) -> None:
    """Regression: the power kept for a job that was cancelled stayed unused for up to 100 s.

    ``late``: it is cancelled before the agent has lowered the clock for it.
    """
    limit(powered, IDLE_W + 2.5 * efficient_w(powered))
    rounds = selector(powered)
    powered.write([class_a("7")], NODES)
    for _ in range(2):
        rounds.run()
        high = answered(powered, rounds, time.time())
    powered.add(class_a("8", gpus=4, comment="class=A,freq=max"))
    rounds.run()
    ((_, (order,)),) = (found for found in orders(powered).values() if found[1])
    assert int(order.split()[1]) < high
    powered.change("8", state="CANCELLED")
    if late:
        rounds.run()
    assert answered(powered, rounds, time.time()) < high
    rounds.run()
    assert answered(powered, rounds, time.time()) == high
    rounds.run()
    rounds.run()
    assert not rounds.site.of(SitePower).wants_round((), 0.0)


def test_show_tells_the_limit_in_force_and_nothing_of_another_one(powered: SlurmFolder) -> None:
    """Regression: until the next round it told the limit before as the one in force."""
    set_limit(powered, "3000")
    powered.write([class_a("7")], NODES)
    assert powered.round() == 0, powered.said
    assert "planned" in words("power", "show", config=powered.config)
    set_limit(powered, "2000")
    shown = words("power", "show", config=powered.config)
    assert "2000 W, set at" in shown
    assert "no round under this limit yet" in shown
    assert "W of" not in shown
    set_limit(powered, "auto")
    shown = words("power", "show", config=powered.config)
    assert ("no limit" in shown, "W of" in shown) == (True, False)
    assert show(powered)["limit"] == "no limit"


def test_without_a_limit_the_clock_of_a_class_stays(powered: SlurmFolder) -> None:
    powered.configure('[power]\nclocks = "auto"\n[classes.A]\nclock_mhz = 1200')
    powered.write([class_a("7", comment="class=A,freq=auto")], NODES)
    assert powered.round(3) == 0, powered.said
    assert running_clock(powered, "7") == 1200
    (lines,) = (lines for _, lines in orders(powered).values() if lines)
    assert [line.split()[:2] for line in lines] == [["7", "1200"]]


def measured_anew(site: SlurmFolder, **more: Any) -> None:
    """The cards draw less than the most that they can; ``more``: for `ingest_sweep`."""
    site.store.unlink()
    with open_store(site.store) as store:
        for node in NODES:
            ingest_sweep(store, CLOCKS, node, dynamic_w=0.04, **more)
    fit_models(site.store)


def test_a_job_starts_and_stays_at_the_clock_that_saves_energy(powered: SlurmFolder) -> None:
    """The selector, killed between the rounds, keeps it in the orders, and explain says it."""
    powered.configure('[power]\nclocks = "auto"\n[energy]\nslowdown = 0.2')
    measured_anew(powered)
    own = class_a("8", tres_freq="gpu:1000", record=";tf=gpu:1000")
    powered.write([class_a("7"), own, class_a("9", comment="class=A,freq=max")], NODES)
    assert powered.round(3) == 0, powered.said
    table = model_table(powered)
    assert table.power_w.max() < 2 * 300.0
    found = best_setting(table, 2, 0.2)
    assert found.clock_mhz < max(CLOCKS)
    assert running_clock(powered, "7") == found.clock_mhz, powered.said
    assert running_clock(powered, "8") is running_clock(powered, "9") is None
    lines = [line for _, own in orders(powered).values() for line in own]
    assert [line.split()[1] for line in lines if line.startswith("7 ")] == [str(found.clock_mhz)]
    told = words("explain", "7", config=powered.config)
    assert f"about {found.choice.saves:.0%} at {found.clock_mhz} MHz" in told


@pytest.fixture
def limiting(powered: SlurmFolder) -> SlurmFolder:
    """A site whose jobs may be 2% slower: no clock saves so much there, but 200 W at 1530 MHz do.

    The last clock below it is 9% slower.
    """
    powered.configure("[energy]\nslowdown = 0.02")
    measured_anew(powered, limited={200: (1.01, 0.8), 150: (1.3, 0.6)})
    return powered


def test_a_job_starts_with_the_power_limit_that_saves_energy(limiting: SlurmFolder) -> None:
    given = class_a("9", comment="class=A,freq=max"), class_a("10", comment="class=A,slower=1")
    limiting.write([class_a("7"), *given], NODES)
    assert limiting.round(3) == 0, limiting.said
    extras = {name: limiting.jobs[name]["extra"].partition("@")[0] for name in ("7", "9", "10")}
    assert extras == {"7": "freq=1530:200", "9": "freq=0", "10": "freq=1530:200"}
    told = words("explain", "7", config=limiting.config)
    assert "clock 1530 MHz, 200 W" in told
    assert "saves energy about 19% at 1530 MHz and 200 W, at most 1.0% slower" in told


class Exploring:
    """A selector of a site that explores, with a clock of its own; agents answer after rounds."""

    def __init__(self, site: SlurmFolder) -> None:
        section = "" if "[power]" in site.config.read_text() else "[power]\n"
        site.configure(f"{section}explore_s = 100.0")
        self.site, self.now = site, time.time()
        self.rounds = rounds_at(site, lambda: self.now)

    def answered(self) -> int:
        return answered(self.site, self.rounds, self.now)

    def seen(self, times: int = 1) -> list[int]:
        """Rounds at intervals of 5 s; return the clocks of job 7."""
        found = []
        for _ in range(times):
            self.rounds.run()
            found.append(self.answered())
            self.now += 5.0
        return found

    def starts(self, times: int, job_id: str = "7", comment: str = ASKED) -> list[int]:
        """A job comes, and so many rounds pass."""
        self.answered()
        self.site.add(class_a(job_id, comment=comment))
        found = self.seen(times)
        assert self.site.jobs[job_id]["state"] == "RUNNING"
        return found

    @property
    def planned_w(self) -> float:
        return known_reading(self.rounds).planned_w


def answered(site: SlurmFolder, rounds: Rounds, now: float) -> int:
    """The agents carry out what is ordered; return the clock of job 7."""
    found = orders(site)
    rounds.site.of(SitePower).clocks.reported(
        {n: AgentReport(now, found[n][0] if n in found else 0) for n in NODES}
    )
    lines = [line for _, lines in found.values() for line in lines if line.startswith("7 ")]
    return int(lines[0].split()[1].partition(":")[0]) if lines else -1


def test_a_job_without_its_model_tries_clocks_and_counts_with_its_limits(
    powered: SlurmFolder,
) -> None:
    limit(powered, IDLE_W + 2 * 250.0 + 60.0)
    one = Exploring(powered)
    one.starts(1)
    assert powered.kinds().count("exploring") == 0  # it starts with the table of its class
    one.seen()
    powered.add(class_a("8", comment=ASKED))
    seen = []
    while "explored" not in powered.kinds():
        assert len(seen) < 40
        seen += one.seen()
        if "explored" not in powered.kinds():
            assert one.planned_w == IDLE_W + 500.0
    tried = list(dict.fromkeys(seen))
    assert [clock for clock in tried if clock > 0][:5] == [1530, 1400, 1200, 1000, 900]
    assert powered.kinds().count("exploring") == 1
    assert powered.jobs["8"]["state"] == "PENDING"  # job 7 took the power limits of its two GPUs
    # Then the clock is chosen as that of any other job of its class.
    one.seen(3)
    assert powered.jobs["8"]["state"] == "RUNNING"


def test_no_job_is_explored_above_the_limit(powered: SlurmFolder) -> None:
    watts = IDLE_W + 2 * 250.0 - 100.0
    limit(powered, watts)
    one = Exploring(powered)
    one.starts(6)
    assert "exploring" not in powered.kinds()
    reading = known_reading(one.rounds)
    assert IDLE_W < reading.planned_w <= watts
    assert not reading.unmet
    why = "no performance model bert for v100 is in the store; that of A counts"
    assert reading.no_model == {"7": why}


def test_other_clocks_fall_before_an_exploration_begins(powered: SlurmFolder) -> None:
    watts = IDLE_W + 2 * 250.0 + 1.05 * efficient_w(powered)
    limit(powered, watts)
    one = Exploring(powered)
    one.starts(3, "8", "class=A")
    high = running_clock(powered, "8")
    one.starts(12)
    assert "exploring" in powered.kinds()
    lines = [line for _, lines in orders(powered).values() for line in lines]
    (low,) = [int(line.split()[1]) for line in lines if line.startswith("8 ")]
    assert high is None or low < high
    assert one.planned_w <= watts


def test_a_limit_that_is_lowered_ends_an_exploration(powered: SlurmFolder) -> None:
    limit(powered, IDLE_W + 2 * 250.0 + 60.0)
    one = Exploring(powered)
    one.starts(3)
    assert powered.kinds()[-1] == "exploring"
    watts = round(IDLE_W + 1.1 * efficient_w(powered))
    set_limit(powered, str(watts))
    clock = one.seen(3)[-1]
    assert powered.kinds()[-1] == "explored"
    assert 0 < clock < 1530
    assert one.planned_w <= watts
    one.seen(3)
    assert powered.kinds().count("exploring") == 1


@pytest.mark.parametrize("why", ["due date", "silent agents"])
def test_none_is_explored_with_a_due_date_or_where_no_agent_obeys(
    powered: SlurmFolder, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Exploring(powered)
    if why == "silent agents":
        monkeypatch.setattr(one, "answered", lambda: 0)
    one.starts(5, comment=f"{ASKED},due=2h" if why == "due date" else ASKED)
    assert "exploring" not in powered.kinds()


def test_another_selector_ends_what_was_begun(powered: SlurmFolder) -> None:
    limit(powered, 5000.0)
    one = Exploring(powered)
    one.starts(8)
    assert one.answered() in (1200, 1400)
    one.now += 200.0
    one.rounds = rounds_at(powered, lambda: one.now)
    for _ in range(3):
        one.answered()
        one.seen()
    assert powered.kinds()[-1] == "explored"
    assert running_clock(powered, "7") in (0, None, one.answered())


def test_a_job_that_refused_a_clock_counts_with_its_own_one(powered: SlurmFolder) -> None:
    limit(powered, IDLE_W + 1.1 * efficient_w(powered))
    one = Exploring(powered)
    one.starts(2)
    low = running_clock(powered, "7")
    assert low < 1200
    set_limit(powered, "5000")
    while one.seen()[-1] != 1200:
        assert one.planned_w <= IDLE_W + 500.0
    ((node, (seq, _)),) = [found for found in orders(powered).items() if found[1][1]]
    detail = {"node": node, "seq": seq, "error": "Not Supported"}
    one.rounds.site.of(SitePower).clocks.heard("7", "clock_failed", detail)
    for clock in (1200, low, low):  # 1200 until its own clock is back
        assert one.seen()[-1] == low
        one.now += 100.0  # a round is due, whatever happens
        expected = float(model_table(powered).power_w[0, CLOCKS.index(clock)]) - 100.0 + IDLE_W
        assert one.planned_w == pytest.approx(expected, abs=0.2)
    assert powered.kinds()[-1] == "explored"
