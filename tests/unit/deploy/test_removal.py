"""setup --remove: a site is afterwards what it was before setup, and no job is lost."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from commands import refusal, succeeded
from memory_slurm import node_record
from slurm_folder import SlurmFolder, parked
from store_samples import decision

from slurm_gpu_aware.cli.main import cli
from slurm_gpu_aware.deploy.indexing import read_site
from slurm_gpu_aware.deploy.site_scripts import hook_line, join_lines
from slurm_gpu_aware.files import hold_selector_lock
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

pytestmark = pytest.mark.usefixtures("no_launches")

PLAIN = """\
# the site's
ClusterName=test
SlurmUser=root
NodeName=n[1-2] Gres=gpu:v100:4 Feature=ib  # two
GresTypes=gpu
"""
OWN = """\
licenses=matlab:4,comsol:2   # seats
SchedulerParameters=bf_interval=4,default_queue_depth=300
JobSubmitPlugins=all_partitions,lua
Prolog={slurm}/prolog.sh
Epilog={slurm}/epilog.sh
"""
LUA = """\
-- Made for gpu_aware users, too.
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
LUA_IN_FUNCTION = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify()
    return slurm.SUCCESS
end
"""
SHELL = "#!/bin/sh\nmkdir -p /tmp/x # gpu-aware\nexit 0\n"
PLACED = {"req_nodes": "n1", "tres_per_node": "gres/gpu:g0:1,gres/gpu:g1:1"}
MARKED = "gpuaware/1;tn=gres/gpu:2;mc=1;sel=released:0:1"


class Site:
    """A site in a folder, with commands that note when they are called."""

    def __init__(self, root: Path, slurm: SlurmFolder, conf: str) -> None:
        self.root, self.memory = root, slurm
        self.slurm, self.units, self.bin = root / "etc-slurm", root / "units", root / "bin"
        for folder in (self.slurm, self.units, self.bin, root / "etc"):
            folder.mkdir()
        (self.slurm / "slurm.conf").write_text(conf.format(slurm=self.slurm))
        self.config = root / "etc" / "config.toml"
        self.config.write_text(
            f'[store]\npath = "{slurm.store}"\n'
            f'[events]\nsubmit_file = "{root}/spool/submitted"\n'
            f'[setup]\ndistribute = ["{self.bin}/push"]\ncli_filter = true\n'
        )
        # Of our files, the last push finds none.
        has = f'[ -e "{self.slurm}/gpu_aware.lua" ] && echo with || echo without'
        self.command("push", f"echo push $({has})")
        self.command("scontrol", 'echo scontrol "$@"')
        self.command("systemctl", 'echo systemctl "$@"')
        self.command("sbatch", f'grep -q "aware.join" {self.slurm}/job_submit.lua', refused=True)
        slurm.set(settings={"JobSubmitPlugins": "none", "SlurmctldParameters": "(null)"})

    def command(self, name: str, text: str, *, refused: bool = False) -> None:
        path = self.bin / name
        log = ">/dev/null && echo gpu-aware: refused >&2" if refused else f">>{self.root}/calls"
        path.write_text(f"#!/bin/sh\n{text} {log}\n")
        path.chmod(0o755)

    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def files(self) -> dict[str, str]:
        return {
            str(p.relative_to(self.slurm)): p.read_text()
            for p in self.slurm.rglob("*")
            if p.is_file()
        }

    def setup(self, *args: str, answer: str = "") -> Result:
        done = CliRunner().invoke(
            cli,
            [
                *("--config", str(self.config), "setup", "--slurm-dir", str(self.slurm)),
                *("--unit-dir", str(self.units), *args),
            ],
            input=answer,
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "GPU_AWARE_CLOCK_CONFIG": str(self.root / "etc" / "clock.conf"),
            },
        )
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    def remove(self) -> Result:
        return succeeded(self.setup("--remove", "--yes"))


@pytest.fixture
def bare(tmp_path: Path, slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site without scripts of its own."""
    slurm.serve(monkeypatch)
    slurm.write([], ["n1", "n2"])
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site", slurm, PLAIN)


@pytest.fixture
def own(tmp_path: Path, slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with scripts, licences and plugins of its own."""
    slurm.serve(monkeypatch)
    slurm.write([], ["n1", "n2"])
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site", slurm, PLAIN + OWN)
    (site.slurm / "job_submit.lua").write_text(LUA)
    (site.slurm / "cli_filter.lua").write_text(LUA)
    for name in ("prolog.sh", "epilog.sh"):
        (site.slurm / name).write_text(SHELL)
    return site


def add(site: Site, name: str, *lines: str) -> None:
    """Add lines before the last one, as the guide says."""
    path = site.slurm / name
    *head, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*head, *(f"{line}\n" for line in lines), last]))


def install(site: Site) -> None:
    succeeded(site.setup("--install", "--yes"))
    if (
        "Prolog=/" in (site.slurm / "slurm.conf").read_text()
        and (site.slurm / "prolog.sh").exists()
    ):
        add(site, "job_submit.lua", *join_lines(site.slurm))
        add(site, "cli_filter.lua", f'pcall(dofile, "{site.slurm}/gpu_aware_cli_filter.lua")')
        for kind in ("prolog", "epilog"):
            add(site, f"{kind}.sh", hook_line(site.slurm / f"{kind}.d" / "50-gpu-aware"))


@pytest.mark.parametrize("which", ["bare", "own"])
def test_the_site_is_what_it_was(which: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(which)
    before = site.files()
    install(site)
    assert site.files().keys() > before.keys()
    host = socket.gethostname()
    site.memory.reserve()
    with site.memory.state() as state:
        state["settings"] |= {"SlurmctldHost[0]": f"{host}(10.0.0.1)", "SlurmctldHost[1]": "ctl2"}
    done = site.remove()
    assert site.files() == before
    assert "# first on ctl2\nsystemctl disable --now gpu-aware-selectd\n" in done.stdout
    assert f"# first on {host}" not in done.stdout
    assert [p.name for p in site.slurm.iterdir() if p.is_dir()] == []
    assert list(site.units.iterdir()) == []
    assert site.memory.store.parent.exists()
    assert site.config.exists()
    assert f"rm -rf {site.config.parent}" in done.stdout


@pytest.mark.parametrize(
    ("key", "name"),
    [("JobSubmitPlugins", "job_submit.lua"), ("CliFilterPlugins", "cli_filter.lua")],
)
def test_a_script_that_slurm_still_loads_stays(bare: Site, key: str, name: str) -> None:
    """As where slurm.conf.before-gpu-aware is gone: then the plugins stay."""
    install(bare)
    loaded = {"JobSubmitPlugins": "none", "CliFilterPlugins": "(null)"}
    loaded[key] = "syslog,cli_filter/lua"
    bare.memory.set(settings={**loaded, "SlurmctldParameters": "(null)"})
    done = bare.setup("--remove", "--yes")
    assert (done.exit_code, set(bare.files())) == (0, {"slurm.conf", name}), done.stderr
    assert f"{key}=lua" in " ".join(done.stderr.split())


@pytest.mark.parametrize("theirs", ["", ",batch_sched_delay=1"])
def test_a_word_that_setup_added_before_goes_and_the_sites_stays(own: Site, theirs: str) -> None:
    conf = own.slurm / "slurm.conf"
    conf.write_text(before := conf.read_text().replace("depth=300", f"depth=300{theirs}"))
    install(own)
    conf.write_text(conf.read_text().replace("batch_sched_delay=0", "batch_sched_delay=1"))
    own.remove()
    assert conf.read_text() == before


def test_slurm_conf_reaches_the_nodes_before_a_file_goes(own: Site) -> None:
    install(own)
    own.setup("--remove", "--yes")
    services = "gpu-aware-clockd.service gpu-aware-metrics.service gpu-aware-page.timer"
    services += " gpu-aware-selectd.service gpu-aware-shadow.service"
    units = f"{services} gpu-aware-sweep.timer gpu-aware-tune.timer gpu-aware-watch.timer"
    stopped = "gpu-aware-page.service gpu-aware-sweep.service gpu-aware-tune.service"
    stopped += " gpu-aware-watch.service"
    assert own.calls() == [
        f"systemctl disable --now {units}",
        f"systemctl stop {stopped}",
        "push with",
        "scontrol reconfigure",
        "systemctl daemon-reload",
        "push without",
    ]


def test_it_shows_everything_and_asks(own: Site) -> None:
    install(own)
    before = own.files()
    done = own.setup("--remove", answer="n\n")
    assert done.exit_code == 1
    assert "-if loaded then gpu_aware.join() end" in done.stdout
    assert "+licenses=matlab:4,comsol:2   # seats" in done.stdout
    assert "Remove slurm-gpu-aware?" in done.stderr
    assert (own.files(), own.calls()) == (before, [])


def test_a_running_job_whose_comment_was_freed_is_waited_for(own: Site) -> None:
    """Only the ledger knows that it was placed: its node is plain, and it asked for no clock."""
    install(own)
    with open_store(own.memory.store) as store:
        Ledger(store).add_decision(decision("9", state="started"))
    here = {"state": "RUNNING", "nodes": "n1", "slots": [0, 1]}
    own.memory.write([parked("9", licenses="", admin_comment="", **here)], ["n1", "n2"])
    done = own.setup("--remove", "--yes")
    assert done.exit_code == 3
    assert "- job 9: running where we placed it" in done.stderr


def test_jobs_get_their_requests_back_and_running_ones_are_waited_for(own: Site) -> None:
    install(own)
    placed: dict[str, Any] = {"licenses": "", "admin_comment": MARKED, "stuck": True, **PLACED}
    running = parked("9", **{**placed, "state": "RUNNING", "nodes": "n1", "slots": [0, 1]})
    own.memory.write([parked("7"), parked("8", **placed), running], ["n1", "n2"])
    done = own.setup("--remove", "--yes")
    assert done.exit_code == 3
    assert "- job 9: running where we placed it" in done.stderr
    jobs = own.memory.jobs
    assert (jobs["7"]["licenses"], jobs["8"]["licenses"]) == ("", "")
    assert (jobs["8"]["req_nodes"], jobs["8"]["tres_per_node"]) == ("", "gres/gpu:2")
    assert own.memory.get("reservations") == []
    assert (own.slurm / "epilog.d" / "50-gpu-aware").exists()
    assert "gpuaware" in (own.slurm / "slurm.conf").read_text()
    own.memory.change("9", state="COMPLETED")
    own.remove()
    assert not (own.slurm / "epilog.d").exists()


def test_a_held_job_without_its_record_is_not_waited_for(own: Site) -> None:
    """As after another program has overwritten its AdminComment."""
    install(own)
    lost = {"admin_comment": "site note", "licenses": "matlab:1,gpuaware:1"}
    own.memory.set(jobs=[parked("7", **lost, stuck=True, reason="JobHeldUser")])
    own.remove()
    job = own.memory.jobs["7"]
    assert (job["licenses"], job["admin_comment"]) == ("matlab:1", "site note")


def with_features(site: Site) -> None:
    """The nodes as the undo of a rollout leaves them while jobs ask for the feature."""
    conf = site.slurm / "slurm.conf"
    plain = read_site(conf, site.slurm / "gres.conf", {})
    for path, text in plain.texts((), features=True).items():
        path.write_text(text)
    site.memory.set(nodes=[node_record(n, gres="gpu:v100:4") for n in ("n1", "n2")])


ASKS: dict[str, Any] = {"licenses": "", "admin_comment": "", "features": "gpu_v100"}


def test_pending_jobs_get_their_gpu_type_back_instead_of_being_waited_for(own: Site) -> None:
    """A held job, or one with DependencyNeverSatisfied, would be waited for without end."""
    before = own.files()
    install(own)
    with_features(own)
    record = "gpuaware/1;tn=gres/gpu:2;feat=gpu_v100;mc=1;mt=v100"
    jobs = [
        parked("7", **ASKS, stuck=True, reason="DependencyNeverSatisfied"),
        parked("8", features="gpu_v100", admin_comment=record, stuck=True, reason="JobHeldUser"),
        parked("9", features="gpu_v100", admin_comment=record),  # starts as soon as it may
    ]
    own.memory.set(jobs=jobs)
    own.remove()
    asked = [(j["tres_per_node"], j["features"]) for j in own.memory.jobs.values()]
    assert asked == [("gres/gpu:v100:2", "")] * 3
    assert own.memory.jobs["9"]["state"] == "RUNNING"
    assert {j["admin_comment"] for j in own.memory.jobs.values()} == {""}
    assert own.files() == before


def test_an_undo_beside_a_working_selector_keeps_features_and_jobs(own: Site) -> None:
    install(own)
    with_features(own)
    own.memory.set(jobs=[parked(i, **ASKS, stuck=True) for i in ("7", "8")])
    with hold_selector_lock(own.memory.store):
        done = own.setup("--undo", "--yes")
    said = " ".join(done.stderr.split())
    assert (done.exit_code, said.count("another selector runs")) == (0, 1), said
    assert "jobs 7, 8: the request changes only while no selector works" in said
    assert {job["features"] for job in own.memory.jobs.values()} == {"gpu_v100"}
    assert "gpu_v100" in (own.slurm / "slurm.conf").read_text()
    assert own.setup("--undo", "--yes").exit_code == 0
    assert {job["features"] for job in own.memory.jobs.values()} == {""}
    assert "gpu_v100" not in (own.slurm / "slurm.conf").read_text()


def test_a_job_that_keeps_the_feature_is_named_with_what_to_type(own: Site) -> None:
    install(own)
    with_features(own)
    either = {**ASKS, "features": "[gpu_v100|big]", "stuck": True}
    running = parked("9", **ASKS, state="RUNNING", nodes="n1")
    own.memory.set(jobs=[parked("8", **either), running])
    done = own.setup("--remove", "--yes")
    said = " ".join(done.stderr.split())
    assert done.exit_code == 3
    assert "- job 8: the feature of a GPU model is in the request; its constraint is" in said
    assert "'scontrol update JobId=8 Features=CONSTRAINT'" in said
    assert "- job 9: running with the feature of a GPU model" in said
    assert "setup --undo" not in said
    own.memory.change("8", features="big")
    own.memory.change("9", state="COMPLETED")
    own.remove()
    assert "gpu_v100" not in (own.slurm / "slurm.conf").read_text()


def test_our_record_does_not_stay_on_jobs(own: Site) -> None:
    """Those that are given back, and those that run without us; an ended job cannot be changed."""
    install(own)
    record = "gpuaware/1;tn=gres/gpu:1;mc=1"
    opened: dict[str, Any] = {"licenses": "", "tres_per_node": "gres/gpu:1"}
    own.memory.set(
        jobs=[
            parked("6", tres_per_node="gres/gpu:1", admin_comment=record, stuck=True),
            parked("7", **opened, admin_comment=f"{record};ac=x;sel=opened:0:1", stuck=True),
            parked("8", **opened, admin_comment=f"{record};sel=left:0:1", state="RUNNING",
                   nodes="n1"),
            parked("9", **opened, admin_comment=f"{record};sel=released:0:1", state="COMPLETED"),
        ]
    )  # fmt: skip
    done = own.remove()
    left = {i: job["admin_comment"] for i, job in own.memory.jobs.items()}
    assert left == {"6": "", "7": "x", "8": "", "9": f"{record};sel=released:0:1"}
    assert "kept AdminComment of job 9: Slurm changes no job that has ended" in done.stderr


def test_slurmctld_loads_a_filter_that_changes_twice_in_a_second(
    own: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads a script only if that is newer, in whole seconds, than its last look."""
    monkeypatch.setattr("slurm_gpu_aware.deploy.removal.RELOAD_S", 60.0)
    install(own)
    script, loaded, seen = own.slurm / "job_submit.lua", own.root / "loaded", own.root / "seen"
    loaded.write_text(script.read_text())
    seen.write_text(str(int(time.time()) + 2))
    own.command(
        "sbatch",
        f"if [ $(stat -c %Y {script}) -gt $(cat {seen}) ]; then cp {script} {loaded};"
        f" date +%s >{seen}; fi; grep -q aware.join {loaded}",
        refused=True,
    )
    own.remove()


def test_doctor_does_not_undo_a_removal(own: Site) -> None:
    install(own)
    placed: dict[str, Any] = {"licenses": "", "admin_comment": MARKED, **PLACED}
    running = parked("9", **placed, state="RUNNING", nodes="n1", slots=[0, 1])
    own.memory.set(jobs=[running])
    assert own.setup("--remove", "--yes").exit_code == 3
    doctor = ["--config", str(own.config), "doctor", "--json"]
    told = CliRunner().invoke(cli, doctor)
    (check,) = json.loads(told.stdout)["checks"]
    assert (told.exit_code, check["status"]) == (0, "warning")
    assert "a removal is under way; it waits for job 9: running" in check["found"]
    assert check["cure"].startswith("run 'gpu-aware setup --remove' again")
    install(own)  # the site changes its mind
    assert len(json.loads(CliRunner().invoke(cli, doctor).stdout)["checks"]) > 5
    own.memory.change("9", state="COMPLETED")
    own.remove()
    assert not own.memory.store.with_name("removal.json").exists()


def test_the_copy_for_other_hosts_goes(own: Site) -> None:
    """The store stays; its copy is worth nothing without the selector."""
    install(own)
    shared = own.root / "shared" / "store.db"
    shared.parent.mkdir()
    shared.write_text("a copy")
    text = own.config.read_text()
    own.config.write_text(text.replace("[store]\n", f'[store]\npublished = "{shared}"\n'))
    done = own.remove()
    assert not shared.exists()
    assert f"\nrmdir {shared.parent}\n" in done.stdout


def test_a_call_in_another_form_is_named_before_anything_changes(own: Site) -> None:
    install(own)
    add(own, "epilog.sh", f"nice {own.slurm}/epilog.d/50-gpu-aware &")
    before = own.files()
    assert f"{own.slurm}/epilog.sh: take out line 4" in refusal(own.setup("--remove", "--yes"))
    assert (own.files(), own.calls()) == (before, [])


def test_lines_of_several_prologs_a_folder_and_a_function_go(own: Site) -> None:
    """Also where SlurmUser is no user of this host."""
    folder, second = own.slurm / "prolog.d", own.slurm / "second.sh"
    conf = own.slurm / "slurm.conf"
    conf.write_text(f"{conf.read_text()}Prolog={folder}/*\nProlog={second}\n")
    for path in (second, own.slurm / "job_submit.lua"):
        path.write_text("#!/bin/sh\n" if path == second else LUA_IN_FUNCTION)
    before = own.files()
    done = succeeded(own.setup("--install", "--yes"))
    assert "Prolog" not in done.stderr.replace("prolog.d", "")
    second.write_text(f"#!/bin/sh\n{hook_line(folder / '50-gpu-aware')}\n")
    lines = "\n".join(join_lines(own.slurm))
    text = LUA_IN_FUNCTION.replace("    return", f"{lines}\n    return")
    (own.slurm / "job_submit.lua").write_text(text)
    assert "calls join() inside a function" in " ".join(own.setup().stderr.split())
    conf.write_text(conf.read_text().replace("SlurmUser=root", "SlurmUser=no-such-user"))
    done = own.remove()
    after = own.files()
    assert after.pop("slurm.conf") == before.pop("slurm.conf").replace("=root", "=no-such-user")
    after.pop("slurm.conf.before-gpu-aware")  # kept, as slurm.conf was changed since
    assert (after, folder.is_dir()) == (before, True)


def test_nodes_with_files_of_their_own_keep_ours_until_they_read_slurm_conf(own: Site) -> None:
    """A slurmd whose slurm.conf names an epilog that is gone drains its node."""
    install(own)
    text = own.config.read_text()
    own.config.write_text(text[: text.index("[setup]")])
    (own.bin / "srun").write_text("#!/bin/sh\necho n1\n")
    (own.bin / "srun").chmod(0o755)
    done = own.setup("--remove", "--yes", "--json")
    assert done.exit_code == 3
    (waits,) = json.loads(done.stdout)["waits"]
    assert "has a" in waits
    assert "of its own" in waits
    assert "scontrol reconfigure" in waits
    assert "gpuaware" not in (own.slurm / "slurm.conf").read_text()
    assert (own.slurm / "epilog.d" / "50-gpu-aware").exists()
    with own.memory.state() as state:
        for node in state["nodes"]:
            node["slurmd_start_time"] = 1
    assert own.setup("--remove", "--yes").exit_code == 3
    with own.memory.state() as state:
        for node in state["nodes"]:
            node["slurmd_start_time"] = 4_000_000_000
    own.remove()


def test_an_unknown_distribution_command_is_named_before_anything_changes(own: Site) -> None:
    install(own)
    (own.bin / "push").unlink()
    before = own.files()
    assert "setup.distribute" in refusal(own.setup("--remove", "--yes"))
    assert own.files() == before


def test_a_step_that_fails_is_done_by_the_next_run(
    own: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurm.conf is written, but the daemons have not read it: no file of ours may go."""
    monkeypatch.setattr("slurm_gpu_aware.deploy.reconfiguration.Reconfiguration.SLURMDS_S", 0.1)
    before = own.files()
    install(own)
    with own.memory.state() as state:
        for node in state["nodes"]:
            node["slurmd_start_time"] = 1
    own.command("scontrol", "false")
    (own.bin / "scontrol").write_text("#!/bin/sh\necho refused >&2\nexit 1\n")
    assert "scontrol reconfigure: refused" in refusal(own.setup("--remove", "--yes"))
    assert "gpuaware" not in (own.slurm / "slurm.conf").read_text()
    assert (own.slurm / "epilog.d" / "50-gpu-aware").exists()
    own.command("scontrol", 'echo scontrol "$@"')
    own.remove()
    assert "scontrol reconfigure" in own.calls()
    assert own.files() == before


def test_no_node_is_drained_for_files_that_do_not_arrive(own: Site) -> None:
    """A node was drained, and 44 s later put back, without the cause."""
    text = own.config.read_text()
    own.config.write_text(text[: text.index("[setup]")])
    (own.slurm / "gres.conf").write_text("NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-3]\n")
    (own.bin / "srun").write_text("#!/bin/sh\necho n1\n")
    (own.bin / "srun").chmod(0o755)
    before = own.files()
    said = refusal(own.setup("--roll", "--yes"))
    assert "n1 has a" in said
    assert "distribute = " in said
    assert own.files() == before
    assert [c for c in own.memory.calls if "drain" in c[0]] == []


def test_what_tune_has_set_goes(own: Site) -> None:
    install(own)
    tuned = own.memory.store.with_name("tuned.json")
    tuned.write_text("{}\n")
    own.remove()
    assert not tuned.exists()


def test_files_of_earlier_runs_go_with_their_folder(own: Site) -> None:
    install(own)
    runs = own.root / "spool" / "submitted.runs"
    runs.mkdir(parents=True)
    for name in ("1000", "1001.new"):
        (runs / name).write_text("747261696e 60 120\n")
    own.remove()
    assert not runs.parent.exists()


def test_what_watch_and_pages_leave_is_named(own: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drained node, pages, and settings of units; the store's folder has watch's state."""
    install(own)
    reasons = {"n1": "gpu-aware: GPU 3 slow: class A: 3.1% slower", "n2": "fan"}
    nodes = [
        node_record(name, state="IDLE+DRAIN", reason=reason) for name, reason in reasons.items()
    ]
    own.memory.set(nodes=nodes)
    drop_in = own.units / "gpu-aware-watch.service.d"
    drop_in.mkdir()
    pages = own.root / "pages"
    pages.mkdir()
    monkeypatch.setattr("slurm_gpu_aware.cli.rollout._PAGES", pages)
    done = own.remove()
    said = " ".join(done.stderr.split())
    assert "the drain of n1 by watch" in said
    assert "scontrol update nodename=n1 state=resume" in said
    (command,) = [line for line in done.stdout.splitlines() if str(pages) in line]
    assert command.startswith("rm -rf ")
    assert {str(drop_in), str(own.memory.store.parent)} <= set(command.split())
    assert not (own.units / "gpu-aware-watch.service").exists()
