"""Clock hooks: the real scripts, the real program, the real binding, on fake GPUs."""

import contextlib
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from clock_hooks import HOOKS, Hooks, gres_conf
from fake_nvml import ROOT, FakeNode, machines
from hypothesis import given
from hypothesis import strategies as st
from needs import needs_root

from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.clocks.job import has_step, parse_extra, parse_gpus
from slurm_gpu_aware.clocks.notes import NO_JOB, Note, Notes
from slurm_gpu_aware.clocks.nvml import nearest_clock
from slurm_gpu_aware.clocks.records import to_json


@pytest.fixture
def hooks(library, tmp_path):
    # NVML's order differs from the minor numbers, as it may on a real node.
    return Hooks(FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1]), tmp_path)


def test_a_job_gets_its_clock_and_gives_it_back(hooks):
    hooks.run("prolog", 17, "0,3", "owner=x,freq=901", SLURM_JOB_RESTART_COUNT="2")
    assert hooks.locked() == {0: 900, 3: 900}  # 901 MHz is between 900 and 907
    hooks.run("epilog", 17, "0,3", "freq=901")
    assert hooks.locked() == {}
    assert hooks.events() == [("clock_set", "17", [0, 3]), ("clock_reset", "17", [0, 3])]
    record, known = hooks.records()[0], {"schema": "gpu-aware-clock/1", "node": "n1", "restarts": 2}
    assert record["at"] > 0
    assert record.items() >= {**known, "asked_mhz": 901, "mhz": 900, "method": "locked"}.items()
    assert hooks.notes() == []


BOTH = {1: 900, 3: 900}
CONTRADICTS = "does not agree with GPUs 3"
PLAIN = "NodeName=n[1-2] Name=gpu Type=v100 File=/dev/nvidia[0-3]"
MIXED = "NodeName=n2 Name=gpu Type=g1\nNodeName=n1 Name = gpu Type=a100"
PROLOGS = [
    # On an indexed node a job on gpu:g1:1,gpu:g3:1 has SLURM_JOB_GPUS=3 (24.11).
    ("3", "freq=900@1+3", "", BOTH, ""),
    ("3", "freq=900@1+3", "NodeName=n[1-2] Name=gpu Type=g1 File=/dev/nvidia1", BOTH, ""),
    ("3", "freq=900@1+3", "NodeName=n1 Name=gpu Type=g1\nNodeName=n2 Name=gpu Type=a100", BOTH, ""),
    ("3", "freq=900@1+3", "NodeName=n[5-6] Name=gpu Type=v100 File=/dev/nvidia[0-3]", BOTH, ""),
    ("3", "freq=900@1+3", "AutoDetect=nvml", BOTH, ""),
    # On a plain node Slurm names all of them.
    ("3", "freq=900@1+3", PLAIN, {}, CONTRADICTS),
    ("3", "freq=900@1+3", "NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-3]", {}, CONTRADICTS),
    ("3", "freq=900@1+3", MIXED, {}, CONTRADICTS),
    # Only one GPU can be the last of several types; two are what the job has, and no more.
    ("2", "freq=900@1+3", "", {}, "does not agree with GPUs 2"),
    ("0,1", "freq=900@0+1+2+3", "", {}, "does not agree with GPUs 0,1"),
    # No clock where jobs share GPUs.
    ("3", "freq=900", "NodeName=n1 Name=shard Count=8", {}, "shards or MPS"),
    ("3", "freq=900", "NodeName=n1 Name=mps Count=8", {}, "shards or MPS"),
    ("3", "freq=900", "NodeName=n2 Name=shard Count=8 # not NodeName=n1", {3: 900}, ""),
    ("3", "freq=900", "NodeName=n2 Name=mps Count=8 # not NodeName=n1", {3: 900}, ""),
    # As slurmd reads it: continued lines are joined without a blank, includes are followed.
    ("3", "freq=900", "Include more.conf", {}, "shards or MPS"),
    ("0", "freq=fast", "", {}, "freq="),
    ("0", "freq=900,freq=901", "", {}, "freq="),
    ("0", "freq=0900", "", {}, "freq="),
    ("0;1", "freq=900", "", {}, "GPU indices"),
]


@pytest.mark.parametrize(("gpus", "extra", "gres", "locked", "why"), PROLOGS)
def test_a_prolog_locks_what_slurm_and_the_selector_agree_on(hooks, gpus, extra, gres, locked, why):
    (hooks.node.folder / "more.conf").write_text("NodeName=n2,\\\nn1 Name=shard Count=8")
    conf = {"SLURM_CONF": gres_conf(hooks.node.folder, gres)} if gres else {}
    hooks.run("prolog", 17, gpus, extra, **conf)
    assert hooks.locked() == locked
    if not locked:
        (failed,) = hooks.records()
        assert (failed["event"], why in failed["error"]) == ("clock_failed", True)
        assert hooks.node.history() == []
    hooks.run("epilog", 17, gpus, extra, **conf)
    assert hooks.locked() == {}


def test_no_clock_on_a_gpu_in_parts(hooks):
    content = json.loads(hooks.node.machine.read_text())
    next(gpu for gpu in content["gpus"] if gpu["minor"] == 1)["mig"] = 1
    machines.write_json(hooks.node.machine, content)
    hooks.run("prolog", 17, "1,3", "freq=900")
    assert hooks.locked() == {3: 900}
    assert hooks.events() == [("clock_set", "17", [3]), ("clock_failed", "17", [1])]
    assert "MIG" in hooks.records()[1]["error"]


def test_a_gpu_of_a_job_that_runs_here_is_not_touched(hooks):
    """Only the job's own Extra names it; a step of its other job shows that that is not gone."""
    hooks.run("prolog", 71234567, "1", "freq=600")  # no job of a real slurmstepd
    code = f"""
import json
from slurm_gpu_aware.clocks import hooks
from slurm_gpu_aware.clocks.notes import Notes
hooks.has_step = lambda job_id: job_id == "71234567"
env = {{"SLURM_JOB_ID": "17", "SLURM_JOB_GPUS": "3", "SLURM_JOB_EXTRA": "freq=900@1+3",
       "SLURMD_NODENAME": "n1"}}
hook = hooks.Hook(env, Notes({str(hooks.locks)!r}), 1.0)
hook.prolog()
print(json.dumps(hook.records))
"""
    records = hooks.node.python(code)
    assert hooks.locked() == {1: 600, 3: 900}
    assert [(r["event"], r["gpus"]) for r in records] == [("clock_failed", [1]), ("clock_set", [3])]
    hooks.run("epilog", 17, "3")
    assert hooks.locked() == {1: 600}
    hooks.run("prolog", 18, "3", "freq=900@1+3")  # now its epilog was lost
    assert hooks.locked() == {1: 900, 3: 900}


def a_process(proc, number, title, program, uids):
    folder = proc / str(number)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(title.encode() + b"\0")
    (folder / "exe").symlink_to(program)
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")


@pytest.mark.parametrize(
    ("program", "uids", "found"),
    [
        ("/usr/sbin/slurmstepd", "0\t0\t0\t0", True),
        ("/usr/sbin/slurmstepd", "0\t2001\t0\t2001", True),  # opens the job's files
        ("/usr/sbin/slurmstepd-wlm (deleted)", "0\t0\t0\t0", True),
        ("/usr/bin/sleep", "2001\t2001\t2001\t2001", False),
        ("/home/alice/slurmstepd", "2001\t2001\t2001\t2001", False),
        ("/usr/bin/su", "2001\t0\t0\t0", False),  # set-user-id, with a title of the user's
        ("/usr/bin/sudo", "0\t0\t0\t0", False),
    ],
)
def test_only_slurmstepd_is_a_step(tmp_path, program, uids, found):
    a_process(tmp_path, 1, "slurmstepd: [771.batch]", "/usr/sbin/slurmstepd", "0\t0\t0\t0")
    a_process(tmp_path, 20, "slurmstepd: [77.batch]", program, uids)
    (tmp_path / "30").mkdir()  # has ended meanwhile
    assert has_step("77", str(tmp_path)) == found
    assert not has_step("7", str(tmp_path))


def test_a_title_of_a_users_process_is_no_step():
    step = ["bash", "-c", "exec -a 'slurmstepd: [71234567.batch]' sleep 60"]
    with subprocess.Popen(step) as running:
        while b"slurmstepd" not in Path(f"/proc/{running.pid}/cmdline").read_bytes():
            pass
        assert not has_step("71234567")
        running.kill()


def test_jobs_without_a_clock_start_no_python(hooks):
    hooks.run("prolog", 1, "0,1")
    hooks.run("prolog", 2, "", "freq=900")  # no GPU
    hooks.run("prolog", 3, "2", "myfreq=900,other")
    hooks.run("epilog", 1, "0,1")
    assert hooks.started() == []
    assert (hooks.records(), hooks.node.history()) == ([], [])


def test_jobs_beside_one_with_a_clock_start_no_python(hooks):
    hooks.run("prolog", 1, "0", "freq=900")
    hooks.run("prolog", 2, "1,12")
    hooks.run("epilog", 2, "1,12")
    hooks.run("epilog", 2, "")
    assert len(hooks.started()) == 1
    hooks.run("prolog", 3, "0")  # the epilog of job 1 was lost
    assert len(hooks.started()) == 2
    assert hooks.locked() == {}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_script_that_has_nothing_to_do_runs_no_command(hooks, kind, tmp_path):
    hooks.run("prolog", 1, "0", "freq=900")
    text = HOOKS[kind].read_text()
    assert text.count("\nPATH=") == 1
    blind = tmp_path / "blind"
    blind.write_text(text.replace("\nPATH=", "\nPATH=/nonexistent #"))
    env = {"GPU_AWARE_CLOCK_CONFIG": str(hooks.conf), "SLURM_JOB_ID": "2", "SLURM_JOB_GPUS": "1"}
    done = subprocess.run(["/bin/sh", blind], env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_epilog_touches_only_what_was_locked_for_its_job(hooks):
    hooks.run("prolog", 1, "0", "freq=900")
    hooks.run("prolog", 2, "1", "freq=600")
    hooks.node.python(
        "import pynvml as n; n.nvmlInit()\n"
        "n.nvmlDeviceSetGpuLockedClocks(n.nvmlDeviceGetHandleByIndex(0), 700, 700); print(1)"
    )  # the site itself locked GPU 2
    hooks.run("epilog", 3, "2")
    assert hooks.locked() == {0: 900, 1: 600, 2: 700}
    hooks.run("epilog", 2, "1")
    assert hooks.locked() == {0: 900, 2: 700}


def test_application_clocks_that_the_site_set_stay(hooks):
    hooks.node.python(
        "import pynvml as n; n.nvmlInit()\n"
        "n.nvmlDeviceSetApplicationsClocks(n.nvmlDeviceGetHandleByIndex(0), 877, 1200); print(1)"
    )
    hooks.run("prolog", 1, "2", "freq=900")
    hooks.run("epilog", 1, "2")
    assert hooks.node.set_to(2, "applications_clocks") == ["877", "1200"]


def test_python_starts_without_site_packages_where_pip_installed_the_package(hooks):
    hooks.script("python3", "")
    site = hooks.node.folder / "lib" / "python3.99" / "site-packages"
    site.mkdir(parents=True)
    (site / "slurm_gpu_aware").symlink_to(ROOT / "slurm_gpu_aware")
    hooks.run("prolog", 1, "0,3", "freq=900@0+3", PYTHONPATH="")
    assert hooks.locked() == {0: 900, 3: 900}
    hooks.run("epilog", 1, "0,3", PYTHONPATH="")
    assert hooks.locked() == {}
    assert hooks.started() == ["python3", "python3"]
    (hooks.node.folder / "lib" / "python3.98").symlink_to("python3.99")  # which is it?
    hooks.run("prolog", 1, "0,3", "freq=900@0+3")
    assert hooks.started()[2:] == ["gpu-aware-clock"]


def test_a_lost_epilog_is_made_up_for_by_the_next_job(hooks):
    hooks.run("prolog", 1, "0,1", "freq=900")
    hooks.run("prolog", 2, "1")  # asks for no clock and must not run at job 1's
    assert hooks.locked() == {0: 900}
    hooks.run("prolog", 3, "0", "freq=1200")
    assert hooks.locked() == {0: 1200}
    hooks.run("epilog", 1, "0,1")  # a late epilog of job 1 leaves job 3's clock alone
    assert hooks.locked() == {0: 1200}
    hooks.run("epilog", 3, "0")
    assert hooks.locked() == {}


def test_a_requeued_job_whose_clock_was_taken_away_runs_at_the_default(hooks):
    hooks.run("prolog", 1, "0", "freq=900")
    hooks.run("prolog", 1, "0", "", SLURM_JOB_RESTART_COUNT="1")
    assert hooks.locked() == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [("NO_PERMISSION", "Insufficient Permissions"), ("GPU_IS_LOST", "GPU is lost")],
)
def test_a_clock_that_cannot_be_set_is_recorded_and_the_others_are_set(hooks, error, words):
    machines.add_fault(hooks.node.state, "nvmlDeviceSetGpuLockedClocks", minor=2, error=error)
    hooks.run("prolog", 5, "1-3", "freq=900")
    assert hooks.locked() == {1: 900, 3: 900}
    assert hooks.events() == [("clock_set", "5", [1, 3]), ("clock_failed", "5", [2])]
    failed = hooks.records()[1]
    assert (failed["call"], failed["error"]) == ("nvmlDeviceSetGpuLockedClocks", words)
    hooks.run("epilog", 5, "1-3")
    assert hooks.locked() == {}
    assert hooks.records()[2]["gpus"] == [1, 3]  # GPU 2 was never locked


def test_a_gpu_that_fell_off_the_bus(hooks):
    machines.lose(hooks.node.state, 3)
    hooks.run("prolog", 5, "0,3", "freq=900")
    assert hooks.locked() == {0: 900}
    assert hooks.events() == [("clock_set", "5", [0]), ("clock_failed", "5", [3])]
    assert hooks.records()[1]["error"] == "GPU is lost"


def test_a_gpu_lost_while_locked_is_tried_again_later(hooks):
    hooks.run("prolog", 5, "0,3", "freq=900")
    machines.lose(hooks.node.state, 3)
    hooks.run("epilog", 5, "0,3")
    assert hooks.events()[1:] == [("clock_reset", "5", [0]), ("clock_failed", "5", [3])]
    machines.heal(hooks.node.state)
    hooks.run("prolog", 6, "3")
    assert hooks.locked() == {}


def test_a_clock_that_an_epilog_could_not_reset_does_not_survive_into_a_job(hooks):
    """Job 101 has GPUs 1 and 3; on an indexed node Slurm names the last only."""
    hooks.run("prolog", 100, "1", "freq=900")
    machines.add_fault(hooks.node.state, "nvmlDeviceResetGpuLockedClocks", error="UNKNOWN")
    hooks.run("epilog", 100, "1")
    machines.heal(hooks.node.state)
    hooks.run("prolog", 101, "3")
    assert hooks.locked() == {}
    events = ["clock_set", "clock_failed", "clock_reset"]
    assert hooks.events() == [(event, "100", [1]) for event in events]
    assert hooks.notes() == []


def test_a_sick_gpu_is_not_tried_by_every_hook(hooks):
    hooks.run("prolog", 100, "1", "freq=900")
    machines.add_fault(hooks.node.state, "nvmlDeviceResetGpuLockedClocks", minor=1, error="UNKNOWN")
    hooks.run("epilog", 100, "1")
    hooks.run("prolog", 101, "3", "freq=600")
    hooks.run("epilog", 101, "3")
    failed = [gpus for event, _, gpus in hooks.events() if event == "clock_failed"]
    assert failed == [[1], [1]]  # its own epilog, and the first hook after it
    assert hooks.locked() == {1: 900}
    notes = Notes(str(hooks.locks))
    note = notes.all()[1]
    notes.write(1, Note("100", "locked", ended=True, tried_at=note.tried_at - 61))
    machines.heal(hooks.node.state)
    hooks.run("epilog", 102, "2")  # a job that has nothing to do with it
    assert hooks.locked() == {}


def test_what_is_left_waits_while_another_hook_is_at_work(tmp_path):
    locks, other = Notes(str(tmp_path)), Notes(str(tmp_path))
    with locks.together(0.0) as one, other.together(0.0) as two:
        assert (one, two) == (True, True)
        with Notes(str(tmp_path)).alone(0.0) as alone:
            assert alone is False
    with locks.alone(0.0) as alone, other.together(0.0) as together:
        assert (alone, together) == (True, False)
    (tmp_path / "file").write_text("")
    with Notes(str(tmp_path / "file")).alone(0.0) as alone:
        assert alone is True


def test_a_lock_that_cannot_be_noted_is_not_made_and_the_record_says_so(hooks):
    hooks.locks.write_text("a file where the folder should be")
    hooks.run("prolog", 5, "0,3", "freq=900")
    assert hooks.locked() == {}
    (failed,) = hooks.records()
    assert (failed["event"], failed["gpus"], failed["call"]) == ("clock_failed", [0, 3], "note")
    assert str(hooks.locks) in failed["error"]


def test_gpus_before_volta_get_application_clocks(hooks):
    for call in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"):
        machines.add_fault(hooks.node.state, call, error="NOT_SUPPORTED")
    hooks.run("prolog", 5, "2", "freq=900")
    assert hooks.node.set_to(2, "applications_clocks") == ["877", "900"]
    assert hooks.records()[0]["method"] == "application"
    hooks.run("epilog", 5, "2")
    assert hooks.node.set_to(2, "applications_clocks") is None


def test_a_hanging_driver_is_cut_off_and_undone_by_the_epilog(hooks):
    machines.add_fault(hooks.node.state, "nvmlDeviceSetGpuLockedClocks", minor=1, hang_s=3600)
    code = """
import json, os, sys
from slurm_gpu_aware.clocks import hooks
from slurm_gpu_aware.clocks.notes import Notes
env = {"SLURM_JOB_ID": "9", "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_EXTRA": "freq=900",
       "SLURMD_NODENAME": "n1"}
hooks.DRIVER_LIMIT_S = 5.0
hook = hooks.Hook(env, Notes(sys.argv[1]), 1.0)
hook.prolog()
print(json.dumps(hook.records))
""".replace("sys.argv[1]", repr(str(hooks.locks)))
    records = hooks.node.python(code)
    assert [(r["event"], r["gpus"]) for r in records] == [("clock_set", [0]), ("clock_failed", [1])]
    assert records[1]["error"] == "no answer within 5 s"
    machines.heal(hooks.node.state)
    hooks.run("epilog", 9, "0,1")
    assert hooks.locked() == {}
    assert hooks.events() == [("clock_reset", "9", [0, 1])]  # 1 too: it may have been locked late


def test_without_a_driver_the_job_runs_and_the_record_says_why(hooks):
    hooks.node.machine.unlink()
    hooks.run("prolog", 5, "0", "freq=900")
    (failed,) = hooks.said("clock_failed")
    assert (failed["call"], failed["error"]) == ("nvmlInit", "Driver Not Loaded")
    assert hooks.notes() == []


def test_the_start_of_a_node_resets_what_a_crash_left(hooks):
    hooks.run("prolog", 1, "0,1", "freq=900")
    assert hooks.command("reset-all").returncode == 0
    assert hooks.locked() == {}
    assert hooks.events()[-1] == ("clock_reset", "0", [0, 1])
    hooks.run("prolog", 1, "2", "freq=900")
    for note in hooks.locks.iterdir():
        note.unlink()  # a container that came back without its notes
    assert hooks.command("reset-all").returncode == 0
    assert hooks.locked() == {2: 900}
    assert hooks.command("reset-all", "--every").returncode == 0
    assert hooks.locked() == {}


@pytest.mark.parametrize("trouble", ["spool", "config", "program"])
def test_no_trouble_of_ours_fails_a_job(hooks, trouble):
    if trouble == "spool":
        hooks.spool.write_text("a file where the folder should be")
    elif trouble == "config":
        hooks.conf.write_text(hooks.conf.read_text() + "spool = relative\nnonsense\n")
    else:
        hooks.conf.write_text("command = /nonexistent/gpu-aware-clock\n")
    hooks.run("prolog", 1, "0", "freq=900")
    assert hooks.locked() == ({} if trouble == "program" else {0: 900})
    hooks.run("epilog", 1, "0")


def test_a_spool_file_that_is_not_ours_is_left_alone(hooks):
    hooks.spool.mkdir()
    victim = hooks.node.folder / "victim"
    victim.write_text("untouched")
    (hooks.spool / "n1.jsonl").symlink_to(victim)
    hooks.run("prolog", 1, "0", "freq=900")
    assert victim.read_text() == "untouched"
    assert hooks.locked() == {0: 900}


def test_wrong_usage_says_so(hooks):
    done = hooks.command("prologue")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: gpu-aware-clock prolog | epilog")
    assert hooks.command("--help").returncode == 0


def test_hooks_import_no_more_than_they_need(hooks):
    """Milliseconds of each job: the last five take as long to import as Python to start."""
    code = (
        "import sys; from slurm_gpu_aware.clocks import program; program.main(['prolog']);"
        "print([m for m in ('pynvml', 'ctypes', 'typing', 'json', 're', 'dataclasses', 'pathlib')"
        " if m in sys.modules])"
    )
    env = {
        **hooks.node.env,
        "PYTHONPATH": str(ROOT),
        "GPU_AWARE_CLOCK_CONFIG": str(hooks.conf),
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_GPUS": "0",
        "SLURM_JOB_EXTRA": "freq=900@0+1",
        "SLURM_CONF": gres_conf(hooks.node.folder, "NodeName=n[1-2] Name=gpu Type=g0"),
    }
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[]"
    assert hooks.locked() == {0: 900, 1: 900}


def test_hook_scripts_are_valid_for_a_posix_shell():
    for script in HOOKS.values():
        assert os.access(script, os.X_OK)
        subprocess.run(["sh", "-n", script], check=True, timeout=300)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", None),
        ("a,b=c", None),
        ("xfreq=9", None),
        ("freq=900", ((900, 0), None)),
        ("a=1, freq=1410,b", ((1410, 0), None)),
        ("freq=900@3+0", ((900, 0), [0, 3])),
        ("x,freq=900@12", ((900, 0), [12])),
        ("freq=0@1", ((0, 0), [1])),
        ("freq=900:250@3+0", ((900, 250), [0, 3])),
        ("freq=0:250", ((0, 250), None)),
    ],
)
def test_extra(text, asked):
    assert parse_extra(text) == asked


@pytest.mark.parametrize(
    "text",
    [
        *["freq=", "freq=9", "freq=-900", "freq=9e2", "freq=900MHz", "freq=\u0669\u0669\u0669"],
        *["freq=900@", "freq=900@1+", "freq=900@+1", "freq=900@1-3", "freq=900@1@2"],
        *["freq=900:", "freq=900:0", "freq=900:-9", "freq=900:25000", "freq=:250", "freq=0:5@1"],
        *["freq=900:250W", "freq=900:2.5e2", "freq=900:250:300", "freq=0", "freq=00:250"],
    ],
)
def test_extra_is_strict(text):
    with pytest.raises(ValueError, match="freq="):
        parse_extra(text)


@given(st.text(max_size=60))
def test_parsers_return_or_say_why(text):
    with contextlib.suppress(ValueError):
        asked = parse_extra(text)
        assert asked is None or all(n == 0 or 10 <= n <= 99_999 for n in asked[0])
    with contextlib.suppress(ValueError):
        indices = parse_gpus(text)
        assert indices == sorted(set(indices))


@given(st.sets(st.integers(0, 15), max_size=8))
def test_gpu_lists_round_trip(indices):
    assert parse_gpus(",".join(map(str, indices))) == sorted(indices)


def test_gpu_ranges():
    assert parse_gpus("0-2,5") == [0, 1, 2, 5]
    for wrong in ("2-0", "a", "0,b", "-1", "0--2"):
        with pytest.raises(ValueError, match="GPU indices"):
            parse_gpus(wrong)


@given(st.integers(10, 99_999), st.lists(st.integers(100, 2000), min_size=1))
def test_no_supported_clock_is_nearer(asked, supported):
    chosen = nearest_clock(asked, supported)
    assert chosen in supported
    assert all(abs(c - asked) >= abs(chosen - asked) for c in supported)


def test_of_two_equally_near_clocks_the_lower():
    assert nearest_clock(905, [910, 900]) == 900
    assert nearest_clock(905, []) == 905


def test_config_defaults_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_AWARE_CLOCK_SPOOL", "/elsewhere")
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "absent"))
    conf = read_clock_conf()
    assert (conf.spool, conf.locks) == ("/elsewhere", "/var/lib/slurm-gpu-aware/clock-locks")
    assert (conf.accounts, conf.orders, conf.complaint) == ("", "", None)


def test_a_note_that_cannot_be_read_belongs_to_no_job_and_may_go(tmp_path):
    notes = Notes(str(tmp_path))
    notes.write(3, Note("17", "locked"))
    notes.write(7, Note("19", "locked", ended=True, tried_at=5.25))
    (tmp_path / "gpu4").write_text("18 running hammer -\n")
    (tmp_path / "gpu5").write_text("")  # a crash of the node
    (tmp_path / "gpu6").symlink_to(tmp_path / "gpu3")
    os.mkfifo(tmp_path / "gpu8")
    (tmp_path / "other").write_text("")
    nobody = Note(NO_JOB, ended=True)
    assert {index: vars(note) for index, note in notes.all().items()} == {
        3: vars(Note("17", "locked")),
        4: vars(Note("18")),
        5: vars(nobody),
        6: vars(nobody),
        7: vars(Note("19", "locked", True, 5.25)),
        8: vars(nobody),
    }


def test_a_note_that_cannot_be_read_is_reset_by_the_next_hook(hooks):
    hooks.run("prolog", 1, "0", "freq=900")
    (hooks.locks / "gpu0").write_text("")
    hooks.run("epilog", 2, "3")
    assert hooks.locked() == {}
    assert hooks.notes() == []


@given(st.text(max_size=40), st.lists(st.integers(0, 99)), st.floats(0, 1e10))
def test_records_are_json(text, numbers, at):
    record = {"error": text, "gpus": numbers, "at": at, "call": None}
    expected = "".join(c if c <= "\uffff" else "?" for c in text)
    assert json.loads(to_json(record)) == {**record, "error": expected}


@needs_root
@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("", (0o644, 0)),
        ("slurm_user = nobody", (0o640, pwd.getpwnam("nobody").pw_gid)),
        (f"slurm_user = {pwd.getpwnam('nobody').pw_uid}", (0o640, pwd.getpwnam("nobody").pw_gid)),
        ("slurm_user = no-such-user", (0o644, 0)),
    ],
)
def test_only_slurm_reads_the_spool(hooks, line, kept):
    """A site may hide jobs from users (PrivateData), at any time."""
    hooks.run("prolog", 7, "0", "freq=900")
    hooks.conf.write_text(hooks.conf.read_text() + f"{line}\n")
    hooks.run("epilog", 7, "0", "freq=900")  # an older file, too
    status = (hooks.spool / "n1.jsonl").stat()
    assert (status.st_mode & 0o777, status.st_gid) == kept
    assert [event for event, *_ in hooks.events()] == ["clock_set", "clock_reset"]
