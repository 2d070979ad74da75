"""setup: what it writes, what it leaves alone, and that it asks."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_server import run_command
from commands import refusal, succeeded
from conf_text import parse_conf
from store_samples import ingest, report

from slurm_gpu_aware.deploy.files import Change, check_lua, shipped, write
from slurm_gpu_aware.deploy.site import conf_nodes
from slurm_gpu_aware.deploy.site_scripts import hook_line, join_lines
from slurm_gpu_aware.errors import AwareError
from slurm_gpu_aware.slurm.conffile import read_conf
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import Run, put_timings

INDEXED = "Gres=gpu:g0:1,gpu:g1:1"
HEAD = "ClusterName=test\nSlurmUser=root\n"
SHAPE = "Sockets=2 CoresPerSocket=4"


pytestmark = pytest.mark.usefixtures("no_launches")


class Site:
    """A site in a folder: slurm.conf, a store with two profiled nodes, and the command."""

    def __init__(self, root: Path, slurm_conf: str | None):
        self.slurm = root / "slurm"
        self.units = root / "units"
        self.slurm.mkdir()
        if slurm_conf is not None:
            (self.slurm / "slurm.conf").write_text(slurm_conf)
        with open_store(root / "lib" / "store.db") as store:
            for node in ("n1", "n2"):
                ingest(store, report(node, times={0: 100.0, 1: 100.0}))
        self.config = root / "etc" / "config.toml"
        self.config.parent.mkdir()
        self.config.write_text(
            f'[store]\npath = "{root}/lib/store.db"\n'
            f'[events]\nsubmit_file = "{root}/spool/submitted"\n'
        )

    def setup(self, *args: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        folders = ("--slurm-dir", str(self.slurm), "--unit-dir", str(self.units))
        argv = ["", "gpu-aware", "--config", str(self.config), "setup", *folders, *args]
        done = run_command(argv, os.environ, text=answer)
        assert "Traceback" not in done.stderr
        return done

    def files(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in self.slurm.iterdir() if p.is_file()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, f"{HEAD}NodeName=n[1-2] {SHAPE} {INDEXED}\n")


def test_without_a_mode_nothing_is_written(site: Site):
    before = site.files()
    done = succeeded(site.setup())
    assert "+Licenses=gpuaware:100000" in done.stdout
    assert f"new file {site.slurm}/gpu_aware.lua" in done.stdout
    assert "files would change; --install writes them." in done.stderr
    assert site.files() == before
    assert not site.units.exists()


CONTINUED = """\
ClusterName=c
SlurmUser=root
GresTypes=gpu
SchedulerParameters=bf_continue,bf_interval=60,\\
bf_max_job_test=1000
Licenses=matlab:10,\\
ansys:5
NodeName=n1 CPUs=32 Gres=gpu:4
"""


def test_a_continued_setting_is_replaced_whole(tmp_path: Path):
    site = Site(tmp_path, CONTINUED)
    assert site.setup("--install", "--yes").returncode == 0
    lines = site.files()["slurm.conf"].splitlines()
    assert lines[3:6] == [
        "SchedulerParameters=bf_continue,bf_interval=60,bf_max_job_test=1000,"
        "default_queue_depth=5000,batch_sched_delay=0",
        "Licenses=matlab:10,ansys:5,gpuaware:100000,gpuaware_pool:8",
        "NodeName=n1 CPUs=32 Gres=gpu:4",
    ]


def test_a_setting_is_changed_where_it_counts(tmp_path: Path):
    head = "ClusterName=c\nSlurmUser=root\nGresTypes=gpu\nLicenses=matlab:10\n"
    site = Site(tmp_path, f"{head}NodeName=n1 CPUs=8 Gres=gpu:2\ninclude %c/custom.conf\n")
    (site.slurm / "c").mkdir()
    custom = site.slurm / "c" / "custom.conf"
    custom.write_text("SchedulerParameters=bf_continue\nLicenses=ansys:5\n")
    succeeded(site.setup("--install", "--yes"))
    assert custom.read_text() == (
        "SchedulerParameters=bf_continue,default_queue_depth=5000,batch_sched_delay=0\n"
        "Licenses=ansys:5,gpuaware:100000,gpuaware_pool:8\n"
    )
    assert read_conf(site.slurm / "slurm.conf").get("Licenses") == (
        "ansys:5,gpuaware:100000,gpuaware_pool:8"
    )
    assert site.setup("--install").stdout == ""


def test_what_slurm_does_not_read_stops_setup_with_the_line(tmp_path: Path):
    site = Site(tmp_path, f"{HEAD}SchedulerType=sched/backfill MaxJobCount=7\n")
    before = site.files()
    text = " ".join(refusal(site.setup("--install", "--yes")).split())
    assert "slurm.conf: line 'SchedulerType=sched/backfill MaxJobCount=7'" in text
    assert site.files() == before


@pytest.mark.parametrize("prologs", ["Prolog=/a\nProlog={dir}/*\n", "Prolog=/a\nProlog={call}\n"])
def test_one_of_several_prologs_runs_ours(tmp_path: Path, prologs: str):
    site = Site(tmp_path, None)
    folder = site.slurm / "prolog.d"
    call = site.slurm / "own.sh"
    call.write_text(f"#!/bin/sh\n{hook_line(folder / '50-gpu-aware')}\n")
    (site.slurm / "slurm.conf").write_text(HEAD + prologs.format(dir=folder, call=call))
    done = site.setup("--install", "--yes")
    assert "Prolog=/a" not in done.stderr
    assert read_conf(site.slurm / "slurm.conf").all("Prolog")[2:] == ()


def test_several_prologs_of_the_site_stay_and_are_named(tmp_path: Path):
    site = Site(tmp_path, f"{HEAD}Prolog=/a\nProlog=/b\n")
    done = site.setup("--install", "--yes")
    assert "note: Prolog=/a Prolog=/b stays" in " ".join(done.stderr.split())
    assert read_conf(site.slurm / "slurm.conf").all("Prolog") == ("/a", "/b")


def test_review_without_the_sites_users_says_whose_uid_is_missing(tmp_path: Path):
    site = Site(tmp_path, "ClusterName=c\nSlurmUser=no-such-user\nGresTypes=gpu\n")
    done = succeeded(site.setup("--output", str(tmp_path / "review")))
    text = " ".join(done.stderr.split())
    assert "note: no-such-user: no user of this host, so gpu_aware_conf.lua lacks the uid" in text
    assert "operators = { 0 }" in (tmp_path / "review" / "gpu_aware_conf.lua").read_text()
    said = refusal(site.setup("--install", "--yes"))
    assert "SlurmUser: no such user on this host: 'no-such-user'" in " ".join(said.split())


def test_slurm_user_may_be_a_number(tmp_path: Path):
    """All files were written, and then it failed."""
    site = Site(tmp_path, "ClusterName=c\nSlurmUser=0\nGresTypes=gpu\n")
    succeeded(site.setup("--install", "--yes"))
    assert (tmp_path / "spool").is_dir()


def test_install_asks_before_it_overwrites(site: Site):
    before = site.files()
    assert "Overwrite 1 file?" in refusal(site.setup("--install", answer="n\n"))
    assert site.files() == before


ACCOUNTS = "accounting_storage/slurmdbd\nAccountingStoreFlags=job_comment"


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ("", "add AccountingStorageType=accounting_storage/slurmdbd"),
        (f"AccountingStorageType={ACCOUNTS}\n", "add AccountingStorageTRES=gres/gpu,"),
        (f"accountingstoragetype={ACCOUNTS}\nAccountingStorageTRES=gres/gpu\n", ""),
    ],
)
def test_a_note_says_what_the_accounting_lacks(tmp_path: Path, conf: str, line: str):
    """Setup does not add it: without slurmdbd gres/gpu would be fatal for slurmctld."""
    site = Site(tmp_path, HEAD + conf)
    done = site.setup("--install", "--yes")
    said = " ".join(done.stderr.split())
    assert ("note: Accounting" in said or "note: accounting is off" in said) == bool(line)
    assert line in said
    assert parse_conf(site.files()["slurm.conf"]).get("AccountingStorageTRES") in (
        None,
        "gres/gpu",
    )
    clock_conf = site.config.parent / "clock.conf"
    assert "accounts" not in said
    clock_conf.write_text("slurm_user = root\n")
    said = " ".join(site.setup().stderr.split())
    assert f"{clock_conf} has no line 'accounts'" in said
    assert "add accounts = /var/lib/" in said


def test_a_question_without_an_answer_writes_nothing(site: Site):
    """The end of stdin was called an interruption, with exit code 130."""
    before = site.files()
    assert refusal(site.setup("--install", answer="")).endswith("\nnothing was written\n")
    assert site.files() == before


def test_install_writes_everything_and_keeps_the_first_version(site: Site):
    before = site.files()
    done = succeeded(site.setup("--install", answer="y\n"))
    files = site.files()
    assert files["slurm.conf.before-gpu-aware"] == before["slurm.conf"]
    conf = parse_conf(files["slurm.conf"])
    assert conf.get("JobSubmitPlugins") == "lua"
    assert conf.get("Prolog") == str(site.slurm / "prolog.d" / "50-gpu-aware")
    assert conf.get("ResvProlog") == str(site.slurm / "resv.d" / "50-gpu-aware-pool")
    assert "NodeName=n[1-2] Name=gpu Type=g1 File=/dev/nvidia1" in files["gres.conf"]
    assert "gpu_aware.lua" in files
    assert 'models = { "v100" }' in files["gpu_aware_conf.lua"]
    assert (site.units / "gpu-aware-selectd.service").exists()
    clock_conf = site.config.parent / "clock.conf"
    assert clock_conf.exists()
    assert f"prolog.d, epilog.d and {clock_conf} to all nodes" in " ".join(done.stderr.split())
    assert (site.slurm / "prolog.d" / "50-gpu-aware").stat().st_mode & 0o111
    assert (site.config.parent.parent / "spool").is_dir()


def test_install_twice_changes_nothing(site: Site):
    site.setup("--install", "--yes")
    before = site.files()
    done = succeeded(site.setup("--install"))
    assert done.stdout == ""
    assert "nothing was written" in done.stderr
    assert site.files() == before
    assert "no file would change." in site.setup().stderr


def test_gpus_that_no_sweep_has_seen_reach_no_file(site: Site, tmp_path: Path):
    """Times imported for n1:9 and n9:0 made gres.conf name /dev/nvidia9 and n9."""
    rows = [Run("n1", 9, "A", 2000.0, 10.0), Run("n9", 0, "A", 2000.0, 10.0)]
    with open_store(tmp_path / "lib" / "store.db") as store:
        put_timings(store, rows)
    done = site.setup("--install", "--yes")
    assert "no sweep has seen them: n1:9, n9:0" in " ".join(done.stderr.split())
    files = site.files()
    assert "nvidia9" not in files["gres.conf"]
    assert "n9" not in files["gres.conf"]
    assert "max_gpus_per_node = 2" in files["gpu_aware_conf.lua"]


def test_plain_nodes_keep_their_types_and_setup_says_so(tmp_path: Path):
    """Changing types under running jobs kills them."""
    conf = f"{HEAD}NodeName=n1 {INDEXED}\nNodeName=n2 Gres=gpu:v100:2\n"
    site = Site(tmp_path, conf)
    done = site.setup("--install", "--yes")
    files = site.files()
    assert [x for x in files["slurm.conf"].splitlines() if x.startswith("NodeName")] == [
        x for x in conf.splitlines() if x.startswith("NodeName")
    ]
    assert "n2" not in files["gres.conf"]
    assert "NodeName=n1 Name=gpu Type=g0" in files["gres.conf"]
    said = " ".join(done.stderr.split())
    assert "n2 keep their GRES types" in said


NODES_ONLY = '[placement]\ngpus = "nodes"\n'


def test_nodes_only_leaves_types_and_gres_conf_to_the_site(tmp_path: Path):
    conf = f"{HEAD}NodeName=n1 {INDEXED}\nNodeName=n2 Gres=gpu:V100:2\n"
    site = Site(tmp_path, conf)
    site.config.write_text(site.config.read_text() + NODES_ONLY)
    done = succeeded(site.setup("--install", "--yes"))
    assert "setup --roll" not in done.stderr
    files = site.files()
    assert "gres.conf" not in files
    assert conf.split("\n", HEAD.count("\n"))[-1] in files["slurm.conf"]
    for line in ('types = { "v100" },', 'node_types = { "V100" },'):  # as Slurm compares them
        assert f"\n    {line}" in files["gpu_aware_conf.lua"]
    review = tmp_path / "review"
    assert site.setup("--output", str(review)).returncode == 0
    assert "NodeName" not in (review / "slurm.conf.lines").read_text()
    assert not (review / "gres.conf").exists()
    roll = site.setup("--roll", "--yes")
    assert (roll.returncode, site.files()) == (2, files)
    assert 'gpus = "exact"' in roll.stderr


def test_gres_lines_of_the_site_are_not_repeated(site: Site):
    own = "NodeName=n[1-2] Name=gpu Type=g0 File=/dev/nvidia0\n"
    (site.slurm / "gres.conf").write_text(own)
    site.setup("--install", "--yes")
    assert site.files()["gres.conf"] == own


def test_a_node_that_slurm_does_not_know_is_left_to_the_admin(tmp_path: Path):
    site = Site(tmp_path, HEAD)
    done = site.setup("--install", "--yes")
    assert "gres.conf" not in site.files()
    assert "NodeName=n[1-2] Gres=gpu:g0:1,gpu:g1:1" in " ".join(done.stderr.split())


def test_the_sites_own_filter_stays(site: Site):
    own = "function slurm_job_submit() return slurm.SUCCESS end\n"
    (site.slurm / "job_submit.lua").write_text(own)
    done = site.setup("--install", "--yes")
    assert site.files()["job_submit.lua"] == own
    lines = [f"    {line}" for line in join_lines(site.slurm)]
    assert "\n".join(["", *lines, ""]) in done.stderr


def test_the_script_of_slurms_commands_only_if_it_is_asked_for(site: Site):
    site.setup("--install", "--yes")
    assert "cli_filter.lua" not in site.files()
    assert "CliFilterPlugins" not in site.files()["slurm.conf"]
    site.config.write_text(site.config.read_text() + "[setup]\ncli_filter = true\n")
    done = site.setup("--install", "--yes")
    files = site.files()
    assert files["cli_filter.lua"] == files["gpu_aware_cli_filter.lua"]
    assert parse_conf(files["slurm.conf"]).get("CliFilterPlugins") == "lua"
    assert "every host with sbatch or srun before slurm.conf" in " ".join(done.stderr.split())
    own = "function slurm_cli_pre_submit() return slurm.SUCCESS end\n"
    (site.slurm / "cli_filter.lua").write_text(own)
    done = site.setup("--install", "--yes")
    assert site.files()["cli_filter.lua"] == own
    line = f'pcall(dofile, "{site.slurm}/gpu_aware_cli_filter.lua")'
    assert line.split()[-1] in " ".join(done.stderr.split())
    (site.slurm / "cli_filter.lua").write_text(f"{own}{line}\n")
    assert "the site's own and stays" not in " ".join(site.setup("--install").stderr.split())


def test_a_changed_configuration_reloads_the_filter(site: Site):
    """slurmctld reads our modules again only when job_submit.lua is newer."""
    site.setup("--install", "--yes")
    script = site.slurm / "job_submit.lua"
    os.utime(script, (1_000_000_000, 1_000_000_000))
    site.config.write_text(site.config.read_text() + '[site]\ndefault_class = "A"\n')
    site.setup("--install", "--yes")
    assert script.stat().st_mtime == 1_000_000_000  # nothing that the filter reads has changed
    site.config.write_text(site.config.read_text() + "park_uncommented = false\n")
    done = site.setup("--install", "--yes")
    assert "park_uncommented = false" in site.files()["gpu_aware_conf.lua"]
    assert abs(script.stat().st_mtime - time.time()) < 3600
    assert "touched" in done.stderr


def test_output_is_a_folder_for_review(site: Site, tmp_path: Path):
    out = tmp_path / "review"
    before = site.files()
    succeeded(site.setup("--output", str(out)))
    assert site.files() == before
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert {
        "gres.conf",
        "slurm.conf.lines",
        "gpu_aware.lua",
        "gpu_aware_conf.lua",
        "job_submit.lua",
        "clock.conf",
        "prolog.d/50-gpu-aware",
        "epilog.d/50-gpu-aware",
        "resv.d/50-gpu-aware-pool",
        "systemd/gpu-aware-selectd.service",
        "systemd/gpu-aware-sweep.timer",
        "systemd/gpu-aware-tune.timer",
        "systemd/gpu-aware-watch.timer",
    } <= names
    assert (
        "# NodeName=n[1-2] Gres=gpu:g0:1,gpu:g1:1 Features=gpu_v100"
        in (out / "slurm.conf.lines").read_text()
    )
    unit = (out / "systemd" / "gpu-aware-selectd.service").read_text()
    assert f"ExecStart={sys.prefix}/bin/gpu-aware selectd\n" in unit
    assert f"Environment=GPU_AWARE_CONFIG={site.config}\n" in unit
    lib = site.config.parent.parent / "lib"
    assert re.search(rf"^ReadWritePaths={lib} -\S+$", unit, re.M), unit
    agent = (out / "systemd" / "gpu-aware-clockd.service").read_text()
    folders = re.search(r"^ReadWritePaths=(/\S+ /\S+)$", agent, re.M)
    assert folders is not None, agent
    assert f"\nExecStartPre=+/bin/mkdir -p {folders[1]}\n" in agent
    shadow = (out / "systemd" / "gpu-aware-shadow.service").read_text()
    assert "\nUser=gpu-aware\n" in shadow
    assert "UMask=0027\n" in unit
    pages = (out / "systemd" / "gpu-aware-page.service").read_text()
    assert f"ExecStart={sys.prefix}/bin/gpu-aware page /var/lib/gpu-aware-page\n" in pages


def test_output_again_shows_a_diff_and_asks(site: Site, tmp_path: Path):
    out = tmp_path / "review"
    site.setup("--output", str(out))
    (out / "gres.conf").write_text("mine\n")
    done = site.setup("--output", str(out), answer="n\n")
    assert "-mine" in done.stdout
    assert (out / "gres.conf").read_text() == "mine\n"


def test_without_a_profile_setup_says_what_is_missing(site: Site):
    (site.config.parent.parent / "lib" / "store.db").unlink()
    done = succeeded(site.setup("--install", "--yes"))
    assert "no profile" in done.stderr
    assert "gres.conf" not in site.files()


def test_both_modes_are_wrong_usage(site: Site, tmp_path: Path):
    assert site.setup("--install", "--output", str(tmp_path / "x")).returncode == 2


def test_operators_come_from_the_configuration(site: Site):
    """Not from an option: what it had given, the next --install without it would take away."""
    text = site.config.read_text()
    site.config.write_text(text + '[site]\noperators = ["nobody", "4711"]\n')
    assert site.setup("--install", "--yes").returncode == 0
    assert "operators = { 0, 4711, 65534 }," in site.files()["gpu_aware_conf.lua"]
    site.config.write_text(text + '[site]\noperators = ["no-such-user-here"]\n')
    said = " ".join(refusal(site.setup("--install", "--yes")).split())
    assert f"{site.config}: site.operators: no such user on this host: 'no-such-user-here'" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_store_that_a_sweep_of_root_made_becomes_slurm_users(tmp_path: Path):
    site = Site(tmp_path, "ClusterName=test\nSlurmUser=nobody\n")
    assert (tmp_path / "lib" / "store.db").stat().st_uid == 0
    done = site.setup("--install", "--yes")
    assert f"{tmp_path}/lib/store.db now belongs to nobody" in " ".join(done.stderr.split())
    assert {p.stat().st_uid for p in (tmp_path / "lib", *(tmp_path / "lib").iterdir())} == {65534}


def test_states_of_nodes():
    conf = parse_conf(
        "NodeName=a Gres=gpu:g0:1,gpu:g1:1\nNodeName=b Gres=gpu:2\nNodeName=c Gres=gpu:a100:2\n"
        "NodeName=d\nNodeName=e[1-2] Gres=nic:1,gpu:g0:1\n"
    )
    nodes = conf_nodes(conf)
    assert {name for name, node in nodes.items() if node.has_gpus} == {"a", "b", "c", "e1", "e2"}
    assert {name for name, node in nodes.items() if node.indexed} == {"a", "e1", "e2"}


@pytest.mark.skipif(shutil.which("luac") is None, reason="luac is not installed")
def test_broken_lua_is_refused_before_anything_is_written(tmp_path: Path):
    """A syntax error stops slurmctld at its next start."""
    with pytest.raises(AwareError, match="Lua syntax error, nothing was installed"):
        check_lua([Change(tmp_path / "x.lua", "return {")])


def test_write_keeps_mode_and_the_first_version(tmp_path: Path):
    file = tmp_path / "slurm.conf"
    file.write_text("first\n")
    file.chmod(0o640)
    assert write(Change(file, "second\n")) == tmp_path / "slurm.conf.before-gpu-aware"
    assert write(Change(file, "third\n")) is None
    assert file.read_text() == "third\n"
    assert (tmp_path / "slurm.conf.before-gpu-aware").read_text() == "first\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_write_follows_a_link(tmp_path: Path):
    real = tmp_path / "real"
    real.write_text("a")
    link = tmp_path / "slurm.conf"
    link.symlink_to(real)
    write(Change(link, "b"))
    assert link.is_symlink()
    assert real.read_text() == "b"


@pytest.mark.parametrize("kind", ["lua", "prolog.d", "epilog.d", "resv.d", "systemd"])
def test_shipped_files_are_found(kind: str):
    assert shipped(kind)


@pytest.mark.parametrize(("features", "expected"), [("", "{}"), ("Feature=gpu_v100", '{ "v100" }')])
def test_a_model_is_told_to_the_filter_only_where_nodes_have_its_feature(
    tmp_path: Path, features: str, expected: str
):
    """Else a request by model would be refused on a site whose nodes are still plain."""
    site = Site(tmp_path, f"{HEAD}NodeName=n[1-2] {SHAPE} Gres=gpu:v100:2 {features}\n")
    assert site.setup("--install", "--yes").returncode == 0
    assert f"models = {expected}," in site.files()["gpu_aware_conf.lua"]


@pytest.mark.parametrize(
    ("lines", "cpus", "memory"),
    [
        (f"NodeName=n[1-2] {SHAPE} RealMemory=64000 {INDEXED}", 8, 64000),
        (f"NodeName=n1 {SHAPE} ThreadsPerCore=2 {INDEXED}\nNodeName=n2 CPUs=4 {INDEXED}", 16, None),
        (f"NodeName=DEFAULT CPUs=6 RealMemory=7000\nNodeName=n[1-2] {INDEXED}", 6, 7000),
        (f"NodeName=n1 CPUs=4 {INDEXED}\nNodeName=n2 {INDEXED}", None, None),
        (f"NodeName=n1 CPUs=4 {INDEXED}\nNodeName=login CPUs=99 RealMemory=1", 4, None),
        (f"NodeName=n1 Boards=2 SocketsPerBoard=2 CoresPerSocket=3 {INDEXED}", 12, None),
    ],
)
def test_the_filter_knows_the_largest_node_with_gpus(
    tmp_path: Path, lines: str, cpus: int | None, memory: int | None
):
    """One whose size is not in slurm.conf may be larger than all others."""
    site = Site(tmp_path, f"{HEAD}{lines}\n")
    assert site.setup("--install", "--yes").returncode == 0
    conf = site.files()["gpu_aware_conf.lua"]
    for key, value in (("max_cpus_per_node", cpus), ("max_memory_mb_per_node", memory)):
        found = re.search(rf"{key} = (\d+),", conf)
        assert (found and int(found[1])) == value
