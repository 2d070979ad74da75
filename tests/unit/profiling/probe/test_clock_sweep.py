"""Measurement at locked clocks, and that they are reset whatever happens."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from commands import refusal
from fake_nvml import FakeNode, machines
from idle_clock import Stopwatch

from gpu_aware_profile.probe.clock_sweep import clock_steps, limit_steps
from slurm_gpu_aware.clocks.notes import Note, Notes

SWEEP = ["--clocks", "3", "--allow-clock-changes", "--runs", "1", "--no-loaded"]
LIMITED = [*SWEEP, "--power-limits", "2"]


class Node(FakeNode):
    def __init__(self, library, folder):
        super().__init__(library, folder, nvml_order=[2, 0, 3, 1])
        conf = folder / "clock.conf"
        self.locks = folder / "locks"
        self.spool = folder / "spool"
        conf.write_text(f"spool = {self.spool}\nlocks = {self.locks}\n")
        self.env["GPU_AWARE_CLOCK_CONFIG"] = str(conf)

    def begin(self, *options):
        argv = [sys.executable, "-m", "gpu_aware_profile.cli", "node", "--json"]
        argv += ["--node-name", "n1", *options]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def hook(self, kind, job, gpus="", extra=""):
        variables = {"SLURM_JOB_ID": str(job), "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": gpus}
        return self.run("slurm_gpu_aware.clocks", kind, **variables, SLURM_JOB_EXTRA=extra)

    def locked(self):
        return [k for k in range(4) if self.set_to(k, "locked_clocks")]

    def notes(self):
        return sorted(file.name for file in self.locks.glob("gpu*")) if self.locks.exists() else []

    def limited(self):
        """GPU -> power limit that was set, W, where it is not the machine's own."""
        found = {k: self.set_to(k, "power_limit") for k in range(4)}
        watts = {k: int(text[0]) // 1000 for k, text in found.items() if text}
        return {k: w for k, w in watts.items() if w != 300}

    def is_as_before(self):
        return (self.locked(), self.limited(), self.notes()) == ([], {}, [])


@pytest.fixture
def node(library, tmp_path):
    yield Node(library, tmp_path)
    if (tmp_path / "hangs").exists():  # a program survives its parent's kill -9
        with suppress(ProcessLookupError):
            os.kill(int((tmp_path / "hangs").read_text()), signal.SIGKILL)


def bench_options(*argv):
    return ["--bench", shlex.join(argv), "--bench-class", "A"]


def hang_when_locked(node, setting="locked_clocks", until="False"):
    """A program that is quick, and hangs while GPU 0 has this setting, until something holds."""
    code = (
        "import os, pathlib, time\n"
        f"locked = pathlib.Path({str(node.state / f'gpu0.{setting}')!r})\n"
        f"while locked.exists() and not {until}:\n"
        f"    pathlib.Path({str(node.folder / 'hangs')!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(0.05)\n"
        "print(5)\n"
    )
    return bench_options(sys.executable, "-c", code)


def wait_for_hang(node, process):
    watch = Stopwatch()
    while not (node.folder / "hangs").exists() or not (node.folder / "hangs").read_text():
        assert process.poll() is None
        assert watch.idle_s < 100
        time.sleep(0.05)
    assert node.locked() == [0, 1, 2, 3]


def test_each_clock_is_measured_and_the_clocks_are_reset(node):
    report = node.probe(*SWEEP, "--class", "A", "--class", "C")
    assert report["errors"] == []
    assert len(report["timings"]) == 4 * 2 * (1 + 3)
    clocks = [row["clock_mhz"] for row in report["timings"] if row["index"] == 2]
    assert clocks == [0, 0, 1530, 1530, 832, 832, 135, 135]
    rows = {(r["class"], r["clock_mhz"]): r for r in report["timings"] if r["index"] == 2}
    for app_class, share in (("A", 0.95), ("C", 0.1)):
        for mhz in (1530, 832, 135):
            slower = rows[app_class, mhz]["value_ms"] / rows[app_class, 0]["value_ms"]
            assert slower == pytest.approx(1 - share + share * 1312 / mhz, rel=0.01)
            row = rows[app_class, mhz]
            assert row["sm_mhz"] == mhz
            assert row["energy_j"] == pytest.approx(
                row["power_w"] * row["value_ms"] / 1e3, rel=0.001
            )
            assert "application_clocks" in row["throttle"]
    assert rows["A", 832]["power_w"] < rows["A", 1530]["power_w"]
    assert node.is_as_before()
    assert len([line for line in node.history() if line.endswith("reset")]) == 4


def test_each_clock_is_measured_under_power_limits_too_and_they_are_undone(node):
    """GPUs of class A draw 42 + 0.9 x 258 x (clock / 1530)^3 W; 150 W is the lowest limit."""
    report = node.probe(*LIMITED, "--class", "A")
    assert report["errors"] == []
    rows = {(r["clock_mhz"], r["limit_w"]): r for r in report["timings"] if r["index"] == 1}
    limits = (0, 225, 150)
    assert list(rows) == [(0, 0), *((mhz, w) for w in limits for mhz in (1530, 832, 135))]
    assert [rows[1530, w]["sm_mhz"] for w in limits] == [1530, 1410, 1185]
    assert [rows[832, w]["sm_mhz"] for w in limits] == [832] * 3
    for w in (225, 150):
        row = rows[1530, w]
        assert 0.97 * w < row["power_w"] <= w
        slower = row["value_ms"] / rows[0, 0]["value_ms"]
        assert slower == pytest.approx(0.05 + 0.95 * 1312 / row["sm_mhz"], rel=0.01)
    assert node.is_as_before()


def test_the_sites_own_power_limit_comes_back(node):
    node.state.mkdir(exist_ok=True)
    (node.state / "gpu3.power_limit").write_text("250000\n")
    report = node.probe(*LIMITED, "--class", "A")
    limits = [r["limit_w"] for r in report["timings"] if r["index"] == 3]
    assert limits == [0] * 4 + [200] * 3 + [150] * 3
    assert node.limited() == {3: 250}


@pytest.mark.parametrize("how", ["a signal", "the next probe", "the next epilog"])
def test_no_clock_or_limit_outlives_a_sweep_that_is_ended(node, how):
    """Whether by a signal, or by kill -9, when the next one that can makes up for it."""
    process = node.begin(*LIMITED, *hang_when_locked(node, "power_limit"))
    wait_for_hang(node, process)
    assert node.limited() == dict.fromkeys(range(4), 225)
    for _ in range(2):
        process.send_signal(signal.SIGTERM if how == "a signal" else signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    if how == "a signal":
        assert process.returncode == 130
        rows = json.loads(out)["timings"]
        assert {(row["clock_mhz"] > 0, row["limit_w"]) for row in rows} == {(False, 0), (True, 0)}
    else:
        assert node.locked() == [0, 1, 2, 3]  # nothing could be done
        assert node.limited() == dict.fromkeys(range(4), 225)
        assert node.notes() == ["gpu0", "gpu1", "gpu2", "gpu3"]
    if how == "the next probe":
        assert node.probe("--no-timings")["errors"] == []
    if how == "the next epilog":
        assert node.hook("epilog", 77, "0").returncode == 0
    assert node.is_as_before()
    if how != "a signal":
        assert '"event":"clock_reset"' in (node.spool / "n1.jsonl").read_text()


def test_a_gpu_that_refuses_power_limits_costs_only_their_times(node):
    machines.add_fault(
        node.state, "nvmlDeviceSetPowerManagementLimit", minor=3, error="NO_PERMISSION"
    )
    report = node.probe(*LIMITED, "--class", "A")
    rows = {k: [r["limit_w"] for r in report["timings"] if r["index"] == k] for k in (2, 3)}
    assert rows == {2: [0] * 4 + [225] * 3 + [150] * 3, 3: [0] * 4}
    assert {(fault["index"], fault["call"]) for fault in report["errors"]} == {
        (3, "nvmlDeviceSetPowerManagementLimit")
    }
    assert node.is_as_before()


def test_a_limit_that_the_driver_forgets_has_no_time(node):
    forgets = f"rm -f {node.state}/gpu0.power_limit; echo 90 >{node.state}/gpu0.load"
    node.state.mkdir(exist_ok=True)
    program = bench_options("sh", "-c", f"{forgets}; sleep 1; echo 5")
    report = node.probe("--clocks", "1", *LIMITED[2:], *program)
    assert [r["limit_w"] for r in report["timings"] if r["index"] == 0] == [0, 0]
    assert "W, not 225: does nvidia-persistenced run?" in report["errors"][0]["error"]


def test_the_steps_of_power_limits_lie_below_the_one_in_force():
    assert limit_steps(100.0, 300.0, 4) == [250, 200, 150, 100]
    assert limit_steps(99.5, 101.0, 4) == [100]
    assert limit_steps(300.0, 300.0, 2) == []
    assert limit_steps(None, 300.0, 2) == []


def test_neither_probe_nor_hook_resets_the_clocks_of_a_sweep_that_runs(node):
    process = node.begin(*SWEEP, *hang_when_locked(node))
    wait_for_hang(node, process)
    node.probe("--no-timings")
    node.hook("epilog", 77)
    assert node.locked() == [0, 1, 2, 3]
    process.terminate()
    process.communicate(timeout=300)
    assert node.is_as_before()


def test_the_clock_of_a_job_that_starts_during_a_sweep_is_its_own(node):
    wait = node.folder / "go"
    process = node.begin(*SWEEP, *hang_when_locked(node, until=f"os.path.exists({str(wait)!r})"))
    wait_for_hang(node, process)
    node.hook("prolog", 4711, "1", "freq=900")
    of_job = node.set_to(1, "locked_clocks")
    wait.touch()
    out, _ = process.communicate(timeout=3000)
    report = json.loads(out)
    assert node.set_to(1, "locked_clocks") == of_job
    assert node.notes() == ["gpu1"]
    fault = {"index": 1, "call": "lock", "error": "its clock is locked for job 4711"}
    assert fault in report["errors"]
    clocks = [row["clock_mhz"] for row in report["timings"] if row["index"] == 1]
    assert clocks == [0]
    assert [row["index"] for row in report["timings"] if row["clock_mhz"]] == [0, 2, 3] * 3
    node.hook("epilog", 4711)
    assert node.is_as_before()


def test_a_clock_that_cannot_be_reset_is_a_fault_until_it_can(node):
    machines.add_fault(node.state, "nvmlDeviceResetGpuLockedClocks", minor=1, error="UNKNOWN")
    report = node.probe(*SWEEP, "--class", "A")
    fault = {"index": 1, "call": "nvmlDeviceResetGpuLockedClocks", "error": "Unknown Error"}
    assert report["errors"] == [fault]
    assert (node.locked(), node.notes()) == ([1], ["gpu1"])
    assert node.probe("--no-timings")["errors"] == [fault]
    machines.heal(node.state)
    os.utime(node.state / "override.json")
    note = node.locks / "gpu1"
    note.write_text("0 ended locked -\n")  # a later time: a failed try is not repeated at once
    assert node.probe("--no-timings")["errors"] == []
    assert node.is_as_before()


def test_a_gpu_whose_clock_cannot_be_locked_costs_only_itself(node):
    machines.add_fault(node.state, "nvmlDeviceSetGpuLockedClocks", minor=3, error="NO_PERMISSION")
    report = node.probe(*SWEEP, "--class", "A")
    rows = [row["index"] for row in report["timings"] if row["clock_mhz"]]
    assert rows == [0, 1, 2] * 3
    (fault,) = report["errors"]
    assert (fault["index"], fault["call"]) == (3, "nvmlDeviceSetGpuLockedClocks")
    assert node.is_as_before()


def test_the_clock_of_a_job_stays(node):
    node.locks.mkdir(mode=0o700)
    Notes(str(node.locks)).write(2, Note("4711", "locked"))
    report = node.probe(*SWEEP, "--class", "A")
    assert {row["index"] for row in report["timings"] if row["clock_mhz"]} == {0, 1, 3}
    assert report["errors"] == [
        {"index": 2, "call": "lock", "error": "its clock is locked for job 4711"}
    ]
    assert node.notes() == ["gpu2"]


def test_without_a_place_for_notes_no_clock_is_locked(node):
    node.locks.write_text("a file")
    report = node.probe(*SWEEP, "--class", "A")
    assert {row["clock_mhz"] for row in report["timings"]} == {0}
    assert {fault["call"] for fault in report["errors"]} == {"note"}
    assert node.history() == []


def test_a_gpu_that_is_lost_during_the_sweep_costs_only_itself(node):
    lost = json.dumps({"lost": [1]})
    code = (
        "import pathlib\n"
        f"state = pathlib.Path({str(node.state)!r})\n"
        "if (state / 'gpu0.locked_clocks').exists():\n"
        f"    (state / 'override.json').write_text({lost!r})\n"
        "print(5)\n"
    )
    report = node.probe(*SWEEP, *bench_options(sys.executable, "-c", code))
    rows = [row["index"] for row in report["timings"] if row["clock_mhz"]]
    assert [rows.count(k) for k in range(4)] == [3, 0, 3, 3]
    assert node.locked() == [1]  # it does not answer
    assert node.notes() == ["gpu1"]


def test_a_lock_that_the_driver_forgets_has_no_time(node):
    """Without a client the driver leaves a GPU, whose clock is the default one then."""
    forgets = f"rm -f {node.state}/gpu0.locked_clocks"
    report = node.probe(*SWEEP, *bench_options("sh", "-c", f"{forgets}; sleep 0.2; echo 5"))
    clocks = {k: [r["clock_mhz"] for r in report["timings"] if r["index"] == k] for k in (0, 1)}
    assert clocks == {0: [0, 1530], 1: [0, 1530, 832, 135]}  # the default clock is 1312 MHz
    assert {(fault["index"], fault["call"]) for fault in report["errors"]} == {(0, "lock")}
    assert "not 832: does nvidia-persistenced run?" in report["errors"][0]["error"]
    assert node.is_as_before()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clocks", "3"], "which needs --allow-clock-changes"),
        (["--clocks", "0", "--allow-clock-changes"], "'0' is not a number of clocks, or all"),
        (["--clocks", "x"], "'x' is not a number of clocks, or all"),
        (["--power-limits", "2", "--allow-clock-changes"], "--power-limits needs --clocks"),
        (["--clocks", "3", "--allow-clock-changes", "--no-timings"], "--clocks excludes"),
    ],
)
def test_wrong_options(node, options, words):
    assert words in refusal(node.run("gpu_aware_profile.cli", "node", *options), 2)
    assert node.history() == []


def test_clock_steps():
    clocks = list(range(1000, 90, -100))
    assert clock_steps(clocks, 1) == [1000]
    assert clock_steps(clocks, 2) == [1000, 100]
    assert clock_steps(clocks, 4) == [1000, 700, 400, 100]
    assert clock_steps(clocks, 99) == clocks
    assert clock_steps([], 3) == []
