"""A program of the site as timing backend, on fake GPUs and alone."""

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import pytest
from fake_nvml import FakeNode
from idle_clock import Stopwatch, all_end

from gpu_aware_profile.backends.process_timing import CommandTiming
from gpu_aware_profile.backends.timing import RunSpec
from gpu_aware_profile.child import KEPT_BYTES, Child, LateError
from slurm_gpu_aware.errors import SourceError


class Control:
    """A run without telemetry; the others are done at once, or after an event."""

    def __init__(self, others_done=None):
        self.stopped = threading.Event()
        self.others_done = others_done or threading.Event()
        if others_done is None:
            self.others_done.set()

    def window(self):
        return nullcontext()

    def company(self):
        return self.others_done


def python(code):
    return shlex.join([sys.executable, "-c", code])


def says(text):
    return python(f"print({text!r})")


def timed_ms(command, pattern=None, unit="ms", limit_s=120.0, control=None):
    timing = CommandTiming(command, "A", pattern, unit, limit_s)
    run = RunSpec(0, "GPU-7", {"VISIBLE": "GPU-7"}, "A", "idle", 0)
    return timing.measure(run, control or Control()).value_ms


@pytest.mark.parametrize(
    ("output", "pattern", "unit", "value_ms"),
    [
        ("12.5", None, "ms", 12.5),
        ("epoch 1 of 3\ntime per step: 0.25 s, 3 steps: 0.75\n\n", None, "s", 750.0),
        ("10 20\ndone", None, "ms", 20.0),  # the last line that has a number
        ("1.5e-3", None, "s", 1.5),
        ("Performance:   52.1  ns/day", r"Performance:\s+([\d.]+)", "rate", 1000 / 52.1),
        ("a=1 a=2 b=3", r"a=(\d)", "ms", 2.0),  # the last match
        ("t: 40 ms", r"\d+", "ms", 40.0),  # no group
    ],
)
def test_the_number_of_an_output(output, pattern, unit, value_ms):
    assert timed_ms(says(output), pattern, unit) == pytest.approx(value_ms)


@pytest.mark.parametrize(
    ("output", "pattern", "unit", "words"),
    [
        ("no result", None, "ms", "no number in its output, which ends in 'no result'"),
        ("", None, "ms", "which ends in 'nothing'"),
        ("time 4", r"speed (\d+)", "ms", "no match of 'speed (\\\\d+)' in its output"),
        ("time: fast", r"time: (\w+)", "ms", "'fast' is not a number"),
        ("0", None, "rate", "0 rate is not a time"),
        ("-3", None, "ms", "-3 ms is not a time"),
        ("t=nan", r"t=(\w+)", "ms", "nan ms is not a time"),
        ("t=1e999", r"t=(\S+)", "s", "inf s is not a time"),
    ],
)
def test_an_output_without_a_time(output, pattern, unit, words):
    with pytest.raises(SourceError) as error:
        timed_ms(says(output), pattern, unit)
    assert words in str(error.value)


def test_numbers_on_standard_error_count():
    assert timed_ms(python("import sys; print(7, file=sys.stderr)")) == 7.0


def test_the_program_sees_its_gpu_only():
    assert timed_ms(python("import os; print(os.environ['VISIBLE'][4:])")) == 7.0


def test_no_shell_reads_the_command():
    assert timed_ms(python("import sys; print(len(sys.argv[1]))") + " '$(echo ab)'") == 10.0
    assert timed_ms(shlex.join(["sh", "-c", "echo $((6 * 7))"])) == 42.0


def test_a_program_that_reads_its_input_finds_it_empty():
    code = "import sys; print(sys.stdin.read() == '', 5)"
    assert timed_ms(python(code), r"True (\d+)") == 5.0


def test_a_flood_of_output_is_bounded_and_its_end_counts():
    code = (
        "import sys\nfor _ in range(500): sys.stdout.write('1' * 65536)\nprint('\\n\\x00\\xff 3.5')"
    )
    assert timed_ms(python(code)) == 3.5
    with Child(shlex.split(python(code)), limit_s=120, merged=True) as child:
        assert max(len(line) for line in child.lines()) <= 2 * KEPT_BYTES
        assert len(child.output) <= KEPT_BYTES


def test_a_pattern_that_needs_exponential_time_ends(monkeypatch):
    monkeypatch.setattr("gpu_aware_profile.backends.process_timing._SEARCH_S", 1.0)
    watch = Stopwatch()
    with pytest.raises(SourceError, match="took longer than 1 s"):
        timed_ms(says("1" * 60 + "x"), r"(?:\d+)+ ms")
    assert watch.idle_s < 15


def test_a_program_that_fails_says_how():
    with pytest.raises(SourceError, match=r"ended with 3: out of memory"):
        timed_ms(python("import sys; print('out of memory', file=sys.stderr); sys.exit(3)"))
    with pytest.raises(SourceError, match=r"was killed by SIGSEGV"):
        timed_ms(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    with pytest.raises(SourceError, match=r"absent: cannot be run: No such file"):
        timed_ms("/absent")


def hanging(folder):
    """A program that ignores SIGTERM and starts another one; both hang, at once."""
    pids = shlex.quote(str(folder / "pids"))
    return shlex.join(["sh", "-c", f"trap '' TERM; sleep 600 & echo $$ $! >>{pids}; wait"])


def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path):
    with pytest.raises(LateError, match="no end within 5 s"):
        timed_ms(hanging(tmp_path), limit_s=5.0)
    assert all_end((tmp_path / "pids").read_text().split())


def test_what_a_program_leaves_behind_does_not_delay_the_end():
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(5)\n"
    )
    assert timed_ms(python(code)) == 5.0


def test_the_program_runs_on_until_the_others_are_measured(tmp_path):
    done = threading.Event()
    code = (
        "import time, pathlib\n"
        f"file = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "file.write_text((file.read_text() if file.exists() else '') + '.')\n"
        "time.sleep(0 if len(file.read_text()) < 3 else 600)\n"
        "print(5)\n"
    )

    def others():
        while not (tmp_path / "runs").exists() or len((tmp_path / "runs").read_text()) < 3:
            time.sleep(0.02)
        done.set()

    thread = threading.Thread(target=others)
    thread.start()
    assert timed_ms(python(code), control=Control(done)) == 5.0
    thread.join()
    assert (tmp_path / "runs").read_text() == "..."


BENCH = ("--bench-class", "A", "--bench")


def happens(node, override, uuid=""):
    """A program during which this happens to the node, on the GPU alone that is named."""
    return (
        "import os, pathlib\n"
        f"folder = pathlib.Path({str(node.state)!r})\n"
        "folder.mkdir(exist_ok=True)\n"
        f"if os.environ['CUDA_VISIBLE_DEVICES'].startswith({uuid!r}):\n"
        f"    (folder / 'override.json').write_text({json.dumps(override)!r})\n"
        "print(5)\n"
    )


def test_each_gpu_is_pinned_by_its_uuid(library, tmp_path):
    node = FakeNode(library, tmp_path)
    code = "import os; print(1 + int(os.environ['CUDA_VISIBLE_DEVICES'][4:8], 16))"
    report = node.probe(*BENCH, python(code), "--runs", "1")
    uuids = {gpu["index"]: gpu["uuid"] for gpu in report["gpus"]}
    rows = [(row["index"], row["neighbours"], row["value_ms"]) for row in report["timings"]]
    expected = {index: 1 + int(uuid[4:8], 16) for index, uuid in uuids.items()}
    assert rows == [(i, n, expected[i]) for n in ("idle", "loaded") for i in range(4)]
    assert (report["backend"], report["errors"]) == ("command", [])


def test_one_gpu_that_hangs_costs_only_its_own_time(library, tmp_path):
    node = FakeNode(library, tmp_path)
    uuid = json.loads(node.machine.read_text())["gpus"][1]["uuid"]
    code = f'[ "$CUDA_VISIBLE_DEVICES" != {uuid} ] || sleep 600; echo 5'
    bench = shlex.join(["sh", "-c", code])  # which starts within the limit on a busy machine, too
    report = node.probe(*BENCH, bench, "--runs", "2", "--bench-limit", "6")
    assert [row["index"] for row in report["timings"]] == [0, 2, 3] * 4
    (fault,) = report["errors"]
    assert (fault["index"], fault["call"]) == (1, "timeout")
    assert "no end within 6 s" in fault["error"]


@pytest.mark.parametrize("xid", [79, 45])
def test_an_xid_during_the_program_is_a_fault_of_its_gpu(library, tmp_path, xid):
    """XID 45 is none: each process that is killed while it computes has one."""
    node = FakeNode(library, tmp_path)
    uuid = json.loads(node.machine.read_text())["gpus"][2]["uuid"]
    code = happens(node, {"xids": [{"gpu": 2, "xid": xid}]}, uuid)
    report = node.probe(*BENCH, python(code), "--runs", "1", "--no-loaded")
    fault = {"index": 2, "call": "xid", "error": "XID 79: GPU has fallen off the bus"}
    assert [row["index"] for row in report["timings"]] == ([0, 1, 3] if xid == 79 else [0, 1, 2, 3])
    assert report["errors"] == ([fault] if xid == 79 else [])


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ({"lost": [0]}, "GPU is lost"),
        ({"faults": [{"call": "*", "gpu": 0, "error": "RESET_REQUIRED"}]}, "GPU requires restart"),
    ],
)
def test_a_gpu_that_falls_off_the_bus_in_the_middle(library, tmp_path, override, text):
    node = FakeNode(library, tmp_path)
    report = node.probe(*BENCH, python(happens(node, override)), "--runs", "2")
    assert {row["index"] for row in report["timings"] if row["neighbours"] == "loaded"} == {1, 2, 3}
    assert {fault["index"] for fault in report["errors"]} <= {0, None}
    assert all(text in fault["error"] for fault in report["errors"])


def test_a_signal_ends_the_program_and_keeps_what_was_measured(library, tmp_path):
    node = FakeNode(library, tmp_path)
    marker = tmp_path / "first"
    hang = hanging(tmp_path)
    code = (
        "import pathlib, shlex, subprocess\n"
        f"marker = pathlib.Path({str(marker)!r})\n"
        "if marker.exists():\n"
        f"    subprocess.run(shlex.split({hang!r}))\n"
        "marker.touch()\n"
        "print(5)\n"
    )
    argv = [sys.executable, "-m", "gpu_aware_profile.cli", "node", "--json"]
    argv += ["--node-name", "n1", *BENCH, python(code)]
    process = subprocess.Popen(argv, env=node.env, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    report = json.loads(out)
    assert [row["index"] for row in report["timings"]] == [0]
    assert process.returncode == 130
    assert all_end((tmp_path / "pids").read_text().split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            (*BENCH, "x", "--backend", "fake"),
            "--bench excludes --backend, --class and --no-timings",
        ),
        ((*BENCH, "'x"), "is malformed: No closing quotation"),
        ((*BENCH, ""), "the command is empty"),
        ((*BENCH, "x", "--bench-pattern", "("), "the pattern '(' is malformed"),
        (("--bench", "x"), "--bench needs --bench-class"),
    ],
)
def test_wrong_options(library, tmp_path, options, words):
    done = FakeNode(library, tmp_path).run("gpu_aware_profile.cli", "node", *options)
    assert done.returncode in (1, 2)
    assert words in done.stderr
