"""The sweep with executables named srun, sinfo and scancel first on PATH.

The fake srun really runs the probe, on the fake GPUs of the node that was asked for.
"""

import errno
import json
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import permutations

import pytest
from fake_cluster import GRES, SCANCEL, states, told_of
from fake_nvml import machines
from idle_clock import Stopwatch
from needs import needs_root
from store_samples import profile_of, report

from gpu_aware_profile.sweeps.sweep import Ended, Sweep, read_probe
from gpu_aware_profile.sweeps.sweep_plan import (
    Outcome,
    SweepProgress,
    Target,
    new_id,
    parse_sinfo,
)
from gpu_aware_profile.tables import everything
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.model.hardware_graph import ALL_REDUCE
from slurm_gpu_aware.store.database import open_store, publish
from slurm_gpu_aware.store.files import published_path
from slurm_gpu_aware.store.measurements import newest_bandwidths, newest_collectives

ALL_DONE = dict.fromkeys(("n1", "n2", "n3"), "done")


def test_a_sweep_fills_the_store_and_another_one_agrees(fleet):
    done = fleet.sweep("--jobs", "2")
    assert states(done) == ALL_DONE
    assert sorted(fleet.probed()) == ["n1", "n2", "n3"]
    profile = fleet.profile()
    assert len(profile.gpus) == 12
    assert {name: len(of) for name, of in profile.scores.items()} == dict.fromkeys("ABC", 12)
    scores, own = profile.raw_scores["A"], [fleet.own_slowness("n2", k, "A") for k in (0, 1)]
    assert scores["n2", 1] / scores["n2", 0] == pytest.approx(own[1] / own[0], rel=0.01)
    assert {k.link_class for k in profile.links["n3"]} == {"NV3", "SYS"}
    assert not (fleet.folder / "sweeps" / json.loads(done.stdout)["sweep"]).exists()
    fleet.sweep()
    assert fleet.profile().raw_scores == profile.raw_scores


def test_a_sweep_measures_links_where_it_is_asked_to(fleet):
    fleet.sweep("--links", "--links-time", "30", "--node", "n1")
    fleet.sweep("--node", "n2")
    with open_store(fleet.store) as store:
        pairs = newest_bandwidths(store)
        rings = newest_collectives(store, ALL_REDUCE)
    assert {(pair.node, pair.a, pair.b) for pair in pairs} == {
        ("n1", a, b) for a in range(4) for b in range(a + 1, 4)
    }
    by_set = {ring.gpus: ring.gbps for ring in rings}
    assert set(by_set) == {(0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3)}
    # Three NVLinks of 25 GB/s against PCIe 3 through both sockets.
    assert by_set[0, 1] / by_set[0, 2] == pytest.approx(75 / 15.76, rel=0.03)
    assert {ring.node for ring in rings} == {"n1"}


def test_a_slow_gpu_is_stored_as_measured_and_one_too_fast_to_be_true_gets_no_score(fleet):
    fleet.slow("n2", {"1": {"A": 3.0}, "2": {"A": 0.2}})
    done = fleet.sweep("--class", "A")
    assert states(done) == ALL_DONE
    (slow,) = [one for one in json.loads(done.stdout)["outliers"] if one["ratio"] > 1]
    assert (slow["node"], slow["gpu"], slow["class"]) == ("n2", 1, "A")
    assert 2.5 < slow["ratio"] < 3.5
    assert "stored as measured: class A: n2:1 takes " in done.stderr
    assert "no score, too fast to be true: class A: n2:2 takes 0.2" in done.stderr
    scores = fleet.profile().raw_scores["A"]
    assert scores["n2", 1] == pytest.approx(slow["ratio"], rel=0.05)  # that is over other nodes
    assert len(scores) == 11
    assert ("n2", 2) not in scores


def test_a_node_whose_time_is_over_is_stored_and_not_done(fleet):
    program = ["--bench", "sh -c 'sleep 0.3; echo 1'", "--bench-class", "A"]
    done = fleet.sweep("--node", "n1", "--time-limit", "1", "--runs", "9", *program, code=3)
    assert states(done) == {"n1": "timeout"}
    assert "its time was over before all was measured" in done.stdout
    assert fleet.profile().gpus


def test_srun_is_asked_for_a_whole_node_that_our_filter_leaves_alone(fleet):
    fleet.sweep("--node", "n2", "--srun-option=--account=ops", "--runs", "3", "--class", "A")
    words = (fleet.folder / "srun.log").read_text().split()
    for word in (
        *["--exclusive", "--gres=gpu:4", "-N1", "--comment=place=off", "--immediate=300"],
        *["--time=120", "--account=ops", "--runs=3", "--time-limit=5760", "--class=A", "--json"],
    ):
        assert word in words
    assert words[words.index("-p") + 1] == "gpu"


def test_a_sweep_measures_with_a_program_of_the_site(fleet):
    program = ["--bench", "sh -c 'echo step: $((6 * 7)) s'", "--bench-unit", "s"]
    program += ["--bench-class", "B", "--bench-pattern", r"step: (\d+)"]
    done = fleet.sweep("--node", "n2", "--runs", "2", *program)
    assert states(done) == {"n2": "done"}
    with open_store(fleet.store, readonly=True) as store:
        rows = store.query("SELECT DISTINCT class, source, value_ms, neighbours FROM timings")
        assert sorted(map(tuple, rows)) == [
            ("B", "command", 42000.0, "idle"),
            ("B", "command", 42000.0, "loaded"),
        ]
        assert store.query("SELECT count(*) AS n FROM timings")[0]["n"] == 4 * 2 * 2


def with_settable_clocks(fleet, locks=None):
    """The facts of n2, whose clocks an ordinary process may set from now on."""
    machine = json.loads((fleet.folder / "n2.json").read_text())
    (fleet.folder / "n2.json").write_text(json.dumps(machine | {"unprivileged_clocks": True}))
    conf = fleet.folder / "clock.conf"
    conf.write_text(f"spool = {fleet.folder}/spool\nlocks = {locks or fleet.folder / 'locks'}\n")
    fleet.env["GPU_AWARE_CLOCK_CONFIG"] = str(conf)
    return machine


def test_a_sweep_stores_times_and_power_at_several_clocks(fleet):
    machine = with_settable_clocks(fleet)
    wanted = ["--node", "n2", "--class", "A", "--runs", "1", "--clocks", "3"]
    assert "needs --allow-clock-changes" in fleet.sweep(*wanted, code=2).stderr
    done = fleet.sweep(*wanted, "--allow-clock-changes")
    assert states(done) == {"n2": "done"}
    with open_store(fleet.store, readonly=True) as store:
        profile = everything(store)
    assert profile["nodes"][0]["driver"] == machine["driver"]
    runs = [r for r in profile["runs"] if (r["gpu"], r["neighbours"]) == (0, "idle")]
    clocks, times, powers = (
        [run[name] for run in runs] for name in ("clock_mhz", "value_ms", "power_w")
    )
    supported = machine["clocks"]["graphics_mhz"]
    assert clocks[0] == 0
    assert (clocks[1], clocks[3]) == (min(supported), max(supported))
    assert times[1] > times[2] > times[3]
    assert powers[1] < powers[2] < powers[3]
    probe = [str(fleet.bin / "profile"), "node", *wanted[2:], "--allow-clock-changes"]
    environment = fleet.env | {"FAKE_NVML_MACHINE": str(fleet.folder / "n2.json")}
    shown = subprocess.run(probe, env=environment, capture_output=True, text=True, timeout=300)
    lines = [line.split()[:3] for line in shown.stdout.splitlines()]
    assert all(["0", "A", str(mhz)] in lines for mhz in clocks[1:])


def test_a_gpu_under_a_power_profile_is_named_and_its_clocks_are_not_measured(fleet):
    """It has a score: that is how it runs. GPU 2 has no profiles, as all but the newest cards."""
    with_settable_clocks(fleet)
    for minor, requested in ((0, 0), (1, 0b10), (3, 1 << 30)):
        facts = {"power_profiles": 0b111 | 1 << 30, "requested_profiles": requested}
        machines.set_facts(fleet.folder / "n2.state", minor, facts)
    wanted = ["--node", "n2", "--class", "A", "--runs", "1", "--clocks", "2"]
    done = fleet.sweep(*wanted, "--allow-clock-changes")
    assert states(done) == {"n2": "done"}
    with open_store(fleet.store, readonly=True) as store:
        profile = everything(store)
    gpus = fleet.profile().gpus
    requested = [gpus["n2", slot].requested_profiles for slot in range(4)]
    assert requested == ["", "max_q", None, "profile_30"]
    assert gpus["n2", 0].power_profiles == "max_p max_q compute profile_30"
    assert gpus["n2", 2].power_profiles is None
    assert {run["gpu"] for run in profile["runs"] if run["clock_mhz"]} == {0, 2}
    assert {run["gpu"] for run in profile["runs"]} == {0, 1, 2, 3}
    said = " ".join(done.stderr.split())
    assert "power profile: max_q is requested: no clock" in said
    for names, words in (("n2:1", "max_q"), ("n2:3", "profile_30")):
        assert f"n2: power profile {words} is requested on {names}: their times" in said


def test_clocks_that_cannot_be_locked_are_told_once_with_their_cause(fleet):
    """As a user who may not: the nodes lock clocks for root."""
    with_settable_clocks(fleet, "/proc/locks")
    wanted = ["--node", "n2", "--class", "A", "--runs", "1", "--clocks", "3"]
    done = fleet.sweep(*wanted, "--allow-clock-changes", code=3)
    assert states(done) == {"n2": "done"}
    assert done.stderr.count("n2: note: /proc/locks: ") == 1


@pytest.mark.parametrize(
    ("does", "state", "reason"),
    [
        ("busy", "failed", "error: Unable to allocate resources: Requested nodes are busy"),
        ("flood", "failed", "the probe printed more than 8 MiB"),
        ("preempted", "preempted", "Slurm gave the node to another job"),
        ("partial", "preempted", "Slurm gave the node to another job before all was measured"),
    ],
)
def test_a_node_that_fails_is_left_out_and_the_sweep_can_go_on(fleet, does, state, reason):
    fleet.let("n2", does)
    first = fleet.sweep("--class", "A", "--runs", "1", code=3)
    assert states(first) == ALL_DONE | {"n2": state}
    assert told_of(first, "n2")["reason"] == reason
    measured = {slot for node, slot in fleet.profile().raw_scores["A"] if node == "n2"}
    assert measured == ({0, 1} if does == "partial" else set())
    sweep_id = json.loads(first.stdout)["sweep"]
    assert f"--resume {sweep_id}" in first.stderr
    fleet.let("n2", "ok")
    second = fleet.sweep("--resume", sweep_id)
    assert states(second) == {"n2": "done"}
    assert sorted(fleet.probed()) == ["n1", "n2", "n2", "n3"]
    assert "2 done before" in second.stderr
    assert len(fleet.profile().raw_scores["A"]) == 12


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("{not json", "the report: not JSON"),
        ("a line of the site's task epilog", "the probe printed no report"),
        (json.dumps(report("n1")), "the report is of node 'n1'"),
        (json.dumps(report("n2", 8200.0)), "the clock of the node is 2 h ahead of that of here"),
        (json.dumps(report("n2", times=dict.fromkeys(range(5), 1.0))), "has 5 GPUs, Slurm has 4"),
    ],
)
def test_what_is_no_report_of_a_node_fails_it(printed, reason):
    with pytest.raises(SourceError, match=reason):
        read_probe(
            Ended(0, f"a line of the prolog\n{printed}\n", ""), Target("n2", "gpu", 4), 1000.0
        )


def test_real_gpus_have_no_timing_backend_which_is_no_fault(fleet):
    code = "import gpu_aware_profile.backends.timing as t; t.timing_backend = lambda name: None"
    probe = f"{code}; from gpu_aware_profile.cli import main; main()"
    fleet._program("profile", f'#!/bin/sh\nexec {sys.executable} -c "{probe}" "$@"\n')
    done = fleet.sweep("--node", "n1")
    (n1,) = json.loads(done.stdout)["nodes"]
    assert (n1["state"], n1["gpus"], n1["timings"], n1["faults"]) == ("done", 4, 0, 0)
    assert "no times were measured: they need the extra 'gpu' on the nodes" in done.stderr


def test_what_a_node_lacks_is_told_and_what_the_others_have_is_stored(fleet):
    """A GPU of n1 is lost, n2 has more than Slurm knows of, and n3 has no driver."""
    machines.lose(fleet.folder / "n1.json", 2)
    fleet.sinfo("n2|gpu*|idle|gpu:2|infinite", n1="idle", n3="idle")
    machines.add_fault(fleet.folder / "n3.json", "nvmlInit", error="DRIVER_NOT_LOADED")
    done = fleet.sweep(code=3)
    n1, n2, n3 = (told_of(done, node) for node in ("n1", "n2", "n3"))
    timings = 3 * 3 * 3 * 2  # GPUs, classes, runs, idle and loaded
    assert (n1["state"], n1["gpus"], n1["timings"], n1["faults"]) == ("done", 3, timings, 1)
    assert (n2["state"], n2["reason"]) == ("failed", "the report has 4 GPUs, Slurm has 2 there")
    assert (n3["state"], n3["reason"]) == ("failed", "nvmlInit: Driver Not Loaded")
    assert {node for node, _ in fleet.profile().gpus} == {"n1"}


def test_a_node_that_hangs_is_cancelled_and_the_wait_for_it_is_said_once(fleet, monkeypatch):
    fleet.serve(monkeypatch)
    monkeypatch.setattr("gpu_aware_profile.sweeps.sweep._BUSY_S", 0.2)
    names = [f"gpu-aware-probe.{name}" for name in ("s1.n2", "s0.n3")]
    (fleet.folder / "pending").write_text("\n".join([*names, "train"]) + "\n")
    fleet.let("n2", "hang")
    merged, said = [], []
    program = str(fleet.bin / "profile")
    running = Sweep("s1", merged.append, program, probe_s=5.0, queue_s=0.5, grace_s=0.1)
    running.busy = said.append
    (found,) = running.run([Target("n2", "gpu", 4)])
    assert (found.node, found.state) == ("n2", "timeout")
    assert found.reason == "no report within 5.6 s; its job was cancelled"
    assert (fleet.folder / "cancelled.gpu-aware-probe.s1.n2").exists()
    assert (merged, said) == ([], [["n2"]])


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGINT],
        [signal.SIGTERM],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGTERM, signal.SIGINT, signal.SIGTERM],
    ],
)
def test_signals_cancel_what_runs_and_say_how_to_go_on(fleet, numbers):
    fleet.let("n1", "hang")
    # It ends when all signals were sent: they come while the first one's work is going on.
    sent = fleet.folder / "sent"
    waits = f"while not os.path.exists({str(sent)!r}): time.sleep(0.02)"
    fleet._program("scancel", f"#!{sys.executable}\nimport os, time\n{waits}\n{SCANCEL}")
    started = fleet.folder / "n1.started"
    os.mkfifo(started)  # readable when the fake srun has opened it
    reader = os.open(started, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(
        fleet.argv("--jobs", "1"),
        env=fleet.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, SIGINT is ignored and would stay so
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        first = process.stderr.readline()
        assert select.select([reader], [], [], 300.0)[0]
        watch = Stopwatch()
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.05)
        sent.touch()
        _, said = process.communicate(timeout=300)
    assert watch.idle_s < 20.0
    os.close(reader)
    sweep_id = first.split()[1].rstrip(":")
    assert process.returncode == 130
    assert f"resume with: gpu-aware-profile sweep --resume {sweep_id}" in said
    assert (fleet.folder / f"cancelled.gpu-aware-probe.{sweep_id}.n1").exists()
    assert fleet.probed() == ["n1"]  # nothing was started after it
    fleet.let("n1", "ok")
    assert states(fleet.sweep("--resume", sweep_id)) == ALL_DONE


def test_a_sweep_goes_on_with_the_nodes_and_options_that_it_began_with(fleet):
    for node in ("n1", "n2"):
        fleet.let(node, "busy")
    own = ["--node", "n1", "--node", "n2", "--class", "A", "--runs", "1", "--wait", "7"]
    began = fleet.sweep(*own, "--store", str(fleet.store), code=3)
    sweep_id = json.loads(began.stdout)["sweep"]
    assert f"sweep --resume {sweep_id} --store {fleet.store}\n" in began.stderr
    fleet.let("n2", "ok")
    part = fleet.sweep("--resume", sweep_id, "--node", "n2", code=3)
    assert (json.loads(part.stdout)["complete"], states(part)) == (False, {"n2": "done"})
    fleet.sinfo(n1="idle", n2="drained", n3="idle")
    fleet.let("n1", "ok")
    rest = fleet.sweep("--resume", sweep_id, "--wait", "9")
    assert states(rest) == {"n1": "done"}  # n2 is done, whatever it is now; n3 was never asked for
    assert sorted(fleet.probed()) == ["n1", "n1", "n2", "n2"]
    *earlier, last = (fleet.folder / "srun.log").read_text().splitlines()
    assert all("--class=A" in line and "--runs=1" in line for line in [*earlier, last])
    assert all("--immediate=7" in line for line in earlier)
    assert "--immediate=9" in last
    assert list((fleet.folder / "sweeps").iterdir()) == []


def test_a_node_that_the_site_has_removed_does_not_keep_a_sweep_open(fleet):
    fleet.let("n3", "busy")
    sweep_id = json.loads(fleet.sweep(code=3).stdout)["sweep"]
    assert fleet.sweep("--resume", sweep_id, "--node", "n9", code=1).stderr.endswith(
        f"'n9' is not a GPU node of sweep {sweep_id}; its nodes: n1, n2, n3\n"
    )
    fleet.sinfo(n1="idle", n2="idle")
    done = fleet.sweep("--resume", sweep_id)
    assert states(done) == {"n3": "skipped"}
    assert json.loads(done.stdout)["complete"] is True


def test_a_sweep_renews_the_copy_for_all_users(fleet):
    with open_store(fleet.store) as store:
        publish(store, mode=0o640)
    fleet.sweep("--node", "n1", "--class", "A", "--runs", "1")
    copy = published_path(fleet.store)
    assert copy.stat().st_mode & 0o777 == 0o640
    assert len(profile_of(copy).gpus) == 4


@needs_root
def test_the_first_sweep_of_root_makes_the_store_for_slurm_user(fleet):
    lib = fleet.folder / "lib"
    (fleet.folder / "config.toml").write_text(f'[store]\npath = "{lib}/store.db"\n')
    fleet.slurm_says(silent="", settings={"SlurmUser": "nobody(65534)"})
    fleet.let("n2", "busy")
    fleet.sweep(code=3)
    number = pwd.getpwnam("nobody").pw_uid
    owners = {path.name: path.stat().st_uid for path in (lib, *lib.rglob("*"))}
    assert owners.pop("n1.done") == 0  # empty, and the owner of its folder can remove it
    assert owners.pop("scope.json") == 0  # so that root knows it as its own
    assert {"lib", "store.db", "sweeps"} <= owners.keys()
    assert {owners[name] for name in owners if name != "n3.done"} == {number}


def test_nodes_that_cannot_take_jobs_are_skipped_with_their_state(fleet):
    fleet.sinfo("c1|cpu|idle||infinite", n1="idle", n2="drained", n3="idle*")
    done = fleet.sweep("--class", "A", "--runs", "1", code=3)
    reasons = {n["node"]: n["reason"] for n in json.loads(done.stdout)["nodes"]}
    assert reasons == {"n1": "", "n2": "node is drained", "n3": "node does not respond"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--node", "n9"], "'n9' is not a GPU node of this cluster; GPU nodes: n1, n2, n3"),
        (["--resume", "nope"], "no unfinished sweep 'nope'; unfinished: none"),
        (["--resume", "../x"], "no unfinished sweep '../x'; unfinished: none"),
    ],
)
def test_wrong_options_name_the_valid_values(fleet, options, words):
    done = subprocess.run(
        fleet.argv(*options), env=fleet.env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert fleet.probed() == []


def test_without_slurm_the_reason_is_said(fleet):
    (fleet.bin / "sinfo").unlink()
    fleet.env["PATH"] = str(fleet.bin)
    done = fleet.sweep(code=1)
    assert "sinfo" in done.stderr


def test_no_gpu_node_at_all(fleet):
    fleet.sinfo("c1|cpu*|idle|(null)|infinite")
    assert "no node with GPUs" in fleet.sweep(code=1).stderr


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu:a100:8(S:0-1)", 8),
        (GRES, 4),
        ("gpu", 1),
        ("shard:16,gpu:v100:2,mps:200", 2),
        ("(null)", 0),
        ("gpux:4", 0),
    ],
)
def test_gpus_are_counted_in_every_form_of_gres(gres, gpus):
    targets, _ = parse_sinfo(f"n1|p|idle|{gres}|infinite\n", 900.0)
    assert [t.gpus for t in targets] == ([gpus] if gpus else [])


@pytest.mark.parametrize(
    ("default", "limit", "chosen"),
    [("gpu*", "1-00:00:00", "gpu"), ("gpu*", "10:00", "long"), ("gpu", "15:00", "gpu")],
)
def test_the_default_partition_is_preferred_if_it_allows_the_time(default, limit, chosen):
    """In whatever order sinfo prints them; a probe of 15 min never starts where 10 are allowed."""
    lines = ["n1|long|idle|gpu:4|infinite", f"n1|{default}|idle|gpu:4|{limit}"]
    lines.append("n1|a-short|idle|gpu:4|10:00")
    for order in permutations(lines):
        assert parse_sinfo("\n".join(order), 900.0) == ([Target("n1", chosen, 4)], [])


def test_a_node_whose_partitions_allow_no_probe_is_said_at_once(fleet):
    fleet.sinfo("n1|short|idle|gpu:4|10:00", "n1|gpu*|idle|gpu:4|30:00")
    (node,) = json.loads(fleet.sweep(code=3).stdout)["nodes"]
    assert node["state"] == "failed"
    assert node["reason"] == "its partitions allow 30 min: --time-limit=1800"
    assert fleet.probed() == []
    fleet.sweep("--time-limit=1800")
    assert fleet.probed() == ["n1"]


@pytest.fixture
def notes(tmp_path):
    return SweepProgress(tmp_path / "sweeps", "s1")


def test_notes_are_forgotten_when_a_sweep_is_complete(notes):
    assert (notes.done(), notes.unfinished()) == (set(), [])
    notes.begin((), {})
    notes.note("n1.cluster.example")
    assert (notes.done(), notes.unfinished()) == ({"n1.cluster.example"}, ["s1"])
    notes.finish()
    assert notes.unfinished() == []
    SweepProgress(notes.root, "s1").finish()  # of the same second
    assert new_id().endswith(f".{os.getpid()}")


def test_notes_that_cannot_be_read_say_so(notes):
    options = {"runs": 3, "classes": ["A"], "backend": None}
    notes.begin(("n1",), options)
    assert notes.scope() == (("n1",), options)
    for text in ("{", "[]", '{"nodes": [1], "options": {}}', '{"nodes": [], "options": {"a": {}}}'):
        (notes.folder / "scope.json").write_text(text)
        with pytest.raises(SourceError, match="begin a new one"):
            notes.scope()


def test_notes_that_cannot_be_written_are_an_error_of_ours(notes):
    notes.root.write_text("a file where the folder should be")
    with pytest.raises(SourceError, match="cannot be made"):
        notes.begin((), {})


def test_a_full_disk_leaves_no_folder_and_keeps_what_a_sweep_noted(notes, monkeypatch):
    new = SweepProgress(notes.root, "s2")
    notes.begin(("n1", "n2"), {})
    notes.note("n1")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    for one in (notes, new):
        with pytest.raises(SourceError, match="No space left"):
            one.begin(("n1", "n2"), {})
    assert not new.folder.exists()
    assert (notes.done(), notes.scope()[0]) == ({"n1"}, ("n1", "n2"))
    assert sorted(file.name for file in notes.folder.iterdir()) == ["n1.done", "scope.json"]


@needs_root
def test_root_leaves_the_notes_to_the_owner_of_the_store(notes, tmp_path):
    os.chown(tmp_path, 4711, 4712)
    notes.begin((), {})
    owners = {(f.stat().st_uid, f.stat().st_gid) for f in (notes.root, notes.folder)}
    assert owners == {(4711, 4712)}


@needs_root
@pytest.mark.parametrize(
    "link", ["sweeps", "sweeps/s1", "sweeps/s1/.scope.new", "sweeps/s1/n1.done"]
)
def test_root_follows_no_link_of_others(tmp_path, link):
    store, others = tmp_path / "store", tmp_path / "others"
    for folder in (store, others, others / "s1"):
        folder.mkdir()
    os.chown(store, 4711, 4712)
    precious = [others / "s1" / "n1.done", others / "s1" / "scope.json", others / "secret"]
    for file in precious:
        file.write_text("precious")
    link = store / link
    link.parent.mkdir(parents=True, exist_ok=True)
    targets = {"sweeps": others, "s1": others / "s1"}
    link.symlink_to(targets.get(link.name, others / "secret"))
    notes = SweepProgress(store / "sweeps", "s1")
    for act in (lambda: notes.begin(("n1",), {}), lambda: notes.note("n1"), notes.finish):
        with suppress(SourceError, OSError):
            act()
    assert [(f.read_text(), f.stat().st_uid) for f in precious] == [("precious", 0)] * 3
    assert others.stat().st_uid == (others / "s1").stat().st_uid == 0


@needs_root
def test_root_runs_no_command_that_another_user_wrote(notes, tmp_path):
    os.chown(tmp_path, 4711, 4712)
    notes.begin(("n1",), {"on_slow": "mail root"})
    assert notes.scope() == (("n1",), {"on_slow": "mail root"})
    scope = notes.folder / "scope.json"
    scope.unlink()  # the folder is the other user's
    scope.write_text(json.dumps({"nodes": ["n1"], "options": {"on_slow": "sh -c evil"}}))
    os.chown(scope, 4711, 4712)
    with pytest.raises(SourceError, match="another user began this sweep, and must resume it"):
        notes.scope()


@needs_root
def test_root_uses_no_folder_of_another_user(notes):
    notes.root.mkdir()
    os.chown(notes.root, 4711, 4712)
    with pytest.raises(SourceError, match="it belongs to another user"):
        notes.begin((), {})


@pytest.mark.parametrize("error", [SourceError, StoreError])
def test_a_report_that_the_store_refuses_fails_its_node(error):
    def refuse(report):
        raise error("no")

    running = Sweep("s1", refuse)
    refused = running._ingested(Outcome("n1", "done", took_s=2.0), {})
    assert refused == Outcome("n1", "failed", "no", took_s=2.0)


STEERING = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e\rn1: done"


@pytest.mark.parametrize(
    "raw",
    [
        {"gpus": [], "errors": [{"index": None, "call": STEERING, "error": STEERING}]},
        {"node": f"n1{STEERING}"},
        {"gpus": [{"index": 0, "model": STEERING}]},
        {"gpus": [{"index": 0}], "errors": [{"index": 0, "call": STEERING, "error": STEERING}]},
    ],
)
def test_no_report_steers_the_terminal(fleet, raw):
    hostile = {"schema": "gpu-aware-probe/2", "node": "n1", "taken_at": time.time(), **raw}
    (fleet.folder / "hostile").write_text(json.dumps(hostile))
    code = 0 if raw.get("gpus") else 1
    text = f"#!/bin/sh\ncat {fleet.folder}/hostile\necho '{STEERING}' >&2\nexit {code}\n"
    fleet._program("profile", text)
    for words in (fleet.argv("--node", "n1"), [*fleet.argv()[:4], "show", "--json"]):
        done = subprocess.run(words, env=fleet.env, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr
        assert (done.stdout + done.stderr).replace("\n", "").isprintable()
