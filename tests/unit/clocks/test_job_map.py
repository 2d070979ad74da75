"""dcgm-exporter's job map: the real hooks on fake GPUs, and a folder that others try to abuse."""

import os
import signal
import subprocess
import sys

import pytest
from clock_hooks import Hooks, gres_conf, until
from fake_nvml import FakeNode

from slurm_gpu_aware.clocks.job_map import JobMap

ORDER = [2, 0, 3, 1]
"""NVML's order: its first GPU is Slurm's index 2."""


@pytest.fixture
def hooks(library, tmp_path):
    return with_map(Hooks(FakeNode(library, tmp_path, nvml_order=ORDER), tmp_path), tmp_path)


def with_map(hooks, tmp_path):
    hooks.map = tmp_path / "map"
    with hooks.conf.open("a") as conf:
        conf.write(f"job_map = {hooks.map}\n")
    return hooks


def shown(folder):
    """What dcgm-exporter reads: files of digits, or digits.digits; each line is a job."""
    return {f.name: f.read_text().splitlines() for f in folder.iterdir() if f.name[0] != "."}


def test_the_files_are_named_by_nvmls_index_and_go_with_the_job(hooks):
    hooks.run("prolog", 17, "0,3")
    hooks.run("prolog", 18, "2")
    assert shown(hooks.map) == {"1": ["17"], "2": ["17"], "0": ["18"]}
    assert {f.stat().st_mode & 0o777 for f in hooks.map.iterdir() if f.name != ".lock"} == {0o644}
    assert hooks.map.stat().st_mode & 0o777 == 0o755
    hooks.run("epilog", 17, "0,3")
    assert shown(hooks.map) == {"0": ["18"]}
    hooks.run("epilog", 18, "2")
    assert shown(hooks.map) == {}
    assert hooks.records() == []


def test_all_gpus_of_an_indexed_node_come_from_extra(hooks):
    conf = gres_conf(hooks.node.folder, "NodeName=n1 Name=gpu Type=g1 File=/dev/nvidia1")
    hooks.run("prolog", 17, "3", "freq=0@1+3", SLURM_CONF=conf)
    assert shown(hooks.map) == {"2": ["17"], "3": ["17"]}


def test_jobs_that_share_a_gpu_stand_in_one_file(hooks):
    conf = gres_conf(hooks.node.folder, "NodeName=n1 Name=shard Count=8")
    hooks.run("prolog", 17, "2", SLURM_CONF=conf)
    hooks.run("prolog", 18, "2", SLURM_CONF=conf)
    assert shown(hooks.map) == {"0": ["17", "18"]}
    hooks.run("epilog", 17, "2", SLURM_CONF=conf)
    assert shown(hooks.map) == {"0": ["18"]}


def test_a_job_whose_epilog_never_ran_is_replaced_and_a_start_of_the_node_clears_all(hooks):
    hooks.run("prolog", 17, "2")
    hooks.run("prolog", 18, "2")
    assert shown(hooks.map) == {"0": ["18"]}
    hooks.command("reset-all")
    assert shown(hooks.map) == {}


def test_files_of_mig_instances_and_of_others_are_left_alone(hooks):
    hooks.map.mkdir()
    (hooks.map / "2.0").write_text("17\n")
    (hooks.map / "readme").write_text("17\n")
    hooks.run("prolog", 17, "2")
    hooks.run("epilog", 17, "2")
    assert shown(hooks.map) == {"2.0": ["17"], "readme": ["17"]}


@pytest.mark.parametrize("job", ["../../x", "17;id", "17\n18", "-1", "", "1" * 13, "１７"])
def test_a_hostile_job_number_writes_nothing(hooks, job):
    hooks.run("prolog", job, "2")
    hooks.run("epilog", job, "2")
    assert not hooks.map.exists() or shown(hooks.map) == {}


@pytest.mark.parametrize("gpus", ["../2", "2,/etc", "0-99999", "²"])
def test_hostile_gpus_write_nothing(hooks, gpus):
    hooks.run("prolog", 17, gpus)
    assert not hooks.map.exists() or shown(hooks.map) == {}


def test_a_link_in_the_place_of_a_file_or_of_the_folder_is_not_followed(hooks, tmp_path):
    hooks.map.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    (hooks.map / "0").symlink_to(victim)
    hooks.run("prolog", 17, "2")
    assert (victim.read_text(), shown(hooks.map)) == ("precious\n", {"0": ["17"]})
    other = tmp_path / "other"
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(other)
    with pytest.raises(OSError, match=r"link|directory"):
        JobMap(str(link)).add("17", [0], shared=False)
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="others may write"):
        JobMap(str(folder)).add("17", [0], shared=False)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_no_job_its_start(hooks):
    hooks.map.mkdir()
    hooks.map.chmod(0o777)
    hooks.run("prolog", 17, "2", "freq=900")  # exit code 0, and the clock is locked
    assert hooks.locked() == {2: 900}
    hooks.run("epilog", 17, "2", "freq=900")
    assert hooks.locked() == {}


def test_without_the_option_no_process_is_started(library, tmp_path):
    hooks = Hooks(FakeNode(library, tmp_path, nvml_order=ORDER), tmp_path)
    hooks.run("prolog", 17, "2")
    hooks.run("epilog", 17, "2")
    assert hooks.started() == []


def test_where_the_agent_runs_it_keeps_the_map(library, tmp_path):
    hooks = with_map(Hooks(FakeNode(library, tmp_path, nvml_order=ORDER), tmp_path, True), tmp_path)
    program = [sys.executable, "-m", "slurm_gpu_aware.cli.main", "clockd", "--node", "n1"]
    env = {**hooks.node.env, "GPU_AWARE_CLOCK_CONFIG": str(hooks.conf)}
    agent = subprocess.Popen(program, env=env, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (hooks.accounts / "agent").exists())
        hooks.run("prolog", 17, "2")
        until(lambda: hooks.map.exists() and shown(hooks.map) == {"0": ["17"]})
        hooks.run("epilog", 17, "2")
        until(lambda: shown(hooks.map) == {})
        assert hooks.started() == []
    finally:
        os.kill(agent.pid, signal.SIGTERM)
        agent.wait(20)
