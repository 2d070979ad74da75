"""dcgm-exporter's job map: the real hooks on fake GPUs, and a folder that others try to abuse."""

import pytest
from clock_hooks import Hooks, gres_conf, until
from fake_nvml import FakeNode

from slurm_gpu_aware.clocks.accounts import JobMap

ORDER = [2, 0, 3, 1]
"""NVML's order: its first GPU is Slurm's index 2."""


@pytest.fixture
def map_hooks(library, tmp_path):
    return with_map(Hooks(FakeNode(library, tmp_path, nvml_order=ORDER), tmp_path), tmp_path)


def with_map(map_hooks, tmp_path):
    map_hooks.map = tmp_path / "map"
    with map_hooks.conf.open("a") as conf:
        conf.write(f"job_map = {map_hooks.map}\n")
    return map_hooks


def shown_map(folder):
    """What dcgm-exporter reads: files of digits, or digits.digits; each line is a job."""
    return {f.name: f.read_text().splitlines() for f in folder.iterdir() if f.name[0] != "."}


def test_the_files_are_named_by_nvmls_index_and_go_with_the_job(map_hooks):
    map_hooks.run("prolog", 17, "0,3")
    map_hooks.run("prolog", 18, "2")
    assert shown_map(map_hooks.map) == {"1": ["17"], "2": ["17"], "0": ["18"]}
    files = [file for file in map_hooks.map.iterdir() if file.name != ".lock"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o644}
    assert map_hooks.map.stat().st_mode & 0o777 == 0o755
    map_hooks.run("epilog", 17, "0,3")
    assert shown_map(map_hooks.map) == {"0": ["18"]}
    map_hooks.run("epilog", 18, "2")
    assert shown_map(map_hooks.map) == {}
    assert map_hooks.records() == []


def test_all_gpus_of_an_indexed_node_come_from_extra(map_hooks):
    conf = gres_conf(map_hooks.node.folder, "NodeName=n1 Name=gpu Type=g1 File=/dev/nvidia1")
    map_hooks.run("prolog", 17, "3", "freq=0@1+3", SLURM_CONF=conf)
    assert shown_map(map_hooks.map) == {"2": ["17"], "3": ["17"]}


def test_jobs_that_share_a_gpu_stand_in_one_file(map_hooks):
    conf = gres_conf(map_hooks.node.folder, "NodeName=n1 Name=shard Count=8")
    map_hooks.run("prolog", 17, "2", SLURM_CONF=conf)
    map_hooks.run("prolog", 18, "2", SLURM_CONF=conf)
    assert shown_map(map_hooks.map) == {"0": ["17", "18"]}
    map_hooks.run("epilog", 17, "2", SLURM_CONF=conf)
    assert shown_map(map_hooks.map) == {"0": ["18"]}


def test_a_job_whose_epilog_never_ran_is_replaced_and_a_start_of_the_node_clears_all(map_hooks):
    map_hooks.run("prolog", 17, "2")
    map_hooks.run("prolog", 18, "2")
    assert shown_map(map_hooks.map) == {"0": ["18"]}
    map_hooks.command("reset-all")
    assert shown_map(map_hooks.map) == {}


def test_files_of_mig_instances_and_of_others_are_left_alone(map_hooks):
    map_hooks.map.mkdir()
    (map_hooks.map / "2.0").write_text("17\n")
    (map_hooks.map / "readme").write_text("17\n")
    map_hooks.run("prolog", 17, "2")
    map_hooks.run("epilog", 17, "2")
    assert shown_map(map_hooks.map) == {"2.0": ["17"], "readme": ["17"]}


@pytest.mark.parametrize("job", ["../../x", "17;id", "17\n18", "-1", "", "1" * 13, "１７"])
def test_a_hostile_job_number_writes_nothing(map_hooks, job):
    map_hooks.run("prolog", job, "2")
    map_hooks.run("epilog", job, "2")
    assert not map_hooks.map.exists() or shown_map(map_hooks.map) == {}


@pytest.mark.parametrize("gpus", ["../2", "2,/etc", "0-99999", "²"])
def test_hostile_gpus_write_nothing(map_hooks, gpus):
    map_hooks.run("prolog", 17, gpus)
    assert not map_hooks.map.exists() or shown_map(map_hooks.map) == {}


def test_a_link_in_the_place_of_a_file_or_of_the_folder_is_not_followed(map_hooks, tmp_path):
    map_hooks.map.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    (map_hooks.map / "0").symlink_to(victim)
    map_hooks.run("prolog", 17, "2")
    assert (victim.read_text(), shown_map(map_hooks.map)) == ("precious\n", {"0": ["17"]})
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


def test_a_folder_that_cannot_be_written_costs_no_job_its_start(map_hooks):
    map_hooks.map.mkdir()
    map_hooks.map.chmod(0o777)
    map_hooks.run("prolog", 17, "2", "freq=900")  # exit code 0, and the clock is locked
    assert map_hooks.locked() == {2: 900}
    map_hooks.run("epilog", 17, "2", "freq=900")
    assert map_hooks.locked() == {}


def test_without_the_option_no_process_is_started(library, tmp_path):
    map_hooks = Hooks(FakeNode(library, tmp_path, nvml_order=ORDER), tmp_path)
    map_hooks.run("prolog", 17, "2")
    map_hooks.run("epilog", 17, "2")
    assert map_hooks.started() == []


def test_where_the_agent_runs_it_keeps_the_map(library, tmp_path):
    hooks = Hooks(FakeNode(library, tmp_path, nvml_order=ORDER), tmp_path, accounts=True)
    map_hooks = with_map(hooks, tmp_path)
    with map_hooks.agent():
        map_hooks.run("prolog", 17, "2")
        until(lambda: map_hooks.map.exists() and shown_map(map_hooks.map) == {"0": ["17"]})
        map_hooks.run("epilog", 17, "2")
        until(lambda: shown_map(map_hooks.map) == {})
        assert map_hooks.started() == []
