"""doctor on a small Slurm of our own: each thing that can be wrong is found and cured.

``sbatch`` is a script that answers with text recorded from Slurm 24.11.5.
"""

import json
import os
import pwd
import re
import shutil
import struct
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memory_slurm import (
    MemorySlurm,
    job_record,
    node_record,
    opened,
    partition_record,
    reservation_record,
)
from store_samples import ingest, report

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware import features
from slurm_gpu_aware.cli.main import cli
from slurm_gpu_aware.config.load import Tuned, load_config, tuned_path, write_tuned
from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.deploy.checks_ours import OF_US
from slurm_gpu_aware.deploy.checks_slurm import OF_GATE, OF_NODES, OF_SLURM
from slurm_gpu_aware.deploy.doctor import DoctorContext
from slurm_gpu_aware.deploy.files import shipped
from slurm_gpu_aware.deploy.filter import filter_files
from slurm_gpu_aware.deploy.filter_conf import FILTER_CONF
from slurm_gpu_aware.deploy.owned import Owned
from slurm_gpu_aware.deploy.owned_files import UNITS
from slurm_gpu_aware.deploy.setup import OWNED
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.deploy.site_scripts import hook_line, join_lines
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate import trial
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.conffile import ConfFiles
from slurm_gpu_aware.store.database import open_store, publish
from slurm_gpu_aware.store.measurements import Run, put_timings

SETTINGS = {
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStoreFlags": "job_comment",
    "JobCompLoc": "{root}/jobcomp",
    "JobCompType": "jobcomp/filetxt",
    "JobSubmitPlugins": "lua",
    "GresTypes": "gpu",
    "Licenses": "gpuaware:100000",
    "Prolog[0]": "{root}/slurm/prolog.d/*",
    "Epilog[0]": "{root}/slurm/epilog.d/*",
    "SchedulerParameters": "bf_interval=3,default_queue_depth=5000,batch_sched_delay=0",
    "SelectType": "select/cons_tres",
    "SlurmUser": "root(0)",
    "SLURM_CONF": "{root}/slurm/slurm.conf",
    "SLURM_VERSION": "24.11.5",
}
TYPED = "gpu:g0:1(S:0),gpu:g1:1(S:0)"
REFUSED = "sbatch: error: gpu-aware: class=gpu-aware-doctor is not valid; valid: A, B, C, auto"


class Cluster:
    """A healthy site in a folder; tests break one thing."""

    def __init__(self, root: Path):
        self.root = root
        for name in ("bin", "answers", "slurm", "spool", "lib"):
            (root / name).mkdir()
        self.config = root / "config.toml"
        self.config.write_text(
            f'[store]\npath = "{root}/lib/store.db"\n'
            f'[events]\nsubmit_file = "{root}/spool/submitted"\n'
            f'jobcomp_file = "{root}/jobcomp"\n'
        )
        self.settings()
        self.nodes(TYPED, TYPED)
        self.gate(3600, 100_000)  # a test may take its time
        self.script("scontrol", "#!/bin/sh\nexit 1\n")
        self.script("sacct", "#!/bin/sh\n")
        self.sbatch(REFUSED)
        self.install()
        self.profile()
        (root / "lib" / "selectd.lock").write_text(f"{self.stand_in()}\n")

    def stand_in(self) -> int:
        """A process that looks like the selector by its command line."""
        self.process = subprocess.Popen(["sh", "-c", "read line", "selectd"], stdin=subprocess.PIPE)
        return self.process.pid

    def script(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def settings(self, **changes: str) -> None:
        values = {**SETTINGS, **changes}
        self.answer(settings={k: v.replace("{root}", str(self.root)) for k, v in values.items()})

    def nodes(self, *gres: str) -> None:
        self.answer(nodes=[node_record(f"n{i + 1}", gres=g) for i, g in enumerate(gres)])

    def gate(self, left_s: float | None, count: int, comment: str = "") -> None:
        now = int(time.time())
        end = int(now + (left_s or 0.0))
        licences = f"gpuaware:{count}"
        held = reservation_record("gpuaware_gate", end_time=end, licenses=licences, comment=comment)
        self.answer(reservations=[] if left_s is None else [held])

    def answer(self, **values: object) -> None:
        """What Slurm says from now on."""
        with opened(self.root / "answers") as state:
            state.update(values)

    def sbatch(self, said: str) -> None:
        self.script("sbatch", f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")

    def install(self) -> None:
        target = self.root / "slurm"
        for source in [*filter_files(), *shipped("lua")]:
            shutil.copy(source, target)
        for kind in ("prolog.d", "epilog.d"):
            (target / kind).mkdir()
            for source in shipped(kind):
                copied = Path(shutil.copy(source, target / kind))
                copied.chmod(0o755)
        config = load_config(self.config)
        conf = ConfFiles(target / "slurm.conf", missing_ok=True)
        (change,) = FILTER_CONF.contents(Site(config, target, target, conf, {}, ()))
        change.path.write_text(change.text)

    def profile(self) -> None:
        with open_store(self.root / "lib" / "store.db") as store:
            for node in ("n1", "n2"):
                probe = report(node, time.time(), {0: 100.0, 1: 110.0})
                timings = [{**t, "class": c} for t in probe["timings"] for c in ("A", "B", "C")]
                ingest(store, {**probe, "timings": timings})
            recompute_scores(store)
            publish(store)

    def ask(self, *options: str) -> Result:
        return CliRunner().invoke(
            cli,
            ["--config", str(self.config), "doctor", *options],
            env={"PATH": f"{self.root}/bin:{os.environ['PATH']}"},
        )

    def doctor(self, *options: str) -> tuple[int, dict[str, dict[str, str]]]:
        done = self.ask("--json", *options)
        assert done.stderr == ""
        found: dict[str, dict[str, str]] = {}
        for check in json.loads(done.stdout)["checks"]:
            found.setdefault(check["name"], check)
        return done.exit_code, found

    def ill(self) -> dict[str, dict[str, str]]:
        """What doctor says where a check fails."""
        code, found = self.doctor()
        assert code == 3
        return found


def answer_of_trial(command: list[str], limit_s: float) -> tuple[str, str]:
    """What the trial prints, in this process; in one of its own, as another user."""
    if command[0] == "setpriv":
        return run_command(command, limit_s)
    assert command[:3] == [sys.executable, "-m", trial.__name__]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setattr(sys, "argv", command[2:])
        trial.main()
    return said.getvalue(), ""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Cluster(tmp_path)
    client = partial(MemorySlurm, tmp_path / "answers")
    monkeypatch.setattr("slurm_gpu_aware.slurm.client.SlurmClient", client)
    monkeypatch.setattr("slurm_gpu_aware.deploy.checks_ours.run_command", answer_of_trial)
    yield made
    made.process.stdin.close()
    made.process.wait()


def test_a_healthy_site_is_fine(cluster: Cluster):
    code, found = cluster.doctor()
    bad = {n: c["found"] for n, c in found.items() if c["status"] == "failed"}
    assert bad == {}
    assert code == 0
    expected = {"release", "licence", "gate", "heartbeat", "filter", "filter answers", "store"}
    expected |= {"accounting", "changes of jobs"}
    assert expected <= set(found)
    assert {found[n]["status"] for n in expected} == {"ok"}


def test_a_site_that_only_watches_is_fine(cluster: Cluster):
    """What belongs to the gate is no fault where nothing of it is installed; a part of it is."""
    cluster.settings(Licenses="matlab:2", JobSubmitPlugins="(null)", JobCompType="jobcomp/none")
    cluster.gate(None, 0)
    (cluster.root / "lib" / "selectd.lock").unlink()
    assert {"licence", "gate", "filter", "selector"} <= set(cluster.doctor()[1])
    for path in (cluster.root / "slurm").glob("*.lua"):
        path.unlink()
    code, found = cluster.doctor()
    assert (code, found["placing"]["status"]) == (0, "skipped")
    assert {found[name]["status"] for name in ("release", "store", "profile")} == {"ok"}
    assert not found.keys() & OF_GATE
    cluster.settings(JobSubmitPlugins="(null)")
    assert cluster.doctor()[0] == 3


def test_each_owned_thing_is_checked():
    names = {name for name, *_ in (*OF_SLURM, *OF_US, *OF_NODES)}
    checked = [thing for thing in OWNED if type(thing).check is not Owned.check]
    unnamed = [thing for thing in checked if thing.group not in names]
    assert unnamed == [FILTER_CONF]  # the check of the filter goes on with it


def test_the_policy_that_tune_has_set(cluster: Cluster):
    assert cluster.doctor()[1]["policy"]["found"] == Config().placement.policy
    with cluster.config.open("a") as file:
        file.write("[tune]\napply = true\n")
    config = load_config(cluster.config)
    gain = {"gain_percent": 0.0, "low_percent": -1.0, "high_percent": 1.0}
    write_tuned(config, Tuned("packed", set_at=1_790_000_000.0, **gain))
    check = cluster.doctor()[1]["policy"]
    assert (check["status"], check["found"][:34]) == ("ok", "packed, set by tune on 2026-09-21:")
    tuned_path(config).chmod(0o666)
    check = cluster.doctor()[1]["policy"]
    assert (check["status"], "may write it" in check["found"]) == ("warning", True)
    cluster.config.write_text(cluster.config.read_text().replace("apply = true", ""))
    check = cluster.doctor()[1]["policy"]
    assert (check["status"], "tune.apply is false" in check["found"]) == ("warning", True)
    assert "delete" in check["cure"]


DBD = "AccountingStorageType=accounting_storage/slurmdbd"
WORDS = "default_queue_depth=9,batch_sched_delay=0"
EXPEDITED = "enable_expedited_requeue"
CHANGED: list[tuple[dict[str, str], str, str, str]] = [
    *(
        ({"SLURM_VERSION": version}, "release", "failed", "24.11 to 26.05")
        for version in ("23.11.4", "24.05.1", "26.11.0", "nonsense")
    ),
    *(
        ({"SLURM_VERSION": version}, "release", "ok", "")
        for version in ("24.11.0", "25.05.3", "25.11.1", "26.05.5")
    ),
    ({"Licenses": "matlab:2"}, "licence", "failed", "add Licenses=gpuaware:100000"),
    ({"Licenses": "gpuaware:5"}, "licence", "failed", "set Licenses=gpuaware:100000"),
    ({"JobSubmitPlugins": "(null)"}, "filter", "failed", "setup --install"),
    ({"JobSubmitPlugins": "job_submit/lua"}, "filter", "ok", ""),
    ({"GresTypes": "(null)"}, "settings", "failed", "setup --install"),
    ({"SelectType": "select/linear"}, "settings", "failed", "select/cons_tres"),
    ({"SchedulerParameters": "bf_licenses,default_queue_depth=9"}, "scheduler", "warning", ""),
    ({"SchedulerParameters": "(null)"}, "scheduler", "warning", ""),
    ({"SchedulerParameters": f"{WORDS},extra_constraints"}, "scheduler", "failed", "remove"),
    *(
        ({"SchedulerParameters": f"{WORDS},{word}"}, "scheduler", "warning", "requeue_delay=5")
        for word in ("requeue_delay=4", "requeue_delay=-1", "requeue_delay=")
    ),
    ({"SchedulerParameters": f"{WORDS},requeue_delay=5"}, "scheduler", "ok", ""),
    ({"SlurmctldParameters": f"cloud_dns,{EXPEDITED}"}, "scheduler", "warning", EXPEDITED),
    ({"SchedulerParameters": "batch_sched_delay=0"}, "scheduler", "warning", "default_queue_depth"),
    ({"SchedulerParameters": "default_queue_depth=9,batch_sched_delay=2"}, "scheduler", "ok", ""),
    (
        {"SchedulerParameters": "default_queue_depth=9,batch_sched_delay=1"},
        *("scheduler", "warning", "set batch_sched_delay=0"),
    ),
    ({"SchedulerParameters": "default_queue_depth=9"}, "scheduler", "warning", ""),
    ({"JobCompType": "jobcomp/none"}, "job ends", "warning", ""),
    ({"Prolog[0]": "(null)"}, "prolog", "warning", ""),
    ({"Epilog[0]": "/nowhere/*"}, "epilog", "warning", ""),
    ({"AccountingStorageType": "(null)"}, "accounting", "warning", f"add {DBD}"),
    ({"AccountingStorageTRES": "cpu,mem"}, "accounting", "warning", "TRES=gres/gpu,"),
    ({"AccountingStoreFlags": "(null)"}, "accounting", "warning", "Flags=job_comment,"),
]
"""Settings of Slurm, the check that sees them, its status, and a part of its cure."""


@pytest.mark.parametrize(("changes", "check", "status", "cure"), CHANGED)
def test_settings_of_slurm(
    cluster: Cluster, changes: dict[str, str], check: str, status: str, cure: str
):
    cluster.settings(**changes)
    code, found = cluster.doctor()
    assert (code, found[check]["status"]) == (3 if status == "failed" else 0, status)
    assert cure in found[check]["cure"]
    assert bool(found[check]["cure"]) == (status != "ok")


def test_the_script_of_slurms_commands(cluster: Cluster, tmp_path: Path):
    off = cluster.doctor()[1]["test-only"]
    assert (off["status"], off["found"][:3]) == ("ok", "off")
    cluster.settings(CliFilterPlugins="cli_filter/lua")
    code, found = cluster.doctor()
    assert (code, found["test-only"]["status"]) == (3, "failed")
    assert "cli_filter.lua is missing" in found["test-only"]["found"]
    folder = tmp_path / "slurm"
    (folder / "cli_filter.lua").write_text("-- the site's own\n")
    assert "test-only" not in cluster.doctor()[1]
    cluster.config.write_text(cluster.config.read_text() + "[setup]\ncli_filter = true\n")
    assert f'"{folder}/gpu_aware_cli_filter.lua"' in cluster.doctor()[1]["test-only"]["cure"]
    shutil.copy(folder / "gpu_aware_cli_filter.lua", folder / "cli_filter.lua")
    assert cluster.doctor()[1]["test-only"]["status"] == "ok"
    cluster.settings()
    assert "lacks lua" in cluster.doctor()[1]["test-only"]["found"]
    (folder / "slurm.conf").write_text("# CliFilterPlugins=lua\nCliFilterPlugins=user_defaults\n")
    assert "setup --install" in cluster.doctor()[1]["test-only"]["cure"]
    (folder / "slurm.conf").write_text("CliFilterPlugins=user_defaults,cli_filter/lua\n")
    check = cluster.doctor()[1]["test-only"]
    assert (check["status"], check["cure"]) == ("failed", "scontrol reconfigure")
    assert "slurmctld has not read" in check["found"]


def test_a_host_that_is_no_controller(cluster: Cluster, tmp_path: Path):
    """A login host with the shared copy: cures for a controller would be wrong there."""
    for name in ("lib", "spool", "slurm"):
        shutil.rmtree(tmp_path / name)
    cluster.settings(**{"SlurmctldHost[0]": "ctl.site.org(10.0.0.1)"})
    code, found = cluster.doctor()
    assert {name for name, c in found.items() if c["status"] == "failed"} == set()
    assert code == 0
    skipped = {name for name, c in found.items() if c["status"] == "skipped"}
    local = {"selector", "store", "permissions", "profile", "policy", "coverage", "events", "links"}
    local |= {"changes of jobs", "clockd", "units"}
    of_features = (check for checks in features.found("checks", "CHECKS") for check in checks)
    local |= {name for name, _, own, _ in of_features if own}
    assert skipped == local | {"filter", "prolog, epilog", "files of nodes"}
    assert {found[name]["cure"] for name in skipped} == {"run doctor on the controller"}
    assert found["filter answers"]["status"] == found["gate"]["status"] == "ok"


def test_a_reservation_prolog_that_finds_no_scontrol(cluster: Cluster, tmp_path: Path):
    """This cluster's scontrol lies in a folder of its own, which Slurm's prologs do not search."""
    (source,) = shipped("resv.d")
    folder = tmp_path / "slurm" / "resv.d"
    folder.mkdir()
    Path(shutil.copy(source, folder)).chmod(0o755)
    cluster.settings(ResvProlog=str(folder / source.name))
    found = cluster.doctor()[1]["resvprolog"]
    assert found["status"] == "warning"
    assert found["found"].endswith(f"does not find {tmp_path}/bin/scontrol")


def test_an_accounting_that_does_not_answer_or_shows_a_part(cluster: Cluster):
    cluster.settings(PrivateData="jobs,usage")
    check = cluster.doctor()[1]["accounting"]
    assert (check["status"], "their own jobs only" in check["found"]) == ("ok", True)
    cluster.script("sacct", "#!/bin/sh\necho 'sacct: error: Connection refused' >&2\nexit 1\n")
    check = cluster.doctor()[1]["accounting"]
    assert (check["status"], "Connection refused" in check["found"]) == ("warning", True)


def test_nodes_that_keep_no_energy(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    conf = tmp_path / "clock.conf"
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(conf))
    conf.write_text("spool = /var/spool/clocks\n")
    check = cluster.doctor()[1]["energy"]
    assert (check["status"], "accounts = /" in check["cure"]) == ("warning", True)
    conf.write_text("accounts = /var/lib/accounts\n")
    assert "energy" not in cluster.doctor()[1]


@pytest.mark.parametrize(
    ("left_s", "count", "check", "status"),
    [
        (None, 0, "gate", "failed"),
        (3600, 10, "gate", "failed"),
        (10, 100_000, "heartbeat", "failed"),
        (-5, 100_000, "heartbeat", "failed"),
        (2380, 100_000, "heartbeat", "failed"),
        (3000, 100_000, "heartbeat", "ok"),
    ],
)
def test_gate_and_heartbeat(
    cluster: Cluster, left_s: float | None, count: int, check: str, status: str
):
    with cluster.config.open("a") as file:  # silent after 1210 s: a test may take its time
        file.write("[gate]\nlease_s = 3600\n[selector]\nheartbeat_s = 1200\n")
    cluster.gate(left_s, count)
    found = cluster.doctor()[1]
    assert found[check]["status"] == status


def test_a_gate_that_holds_nothing_since_a_refused_update(cluster: Cluster):
    cluster.answer(unheld=["gpuaware_gate"])
    found = cluster.doctor()[1]["gate"]
    assert (found["status"], "holds 0 of 100000" in found["found"]) == ("failed", True)


def test_jobs_whose_type_is_gone(cluster: Cluster):
    def typed(number: int, kind: str) -> dict[str, object]:
        return job_record(job_id=number, tres_per_job=f"gres/gpu:{kind}:2")

    with opened(cluster.root / "answers") as state:
        state["jobs"] = [typed(7, "v100"), typed(8, "a100"), job_record(job_id=9)]
    cluster.nodes(TYPED, "gpu:v100:2")
    assert cluster.doctor()[1]["typed jobs"]["status"] == "ok"
    cluster.nodes(TYPED, TYPED)
    code, found = cluster.doctor()
    assert (code, found["typed jobs"]["status"]) == (3, "failed")
    assert found["typed jobs"]["found"].startswith("jobs 7 ask for a GPU type")


def test_the_selector_that_works_and_one_that_stands_by(cluster: Cluster):
    cluster.gate(3600, 100_000, "gpu-aware: host elsewhere, process 7")
    code, found = cluster.doctor()
    assert code == 0
    assert found["gate"]["found"].endswith("held by the selector of host elsewhere")
    assert found["selector"]["found"].endswith("stands by for the one of host elsewhere")
    cluster.gate(55, 100_000, "gpu-aware: host elsewhere, process 7")
    assert "stands by" not in cluster.doctor()[1]["selector"]["found"], "it is silent"


@pytest.mark.parametrize(
    ("timeout", "lease_s", "number", "status"),
    [
        ("120 sec", 209, 0, "warning"),
        ("120 sec", 210, 1, "ok"),
        ("10 sec", 90, 0, "ok"),
        ("10 sec", 90, 2, "warning"),
        ("10 sec", 90, None, "warning"),
    ],
)
def test_two_controllers(
    cluster: Cluster, timeout: str, lease_s: int, number: int | None, status: str
):
    with cluster.config.open("a") as file:
        file.write(f"[gate]\nlease_s = {lease_s}\n")
    if number is not None:
        (cluster.root / "heartbeat").write_bytes(struct.pack("!QQ", 1_790_000_000, number))
    hosts = {"SlurmctldHost[0]": "ctl1(10.0.0.1)", "SlurmctldHost[1]": "ctl2"}
    cluster.gate(lease_s + 3600, 100_000)
    cluster.settings(**hosts, SlurmctldTimeout=timeout, StateSaveLocation="{root}")
    code, found = cluster.doctor()
    assert code == 0
    assert found["controllers"]["status"] == status
    if lease_s == 209:
        assert "gate.lease_s = 210" in found["controllers"]["cure"]


def test_types_of_gpus(cluster: Cluster):
    conf = cluster.root / "slurm" / "gpu_aware_conf.lua"
    cluster.nodes(TYPED, "gpu:v100:2")
    found = cluster.doctor()[1]["filter config"]
    assert (found["status"], found["found"].split(": ")[-1]) == ("failed", "node_types")
    types = 'node_types = { "a100_3g.20gb", "v100" }'
    conf.write_text(conf.read_text().replace("node_types = {}", types))
    cluster.script("sacctmgr", "#!/bin/sh\nprintf 'one\\ntwo\\n'\n")
    found = cluster.doctor()[1]["filter config"]
    assert (found["status"], found["found"].split(": ")[-1]) == ("failed", "several_clusters")
    cluster.script("sacctmgr", "#!/bin/sh\necho one\n")
    code, found = cluster.doctor()
    assert (code, found["gres types"]["status"]) == (0, "warning")
    assert "n2" in found["gres types"]["found"]
    assert "setup --roll" in found["gres types"]["cure"]
    cluster.nodes("gpu:2", "gpu:v100:2")
    code, found = cluster.doctor()
    assert (code, found["gres types"]["status"]) == (0, "warning")
    assert "no node has one GRES type per GPU" in found["gres types"]["found"]
    cluster.nodes(TYPED, "gpu:a100_3g.20gb:8", "gpu:2,shard:16")
    found = cluster.doctor()[1]
    assert found["gres types"]["status"] == "ok"
    assert found["gres types"]["found"].endswith(
        "unsupported (MPS, MIG, shards that Slurm counts by node): n[2-3]"
    )


def test_types_where_only_nodes_are_chosen(cluster: Cluster):
    cluster.config.write_text(f'[placement]\ngpus = "nodes"\n{cluster.config.read_text()}')
    cluster.nodes("gpu:v100:2", "gpu:2")
    found = cluster.doctor()[1]
    assert found["gres types"]["status"] == "ok"
    assert "Slurm chooses the GPUs" in found["gres types"]["found"]
    assert found["filter config"]["status"] == "failed"
    assert "types" in found["filter config"]["found"]
    conf = cluster.root / "slurm" / "gpu_aware_conf.lua"
    conf.write_text(conf.read_text().replace("types = {}", 'types = { "v100" }'))  # both lists
    assert cluster.doctor()[1]["filter config"]["status"] == "ok"
    cluster.nodes("gpu:2", TYPED)
    found = cluster.doctor()[1]["gres types"]
    assert (found["status"], found["found"].split(":")[0]) == ("warning", "n2")
    assert "setup --undo" in found["cure"]


@pytest.mark.parametrize(("shared", "status"), [(0, "warning"), (1, "ok")])
def test_gpus_that_slurm_gives_as_a_whole_and_in_shards(cluster: Cluster, shared: int, status: str):
    shards = ",".join(f"shard:g{i}:{2 * (i == shared)}({2 * (i == shared)}/4)" for i in range(2))
    used = f"gpu:g0:1(IDX:0),{shards}"
    node = node_record("n1", gres=f"{TYPED},shard:8", gres_used=used)
    cluster.answer(nodes=[node])
    found = cluster.doctor()[1]["gres types"]
    assert (found["status"], "n1: Slurm has given" in found["found"]) == (status, not shared)


def test_agents_that_are_silent_or_obey_no_orders(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    assert "clockd" not in cluster.doctor()[1]  # clock.conf names no orders
    conf, spool = cluster.root / "clock.conf", cluster.root / "clocks"
    conf.write_text(f"orders = {cluster.root}/orders\nspool = {spool}\n")
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(conf))
    spool.mkdir()

    def say(node: str, age_s: float, error: str = "") -> None:
        said = {"event": "agent", "at": time.time() - age_s, "seq": 1, "error": error}
        said |= {key: [] for key in ("gpus", "power_w", "clock_gpus", "clock_mhz")}
        other = {"event": "clock_set", "at": time.time(), "error": '"agent"'}
        lines = [json.dumps(said), json.dumps(other), '{"event":"agent"']
        (spool / f"{node}.jsonl").write_text("\n".join(lines) + "\n")

    say("n1", 5.0)
    found = cluster.doctor()[1]["clockd"]
    assert (found["status"], "from n2" in found["found"]) == ("warning", True)
    say("n2", 5.0, "orders 3 have expired")
    assert "n2 obeys no orders: orders 3 have expired" in cluster.doctor()[1]["clockd"]["found"]
    say("n2", 5.0)
    assert cluster.doctor()[1]["clockd"]["status"] == "ok"
    for age_s in (400.0, -400.0):  # its clock may be ahead: the selector does not count it either
        say("n1", age_s)
        assert "from n1" in cluster.doctor()[1]["clockd"]["found"]
    say("n1", 5.0)
    if os.geteuid() == 0:
        os.chown(spool / "n1.jsonl", 1234, 1234)  # another user's
        assert "from n1" in cluster.doctor()[1]["clockd"]["found"]
    say("n1", 400.0)
    assert "from n1" in cluster.doctor()[1]["clockd"]["found"]


def test_a_node_that_was_never_profiled(cluster: Cluster):
    cluster.nodes(TYPED, TYPED, TYPED)
    found = cluster.doctor()[1]
    assert "never profiled: n3" in found["coverage"]["found"]


def test_a_profile_of_what_slurm_does_not_have(cluster: Cluster):
    rows = [Run("n1", 9, "A", time.time(), 10.0), Run("n9", 0, "A", time.time(), 10.0)]
    with open_store(cluster.root / "lib" / "store.db") as store:
        put_timings(store, rows)
        recompute_scores(store)
    checks = [
        c for c in json.loads(cluster.ask("--json").stdout)["checks"] if c["name"] == "coverage"
    ]
    assert [(c["found"], c["cure"]) for c in checks] == [
        (
            "Slurm and the profile count GPUs differently on n1",
            "run 'gpu-aware-profile sweep', then compare gres.conf",
        ),
        ("in the profile, but no node of Slurm: n9", "'gpu-aware-profile forget n9'"),
        (
            "times were imported for GPUs that no sweep has seen: n1:9",
            "run 'gpu-aware-profile sweep', or 'gpu-aware-profile forget NODE:INDEX'",
        ),
    ]


def test_an_old_filter(cluster: Cluster):
    (cluster.root / "slurm" / "gpu_aware.lua").write_text("return {}\n")
    found = cluster.ill()
    assert "gpu_aware.lua" in found["filter"]["found"]


def test_a_job_submit_that_does_not_load_the_filter(cluster: Cluster):
    script = cluster.root / "slurm" / "job_submit.lua"
    script.write_text("-- the site's own; gpu_aware is for later\n")
    cluster.sbatch("sbatch: error: Requested node configuration is not available")
    found = cluster.ill()
    assert "does not load" in found["filter"]["found"]
    assert str(script) in found["filter"]["cure"]
    assert found["filter"]["lines"] == list(join_lines(script.parent))
    script.write_text("\n".join(join_lines(script.parent)))
    assert cluster.doctor()[1]["filter"]["status"] == "ok"


def test_a_filter_that_answers_is_loaded_whatever_the_script_says(cluster: Cluster):
    script = cluster.root / "slurm" / "job_submit.lua"
    script.write_text("dofile('/site/all.lua')\n")
    assert cluster.doctor()[1]["filter"]["status"] == "ok"


def test_a_sites_own_epilog_runs_ours(cluster: Cluster):
    """It was warned of for ever, with a cure that changed nothing."""
    ours = cluster.root / "slurm" / "epilog.d" / "50-gpu-aware"
    own = cluster.root / "epilog.sh"
    own.write_text("#!/bin/sh\nexit 0\n")
    cluster.settings(**{"Epilog[0]": str(own)})
    found = cluster.doctor()[1]["epilog"]
    assert found["status"] == "warning"
    assert f"add the line below to {own}" in found["cure"]
    (line,) = found["lines"]
    assert f"\n{line}\n" in cluster.ask().stdout
    own.write_text(f"#!/bin/sh\n{line}\nexit 0\n")
    found = cluster.doctor()[1]["epilog"]
    assert (found["status"], found["found"]) == ("ok", f"controller: {own} runs {ours}")
    ours.unlink()
    assert "is missing" in cluster.doctor()[1]["epilog"]["found"]


def test_a_line_that_never_runs_is_named(cluster: Cluster):
    ours = cluster.root / "slurm" / "epilog.d" / "50-gpu-aware"
    other, own = cluster.root / "first.sh", cluster.root / "epilog.sh"
    other.write_text("#!/bin/sh\n")
    own.write_text(f"#!/bin/sh\nexit 0\n{hook_line(ours)}\n")
    cluster.settings(**{"Epilog[0]": str(other), "Epilog[1]": str(own)})
    found = cluster.doctor()[1]["epilog"]
    assert found["status"] == "warning"
    assert found["found"].startswith(f"{own} names 50-gpu-aware only where it never runs: ")
    assert f"add the line below to {own}" in found["cure"]


def test_one_of_several_lines_and_a_folder_runs_ours(cluster: Cluster):
    own = cluster.root / "prolog.sh"
    own.write_text("#!/bin/sh\n")
    folder = cluster.root / "slurm" / "prolog.d"
    cluster.settings(**{"Prolog[0]": str(own), "Prolog[1]": f"{folder}/*"})
    found = cluster.doctor()[1]["prolog"]
    assert (found["status"], found["found"]) == ("ok", f"controller: {folder}/50-gpu-aware")


def test_a_join_before_a_return_inside_a_function(cluster: Cluster):
    script = cluster.root / "slurm" / "job_submit.lua"
    lines = "\n".join(join_lines(script.parent))
    script.write_text(f"function slurm_job_modify()\n{lines}\nreturn slurm.SUCCESS\nend\n")
    found = cluster.doctor()[1]["filter"]
    assert found["status"] == "failed"
    assert "calls join() inside a function" in found["found"]


def test_a_slurm_user_that_is_no_user_of_this_host(cluster: Cluster):
    """It said that this user could not read the configuration, with a chmod as the cure."""
    cluster.settings(SlurmUser="no-such-user(64030)")
    found = cluster.doctor()[1]
    for name in ("permissions", "changes of jobs", "events"):
        assert found[name]["status"] == "skipped"
        assert found[name]["found"] == "SlurmUser no-such-user is no user of this host"
    assert "SlurmUser: no such user on this host" in found["filter"]["found"]


def test_nodes_that_have_not_read_slurm_conf(cluster: Cluster):
    conf = cluster.root / "slurm" / "slurm.conf"
    conf.write_text("")
    started = int(conf.stat().st_mtime)
    records = [node_record(n, gres=TYPED, slurmd_start_time=started) for n in ("n1", "n2")]
    cluster.answer(nodes=records)
    assert cluster.doctor()[1]["files of nodes"]["status"] == "skipped"
    records[1]["slurmd_start_time"] = started - 9
    cluster.answer(nodes=records)
    found = cluster.doctor()[1]["files of nodes"]
    assert found["status"] == "warning"
    assert found["found"].endswith("since it was changed: n2")
    assert "scontrol reconfigure" in found["cure"]
    included = conf.with_name("nodes.conf")
    included.write_text("")
    conf.write_text("Include nodes.conf\n")
    os.utime(conf, (started, started))
    os.utime(included, (started + 9, started + 9))
    found = cluster.doctor()[1]["files of nodes"]
    assert found["found"].endswith("since it was changed: n[1-2]")


def test_nodes_are_asked_for_their_files(cluster: Cluster):
    """srun stands for one job on both nodes; n2 has another epilog."""
    conf = cluster.root / "slurm" / "slurm.conf"
    conf.write_text("")
    cluster.answer(partitions=[partition_record("gpu", "n[1-2]")])
    epilog = cluster.root / "slurm" / "epilog.d" / "50-gpu-aware"
    look = 'while [ "$1" != sh ]; do shift; done; SLURMD_NODENAME=n1 "$@"'
    greeting = "echo; echo Welcome"  # of a profile or task prolog of the site
    cluster.script("srun", f"#!/bin/sh\n{greeting}\n{look}\n{look} | sed 's/^n1/n2/'\n")
    found = cluster.doctor("--nodes")[1]["files of nodes"]
    assert (found["status"], found["found"]) == ("ok", "3 files as on the controller: n[1-2]")
    changed = f"s|[0-9a-f]* *{epilog}|{'0' * 64} {epilog}|; s/^n1/n2/"
    cluster.script("srun", f"#!/bin/sh\n{look}\n{look} | sed '{changed}'\n")
    found = cluster.doctor("--nodes")[1]["files of nodes"]
    assert found["found"] == f"{epilog} differs from the controller's on n2"
    cluster.script("srun", f"#!/bin/sh\n{look} | sed 's|[0-9a-f]* *{epilog}||'\n")
    done = cluster.ask("--json", "--nodes")
    assert done.exit_code == 3
    texts = [c["found"] for c in json.loads(done.stdout)["checks"]]
    assert f"{epilog} is missing, or not executable, on n1" in texts
    assert "could not be asked now: n2" in texts


def test_a_hook_of_a_node_must_be_executable_and_gres_conf_that_of_the_rollout(cluster: Cluster):
    """srun stands for a job on n1, where this host's files are."""
    slurm = cluster.root / "slurm"
    (slurm / "slurm.conf").write_text("")
    (slurm / "gres.conf").write_text("# BEGIN gpu-aware nodes: instead of the lines\n")
    cluster.answer(partitions=[partition_record("gpu", "n1")])
    look = 'while [ "$1" != sh ]; do shift; done; SLURMD_NODENAME=n1 "$@"'
    epilog = slurm / "epilog.d" / "50-gpu-aware"
    other = f"s|[0-9a-f]* *{slurm}/gres.conf|{'0' * 64} {slurm}/gres.conf|"
    cluster.script("srun", f"#!/bin/sh\nchmod a-x {epilog}\n{look} | sed '{other}'\n")
    texts = [c["found"] for c in json.loads(cluster.ask("--json", "--nodes").stdout)["checks"]]
    assert f"{epilog} is missing, or not executable, on n1" in texts
    assert f"{slurm}/gres.conf differs from the controller's on n1" in texts


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which needs root")
def test_a_configuration_that_slurm_user_cannot_read(cluster: Cluster):
    cluster.settings(SlurmUser="nobody(65534)")
    cluster.root.chmod(0o755)
    cluster.config.chmod(0o600)
    texts = [c["found"] for c in json.loads(cluster.ask("--json").stdout)["checks"]]
    assert f"nobody cannot read {cluster.config}: no selector starts" in texts


@pytest.mark.parametrize("text", [None, "classes = 3", 'return { classes = { "X" } }'])
def test_a_filter_configuration_that_disagrees(cluster: Cluster, text: str | None):
    path = cluster.root / "slurm" / "gpu_aware_conf.lua"
    path.unlink() if text is None else path.write_text(text)
    found = cluster.ill()
    assert found["filter config"]["status"] == "failed"


def test_a_filter_configuration_written_by_hand_may_look_different(cluster: Cluster):
    (cluster.root / "slurm" / "gpu_aware_conf.lua").write_text(
        '-- by hand\nreturn {\n  licence="gpuaware", -- ours\n  classes = { "A", "B", "C" },\n'
        f'  submit_file = "{cluster.root}/spool/submitted",\n'
        '  policies = {"topo-aware", "pal+mapa", "eft", "pal", "pm-first", "packed",'
        ' "mapa-preserve",},\n  scrontab = false, partitions_with_others = {} }'
    )
    assert cluster.doctor()[1]["filter config"]["status"] == "ok"


@pytest.mark.parametrize(
    ("key", "changed", "settings"),
    [
        ("operators", "{}", {"SlurmUser": "nobody(65534)"}),
        ("operators", "{0,4711}", {}),
        ("reservation", '"another"', {}),
        ("policies", '{"pal"}', {}),
        ("partitions", '{ "big" }', {}),
    ],
)
def test_a_filter_that_would_refuse_the_selector_or_a_policy(
    cluster: Cluster, key: str, changed: str, settings: dict[str, str]
):
    cluster.settings(**settings)
    path = cluster.root / "slurm" / "gpu_aware_conf.lua"
    path.write_text(
        re.sub(rf"{key} = ({{[^}}]*}}|\"[^\"]*\")", f"{key} = {changed}", path.read_text())
    )
    found = cluster.ill()
    assert f"differs from config.toml: {key}" in found["filter config"]["found"]
    assert "setup --install" in found["filter config"]["cure"]


def test_a_filter_that_does_not_know_the_nodes_of_a_partition(cluster: Cluster):
    path = cluster.root / "slurm" / "gpu_aware_conf.lua"
    entry, text = "partitions_with_others = {}", path.read_text()
    assert entry in text
    cluster.nodes(TYPED, TYPED, "")
    given = {"mixed": "n1,n3", "gpu": "n[1-2]", "later": "n[1-2],n9"}  # n9: FUTURE
    cluster.answer(tiers=dict.fromkeys(given, 1), members=given)
    lists = {"{}": ["mixed"], '{"gpu", "mixed"}': ["gpu"], '{"mixed"}': [], '{"later","mixed"}': []}
    for listed, wrong in lists.items():
        path.write_text(text.replace(entry, f"partitions_with_others = {listed}"))
        found = cluster.doctor()[1]["filter config"]
        assert found["status"] == ("failed" if wrong else "ok")
        assert not wrong or f"has in {', '.join(wrong)}: partitions_with" in found["found"]
    for none, status in (("later", "failed"), ("away", "ok")):
        right = f'partitions_with_others = {{"mixed"}}, partitions_without_gpus = {{"{none}"}}'
        without = text.replace("partitions_without_gpus = {}", "scrontab = false")
        path.write_text(without.replace(entry, right))
        assert cluster.doctor()[1]["filter config"]["status"] == status
    path.write_text(text.replace(f"{entry},", ""))  # older than the filter
    found = cluster.ill()["filter config"]
    assert "has in gpu, later, mixed: partitions_with_others" in found["found"]
    assert found["cure"].startswith("run 'gpu-aware setup --install'")


def test_a_filter_that_slurmctld_does_not_run(cluster: Cluster):
    cluster.sbatch("sbatch: Job 1 to start at 2026-01-01 on nodes n1 in partition gpu")
    found = cluster.ill()
    assert "not refused" in found["filter answers"]["found"]


def test_the_filter_is_asked_about_a_managed_partition(cluster: Cluster):
    text = cluster.config.read_text()
    cluster.config.write_text(text + '[site]\npartitions = ["big", "huge"]\n')
    refused = f"case \"$*\" in *--partition=big*) echo '{REFUSED}' >&2; exit 1 ;; esac"
    cluster.script("sbatch", f"#!/bin/sh\n{refused}\necho 'Job 1 to start'\n")
    assert cluster.doctor()[1]["filter answers"]["status"] == "ok"


def test_root_without_an_account_cannot_ask_the_filter(cluster: Cluster):
    cluster.sbatch("allocation failure: Invalid account or account/partition combination")
    assert cluster.doctor()[1]["filter answers"]["status"] == "skipped"


def test_no_selector(cluster: Cluster):
    cluster.process.stdin.close()
    cluster.process.wait()
    found = cluster.ill()
    assert "systemctl enable --now" in found["selector"]["cure"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which needs root")
def test_a_process_of_another_user_is_no_selector(cluster: Cluster):
    """The selector is gone; its number is that of a process that a user gave its name."""
    os.chown(cluster.root / "lib" / "selectd.lock", 65534, 65534)
    assert cluster.doctor()[1]["selector"]["status"] == "failed"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which needs root")
def test_a_lock_that_root_left_keeps_the_selector_from_starting(cluster: Cluster):
    cluster.settings(SlurmUser="nobody(65534)")
    cluster.root.chmod(0o755)
    for path in (cluster.root / "lib", *(cluster.root / "lib").iterdir()):
        os.chown(path, 65534, 65534)
    assert cluster.doctor()[1]["permissions"]["status"] == "ok"
    lock = cluster.root / "lib" / "selectd.lock"
    os.chown(lock, 0, 0)
    found = cluster.doctor()[1]["permissions"]
    assert found["found"] == f"nobody cannot write to {lock}"
    assert "setup --install" in found["cure"]


def test_the_shared_copy_is_there_and_not_behind(cluster: Cluster, tmp_path: Path):
    shared = tmp_path / "shared.db"
    text = cluster.config.read_text()
    section = re.sub(r"(?m)^\[store\]$", f'[store]\npublished = "{shared}"', text)
    assert section != text
    cluster.config.write_text(section)
    found = cluster.doctor()[1]["shared copy"]
    assert found["status"] == "warning"
    assert "No such file" in found["found"]
    shared.touch()
    assert cluster.doctor()[1]["shared copy"]["status"] == "ok"
    os.utime(shared, (time.time() - 7200, time.time() - 7200))
    assert "behind" in cluster.doctor()[1]["shared copy"]["found"]


@pytest.mark.parametrize(
    ("mode", "options", "status", "said"),
    [
        (0o1733, "rw,nosuid,noexec", "ok", "mode 1733, of "),
        (0o733, "noexec", "failed", "users may delete"),
        (0o1700, "noexec", "failed", "jobs may not write"),
        (0o1777, "noexec", "warning", "users see"),
        (0o1733, "rw", "warning", "runs programs"),
    ],
)
def test_jobs_may_leave_records_and_see_no_others(cluster, tmp_path, mode, options, status, said):
    own, folder = pwd.getpwuid(os.geteuid()), tmp_path / "records"
    cluster.settings(SlurmUser=f"{own.pw_name}({own.pw_uid})")
    assert "records of jobs" not in cluster.doctor()[1]
    with cluster.config.open("a") as file:
        file.write(f'[energy]\nrecords = "{folder}"\n')
    missing = cluster.doctor()[1]["records of jobs"]
    assert missing["status"] == "failed"
    assert missing["cure"] == f"install -d -o {own.pw_name} -m 1733 {folder}"
    cluster.script("findmnt", f"#!/bin/sh\necho {options}\n")
    folder.mkdir()
    folder.chmod(mode)
    found = cluster.doctor()[1]["records of jobs"]
    assert (found["status"], said in found["found"]) == (status, True), found
    folder.rmdir()
    folder.touch()
    assert "no folder" in cluster.doctor()[1]["records of jobs"]["found"]


def test_requested_power_profiles_are_named(cluster: Cluster):
    assert "power profiles" not in cluster.doctor()[1]
    with open_store(cluster.root / "lib" / "store.db") as store:
        store.execute("UPDATE gpus SET power_profiles = 'max_p max_q', requested_profiles = ''")
        assert cluster.doctor()[1]["power profiles"]["status"] == "ok"
        store.execute("UPDATE gpus SET requested_profiles = 'max_q' WHERE node = 'n1'")
    found = cluster.doctor()[1]["power profiles"]
    assert found["status"] == "warning"
    assert "power profile max_q is requested on n1:0, n1:1" in found["found"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which needs root")
def test_records_of_another_user_are_not_read(cluster: Cluster, tmp_path: Path):
    folder = tmp_path / "records"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with cluster.config.open("a") as file:
        file.write(f'[energy]\nrecords = "{folder}"\n')
    found = cluster.doctor()[1]["records of jobs"]
    assert found["cure"] == f"chown root {folder}"


def test_a_missing_and_a_damaged_store(cluster: Cluster):
    for path in (cluster.root / "lib").glob("store*"):
        path.unlink()
    found = cluster.ill()
    assert found["store"]["status"] == "failed"
    assert found["profile"]["status"] == "skipped"
    (cluster.root / "lib" / "store.db").write_bytes(b"nonsense" * 500)
    found = cluster.ill()
    assert "damaged" in found["store"]["found"]


def test_without_slurm_the_rest_is_still_checked(cluster: Cluster):
    cluster.answer(silent="Unable to contact slurm controller")
    found = cluster.ill()
    assert "Unable to contact" in found["release"]["found"]
    assert found["licence"]["status"] == "skipped"
    assert found["store"]["status"] == "ok"
    with opened(cluster.root / "answers") as state:  # each question waits for its time limit
        assert [call[0] for call in state["calls"]] == ["settings"]


def test_a_host_without_the_client_is_told_what_to_install(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    def missing(timeout_s: float) -> None:
        raise SourceError("the client of Slurm's library is not built: install Slurm's headers")

    monkeypatch.setattr("slurm_gpu_aware.slurm.client.SlurmClient", missing)
    found = cluster.ill()
    assert found["release"]["status"] == "failed"
    assert "install Slurm's headers" in found["release"]["found"]
    assert found["store"]["status"] == "ok"


def test_nodes_on_which_slurm_gives_pairs_with_few_links(cluster: Cluster):
    """It matters where slurmctld knows links, they differ, and Slurm chooses the GPUs."""
    conf = cluster.root / "slurm" / "gres.conf"
    conf.write_text("# AutoDetect=nvml\nNodeName=n[1-3] Name=gpu File=/dev/nvidia[0-3]\n")
    with open_store(cluster.root / "lib" / "store.db") as store:
        for node in ("n1", "n2", "n3"):
            one = report(node, time.time())
            for link in one["links"]:
                bridge = (link["a"], link["b"]) in ((0, 1), (2, 3)) or node == "n3"
                link["class"] = "NV4" if bridge else "SYS"
            ingest(store, one)
    typed = ",".join(f"gpu:g{slot}:1(S:0)" for slot in range(4))
    cluster.nodes(typed, "gpu:v100:4(S:0)", "gpu:v100:4(S:0)")
    told = cluster.doctor()[1]["links"]
    assert (told["status"], "gives the lowest indices" in told["found"]) == ("ok", True)
    for line in ("AutoDetect=nvml\n", "NodeName=n1 Name=gpu File=/dev/nvidia0 Links=-1,4,0,0\n"):
        conf.write_text(line)
        told = cluster.doctor()[1]["links"]
        assert told["status"] == "warning"
        assert told["found"].endswith("fewer NVLinks than others on n2")
    cluster.nodes(typed, typed, "gpu:v100:4(S:0)")
    told = cluster.doctor()[1]["links"]
    assert (told["status"], told["found"].startswith("exact GPUs on n[1-2];")) == ("ok", True)


def test_a_unit_that_keeps_the_selector_from_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.deploy.owned_files.UNIT_DIR", tmp_path)
    config = replace(Config(), store=StoreConfig(published=Path("/shared/x/store.db")))
    context = DoctorContext(config)
    assert list(UNITS.check(context)) == []  # systemd does not start it here
    unit = tmp_path / "gpu-aware-selectd.service"
    strict = "[Service]\nProtectSystem=strict\nReadWritePaths=/var/lib/slurm-gpu-aware"
    unit.write_text(f"{strict} -/var/spool/slurm-gpu-aware\n")
    (found,) = UNITS.check(context)
    assert found.found == f"{unit} does not let the selector write /shared/x"
    unit.write_text(f"{strict} -/var/spool/slurm-gpu-aware -/shared/x\n")
    assert list(UNITS.check(context)) == []


def test_services_of_one_store_have_one_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.deploy.owned_files.UNIT_DIR", tmp_path)
    context = DoctorContext(Config())

    def enable(name: str) -> None:
        wants = tmp_path / f"{'timers' if name.endswith('timer') else 'multi-user'}.target.wants"
        wants.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        (wants / name).symlink_to(tmp_path / name)

    def said() -> list[str]:
        return [one.found for one in UNITS.check(context)]

    strict = "ProtectSystem=strict\nReadWritePaths=/var/lib/slurm-gpu-aware\n"
    watch, shadow = tmp_path / "gpu-aware-watch.service", tmp_path / "gpu-aware-shadow.service"
    watch.write_text(f"[Service]\nUser=slurm\n{strict}")
    shadow.write_text(f"[Service]\nUser=gpu-aware\n{strict}")
    enable(shadow.name)
    assert said() == []  # watch is not enabled
    enable("gpu-aware-watch.timer")
    users = f"{shadow.name} as gpu-aware, {watch.name} as slurm"
    assert said() == [f"several users write one store: {users}"]
    drop_in = tmp_path / f"{watch.name}.d"
    drop_in.mkdir()
    (drop_in / "override.conf").write_text("[Service]\nUser=gpu-aware\n")
    assert said() == []
    shadow.write_text("[Service]\nUser=gpu-aware\nProtectSystem=strict\n")
    folder = "/var/lib/slurm-gpu-aware"
    assert said() == [f"{shadow} does not let {shadow.name} write {folder}"]
    shadow.write_text(f"[Service]\nUser=gpu-aware\n{strict}")
    (tmp_path / "gpu-aware-selectd.service").write_text("[Service]\nUser=gpu-aware\n")
    enable("gpu-aware-selectd.service")
    assert said() == ["selector and shadow are both enabled: the shadow has nothing to compare"]
