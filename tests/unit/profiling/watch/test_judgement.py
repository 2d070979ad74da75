"""The state of a GPU from its sweeps, its hardware and its jobs, and how it becomes well again."""

import json
from dataclasses import replace

from gpu_aware_profile.watch.judgement import (
    Error,
    Evidence,
    Running,
    judge,
    known_names,
    seen_before,
)
from gpu_aware_profile.watch.measuring import reported
from gpu_aware_profile.watch.slow_gpus import Verdict
from slurm_gpu_aware.agent_reports import spool_file
from slurm_gpu_aware.model.profile import GpuHealth
from slurm_gpu_aware.store.watch_state import Named, Reading, WatchState, read_state, write_state

GPU = ("n1", 3)
WELL = GpuHealth(4, 4, 4, 16, 16, 0, 12, 0, 0, False, False, "")
HOT = frozenset({"hw_thermal_slowdown"})


def verdict(state="well", slower=0.0, app_class="A", since=None, sweeps=5, risen=0.0):
    return Verdict((*GPU, app_class), state, sweeps, slower, 0.015, risen, 0.02, since)


def passed(before=(), verdicts=None, health=WELL, running=None, probed=True, now=100.0):
    """The state of the GPU after a pass."""
    seen = {GPU: Reading("NVIDIA A100-SXM4-40GB", health, at=now)}
    found = [verdict()] if verdicts is None else verdicts
    evidence = Evidence(now, seen, {GPU} if probed else set(), found, running or {})
    (one,) = judge(before, evidence)
    return one


def test_well():
    one = passed()
    assert (one.node, one.gpu, one.state, one.since, one.why) == (*GPU, "well", None, "")


def test_the_worst_class_decides():
    slow = verdict("slow", 0.031, "A", since=50.0)
    one = passed(verdicts=[slow, verdict("drifted", 0.0, "B", since=20.0, risen=0.5), verdict()])
    assert (one.state, one.by, one.since) == ("slow", 0.031, 50.0)
    assert one.why == "class A: 3.1% slower than its peers in 3 sweeps (noise explains 1.5%)"
    assert known_names([one]) == {
        (*GPU, "A"): Named("slow", 50.0, 0.0),
        (*GPU, "B"): Named("drifted", 20.0, 0.0),
    }


def test_drifted():
    one = passed(verdicts=[verdict("drifted", 0.001, since=9.0, risen=0.04)])
    assert (one.state, one.by) == ("drifted", 0.04)
    assert one.why.startswith("class A: 4.0% slower than it was")


def test_ill_comes_before_slow():
    slow = verdict("slow", 0.1, since=50.0)
    one = passed(verdicts=[slow], health=replace(WELL, ecc_now=1))
    assert (one.state, one.since, one.why) == ("ill", 100.0, "1 uncorrectable memory error")


def test_ill_until_two_probes_are_clean():
    one = passed(health=replace(WELL, ecc_now=1), now=100.0)
    one = passed([one], probed=False, now=110.0)
    assert (one.state, one.since) == ("ill", 100.0)
    one = passed([one], now=120.0)
    assert one.state == "ill"
    assert one.why == "1 uncorrectable memory error (clean in 1 of 2 probes since)"
    assert passed([one], now=130.0).state == "well"
    relapse = passed([one], health=replace(WELL, ecc_now=2), now=130.0)
    assert (relapse.since, relapse.why) == (100.0, "2 uncorrectable memory errors")


def test_a_gpu_that_throttles_under_a_job_is_ill_while_it_runs():
    hot = {GPU: Running(90.0, HOT, 1005, 210.4, "1234")}
    one = passed(running=hot, probed=False)
    assert (one.state, one.since) == ("ill", 90.0)
    assert one.why == "throttles: it is too hot, at 1005 MHz and 210 W under job 1234"
    cool = {GPU: Running(150.0, frozenset({"sw_power_cap"}), 1410, None, "1234")}
    one = passed([one], running=cool, probed=False)
    assert one.state == "ill"
    unheard = passed([one], probed=False)
    assert unheard.state == "ill"
    later = {GPU: cool[GPU]._replace(at=210.0)}
    assert passed([unheard], running=later, probed=False).state == "well"
    assert passed([unheard], probed=True).state == "well"  # a probe without throttling


def test_throttling_under_a_job_hides_neither_a_slow_gpu_nor_its_own_throttling():
    """Only what a job cannot cause drains the node."""
    hot = {GPU: Running(90.0, HOT, 1005, None, "1")}
    alone = passed(running=hot, probed=False)
    assert (alone.state, alone.only_under_jobs) == ("ill", True)
    slow = passed(verdicts=[verdict("slow", 0.031, since=50.0)], running=hot, probed=False)
    assert (slow.state, slow.since, slow.only_under_jobs) == ("slow", 50.0, False)
    assert slow.why.endswith("; throttles: it is too hot, at 1005 MHz under job 1")
    idle = passed(health=replace(WELL, throttle="hw_thermal_slowdown"), running=hot)
    assert (idle.state, idle.only_under_jobs) == ("ill", False)
    assert idle.why == "throttles: it is too hot, at 1005 MHz under job 1"


def test_the_same_report_does_not_count_twice():
    """Passes may come more often than reports."""
    one = passed(running={GPU: Running(90.0, HOT, 1005, None, "1")}, probed=False)
    cool = {GPU: Running(150.0, frozenset(), 1410, None, "1")}
    for _ in range(3):
        one = passed([one], running=cool, probed=False)
    assert one.state == "ill"


def test_an_xid_under_a_job_is_named_until_two_probes_after_it_are_clean():
    fell = (Error(95.0, "XID 79: GPU has fallen off the bus under job 7"),)
    running = {GPU: Running(96.0, frozenset(), errors=fell)}
    one = passed(running=running, now=100.0)  # a probe of the same pass may be older
    assert (one.state, one.why) == ("ill", fell[0].text)
    assert not one.only_under_jobs
    one = passed([one], running=running, now=110.0)
    assert one.why == f"{fell[0].text} (clean in 1 of 2 probes since)"
    one = passed([one], running=running, now=120.0)
    assert one.state == "well"
    assert passed([one], running=running, now=130.0).state == "well"
    again = {GPU: Running(135.0, frozenset(), errors=(*fell, Error(134.0, "XID 48")))}
    assert passed([one], running=again, now=140.0).why == "XID 48"


def test_why_the_speed_is_not_known():
    assert passed(verdicts=[]).why.startswith("hardware well; times need CuPy or --bench")
    assert passed(verdicts=[verdict("unknown", 0.3, sweeps=1)]).why == "1 of 3 sweeps"
    few = verdict("unknown", None, sweeps=7)
    one = passed(verdicts=[few])
    assert (one.state, one.by) == ("unknown", None)
    assert one.why == "too few GPUs of its model to compare it with"


def test_readings_are_kept_for_the_next_pass():
    one = passed(health=replace(WELL, active_nvlinks=11))
    assert seen_before([one])[GPU] == Reading(
        "NVIDIA A100-SXM4-40GB", replace(WELL, active_nvlinks=11), at=100.0
    )
    lost = passed(health=None)
    assert (lost.state, seen_before([lost])[GPU].health) == ("ill", None)


def test_a_gpu_that_was_removed_has_no_state():
    assert judge([passed()], Evidence(200.0, {}, set(), [], {})) == []


def test_a_gpu_that_no_probe_has_seen_is_named_under_its_job():
    hot = {GPU: Running(90.0, HOT, 1005, None, "7"), ("n1", 4): Running(90.0, frozenset(), 1410)}
    ill, well = judge([], Evidence(100.0, {}, set(), [], hot))
    assert (ill.state, well.state, well.why) == ("ill", "unknown", "not measured yet")


def test_long_errors_do_not_make_a_state_that_cannot_be_read(tmp_path):
    faults = tuple((kind, "x" * 4000) for kind in ("xid", "ecc", "result"))
    seen = {GPU: Reading("A" * 4000, None, faults, at=1.0)}
    states = judge([], Evidence(100.0, seen, {GPU}, [], {}))
    write_state(tmp_path / "watch.json", WatchState(at=1.0, gpus=states))
    assert read_state(tmp_path / "watch.json").gpus == states
    assert len(states[0].why) <= 1000


def test_reports_of_agents_name_the_job_of_an_error(tmp_path):
    record = {"event": "agent", "at": 1000.0, "seq": 0, "gpus": [], "power_w": []}
    record |= {"clock_gpus": [], "clock_mhz": [], "read_gpus": [1], "read_throttle": [1]}
    record |= {"read_mhz": [1410], "read_jobs": [0]}
    record["xids"] = [[1, 31, 990.0, 7], [0, 79, 990.0, 7], [2, 48, 990.0, 0], [3, 119, 5.0, 0]]
    spool_file(tmp_path, "n1").write_text(json.dumps(record) + "\n")
    found = reported(tmp_path, ["n1"], 1010.0, lambda node: "8,9")
    said = {gpu: [error.text for error in one.errors] for (_, gpu), one in found.items()}
    assert said == {
        0: ["XID 79: GPU has fallen off the bus under job 7"],
        1: [],  # a fault of the program
        2: ["XID 48: double bit ECC error under job 8,9"],
        3: ["XID 119: GSP does not answer"],  # long ago: the jobs of now did not have it
    }
