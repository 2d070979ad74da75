"""``gpu-aware-profile show --topology``: the matrix, NVLinks, and what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from commands import gpu_aware_profile, refusal, succeeded
from store_samples import ingest, report

from slurm_gpu_aware.store.database import open_store


def with_links(node: str, **changes: Any) -> dict[str, Any]:
    raw = report(node, times={0: 100.0, 2: 100.0})
    for gpu in raw["gpus"]:
        gpu |= {"nvlink_version": "2.0", "nvlinks": 6, "nvswitch_links": 0}
    gpus = [{"index": 0, "class": "SYS"}, {"index": 2, "class": "PIX"}]
    raw["nics"] = [{"name": "mlx5_0", "pci": "0000:1a:00.0", "numa": 1, "gpus": gpus}]
    return raw | changes


@pytest.fixture
def linked_store(tmp_path: Path) -> Path:
    with open_store(tmp_path / "store.db") as store:
        bandwidth = {"a": 0, "b": 2, "ab_gbps": 47.04, "ba_gbps": 46.5, "latency_us": 1.92}
        ring = {"gpus": [0, 2], "operation": "all_reduce", "gbps": 44.0}
        ingest(store, with_links("n1", bandwidths=[bandwidth], collectives=[ring]))
        ingest(store, with_links("n2", nics=[]))
    return tmp_path / "store.db"


def show(path: Path, *options: str) -> Result:
    return gpu_aware_profile("show", "--topology", "--store", str(path), *options)


def test_the_matrix_of_a_node(linked_store: Path) -> None:
    done = succeeded(show(linked_store, "--node", "n1"))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["n1:"]
    assert lines[1] == ["GPU0", "GPU2", "NIC0", "CPU", "Affinity", "NUMA", "Affinity"]
    assert lines[2:5] == [
        ["GPU0", "X", "NV2", "SYS", "0-3", "0"],
        ["GPU2", "NV2", "X", "PIX", "0-3", "1"],
        ["NIC0", "SYS", "PIX", "X", "-", "1"],
    ]
    assert ["NIC0", "mlx5_0"] in lines
    assert not any(line[:1] == ["PHB"] for line in lines)  # the legend explains what occurs
    assert "NVLinks of each GPU: 6 x NVLink 2.0\n" in done.stdout
    assert ["0", "-", "2", "NV2", "50.0", "47.0", "46.5", "-", "1.9", "100%"] in lines
    assert ["all_reduce", "0", "2", "44.0"] in lines


def test_links_of_amd(linked_store: Path) -> None:
    with open_store(linked_store) as store:
        ingest(store, with_links("n5", links=[{"a": 0, "b": 2, "class": "XGMI4", "gbps": 200.0}]))
    lines = [line.split() for line in show(linked_store, "--node", "n5").stdout.splitlines()]
    assert lines[2][:3] == ["GPU0", "X", "XGMI4"]
    assert ["XGMI#", "#", "bonded", "xGMI", "links"] in lines
    assert not any(line[:1] == ["NV#"] for line in lines)


def test_all_nodes_and_json(linked_store: Path) -> None:
    assert show(linked_store).stdout.count("CPU Affinity") == 2
    first, second = json.loads(show(linked_store, "--json").stdout)["nodes"]
    assert first["devices"] == ["GPU0", "GPU2", "mlx5_0"]
    assert first["matrix"][2] == ["SYS", "PIX", "X"]
    assert first["links"][0]["measured"]["ab_gbps"] == 47.04
    assert first["collectives"][0]["gpus"] == [0, 2]
    unmeasured = {"measured": None, "of_median": None}
    assert second["links"] == [{"a": 0, "b": 2, "class": "NV2", "nominal_gbps": 50.0, **unmeasured}]


def test_a_slow_link_is_compared_with_those_of_all_nodes(linked_store: Path) -> None:
    with open_store(linked_store) as store:
        for node, gbps in (("n3", 48.5), ("n4", 23.25)):
            pair = {"a": 0, "b": 2, "ab_gbps": 50.0, "ba_gbps": gbps}
            ingest(store, with_links(node, bandwidths=[pair]))
    links = [node["links"][0] for node in json.loads(show(linked_store, "--json").stdout)["nodes"]]
    assert [link["of_median"] for link in links] == [1.0, None, 48.5 / 46.5, 0.5]
    of_n4 = show(linked_store, "--node", "n4").stdout.split("NV2")[-1].split()
    assert of_n4[:6] == ["50.0", "50.0", "23.2", "-", "-", "50%"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--node", "n9"), 1, "no GPUs of node 'n9'; known: n1, n2"),
        (("--levels",), 2, "--topology goes with --node and --json only"),
        (("--class", "A"), 2, "--topology goes with --node and --json only"),
    ],
)
def test_wrong_options(linked_store: Path, options: tuple[str, ...], code: int, words: str) -> None:
    assert words in refusal(show(linked_store, *options), code)


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    open_store(tmp_path / "store.db").close()
    assert "gpu-aware-profile sweep" in show(tmp_path / "store.db").stderr
