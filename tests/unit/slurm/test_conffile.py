"""slurm.conf is read as Slurm reads it, and edited without touching what is the site's."""

from pathlib import Path

import pytest
from conf_text import parse_conf

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conffile import (
    edit_settings,
    outside_block,
    read_conf,
    replace_block,
    take_back_settings,
)

SITE = """\
# site
ClusterName=test
licenses=matlab:2   # two seats
NodeName=DEFAULT Sockets=2 CoresPerSocket=4
NodeName=n[1-2] Gres=gpu:a100:4 \\
   RealMemory=1000
PartitionName=gpu Nodes=ALL Default=YES
JobSubmitPlugins=all_partitions
"""


def test_settings_are_case_insensitive_and_without_comments():
    conf = parse_conf(SITE)
    assert conf.get("Licenses") == "matlab:2"
    assert conf.get("CLUSTERNAME") == "test"
    assert conf.get("PartitionName") is None


def test_node_lines_get_defaults_and_continuations():
    (node,) = parse_conf(SITE).nodes
    assert node["nodename"] == "n[1-2]"
    assert node["gres"] == "gpu:a100:4"
    assert (node["sockets"], node["realmemory"]) == ("2", "1000")


def test_the_last_value_wins_as_in_slurm():
    assert parse_conf("Licenses=a:1\nLicenses=b:2\n").get("licenses") == "b:2"


def test_includes_are_followed(tmp_path: Path):
    (tmp_path / "slurm.conf").write_text("Include nodes.conf\nClusterName=x\n")
    (tmp_path / "nodes.conf").write_text("NodeName=a Gres=gpu:g0:1\n")
    conf = read_conf(tmp_path / "slurm.conf")
    assert [n["nodename"] for n in conf.nodes] == ["a"]
    assert conf.get("ClusterName") == "x"


def test_a_missing_include_is_named(tmp_path: Path):
    (tmp_path / "slurm.conf").write_text("Include gone.conf\n")
    with pytest.raises(SourceError, match=r"gone\.conf: cannot be read"):
        read_conf(tmp_path / "slurm.conf")


def test_an_include_loop_ends(tmp_path: Path):
    (tmp_path / "slurm.conf").write_text("Include slurm.conf\nClusterName=x\n")
    assert read_conf(tmp_path / "slurm.conf").get("ClusterName") == "x"


def test_edit_keeps_the_place_of_known_keys_and_appends_the_rest():
    edited = edit_settings(SITE, {"Licenses": "matlab:2,gpuaware:9", "GresTypes": "gpu"})
    lines = edited.splitlines()
    assert lines[2] == "Licenses=matlab:2,gpuaware:9"
    assert lines[-2] == "GresTypes=gpu"
    assert lines[-1] == "# END gpu-aware"
    assert [x for x in lines if x.startswith("NodeName")] == [
        x for x in SITE.splitlines() if x.startswith("NodeName")
    ]


def test_edit_twice_changes_nothing():
    wanted = {"Licenses": "matlab:2,gpuaware:9", "GresTypes": "gpu"}
    once = edit_settings(SITE, wanted)
    assert edit_settings(once, wanted) == once


def test_edit_changes_the_last_line_of_a_repeated_key():
    edited = edit_settings("GresTypes=mps\nGresTypes=nic\n", {"GresTypes": "nic,gpu"})
    assert edited == "GresTypes=mps\nGresTypes=nic,gpu\n"


def test_a_second_edit_keeps_the_block_of_the_first():
    once = edit_settings("", {"GresTypes": "gpu"})
    twice = edit_settings(once, {"Licenses": "x:1"})
    assert parse_conf(twice).settings == {"grestypes": "gpu", "licenses": "x:1"}
    assert twice.count("# END gpu-aware") == 1


def test_block_is_replaced_and_removed():
    text = replace_block("a\n", ["one"])
    text = replace_block(text, ["two", "three"])
    assert "one" not in text
    assert outside_block(text) == ["a", ""]
    assert replace_block(text, []).split() == ["a"]


def test_settings_are_taken_back_to_the_byte():
    wanted = {"Licenses": "matlab:2,gpuaware:9", "GresTypes": "gpu", "Epilog": "/x"}
    edited = edit_settings(SITE, wanted)
    back = {"Licenses": "matlab:2", "GresTypes": None, "Epilog": None, "Prolog": None}
    assert take_back_settings(edited, back, SITE) == SITE


def test_what_the_site_added_meanwhile_stays():
    edited = edit_settings(SITE, {"GresTypes": "gpu", "Epilog": "/x"})
    edited = edited.replace("GresTypes=gpu", "GresTypes=gpu,nic") + "MaxJobCount=7\n"
    out = take_back_settings(edited, {"GresTypes": "nic", "Epilog": None}, SITE)
    assert parse_conf(out).get("GresTypes") == "nic"
    assert parse_conf(out).get("Epilog") is None
    assert "MaxJobCount=7\n" in out
