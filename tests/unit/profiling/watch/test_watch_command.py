"""``gpu-aware-profile watch`` on fake GPUs, without Slurm; its files, check, host list, command."""

import json
import random
from pathlib import Path

import pytest
from fake_nvml import FakeNode, machines

from gpu_aware_profile.watch import measuring, one_pass
from gpu_aware_profile.watch.actions import (
    check_line,
    merged_extra,
    message,
    node_extras,
    state_table,
    summary,
    tell,
)
from gpu_aware_profile.watch.judgement import Evidence
from gpu_aware_profile.watch.measuring import Running
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.watch_state import (
    UNDER_JOB,
    Drained,
    GpuState,
    Trouble,
    WatchState,
    read_state,
    write_state,
)


@pytest.fixture
def watched_node(library, tmp_path):
    made = FakeNode(library, tmp_path, "dgx-a100")
    made.state.mkdir()
    made.env["SLURMD_NODENAME"] = "n1"
    made.store = tmp_path / "lib" / "store.db"
    return made


def command(watched_node, *words, code=0, **env):
    """``gpu-aware-profile watch`` with the store of the node."""
    argv = ["gpu_aware_profile.cli", "watch", *words, "--store", str(watched_node.store)]
    done = watched_node.run(*argv, **env)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def watch(watched_node, *options, code=0):
    argv = ["--local", "--runs", "1", "--class", "C", "--older-than", "0", *options]
    return command(watched_node, *argv, code=code)


def noisy(watched_node, draw, **slower):
    """Equal GPUs with 0.4% noise from sweep to sweep; ``slower``: ``gpu3=1.03``."""
    for minor in range(8):
        factor = slower.get(f"gpu{minor}", 1.0) * draw.gauss(1.0, 0.004)
        machines.set_slowness(watched_node.state, minor, {"C": factor})


def gpu_lines(done):
    return {one["gpu"]: one for one in json.loads(done.stdout)["gpus"]}


def test_a_slow_gpu_is_named_in_the_third_sweep_and_no_other(watched_node):
    draw = random.Random(4)
    for expected in ("unknown", "unknown", "slow"):
        noisy(watched_node, draw, gpu3=1.04)
        done = watch(watched_node, "--json", code=3 if expected == "slow" else 0)
        found = gpu_lines(done)
        assert found[3]["state"] == expected
    assert {one["state"] for gpu, one in found.items() if gpu != 3} == {"well"}
    assert found[3]["by"] == pytest.approx(0.04, abs=0.01)
    assert found[3]["since"] > 1.7e9
    table = watch(watched_node, "--no-sweep", code=3).stdout
    assert "8 GPUs: 1 slow, 7 well" in table
    assert "than its peers" in " ".join(table.split())
    assert command(watched_node, "--hostlist").stdout == "n1\n"
    check = command(watched_node, "--check", code=3)
    assert check.stdout.startswith("ERROR n1: GPU 3 slow: class C: ")


def test_readings_of_the_hardware_and_the_news(watched_node, tmp_path):
    heard = tmp_path / "heard"
    command = tmp_path / "tell"
    command.write_text(f"#!/bin/sh\ncat >>{heard}\necho $# >>{heard}\n")
    command.chmod(0o755)
    machines.set_facts(watched_node.state, 5, {"nvlinks_down": 1})
    machines.add_fault(watched_node.machine, "nvmlDeviceGetRemappedRows", error="NOT_SUPPORTED")
    options = ["--no-sweep", "--on-change", str(command)]
    first = watch(watched_node, "--on-change", f"{command} $(reboot)", code=3)
    assert "row remapping cannot be read: n1:0, n1:1" in first.stderr
    assert "ill" in first.stdout
    assert "11 of 12 NVLinks are active" in heard.read_text()
    assert heard.read_text().endswith("\n1\n")  # one argument, which no shell has read
    watch(watched_node, *options, code=3)
    assert heard.read_text().count("n1 GPU 5") == 1
    machines.heal(watched_node.state)
    watch(watched_node, code=3)
    watch(watched_node, *options[1:])
    assert heard.read_text().splitlines()[-2] == "n1 GPU 5 is well again"


def test_a_command_that_fails_is_tried_again(watched_node, tmp_path):
    machines.set_facts(watched_node.state, 5, {"nvlinks_down": 1})
    done = watch(watched_node, "--on-change", "false", code=3)
    assert "--on-change failed, the next pass tries again: it ended with 1" in done.stderr
    state = read_state(watched_node.store.with_name("watch.json"))
    assert tell(state, ["true"])[1] == ""
    assert tell(tell(state, ["true"])[0], ["false"])[1] == ""  # no news


def test_gpus_with_jobs_are_not_timed_and_throttling_is_named(watched_node):
    """A process computes on GPU 2, and it is too hot."""
    (watched_node.state / "gpu2.processes").write_text("1 100\n")
    machines.set_facts(watched_node.state, 2, {"throttle_reasons": 0x40, "sm_mhz": 1005})
    done = watch(watched_node, "--json", code=3)
    assert "not timed, as jobs use the GPUs: n1:2" in done.stderr
    found = gpu_lines(done)[2]
    assert found["state"] == "ill"
    assert found["why"].startswith("throttles: it is too hot, at 1005 MHz and ")
    assert "1 throttled under jobs" in command(watched_node, "--check").stdout
    machines.heal(watched_node.state)
    (watched_node.state / "gpu2.processes").unlink()
    assert gpu_lines(watch(watched_node, "--json"))[2]["state"] == "unknown"


def test_a_gpu_that_is_lost(watched_node):
    watch(watched_node)
    machines.lose(watched_node.state, 6)
    found = gpu_lines(watch(watched_node, "--json", code=3))
    assert found[6]["state"] == "ill"
    assert found[6]["why"].startswith("cannot be read: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--local", "--drain"], "--local excludes --drain"),
        (["--on-change", "no-such-command-here"], "no such command"),
        (["--on-change", "'"], "No closing quotation"),
        (["--most-percent", "101"], "101"),
    ],
)
def test_wrong_usage(watched_node, options, said):
    assert said in command(watched_node, *options, code=2).stderr
    assert not watched_node.store.exists()


def test_without_slurm_it_says_so(watched_node):
    assert "sinfo" in command(watched_node, code=1, PATH="/nowhere").stderr


# -- the state file --------------------------------------------------------------------------------


def test_the_state_is_written_and_read(tmp_path):
    file = tmp_path / "new" / "watch.json"
    assert read_state(file) is None
    gpus, drained = [GpuState("n1", 3, "slow", 0.1, 4.0, "why")], {"n2": Drained(4.0, left=True)}
    state = WatchState(at=5.0, gpus=gpus, drained=drained, on_trial=("n2",))
    write_state(file, state)
    assert read_state(file) == state
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"schema": "other"}', "\udcff", "[" * 100_000),
        '{"schema": "gpu-aware-watch/1", "gpus": [{"node": "$(x)", "gpu": 0}]}',
        '{"schema": "gpu-aware-watch/1", "gpus": [{"node": "n1", "gpu": 0, "state": "odd"}]}',
    ],
)
def test_a_damaged_state_is_one_sentence(tmp_path, text):
    file = tmp_path / "watch.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SourceError, match=r"watch\.json: ") as raised:
        read_state(file)
    assert len(str(raised.value)) < 300


def test_a_state_that_cannot_be_read_fails_no_node(watched_node):
    watched_node.store.parent.mkdir()
    watched_node.store.with_name("watch.json").write_text("{")
    done = command(watched_node, "--check")
    assert done.stdout.startswith("OK n1: unknown: ")
    assert done.stdout.count("\n") == 1
    command(watched_node, "--hostlist", code=1)


def test_a_gpu_that_cannot_be_read_again_is_not_written(tmp_path):
    """One GPU out of bounds must not make the state of all nodes unreadable."""
    seen = {("n1", 0): Running(90.0, frozenset()), ("n1", 5000): Running(90.0, frozenset())}
    state = one_pass._state(WatchState(), Evidence(100.0, {}, set(), [], seen))
    write_state(tmp_path / "watch.json", state)
    assert [one.gpu for one in read_state(tmp_path / "watch.json").gpus] == [0]
    assert len(state.notes) == 1
    assert state.notes[0].startswith("n1: GPU 5000 is left out: gpu: ")


def test_a_link_as_state_is_refused(tmp_path):
    file = tmp_path / "watch.json"
    file.symlink_to("/etc/passwd")
    with pytest.raises(SourceError, match="cannot be read"):
        read_state(file)


def test_the_check_fails_a_node_for_what_is_known_and_no_job_has_caused():
    slow = GpuState("n1", 3, "slow", 0.1, 4.0, "10.0% slower")
    throttles = (Trouble(UNDER_JOB, "throttles", 4.0),)
    hot = [GpuState(node, 0, "ill", troubles=throttles) for node in ("n4", "n5")]
    ecc = GpuState("n5", 1, "ill", why="XID 48", troubles=(Trouble("xid", "XID 48", 4.0),))
    gpus = [slow, GpuState("n2", 0), *hot, ecc]
    state = WatchState(at=100.0, gpus=gpus)
    for node, well, said in (
        ("n1", False, "ERROR n1: GPU 3 slow: 10.0% slower"),
        ("n2", True, "OK n2: 1 GPUs, 1 unknown"),
        ("n3", True, "OK n3: nothing is known of its GPUs"),
        ("n4", True, "OK n4: 1 GPUs, 1 throttled under jobs"),
        ("n5", False, "ERROR n5: GPU 1 ill: XID 48"),
    ):
        assert check_line(state, node, 100.0, 60.0) == (well, said)
    never = "OK n1: nothing is known of its GPUs: watch has not run"
    assert check_line(None, "n1", 100.0, 60.0) == (True, never)
    well, line = check_line(state, "n1", 100.0 + 7200.0, 3600.0)
    assert (well, "older than 1 h" in line) == (True, True)


# -- texts -----------------------------------------------------------------------------------------


def test_a_large_fleet_shows_what_is_not_well():
    many = [GpuState(f"n{i}", 0, "well", 0.0) for i in range(99)]
    state = WatchState(at=1.0, gpus=[*many, GpuState("n200", 0, "ill", 0.0, 0.5, "XID 79")])
    assert len(state_table(state, 1.0, every=False).splitlines()) == 3
    assert len(state_table(state, 1.0, every=True).splitlines()) == 102
    assert summary(state) == "100 GPUs: 1 ill, 99 well"


def test_a_hostile_why_has_one_line():
    text = message([GpuState("n1", 0, "ill", why="a\nb\x1b[31m", told="well")])
    assert text == "n1 GPU 0 is ill: a?b?[31m\n"


def test_scores_for_extra():
    states = [
        GpuState("n1", 0, "well", -0.01),
        GpuState("n1", 1, "slow", 0.0312),
        GpuState("n2", 0, "unknown"),
    ]
    assert node_extras(states) == {
        "n1": {"gpu_aware_state": "slow", "gpu_aware_worst": 1.031},
        "n2": {"gpu_aware_state": "unknown", "gpu_aware_worst": 1.0},
    }


def test_extra_of_others_stays():
    ours = {"gpu_aware_worst": 1.0}
    assert merged_extra("", ours) == '{"gpu_aware_worst":1.0}'
    other = merged_extra('{"rack": 3, "gpu_aware_state": "ill"}', ours)
    assert other == '{"rack":3,"gpu_aware_worst":1.0}'
    assert merged_extra("row 7", ours) is merged_extra("[1]", ours) is None


# -- jobs ------------------------------------------------------------------------------------------


def agent_line(at, mask, job, other=0):
    record = {"event": "agent", "at": at, "node": "n1", "seq": 0, "gpus": [0], "power_w": [90.0]}
    record |= {"clock_gpus": [], "clock_mhz": [], "read_gpus": [0, 1], "read_mhz": [1005, 0]}
    return json.dumps(record | {"read_throttle": [mask, other], "read_jobs": [job, 0]}) + "\n"


def test_reports_of_agents(tmp_path):
    (tmp_path / "n1.jsonl").write_text(agent_line(50.0, 1, 0) + agent_line(90.0, 0x48, 12))
    (tmp_path / "n2.jsonl").write_text(agent_line(90.0, 0x40, 0, other=0x40))
    (tmp_path / "n3.jsonl").write_text(agent_line(-1, 0x40, 0) + "{broken\n")
    (tmp_path / "n4.jsonl").write_text(agent_line(1.0, 0x40, 0))
    asked = []

    def jobs_on(node):
        asked.append(node)
        return "7,8"

    found = measuring.reported(tmp_path, ["n1", "n2", "n3", "n5"], 100.0, jobs_on)
    reasons = frozenset({"hw_slowdown", "hw_thermal_slowdown"})
    assert found["n1", 0] == measuring.Running(90.0, reasons, 1005, 90.0, "12")
    assert found["n1", 1] == measuring.Running(90.0, frozenset())
    assert found["n2", 0].job == found["n2", 1].job == "7,8"
    assert asked == ["n2"]
    assert {node for node, _ in found} == {"n1", "n2"}
    assert measuring.reported(tmp_path, ["n4"], 1000.0, jobs_on) == {}  # of long ago


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n", "1234"),
        ("5:devices:/slurm/uid_1000/job_77/step_batch\n", "77"),
        ("0::/user.slice/user-0.slice\n", ""),
        ("0::/job_99999999999999/x\n", ""),
    ],
)
def test_the_job_of_a_process(tmp_path, text, job):
    folder = tmp_path / "42"
    folder.mkdir()
    (folder / "cgroup").write_text(text)
    assert measuring.job_of(42, tmp_path) == job
    assert measuring.job_of(43, Path("/nowhere")) == ""
