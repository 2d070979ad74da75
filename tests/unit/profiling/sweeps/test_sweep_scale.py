"""Sweeps that are incremental and polite, and what they do when something fails."""

import json
import os
import select
import sqlite3
import stat
import subprocess
import sys
import time

import pytest
from commands import gpu_aware_profile
from fake_cluster import states
from idle_clock import Stopwatch

from gpu_aware_profile import store_writer
from gpu_aware_profile.sweeps import sweep_output
from gpu_aware_profile.sweeps.sweep import Sweep
from gpu_aware_profile.sweeps.sweep_plan import SweepProgress, Target
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ingest import ingest_report
from slurm_gpu_aware.store.profiles import load_profile, newest_runs
from slurm_gpu_aware.variability.drift import Change

DAY_S = 86_400.0
QUICK = ("--class", "A", "--runs", "1")


def node_reasons(done):
    return {n["node"]: n["reason"] for n in json.loads(done.stdout)["nodes"]}


def aged(cluster, **days):
    """Make the last probe of nodes this old."""
    with open_store(cluster.store) as store:
        for node, age in days.items():
            at = time.time() - age * DAY_S
            store.execute("UPDATE nodes SET probed_at_unix = ? WHERE node = ?", (at, node))


# -- which nodes ----------------------------------------------------------------------------------


def test_only_nodes_with_an_old_probe_longest_ago_first(fleet):
    fleet.sweep(*QUICK)
    aged(fleet, n1=1, n2=8, n3=20)
    done = fleet.sweep("--older-than", "7", "--jobs", "1", *QUICK)
    assert fleet.probed()[3:] == ["n3", "n2"]
    assert ": 2 nodes to probe, 1 probed recently" in done.stderr
    again = fleet.sweep("--older-than", "7")
    assert json.loads(again.stdout)["nodes"] == []
    assert list((fleet.folder / "sweeps").iterdir()) == []


def test_an_incremental_sweep_begins_with_nodes_that_were_never_probed(fleet):
    fleet.sweep("--node", "n1", *QUICK)
    aged(fleet, n1=30)
    fleet.sweep("--older-than", "7", "--jobs", "1", *QUICK)
    assert fleet.probed() == ["n1", "n2", "n3", "n1"]


def test_only_idle_nodes(fleet):
    fleet.sinfo(n1="idle", n2="mixed", n3="idle~")
    done = fleet.sweep("--idle-only", *QUICK)
    assert states(done) == {"n1": "done", "n2": "skipped", "n3": "skipped"}
    assert node_reasons(done)["n2"] == node_reasons(done)["n3"] == "node is not idle"
    assert json.loads(done.stdout)["complete"] is True
    assert fleet.probed() == ["n1"]
    assert "--immediate=30" in (fleet.folder / "srun.log").read_text()


def test_a_resumed_sweep_of_idle_nodes_takes_those_that_are_idle_by_then(fleet):
    fleet.let("n2", "busy")
    first = fleet.sweep("--idle-only", *QUICK, code=3)
    fleet.let("n2", "ok")
    fleet.sinfo(n1="idle", n2="mixed")
    sweep_id = json.loads(first.stdout)["sweep"]
    second = fleet.sweep("--resume", sweep_id, code=3)
    assert node_reasons(second) == {"n2": "node is not idle"}
    fleet.sinfo(n2="idle")
    assert states(fleet.sweep("--resume", sweep_id)) == {"n2": "done"}


def test_no_probe_begins_after_the_budget_and_the_rest_can_be_resumed(fleet):
    done = fleet.sweep("--budget", "0.000001", code=3)
    assert set(node_reasons(done).values()) == {"not begun within the budget of 1e-06 s"}
    assert set(states(done)) == {"n1", "n2", "n3"}
    assert fleet.probed() == []
    sweep_id = json.loads(done.stdout)["sweep"]
    rest = fleet.sweep("--resume", sweep_id, "--budget", "500", "--wait", "900", *QUICK)
    assert set(states(rest).values()) == {"done"}
    # No probe waits for its node beyond the budget.
    words = (fleet.folder / "srun.log").read_text().split()
    assert all(int(w.partition("=")[2]) <= 500 for w in words if w.startswith("--immediate"))


def test_background_probes_have_low_priority_and_the_qos_of_the_site(fleet):
    config = fleet.folder / "config.toml"
    config.write_text(f'{config.read_text()}\n[profiling]\nqos = "scavenger"\n')
    own = ["--node", "n1", *QUICK]
    fleet.sweep(*own, "--background", "--srun-option=--qos=mine")
    fleet.sweep(*own)
    first, second = (fleet.folder / "srun.log").read_text().splitlines()
    words = first.split()
    assert "--nice=1000000" in words
    assert [w for w in words if w.startswith("--qos")] == ["--qos=scavenger", "--qos=mine"]
    assert "--nice" not in second
    assert "--qos" not in second


def test_old_unfinished_sweeps_are_given_up(tmp_path):
    root = tmp_path / "sweeps"
    for number in range(30):
        SweepProgress(root, f"s{number:02}").begin(["n1"], {"idle_only": True})
    kept = SweepProgress(root, "s29").unfinished()
    assert len(kept) == 20
    assert SweepProgress(root, "s29").scope() == (("n1",), {"idle_only": True})


# -- what fails -----------------------------------------------------------------------------------


def test_a_full_disk_fails_the_node_and_keeps_what_was_measured(fleet, monkeypatch):
    fleet.serve(monkeypatch)
    with open_store(fleet.store) as store:

        def ingest(report):
            if report.node == "n2":  # from now on no page can be added
                pages = store.query("PRAGMA page_count")[0][0]
                store.query(f"PRAGMA max_page_count = {pages}")
            ingest_report(store, report)

        argv = ["--class=A", "--runs=30"]
        running = Sweep("s1", ingest, str(fleet.bin / "profile"), argv, concurrency=1)
        outcomes = list(running.run([Target(f"n{k}", "gpu", 4) for k in (1, 2)]))
        assert [(o.node, o.state) for o in outcomes] == [("n1", "done"), ("n2", "failed")]
        assert "the file system is full" in outcomes[1].reason
        assert {run.node for run in newest_runs(store)} == {"n1"}
        assert {node for node, _ in load_profile(store).gpus} == {"n1"}
    with sqlite3.connect(fleet.store) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_scores_that_cannot_be_stored_are_said(fleet, monkeypatch):
    def full(*args, **options):
        raise StoreError("the file system is full")

    fleet.serve(monkeypatch)
    monkeypatch.setattr(store_writer, "recompute_scores", full)
    command = str(fleet.bin / "profile")
    done = gpu_aware_profile("sweep", "--command", command, *QUICK)
    assert done.exit_code == 3
    assert "the scores are those of before: the file system is full" in done.stderr
    assert "n2    done" in done.stdout


# -- slow GPUs ------------------------------------------------------------------------------------


@pytest.fixture
def alarm(fleet):
    """A command that appends what it hears to a file."""
    file = fleet.folder / "alarm"
    log = fleet.folder / "heard"
    file.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "said = {k: v for k, v in os.environ.items() if k.startswith('GPU_AWARE_SLOW')}\n"
        f"open({str(log)!r}, 'a').write(json.dumps([json.load(sys.stdin), said]) + '\\n')\n"
        "sys.exit(int(os.environ.get('ALARM_FAILS', 0)))\n"
    )
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return lambda: [json.loads(x) for x in log.read_text().splitlines()] if log.exists() else []


def found_slower(cluster, *options):
    """A sweep of class A with the alarm; what it found slower."""
    alarm = f"'{cluster.folder / 'alarm'}'"
    done = cluster.sweep("--class", "A", "--jobs", "3", "--on-slow", alarm, *options)
    return done, [(g["node"], g["gpu"]) for g in json.loads(done.stdout)["slower"]]


def test_a_gpu_that_became_slower_is_reported_once(fleet, alarm):
    assert found_slower(fleet)[1] == []
    slower = {"2": {"A": 1.15 * fleet.own_slowness("n2", 2, "A")}}
    fleet.slow("n2", slower)
    done, found = found_slower(fleet)
    assert found == [("n2", 2)]
    assert "became slower: n2:2 ('gpu-aware-profile drift' says how much)" in done.stderr
    ((said, names),) = alarm()
    assert [(g["node"], g["gpu"], g["class"]) for g in said["gpus"]] == [("n2", 2, "A")]
    assert said["gpus"][0]["rise"] == pytest.approx(0.15, abs=0.02)
    assert names["GPU_AWARE_SLOW_GPUS"] == "n2:2"
    assert names["GPU_AWARE_SLOW_NODES"] == "n2"
    assert names["GPU_AWARE_SLOW_REASON"].startswith("slow GPUs: n2:2 (A +1")
    found_slower(fleet)
    assert len(alarm()) == 1  # as slow as it was reported
    fleet.slow("n2")
    found_slower(fleet)
    assert len(alarm()) == 1  # well again
    fleet.slow("n2", slower)
    found_slower(fleet)
    assert len(alarm()) == 2


def test_a_single_slow_run_is_not_reported(fleet, alarm):
    found_slower(fleet)
    fleet.slow("n2", slow_runs=[{"gpu": 2, "run": 1, "factors": {"A": 1.15}}])
    assert found_slower(fleet)[1] == []
    assert alarm() == []


def test_an_alarm_that_fails_is_tried_again_and_stops_nothing(fleet, alarm):
    found_slower(fleet)
    fleet.slow("n2", {"2": {"A": 1.15 * fleet.own_slowness("n2", 2, "A")}})
    fleet.env["ALARM_FAILS"] = "7"
    done, found = found_slower(fleet)
    assert found == [("n2", 2)]
    assert json.loads(done.stdout)["complete"] is True
    assert "--on-slow failed, the next sweep tries again: it ended with 7" in done.stderr
    del fleet.env["ALARM_FAILS"]
    for _ in range(2):
        found_slower(fleet)
    assert len(alarm()) == 2


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/no/such/program x", "/no/such/program: no such command"),
        ("mail 'x", "No closing quotation"),
        ("", "the command is empty"),
    ],
)
def test_an_alarm_that_cannot_be_run_is_refused_at_once(fleet, command, reason):
    done = fleet.sweep("--on-slow", command, code=2)
    assert reason in done.stderr
    assert fleet.probed() == []


def test_an_alarm_that_hangs_is_ended(monkeypatch):
    change = Change("n1", 0, "A", "v100", 1.0, 1.2, 0.2, 0.05, 3, 1.0, 2.0)
    hanging = ["sh", "-c", "sleep 60 & wait"]
    assert sweep_output._run(["true"], [change]) == ""
    monkeypatch.setattr("gpu_aware_profile.child.SITE_S", 0.2)
    assert sweep_output._run(hanging, [change]) == "it did not end within 0.2 s"


def test_a_killed_sweep_keeps_what_was_measured_and_is_resumed(fleet):
    fleet.let("n2", "hang")
    started = fleet.folder / "n2.started"
    os.mkfifo(started)  # readable when the fake srun has opened it
    started_end = os.open(started, os.O_RDONLY | os.O_NONBLOCK)
    argv = fleet.argv("--jobs", "1", *QUICK)
    with subprocess.Popen(argv, env=fleet.env, stderr=subprocess.PIPE, text=True) as process:
        sweep_id = process.stderr.readline().split()[1].rstrip(":")
        try:
            assert select.select([started_end], [], [], 300.0)[0]
            progress, watch = SweepProgress(fleet.store.parent / "sweeps", sweep_id), Stopwatch()
            while "n1" not in progress.done():  # stored beside the start of the next
                assert process.poll() is None
                assert watch.idle_s < 60
                time.sleep(0.02)
        finally:
            process.kill()
            process.wait()
            os.close(started_end)
            (fleet.folder / f"cancelled.gpu-aware-probe.{sweep_id}.n2").touch()  # ends the orphan
    with open_store(fleet.store, readonly=True) as store:
        assert {run.node for run in newest_runs(store)} == {"n1"}
    fleet.let("n2", "ok")
    rest = fleet.sweep("--resume", sweep_id)
    assert states(rest) == {"n2": "done", "n3": "done"}
    assert len(fleet.profile().raw_scores["A"]) == 12


def test_an_alarm_hears_of_any_number_of_gpus(tmp_path):
    slow = [
        Change(f"{'node' * 50}{k}", 0, "A", "v100", 1.0, 1.2, 0.2, 0.05, 3, 1.0, 2.0)
        for k in range(20_000)
    ]
    heard = tmp_path / "heard"
    script = f"cat >{heard}; set -- $GPU_AWARE_SLOW_GPUS; [ $# -eq 500 ]"
    assert sweep_output._run(["sh", "-c", script], slow) == ""
    assert len(json.loads(heard.read_text())["gpus"]) == 20_000
