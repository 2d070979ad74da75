"""Ordered clocks: which agents obey orders, and what power they report."""

from slurm_gpu_aware.agent_reports import AgentReport
from slurm_gpu_aware.features.power.clock_orders import OrderedClocks, WantedClock

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
