"""A pass through Slurm: what it asks, what it changes, and what happens when Slurm refuses."""

import json
import shutil
import sys

import pytest
from command_server import run_command
from fake_cluster import GRES, FakeCluster

from slurm_gpu_aware.store.watch_state import read_state

NODES = ("n1", "n2", "n3")
DRAIN = ("--drain", "--most-percent", "50")
SINFO = """
import json, os, sys
folder = os.environ["FAKE_SLURM"]
LIMIT = os.environ.get("PARTITION_LIMIT", "infinite")
nodes = json.load(open(f"{folder}/nodes.json"))
for name, (state, reason) in nodes.items():
    last = [LIMIT, reason or "none"] if sys.argv[-1].endswith("%E") else ["GRES", LIMIT]
    print("|".join([name, "gpu*", state, *last]))
"""
SCONTROL = """
import json, os, sys
folder = os.environ["FAKE_SLURM"]
words = sys.argv[1:]
with open(f"{folder}/scontrol.log", "a") as log:
    log.write(json.dumps(words) + chr(10))
given = dict(word.split("=", 1) for word in words if "=" in word)
nodes = json.load(open(f"{folder}/nodes.json"))
held = f"{folder}/reservation"
if words[0] == "update":
    refused = f"{folder}/refuse_drain"
    if given.get("state") == "drain" and os.path.exists(refused):
        sys.exit("slurm_update error: Zero Bytes were transmitted or received")
    if os.path.exists(f"{folder}/refuse"):
        sys.exit("slurm_update error: Invalid user id")
    name = given["nodename"]
    if given.get("state") == "drain":
        nodes[name] = ["drained", given["reason"]]
    elif given.get("state") == "resume":
        nodes[name] = ["idle", ""]
    json.dump(nodes, open(f"{folder}/nodes.json", "w"))
elif words[:2] == ["create", "reservation"]:
    open(held, "w").write(given["nodes"])
elif words[0] == "delete":
    os.unlink(held)
elif "reservation" in words and os.path.exists(held):
    print("ReservationName=other StartTime=x Nodes=n9 Flags=")
    print(f"ReservationName=gpu-aware-watch StartTime=x Nodes={open(held).read()} Flags=MAINT")
elif "nodes" in words:
    print(json.dumps({"nodes": [{"name": n, "extra": "row 7" if n == "n2" else ""}
                                for n in nodes]}))
""".replace("GRES", GRES)


@pytest.fixture(scope="module")
def after_two_passes(library, tmp_path_factory):
    """A site with copies of its folder: new, and after two passes with GPU 1 of n2 5% slower."""
    fleet = FakeCluster(library, tmp_path_factory.mktemp("site"))
    for name, body in (("sinfo", SINFO.replace("GRES", GRES)), ("scontrol", SCONTROL)):
        fleet._program(name, f"#!{sys.executable}\n{body}")
    slurm_has(fleet, **dict.fromkeys(NODES, ("idle", "")))
    for name in NODES:
        fleet.slow(name, {str(gpu): {"C": 1.0} for gpu in range(4)})
    fleet.state = fleet.folder / "watch.json"
    fleet.copies = tmp_path_factory.mktemp("copies")
    shutil.copytree(fleet.folder, fleet.copies / "new")
    fleet.slow("n2", {str(gpu): {"C": 1.05 if gpu == 1 else 1.0} for gpu in range(4)})
    watch(fleet)
    watch(fleet)
    shutil.copytree(fleet.folder, fleet.copies / "two passes")
    return fleet


@pytest.fixture
def watch_site(after_two_passes, monkeypatch):
    shutil.rmtree(after_two_passes.folder)
    shutil.copytree(after_two_passes.copies / "new", after_two_passes.folder)
    monkeypatch.setattr(after_two_passes, "env", {**after_two_passes.env})
    return after_two_passes


def watch(watch_site, *options, code=0):
    argv = ["gpu-aware-profile", "watch", "--json", "--command", str(watch_site.bin / "profile")]
    argv += ["--runs", "1", "--class", "C", "--older-than", "0", *options]
    done = run_command([str(watch_site.slurm), *argv], watch_site.env)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def changes(watch_site):
    """Calls of scontrol that change something."""
    log = watch_site.folder / "scontrol.log"
    calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [call for call in calls if call[0] in ("update", "create", "delete")]


def slurm_has(watch_site, **nodes):
    """Node -> its state, and the reason."""
    (watch_site.folder / "nodes.json").write_text(json.dumps(nodes))


def drained(watch_site):
    nodes = json.loads((watch_site.folder / "nodes.json").read_text())
    return {name: reason for name, (state, reason) in nodes.items() if state == "drained"}


def slow_site(watch_site, *options):
    """Three passes, with GPU 1 of n2 5% slower; the last one, which alone has the options."""
    shutil.copytree(watch_site.copies / "two passes", watch_site.folder, dirs_exist_ok=True)
    return watch(watch_site, *options, code=3)


def test_by_default_nothing_is_changed(watch_site):
    found = slow_site(watch_site)
    assert [g["node"] for g in found["gpus"] if g["state"] == "slow"] == ["n2"]
    assert not (watch_site.folder / "scontrol.log").exists()
    log = (watch_site.folder / "srun.log").read_text().splitlines()
    assert len(log) == 9
    assert all("--nice=1000000" in line and "--comment=place=off" in line for line in log)


def test_a_partition_without_time_for_a_probe_is_said(watch_site):
    watch_site.env["PARTITION_LIMIT"] = "30:00"
    found = watch(watch_site)
    assert "n[1-3]: not measured: its partitions allow 30 min: --time-limit=1800" in found["notes"]
    assert watch_site.probed() == []
    watch(watch_site, "--time-limit=1800")
    assert sorted(watch_site.probed()) == ["n1", "n2", "n3"]
    watch(watch_site, "--hardware")
    assert len(watch_site.probed()) == 6


def test_nodes_with_recent_times_and_busy_ones_are_left_alone(watch_site):
    watch(watch_site)
    watch(watch_site, "--older-than", "1")
    assert sorted(watch_site.probed()) == ["n1", "n2", "n3"]
    slurm_has(watch_site, n1=("mixed", ""), n2=("idle", ""), n3=("down*", "x"))
    watch(watch_site)
    assert sorted(watch_site.probed()) == ["n1", "n2", "n2", "n3"]


def test_readings_without_times_do_not_delay_the_times(watch_site):
    found = watch(watch_site, "--hardware")
    assert {g["state"] for g in found["gpus"]} == {"unknown"}
    found = watch(watch_site, "--older-than", "1")
    assert {g["why"] for g in found["gpus"]} == {"1 of 3 sweeps"}


def test_drain_trial_and_resume(watch_site):
    found = slow_site(watch_site, *DRAIN)
    assert [one["node"] for one in found["drained"]] == ["n2"]
    assert drained(watch_site)["n2"].startswith("gpu-aware: GPU 1 slow: class C: 5.0% slower")
    reason = drained(watch_site)["n2"]
    before = len(changes(watch_site))
    watch(watch_site, *DRAIN, code=3)
    words = [" ".join(call) for call in changes(watch_site)[before:]]
    assert words[0].startswith("create reservation reservationname=gpu-aware-watch nodes=n2 users=")
    assert words[0].endswith("flags=maint,ignore_jobs")
    assert words[1:] == [
        "update nodename=n2 state=resume",
        f"update nodename=n2 state=drain reason={reason}",
        "delete reservationname=gpu-aware-watch",
    ]
    assert "--reservation=gpu-aware-watch" in (watch_site.folder / "srun.log").read_text()
    watch_site.slow("n2", {str(gpu): {"C": 1.0} for gpu in range(4)})
    watch(watch_site, "--drain", code=3)
    watch(watch_site, "--drain", code=3)
    assert watch(watch_site, "--drain")["resumed"] == ["n2"]
    assert drained(watch_site) == {}


def test_a_drain_that_slurm_refuses_is_said_and_tried_again(watch_site):
    (watch_site.folder / "refuse").touch()
    found = slow_site(watch_site, *DRAIN)
    assert found["drained"] == []
    assert any("n2: not drained: " in note and "Invalid user id" in note for note in found["notes"])
    (watch_site.folder / "refuse").unlink()
    again = watch(watch_site, *DRAIN, "--no-sweep", code=3)
    assert [one["node"] for one in again["drained"]] == ["n2"]


def test_after_a_pass_that_was_killed_in_a_trial(watch_site):
    """Its node takes jobs in the reservation only; it is drained before the reservation goes."""
    slow_site(watch_site, *DRAIN)
    slurm_has(watch_site, **dict.fromkeys(NODES, ("idle", "")))
    (watch_site.folder / "reservation").write_text("n2")
    before = len(changes(watch_site))
    found = watch(watch_site, *DRAIN, code=3)
    first = [" ".join(call) for call in changes(watch_site)[before:]][:2]
    assert first == [
        "update nodename=n2 state=drain reason=gpu-aware: not yet well again",
        "delete reservationname=gpu-aware-watch",
    ]
    assert (found["held_back"], set(drained(watch_site))) == ([], {"n2"})


def test_a_trial_whose_drain_fails_is_no_admins_resume(watch_site):
    slow_site(watch_site, *DRAIN)
    (watch_site.folder / "refuse_drain").touch()
    found = watch(watch_site, *DRAIN, code=3)
    assert any(note.startswith("n2: not drained again: ") for note in found["notes"])
    assert (found["held_back"], drained(watch_site)) == ([], {})
    assert read_state(watch_site.state).on_trial == ("n2",)
    watch(watch_site, "--no-sweep", code=3)  # without --drain it is remembered
    (watch_site.folder / "refuse_drain").unlink()
    found = watch(watch_site, *DRAIN, "--no-sweep", code=3)
    assert (found["held_back"], set(drained(watch_site))) == ([], {"n2"})
    state = read_state(watch_site.state)
    assert (state.on_trial, state.drained["n2"].left) == ((), False)


def test_a_pass_that_is_killed_in_a_trial_has_written_its_nodes(watch_site):
    """The reservation may have ended before the next pass: the state alone must do."""
    slow_site(watch_site, *DRAIN)
    seen = watch_site.folder / "seen.json"
    srun = (watch_site.bin / "srun").read_text()
    copy = f"import shutil; shutil.copy({str(watch_site.state)!r}, {str(seen)!r})\n"
    shebang, _, body = srun.partition("\n")
    (watch_site.bin / "srun").write_text(f"{shebang}\n{copy}{body}")
    watch(watch_site, *DRAIN, "--node", "n2", code=3)
    assert read_state(seen).on_trial == ("n2",)
    seen.replace(watch_site.state)  # as a killed pass leaves it
    slurm_has(watch_site, **dict.fromkeys(NODES, ("idle", "")))
    found = watch(watch_site, *DRAIN, "--no-sweep", code=3)
    assert (found["held_back"], set(drained(watch_site))) == ([], {"n2"})


def test_without_drain_a_drained_node_stays(watch_site):
    slow_site(watch_site, *DRAIN)
    watch_site.slow("n2", {str(gpu): {"C": 1.0} for gpu in range(4)})
    watch(watch_site, code=3)
    assert set(drained(watch_site)) == {"n2"}


def test_scores_in_extra(watch_site):
    found = watch(watch_site, "--extra")
    said = [" ".join(call) for call in changes(watch_site)]
    assert [text.split()[1] for text in said] == ["nodename=n1", "nodename=n3"]
    assert all('extra={"gpu_aware_state":"unknown","gpu_aware_worst":1.0' in t for t in said)
    assert "n2: Extra has another text, which stays" in found["notes"]


def test_a_probe_that_fails_stops_no_other(watch_site):
    watch_site.let("n2", "garbage")
    found = watch(watch_site)
    assert {g["node"] for g in found["gpus"]} == {"n1", "n3"}
    assert any(note.startswith("n2: not measured: ") for note in found["notes"])


def test_a_node_that_slurm_no_longer_has_is_forgotten(watch_site):
    watch(watch_site)
    slurm_has(watch_site, n1=("idle", ""), n2=("idle", ""))
    found = watch(watch_site, "--no-sweep")
    assert {g["node"] for g in found["gpus"]} == {"n1", "n2"}
