"""Clock agents: which of them obey orders."""

from slurm_gpu_aware.selector.clock_agents import ClockAgents
from slurm_gpu_aware.selector.clock_spool import AgentReport

SILENT = "its clock agent has said nothing for 150 s"


def test_only_an_agent_that_was_heard_and_has_no_trouble_obeys():
    agents = ClockAgents()
    assert agents.why_not("n1", 1000.0) == SILENT
    reports = {"n1": AgentReport(1000.0, 1, {}, {0: 50.0, 1: 60.0}), "n2": AgentReport(990.0, 0)}
    reports["n3"] = AgentReport(1000.0, 1, {}, {0: 5.0}, trouble="no orders")
    agents.take(reports)
    assert [agents.why_not(n, 1100.0) for n in ("n1", "n2", "n3")] == ["", "", "no orders"]
    assert [agents.why_not(n, 1145.0) for n in ("n1", "n2")] == ["", SILENT]
    assert agents.why_not("n1", 800.0) == SILENT  # the node's clock is far ahead
    assert agents.measured_w(["n1", "n3"], 1, 1100.0) == [50.0, 5.0]
    assert agents.measured_w(["n1"], 2, 1151.0) == []
    assert agents.troubles(["n1", "n2"], ["n2"], 1145.0) == {"n2": SILENT}
    assert agents.troubles(["n3"], [], 1145.0) == {"n3": "no orders"}
