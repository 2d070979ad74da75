"""slurm.conf is read as Slurm reads it, and edited without touching what is the site's."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from conf_text import parse_conf

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conf_grammar import fields_of, pairs_of, records_of, render_pairs
from slurm_gpu_aware.slurm.conffile import (
    END,
    ConfFiles,
    edit_settings,
    read_conf,
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


def folder_of(folder: Path, **texts: str) -> Path:
    """The folder with these files; ``slurm`` is slurm.conf."""
    for name, text in texts.items():
        (folder / f"{name}.conf").write_bytes(text.encode())
    return folder / "slurm.conf"


def edit(conf: Path, wanted: Mapping[str, str]) -> list[str]:
    """Set and write; the names of the changed files."""
    return write(edit_settings(ConfFiles(conf), wanted))


def write(changed: Mapping[Path, str]) -> list[str]:
    for path, text in changed.items():
        path.write_bytes(text.encode())
    return [path.name for path in changed]


def edited(folder: Path, text: str, wanted: Mapping[str, str]) -> str:
    conf = folder_of(folder, slurm=text)
    edit(conf, wanted)
    return conf.read_bytes().decode()


# -- reading ---------------------------------------------------------------------------------------


def test_settings_are_case_insensitive_and_without_comments():
    conf = parse_conf(SITE)
    assert conf.get("Licenses") == "matlab:2"
    assert conf.get("CLUSTERNAME") == "test"
    assert conf.get("PartitionName") is None


def test_node_lines_get_defaults_and_continuations():
    nodes = parse_conf(SITE).nodes()
    assert list(nodes) == ["n1", "n2"]
    node = nodes["n2"]
    assert node["gres"] == "gpu:a100:4"
    assert (node["sockets"], node["realmemory"]) == ("2", "1000")


def test_all_prologs_count():
    conf = parse_conf("Prolog=/a\nPROLOG=/b.d/*\nResvProlog=/a\nResvProlog=/b\n")
    assert conf.all("Prolog") == ("/a", "/b.d/*")
    assert conf.all("ResvProlog") == ("/b",)
    assert conf.all("Epilog") == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Licenses=a:1\nLicenses+=b:2\n", "b:2"),  # the last one wins
        ("Licenses=a:1,\\\nb:2\n", "a:1,b:2"),
        ("Licenses=a:1,\\ \t\r\nb:2\r\n", "a:1,b:2"),
        ("Licenses=a:1,\\ # the first\nb:2 # and last\n", "a:1,b:2"),
        ("Licenses=a:1,\\\n# not on\nMaxJobCount=7\n", "a:1,"),
        ("Licenses=a:1,\\\n", "a:1,"),
        ("Licenses=a:1,\\", "a:1,"),
        ("Licenses=a\\#b:1 # c\n", "a#b:1"),
        ("Licenses=a\\\\#b:1\n", "a\\"),
        ("Licenses=a\\b\\\\\n", "ab\\"),
        ('  Licenses\t= "a:1, b:2"\n', "a:1, b:2"),
        ('Licenses=""\n', ""),
        ('Licenses="a"b"\n', '"a"b"'),
        ("Licenses=a:1 # goes on \\\nMaxJobCount=7\n", "a:1"),
        ("Licenses=a:1\x0b\n", "a:1"),
        ("Licenses=a\u2028b\n", "a\u2028b"),
    ],
)
def test_lines_are_joined_as_in_slurm(text: str, value: str):
    assert parse_conf(text).get("licenses") == value


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("SchedulerType=sched/backfill MaxJobCount=7", "give MaxJobCount a line of its own"),
        ("Licenses=a:1, b:2", "does not read 'b:2'"),
        ("Licenses=", "does not read 'Licenses='"),
        ("hello world", "valid is Key=Value"),
        ("  Include a.conf", "does not read 'Include a.conf'"),
        ("Include a.conf b.conf", "does not read 'b.conf'"),
        ("Include conf.d/*.conf", "no pattern"),
        ("NodeName=n2 CPUs=8 foo", "does not read 'foo'"),
        ("Include %c.conf", "no ClusterName"),
        ("Include gone.conf", r"gone\.conf: cannot be read: No such file"),
        ("Include slurm.conf", "include each other"),
        ("Include a\0b", "NUL"),
    ],
)
def test_what_slurm_refuses_is_refused_with_the_line(tmp_path: Path, line: str, why: str):
    conf = folder_of(tmp_path, slurm=f"# site\n{line}\n")
    with pytest.raises(SourceError, match=why) as error:
        read_conf(conf)
    assert ".conf: " in str(error.value)


def test_includes_are_followed_where_they_stand_and_as_often(tmp_path: Path):
    conf = folder_of(
        tmp_path,
        slurm="ClusterName=X1\nINCLUDE a.conf # once\nMaxJobCount=5\ninclude\t%c.conf\r\n",
        a="MaxJobCount=9\nNodeName=a Gres=gpu:g0:1\nInclude deep/b.conf",
        x1="Include deep/b.conf\n",
    )
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.conf").write_text("Prolog=/p")
    read = read_conf(conf)
    assert list(read.nodes()) == ["a"]
    assert (read.get("MaxJobCount"), read.all("Prolog")) == ("5", ("/p", "/p"))
    assert {path.name for path in read.texts} == {"slurm.conf", "a.conf", "b.conf", "x1.conf"}


def test_a_folder_includes_nothing(tmp_path: Path):
    (tmp_path / "conf.d").mkdir()
    conf = folder_of(tmp_path, slurm="Include conf.d\nClusterName=x\n")
    assert read_conf(conf).get("ClusterName") == "x"


def test_feature_precedes_features_as_in_slurm():
    text = "NodeName=DEFAULT Feature=d\nNodeName=a Features=b Feature=c Features=e\nNodeName=b\n"
    assert [node["features"] for node in parse_conf(text).nodes().values()] == ["c", "d"]


def test_a_record_can_be_written_again():
    pairs = [("NodeName", "a"), ("Reason", '"x # y"'), ("Comment", "C:\\#1")]
    ((_, record),) = records_of(render_pairs(pairs))
    assert pairs_of(record) == (pairs, "")
    assert fields_of(record) == {"nodename": "a", "reason": "x # y", "comment": "C:\\#1"}


# -- editing ---------------------------------------------------------------------------------------


def test_a_continued_setting_becomes_one_line(tmp_path: Path):
    text = "SchedulerParameters=bf_continue,\\\nbf_interval=60\nMaxJobCount=7\n"
    assert parse_conf(text).get("SchedulerParameters") == "bf_continue,bf_interval=60"
    wanted = {"SchedulerParameters": "bf_continue,bf_interval=60,batch_sched_delay=1"}
    assert edited(tmp_path, text, wanted) == (
        "SchedulerParameters=bf_continue,bf_interval=60,batch_sched_delay=1\nMaxJobCount=7\n"
    )


def test_the_line_that_counts_is_changed_in_its_file(tmp_path: Path):
    conf = folder_of(
        tmp_path,
        slurm="Licenses=matlab:10\nMaxJobCount=1\ninclude custom.conf\n",
        custom="Licenses=ansys:5",
    )
    assert edit(conf, {"Licenses": "ansys:5,gpuaware:9", "MaxJobCount": "2"}) == [
        "slurm.conf",
        "custom.conf",
    ]
    assert conf.read_text() == "Licenses=matlab:10\nMaxJobCount=2\ninclude custom.conf\n"
    assert (tmp_path / "custom.conf").read_text() == "Licenses=ansys:5,gpuaware:9"
    assert read_conf(conf).get("Licenses") == "ansys:5,gpuaware:9"


def test_a_value_that_the_grammar_lacks_is_refused(tmp_path: Path):
    conf = folder_of(tmp_path, slurm=SITE)
    with pytest.raises(SourceError, match="has a quote"):
        edit(conf, {"Licenses": 'a"b'})
    assert conf.read_text() == SITE


def test_a_second_edit_keeps_the_block_of_the_first(tmp_path: Path):
    edited(tmp_path, "", {"GresTypes": "gpu"})
    conf = tmp_path / "slurm.conf"
    edit(conf, {"Licenses": "x:1"})
    assert read_conf(conf).values == {"grestypes": ("gpu",), "licenses": ("x:1",)}
    assert conf.read_text().count(END) == 1


def test_lines_that_do_not_count_any_more_are_taken_back_too(tmp_path: Path):
    conf = folder_of(tmp_path, slurm="Licenses=a:1 # seats\n", late="Licenses=b:2\n")
    first = ConfFiles(conf).texts
    edit(conf, {"Licenses": "a:1,ours:9"})
    conf.write_text(f"{conf.read_text()}Include late.conf\n")
    edit(conf, {"Licenses": "b:2,ours:9"})

    def own(key: str, value: str) -> str:
        return value.removesuffix(",ours:9")

    before = ConfFiles(conf, texts=first)
    write(take_back_settings(ConfFiles(conf), own, before))
    assert conf.read_text() == "Licenses=a:1 # seats\nInclude late.conf\n"
    assert (tmp_path / "late.conf").read_text() == "Licenses=b:2\n"
