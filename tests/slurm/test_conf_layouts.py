"""What setup and --roll write into files of any layout is read by Slurm as it was meant.

A second slurmctld on the controller, with ports and a folder of its own, reads each layout
(`tests/data/layouts`) as it is, after setup, and after all nodes have moved; slurmd reads its
gres.conf.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

LAYOUTS = {
    folder.name: {
        str(file.relative_to(folder)): file.read_bytes().decode()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    for folder in sorted(Path(__file__).parents[1].glob("data/layouts/*/"))
}
"""Layout -> name of a file -> text."""
DRIVER = Path(__file__).with_name("conf_layouts_driver.py")
PYTHON = "/opt/slurm-gpu-aware/bin/python3"
OURS = (
    *("SchedulerParameters", "Licenses", "GresTypes", "JobSubmitPlugins", "ResvProlog"),
    *("Prolog", "Epilog", "JobCompType", "JobCompLoc"),
)
"""Settings that setup changes, or lists of which it changes an entry."""
PASSING = ("BOOT_TIME", "NEXT_JOB_ID")
ADDED = {
    "SchedulerParameters": {"default_queue_depth", "batch_sched_delay"},
    "Licenses": {"gpuaware", "gpuaware_pool"},
    "GresTypes": {"gpu"},
    "JobSubmitPlugins": {"lua"},
}
SAME = {"SelectType", "MaxJobCount", "ReturnToService", "TmpFS"}
SAME |= {"SchedulerParameters", "Licenses", "GresTypes", "JobSubmitPlugins", "SlurmctldParameters"}
"""Settings that ``scontrol show config`` repeats as they stand in the file."""
OF_NODES = ("Gres", "AvailableFeatures", "ActiveFeatures", "BootTime", "LastBusyTime", "CfgTRES")


@pytest.fixture(autouse=True, name="clean")
def no_jobs() -> None:
    """Nothing to clean: no test gives the cluster a job."""


@pytest.fixture(scope="module")
def ctl(cluster: Cluster) -> Iterator[Cluster]:
    """The controller knows the layouts' nodes, and has devices for slurmd to look at."""
    lists = re.findall(r"(?im)^\s*nodename\s*=\s*([^\s\\]+(?:\\\n[^\s\\]+)*)", _all_lines())
    names = {n for some in lists for n in _names(cluster, some.replace("\\\n", ""))}
    before = cluster.sh("ctl", ["cat", "/etc/hosts"])
    hosts = before + "".join(f"127.0.0.1 {name}\n" for name in sorted(names))
    cluster.sh("ctl", ["tee", "/etc/hosts"], stdin=hosts)
    devices = " ".join(f"/dev/nvidia{number}" for number in range(8))
    cluster.sh("ctl", f"n=0; for f in {devices}; do mknod $f c 195 $n; n=$((n+1)); done")
    try:
        yield cluster
    finally:
        cluster.sh("ctl", f"rm -f {devices}")
        cluster.sh("ctl", ["tee", "/etc/hosts"], stdin=before)


def _all_lines() -> str:
    return "\n".join(text for files in LAYOUTS.values() for text in files.values())


def _names(cluster: Cluster, listed: str) -> list[str]:
    if listed.upper() == "DEFAULT":
        return []
    return cluster.sh("ctl", ["scontrol", "show", "hostnames", listed]).split()


def words(value: str | None) -> list[str]:
    return [word for word in (value or "").split(",") if word and word != "(null)"]


def scripts(settings: dict[str, str], key: str) -> list[str]:
    return [v for k, v in settings.items() if k.split("[")[0] == key and v != "(null)"]


def agree(state: dict[str, Any]) -> None:
    """Our reader says what scontrol says."""
    slurm, ours = state["settings"], state["ours"]
    for key in SAME:
        if key.lower() in ours["settings"]:
            assert words(slurm[key]) == words(ours["settings"][key.lower()]), key
    for key in ("Prolog", "Epilog"):
        assert scripts(slurm, key) == ours["scripts"][key]


def others(settings: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in settings.items() if k.split("[")[0] not in (*OURS, *PASSING)}


def test_there_are_enough_layouts():
    assert len(LAYOUTS) >= 25


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_real_layout_is_changed_as_meant_and_given_back(ctl: Cluster, name: str) -> None:
    given = json.dumps({"name": name, "files": LAYOUTS[name]})
    program = [PYTHON, "-c", DRIVER.read_text()]
    got = json.loads(ctl.sh("ctl", program, stdin=given, timeout=240).splitlines()[-1])
    first, setup = got["first"], got["setup"]
    assert "failed" not in first, first
    assert "failed" not in setup, setup
    agree(first)
    agree(setup)
    assert others(setup["settings"]) == others(first["settings"])
    for key, added in ADDED.items():
        had = words(first["settings"][key])
        have = {re.split(r"[:=*]", word)[0] for word in words(setup["settings"][key])}
        assert have == {re.split(r"[:=*]", word)[0] for word in had} | added, key
    for key in ("Prolog", "Epilog"):
        had = scripts(first["settings"], key)
        assert scripts(setup["settings"], key)[: len(had)] == had
    assert setup["nodes"].keys() == first["nodes"].keys()
    assert got["again"] == []
    if got["indexed"]:
        rolled(got)
    assert got["left"] == []


def rolled(got: dict[str, Any]) -> None:
    assert "failed" not in got["rolled"], got["rolled"]
    before, after = got["setup"]["nodes"], got["rolled"]["nodes"]
    assert after.keys() == before.keys()
    for name, node in after.items():
        old, indexed = before[name], got["indexed"].get(name, 0)
        rest = [item for item in words(old["Gres"]) if not item.startswith("gpu") or not indexed]
        assert words(node["Gres"]) == [f"gpu:g{k}:1" for k in range(indexed)] + rest
        assert set(words(old["AvailableFeatures"])) <= set(words(node["AvailableFeatures"]))
        for key in node.keys() - set(OF_NODES):
            assert node[key] == old.get(key), (name, key)
    count = got["indexed"][list(got["indexed"])[-1]]
    files = [f"/dev/nvidia{k}" for k in range(count)]
    assert got["rolled"]["devices"] == [[f"g{k}", file] for k, file in enumerate(files)]
