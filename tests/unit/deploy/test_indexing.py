"""Records are split without losing anything, and put back byte for byte."""

from pathlib import Path

import pytest

from slurm_gpu_aware.deploy.indexing import SiteFiles, read_site
from slurm_gpu_aware.deploy.site import NodeGpus
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conffile import node_fields, read_conf
from slurm_gpu_aware.slurm.words import expand_hostlist

CONF = """\
# Site
NodeName=DEFAULT RealMemory=1000 Feature=ib
NodeName=n[1-4] NodeAddr=10.0.0.[11-14] CPUs=8 \\
    Gres=gpu:a100:2,nic:1 Weight=10   # racks 1 and 2
NodeName=old Gres=gpu:2
PartitionName=gpu Nodes=n[1-4] Default=YES
"""
GRES = """\
# Site
AutoDetect=off
Name=gpu Type=a100 File=/dev/nvidia[0-1] Cores=0-3
Name=nic File=/dev/nic0
"""


def site(folder: Path, conf: str = CONF, gres: str | None = GRES, **profile: NodeGpus) -> SiteFiles:
    (folder / "slurm.conf").write_bytes(conf.encode("utf-8", "surrogateescape"))
    if gres is not None:
        (folder / "gres.conf").write_text(gres)
    return again(folder, **profile)


def again(folder: Path, **profile: NodeGpus) -> SiteFiles:
    return read_site(folder / "slurm.conf", folder / "gres.conf", profile)


def apply(found: SiteFiles, indexed: set[str], *, features: bool = True) -> None:
    for path, text in found.texts(indexed, features=features).items():
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


def records(folder: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    defaults: dict[str, str] = {}
    lines = read_conf(folder / "slurm.conf").read()
    for record in filter(None, (node_fields(line, defaults) for line in lines)):
        for name in expand_hostlist(record["nodename"]):
            assert name not in found, "a node stands in two records"
            found[name] = dict(record)
    return found


def test_a_split_keeps_every_other_parameter(tmp_path: Path):
    apply(site(tmp_path), {"n2", "n3"})
    got = records(tmp_path)
    assert set(got) == {"n1", "n2", "n3", "n4", "old"}
    for name in ("n1", "n2", "n3", "n4"):
        assert (got[name]["cpus"], got[name]["weight"], got[name]["realmemory"]) == (
            "8",
            "10",
            "1000",
        )
        assert got[name]["features"] == "ib,gpu_a100"
    assert got["n2"]["gres"] == "gpu:g0:1,gpu:g1:1,nic:1"
    assert got["n1"]["gres"] == "gpu:a100:2,nic:1"
    assert got["n1"]["nodeaddr"] == "10.0.0.[11,14]"
    assert got["n2"]["nodeaddr"] == "10.0.0.[12-13]"
    gres = (tmp_path / "gres.conf").read_text()
    assert "\nNodeName=n[1,4],old Name=gpu Type=a100 File=/dev/nvidia[0-1] Cores=0-3\n" in gres
    assert "\nNodeName=n[2-3] Name=gpu Type=g1 File=/dev/nvidia1 Cores=0-3\n" in gres
    assert "\nName=nic File=/dev/nic0\n" in gres


def test_all_orders_of_moving_end_in_the_same_files(tmp_path: Path):
    for order in (["n1", "n2", "n3"], ["n3", "n1", "n2"]):
        folder = tmp_path / order[0]
        folder.mkdir()
        site(folder)
        for name in order:
            found = again(folder)
            apply(found, set(found.indexed_by_us()) | {name})
    one, other = ((tmp_path / n / "slurm.conf").read_text() for n in ("n1", "n3"))
    assert one == other
    assert again(tmp_path / "n1").indexed_by_us() == {"n1", "n2", "n3"}


@pytest.mark.parametrize("conf", [CONF, CONF.rstrip("\n"), CONF.replace("\n", "\r\n")])
def test_back_is_byte_for_byte(tmp_path: Path, conf: str):
    conf += "# caf\udce9 in another encoding"
    before = site(tmp_path, conf)
    raw = (tmp_path / "slurm.conf").read_bytes()
    apply(before, {"n1", "n4"})
    assert (tmp_path / "slurm.conf").read_bytes() != raw
    apply(again(tmp_path), set(), features=False)
    assert (tmp_path / "slurm.conf").read_bytes() == raw
    assert (tmp_path / "gres.conf").read_text() == GRES


def test_features_alone_leave_types_and_gres_conf(tmp_path: Path):
    found = site(tmp_path)
    changes = found.texts((), features=True)
    assert [p.name for p in changes] == ["slurm.conf"]
    apply(found, set())
    assert records(tmp_path)["n1"]["gres"] == "gpu:a100:2,nic:1"
    assert again(tmp_path).indexed_by_us() == set()
    assert again(tmp_path).texts((), features=True) == {}


def test_a_record_in_an_included_file_is_changed_there(tmp_path: Path):
    (tmp_path / "nodes.conf").write_text("NodeName=n[1-2] Gres=gpu:a100:2\n")
    found = site(tmp_path, "ClusterName=c\nInclude nodes.conf\n")
    changes = found.texts({"n1"}, features=True)
    assert [p.name for p in changes] == ["gres.conf", "nodes.conf"]
    apply(found, {"n1"})
    assert records(tmp_path)["n1"]["gres"] == "gpu:g0:1,gpu:g1:1"
    assert again(tmp_path).indexed_by_us() == {"n1"}


def test_edited_lines_of_ours_stop_the_change(tmp_path: Path):
    apply(site(tmp_path), {"n1"})
    path = tmp_path / "slurm.conf"
    path.write_text(path.read_text().replace("Weight=10 Features", "Weight=99 Features"))
    with pytest.raises(SourceError, match="changed by hand"):
        again(tmp_path)


def test_a_change_of_the_sites_own_line_is_taken_over(tmp_path: Path):
    apply(site(tmp_path), {"n1"})
    path = tmp_path / "slurm.conf"
    path.write_text(
        path.read_text().replace(
            "#|     Gres=gpu:a100:2,nic:1 Weight=10", "#|  Gres=gpu:a100:2 Weight=7"
        )
    )
    found = again(tmp_path)
    apply(found, set(found.indexed_by_us()))
    assert {r.get("weight") for n, r in records(tmp_path).items() if n != "old"} == {"7"}


def test_gpus_that_slurm_detects_come_from_the_profile(tmp_path: Path):
    profile = {n: NodeGpus(n, (0, 1), "h100", ("0-3", "4-7")) for n in ("n1", "n2")}
    gres = "AutoDetect=nvml\n"
    found = site(tmp_path, "NodeName=n[1-2] Gres=gpu:2\n", gres, **profile)
    apply(found, {"n2"})
    text = (tmp_path / "gres.conf").read_text()
    assert "\nNodeName=n2 AutoDetect=off\n" in text
    assert "\nNodeName=n2 Name=gpu Type=g1 File=/dev/nvidia1 Cores=4-7\n" in text
    assert records(tmp_path)["n1"]["features"] == "gpu_h100"
    # The profile may be lost meanwhile: what is indexed stays so.
    assert again(tmp_path).nodes["n2"].indices == (0, 1)
    apply(again(tmp_path, **profile), set(), features=False)
    assert (tmp_path / "gres.conf").read_text() == gres


@pytest.mark.parametrize(
    ("conf", "gres", "problem"),
    [
        ("Gres=gpu:2", "", "no File="),
        ("Gres=gpu:2,shard:8", GRES, "shared"),
        ("Gres=gpu:a100:1,gpu:v100:1", GRES, "several GPU types"),
        ("Gres=gpu:4", GRES, "slurm.conf has 4 GPUs"),
        ("Gres=gpu:2", "Name=gpu File=/dev/nvidia[0,2]\n", "so on, but gres.conf names 0, 2"),
        ("Gres=gpu:2", "Name=gpu File=/dev/dri/card[0-1]\n", "not /dev/nvidiaN"),
        ("Gres=gpu:2", "Name=gpu MultipleFiles=/dev/nvidia0,/dev/c1\n", "MIG"),
        ("Gres=gpu:2", GRES + "Name=mps Count=200\n", "MPS"),
        ("Gres=gpu:g0:1,gpu:g1:1", GRES, "one type per GPU already"),
    ],
)
def test_what_cannot_be_indexed_says_why(tmp_path: Path, conf: str, gres: str, problem: str):
    node = site(tmp_path, f"NodeName=n1 {conf}\n", gres).nodes["n1"]
    assert problem in (node.problem or "")
    assert node.indices == ()


def test_nodes_without_gpus_do_not_count(tmp_path: Path):
    assert set(site(tmp_path, CONF + "NodeName=login CPUs=2\n").nodes) == {
        *("n1", "n2", "n3", "n4"),
        "old",
    }


def test_lists_that_do_not_fit_are_named(tmp_path: Path):
    found = site(tmp_path, "NodeName=n[1-3] NodeAddr=a,b Gres=gpu:2\n")
    with pytest.raises(SourceError, match="NodeAddr=a,b has 2 values for 3 nodes"):
        found.texts({"n1"}, features=True)


def test_a_list_that_goes_on_over_lines_loses_nothing(tmp_path: Path):
    conf = (
        "NodeName=gpu-a-01,gpu-a-02,\\\ngpu-a-03 CPUs=32 Gres=gpu:a100:4,\\\nnvme:1 State=UNKNOWN\n"
    )
    found = site(tmp_path, conf, "NodeName=gpu-a-[01-03] Name=gpu File=/dev/nvidia[0-3]\n")
    assert sorted(found.nodes) == ["gpu-a-01", "gpu-a-02", "gpu-a-03"]
    apply(found, set(found.nodes))
    wanted = "gpu:g0:1,gpu:g1:1,gpu:g2:1,gpu:g3:1,nvme:1"
    assert {name: node["gres"] for name, node in records(tmp_path).items()} == dict.fromkeys(
        found.nodes, wanted
    )
    apply(again(tmp_path), set(), features=False)
    assert (tmp_path / "slurm.conf").read_text() == conf


ROUND_TRIP = """\
ClusterName=c
NodeName=ib[1-2] \tCPUs=64 SocketsPerBoard=8 CoresPerSocket=8 Gres=gpu:m2070q:4 Features="gpu,inter"
NodeName=vis1 CPUs=8 Gres=gpu:gtx970:1,gpu:gtx1060:1
NodeName=dgx[1-4] NodeAddr=dgx[1-4] Gres=gpu:8 CPUs=80 State=UNKNOWN
Nodename=DEFAULT Gres=gpu:2
NodeName=t[0-3] nodeaddr=localhost port=27001-27004"""
ROUND_TRIP_GRES = """\
Nodename=ib[1-2] \tName=gpu Type=m2070q\tFile=/dev/nvidia[0-3]
Nodename=vis1 Name=gpu Type=gtx970 File=/dev/nvidia0
Nodename=vis1 Name=gpu Type=gtx1060 File=/dev/nvidia1
NodeName=dgx[1-4] Name=gpu Files=/dev/nvidia[0-7] Cores=0-39
NodeName=t[0-3] Name=gpu Count=2"""


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_public_layouts_come_back_byte_for_byte(tmp_path: Path, end: str):
    profile = {f"t{n}": NodeGpus(f"t{n}", (0, 1), "t4") for n in range(4)}
    found = site(tmp_path, ROUND_TRIP + end, ROUND_TRIP_GRES + end, **profile)
    first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    apply(found, {"ib1", "dgx2", "dgx4", "t1", "t3"})
    assert {name for name, node in records(tmp_path).items() if "gpu:g1:1" in node["gres"]} == {
        *("ib1", "dgx2", "dgx4", "t1", "t3")
    }
    assert records(tmp_path)["t1"]["port"] == "[27002,27004]"
    again_found = again(tmp_path, **profile)
    assert "vis1" not in again_found.indexed_by_us()
    apply(again_found, set(), features=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == first


def test_gpus_of_a_node_without_autodetect_in_one_line(tmp_path: Path):
    """An example of gres.conf's manual page."""
    gres = "AutoDetect=nvml\nNodeName=n[1-2] AutoDetect=off Name=gpu File=/dev/nvidia[0-1]\n"
    found = site(tmp_path, "NodeName=n[1-2] Gres=gpu:2\n", gres)
    first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    apply(found, {"n1"})
    assert records(tmp_path)["n1"]["gres"] == "gpu:g0:1,gpu:g1:1"
    lines = (tmp_path / "gres.conf").read_text().splitlines()
    assert "NodeName=n2 AutoDetect=off Name=gpu File=/dev/nvidia[0-1]" in lines
    assert not any("n1" in line and "nvidia[0-1]" in line and "#" not in line for line in lines)
    apply(again(tmp_path), set(), features=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == first


def test_repeated_keys_of_a_record_become_one(tmp_path: Path):
    conf = "NodeName=n1 Gres=gpu:4 Feature=a Features=b Gres=gpu:2\n"
    apply(site(tmp_path, conf, GRES), {"n1"})
    (node,) = records(tmp_path).values()
    assert (node["gres"], node["features"]) == ("gpu:g0:1,gpu:g1:1", "a,gpu_a100")
    lines = (tmp_path / "slurm.conf").read_text().splitlines()
    assert "NodeName=n1 Gres=gpu:g0:1,gpu:g1:1 Feature=a,gpu_a100" in lines


def test_a_second_record_behind_our_marks_is_named(tmp_path: Path):
    apply(site(tmp_path), {"old"})
    path = tmp_path / "slurm.conf"
    path.write_text(path.read_text().replace("#| NodeName=old", "#| NodeName=x\n#| NodeName=old"))
    with pytest.raises(SourceError, match="more than one record"):
        again(tmp_path)


def test_an_escaped_character_stays_escaped(tmp_path: Path):
    conf = 'NodeName=n[1-2] Gres=gpu:2 Reason="x \\# 1"\n'
    profile = {n: NodeGpus(n, (0, 1), None) for n in ("n1", "n2")}
    found = site(tmp_path, conf, "", **profile)
    assert found.texts((), features=True) == {}
    apply(found, {"n2"})
    assert {node["reason"] for node in records(tmp_path).values()} == {"x # 1"}
    apply(again(tmp_path, **profile), set(), features=False)
    assert (tmp_path / "slurm.conf").read_text() == conf


def test_a_last_include_without_an_end_of_line_is_named(tmp_path: Path):
    """slurmctld reads on behind such a line, into what longer lines have left in its buffer."""
    (tmp_path / "more.conf").write_text("# none\n")
    found = site(tmp_path, f"{CONF}Include more.conf", GRES)
    with pytest.raises(SourceError, match=r"'Include more\.conf', has no end of line"):
        found.texts({"n1"}, features=True)
