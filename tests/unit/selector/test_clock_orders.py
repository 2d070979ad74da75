"""Orders for clock agents: their files, what counts until an agent has answered, who obeys."""

from pathlib import Path

import pytest

from slurm_gpu_aware.agent_reports import AgentReport
from slurm_gpu_aware.features.power.clock_orders import (
    ANSWER_S,
    VALID_S,
    ClockOrders,
    JobClocks,
    OrderedClocks,
    WantedClock,
    higher,
)
from slurm_gpu_aware.node_orders import Order, Orders, parse_orders

NOW = 1_790_000_000.0
ONE, TWO = Order(7, 900, (0, 2)), Order(8, 0, (1,))


def orders_text(folder: Path, node: str = "n1") -> str:
    return (folder / f"{node}.orders").read_text()


def orders_of(folder: Path, node: str = "n1") -> Orders:
    return parse_orders(orders_text(folder, node).encode())


def test_a_file_holds_all_orders_of_its_node(tmp_path: Path) -> None:
    orders = ClockOrders(tmp_path / "orders")
    assert orders.write({"n1": [TWO, ONE]}, NOW) == {"n1": int(NOW)}
    until = int(NOW + VALID_S)
    head = f"gpu-aware-orders/1 {int(NOW)} {until}\n"
    assert orders_text(tmp_path / "orders") == f"{head}7 900 0+2\n8 0 1\n"
    assert (tmp_path / "orders" / "n1.orders").stat().st_mode & 0o777 == 0o644
    assert orders_of(tmp_path / "orders") == Orders(int(NOW), until, (ONE, TWO))


def test_the_number_rises_with_each_change_and_over_restarts(tmp_path: Path) -> None:
    first = ClockOrders(tmp_path)
    seq = first.write({"n1": [ONE]}, NOW)["n1"]
    assert first.write({"n1": [ONE]}, NOW + 1)["n1"] == seq
    assert first.write({"n1": [TWO]}, NOW - 50)["n1"] == seq + 1  # also if the clock is set back
    again = ClockOrders(tmp_path)
    again.load()
    assert again.ordered() == {"n1": (seq + 1, (TWO,))}
    assert again.write({"n1": [TWO]}, NOW)["n1"] == seq + 1
    assert again.write({}, NOW)["n1"] == seq + 2
    assert orders_text(tmp_path).count("\n") == 1


def test_a_file_is_renewed_before_it_expires_and_an_empty_one_is_not(tmp_path: Path) -> None:
    orders = ClockOrders(tmp_path)
    orders.write({"n1": [ONE], "n2": []}, NOW)
    first, empty = orders_text(tmp_path), orders_text(tmp_path, "n2")
    orders.write({"n1": [ONE]}, NOW + VALID_S / 4)
    assert orders_text(tmp_path) == first
    orders.write({"n1": [ONE]}, NOW + VALID_S / 2)
    assert orders_of(tmp_path) == Orders(int(NOW), int(NOW + 1.5 * VALID_S), (ONE,))
    assert orders_text(tmp_path, "n2") == empty


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "x",
        "gpu-aware-orders/1 5 99\nx",
        "gpu-aware-orders/2 5 99",
        "gpu-aware-orders/1 0 99",
        "gpu-aware-orders/1 5 99\n7 900",
        "gpu-aware-orders/1 5 99\n7 900 0,1",
        "ÿ",
    ],
)
@pytest.mark.parametrize("wanted", [(), (ONE,)])
def test_a_damaged_file_is_written_anew(
    tmp_path: Path, damaged: str, wanted: tuple[Order, ...]
) -> None:
    """Its agent obeys nothing while it is damaged, and says so."""
    (tmp_path / "n1.orders").write_text(damaged)
    orders = ClockOrders(tmp_path)
    orders.load()
    orders.write({"n1": wanted} if wanted else {}, NOW)
    assert orders_of(tmp_path) == Orders(int(NOW), int(NOW + VALID_S), wanted)


@pytest.mark.parametrize("wanted", [(), (ONE,)])
def test_a_file_of_a_clock_that_was_ahead_is_written_anew(
    tmp_path: Path, wanted: tuple[Order, ...]
) -> None:
    """Agents refuse it, as it is valid for too long."""
    ClockOrders(tmp_path).write({"n1": wanted}, NOW + 7200)
    orders = ClockOrders(tmp_path)
    orders.load()
    assert orders.write({"n1": wanted}, NOW) == {"n1": int(NOW + 7200)}
    assert orders_of(tmp_path) == Orders(int(NOW + 7200), int(NOW + VALID_S), wanted)


def test_a_node_whose_file_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ClockOrders(tmp_path / "file" / "orders").write({"n1": [ONE]}, NOW) == {}


def test_the_default_clock_is_the_highest() -> None:
    assert higher([900, 1200]) == 1200
    assert higher([900, None]) is None


def clocks(clock: int | None = 1200) -> JobClocks:
    found = JobClocks()
    found.start("7", clock, ["n1", "n2"])
    return found


def confirm(found: JobClocks, node: str, mhz: int, seq: int | None) -> None:
    found.heard("7", "clock_set", {"node": node, "mhz": mhz, "seq": seq})


def test_until_all_nodes_have_answered_the_higher_clock_counts() -> None:
    found = clocks()
    for node in ("n1", "n2"):
        found.order("7", node, 900, 5, NOW)
    assert (found.present("7"), found.wanted("7"), found.awaited) == (1200, 900, True)
    confirm(found, "n1", 900, 5)
    assert (found.present("7"), found.awaited) == (1200, True)
    confirm(found, "n2", 900, 6)
    assert (found.present("7"), found.awaited) == (900, False)
    found.order("7", "n1", None, 8, NOW)
    assert found.present("7") is None
    confirm(found, "n1", 0, 8)
    assert (found.present("7"), found.awaited) == (None, False)


def test_a_report_of_an_agent_answers_all_orders_up_to_its_number() -> None:
    found = clocks()
    found.order("7", "n1", 900, 5, NOW)
    found.order("7", "n2", 900, 9, NOW)
    found.carried_out("n1", 4)
    assert found.present("7") == 1200
    found.carried_out("n1", 6)
    found.carried_out("n2", 9)
    assert (found.present("7"), found.awaited) == (900, False)


def test_an_order_that_was_replaced_may_have_been_carried_out() -> None:
    found = clocks(900)
    found.order("7", "n1", 1400, 5, NOW)
    found.order("7", "n1", 900, 6, NOW)
    assert found.present("7") == 1400
    confirm(found, "n1", 900, 6)
    assert found.present("7") == 900


def test_an_old_answer_counts_as_the_clock_but_answers_nothing() -> None:
    found = clocks()
    found.order("7", "n1", 900, 5, NOW)
    confirm(found, "n1", 1100, 4)
    assert found.awaited
    assert found.present("7") == 1200


def test_a_refused_clock_ends_the_changes_of_a_job() -> None:
    found = clocks()
    found.order("7", "n1", 900, 5, NOW)
    found.heard("7", "clock_failed", {"node": "n1", "error": "Not Supported", "seq": 5})
    assert (found.refused("7"), found.present("7"), found.awaited) == ("Not Supported", 1200, False)
    found = clocks(900)
    found.heard("7", "clock_failed", {"node": "n1", "call": "lock", "error": "Unknown"})
    assert found.present("7") is None  # its prolog could not lock it
    found = clocks()
    found.heard("7", "clock_failed", {"node": "n1", "error": "Unknown", "during": "reset"})
    assert not found.refused("7")


def test_an_agent_that_does_not_answer_ends_them_too() -> None:
    found = clocks()
    found.order("7", "n1", 900, 5, NOW)
    found.order("7", "n1", 900, 7, NOW + 50)  # the same order, the time counts from the first
    assert found.silent(NOW + ANSWER_S) == {}
    assert found.silent(NOW + ANSWER_S + 1) == {"7": "n1"}
    assert found.silent(NOW + ANSWER_S + 2) == {}
    assert "n1 does not answer" in found.refused("7")
    assert not found.awaited


def test_what_is_not_known_changes_nothing() -> None:
    found = clocks()
    found.heard("9", "clock_set", {"node": "n1", "mhz": 900})
    found.heard("7", "clock_set", {"node": 3, "mhz": 900})
    found.heard("7", "clock_set", {"node": "n1", "mhz": "900"})
    assert found.present("7") is None
    found.keep([])
    assert not found.awaited


SILENT = "its clock agent has said nothing for 150 s"


def test_only_an_agent_that_was_heard_and_has_no_trouble_obeys(tmp_path):
    clocks = OrderedClocks(tmp_path)
    assert clocks.why_not("n1", 1000.0) == SILENT
    reports = {"n1": AgentReport(1000.0, 1, {}, {0: 50.0, 1: 60.0}), "n2": AgentReport(990.0, 0)}
    reports["n3"] = AgentReport(1000.0, 1, {}, {0: 5.0}, trouble="no orders")
    clocks.reported(reports)
    assert [clocks.why_not(n, 1100.0) for n in ("n1", "n2", "n3")] == ["", "", "no orders"]
    assert [clocks.why_not(n, 1145.0) for n in ("n1", "n2")] == ["", SILENT]
    assert clocks.why_not("n1", 800.0) == SILENT  # the node's clock is far ahead
    assert clocks.measured_w(["n1", "n3"], 1, 1100.0) == [50.0, 5.0]
    assert clocks.measured_w(["n1"], 2, 1151.0) == []
    assert clocks.troubles(["n1", "n2"], 1145.0) == {}
    assert clocks.troubles(["n3"], 1145.0) == {"n3": "no orders"}
    clocks.jobs.start("7", None, ["n2"])
    clocks.order([WantedClock("7", 7, 1200, {"n2": (0,)})], 1145.0)
    assert clocks.troubles(["n1"], 1145.0) == {"n2": SILENT}
    assert OrderedClocks(None).troubles(["n2"], 1145.0) == {}


def test_a_node_cannot_confirm_orders_that_were_never_written(tmp_path):
    """Else a lower clock would count as set before it is, and others would take its power."""
    clocks = OrderedClocks(tmp_path)
    clocks.jobs.start("7", 1400, ["n1"])
    clocks.order([WantedClock("7", 7, 900, {"n1": (0,)})], 1000.0)
    clocks.heard("7", "clock_set", {"node": "n1", "seq": 1001, "mhz": 900})
    clocks.reported({"n1": AgentReport(1000.0, 1001)})
    assert clocks.jobs.present("7") == 1400
    clocks.reported({"n1": AgentReport(1000.0, 1000)})
    assert clocks.jobs.present("7") == 900


def test_the_first_refusal_is_the_cause(tmp_path):
    """A node with shards: its prolog refuses the clock, so the agent finds no account later."""
    clocks = OrderedClocks(tmp_path)
    clocks.jobs.start("7", 1400, ["n1"])
    shared = "no clock is set on a node with shards or MPS: jobs share its GPUs"
    clocks.heard("7", "clock_failed", {"node": "n1", "gpus": [], "call": "parse", "error": shared})
    clocks.order([WantedClock("7", 7, 900, {"n1": (0,)})], 1000.0)
    why = {"call": "order", "error": "the job does not hold GPU 0 of this node", "seq": 1000}
    clocks.heard("7", "clock_failed", {"node": "n1", "gpus": [0], **why})
    assert clocks.jobs.refused("7") == shared
