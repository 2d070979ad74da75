"""The probe of a node: real NVML binding over the fake library, fake timings."""

import json
import os
from pathlib import Path

import pytest
from fake_nvml import ROOT, FakeNode, build_library, machines

from gpu_aware_profile.node import model_word
from gpu_aware_profile.nvml import cpu_list
from gpu_aware_profile.timing import FakeTiming, median_and_spread, timing_backend
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.report import parse_report


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


def probe(node, *options, code=0):
    done = node.run(
        *["gpu_aware_profile.cli", "node", "--json", "--node-name", "n1", *options],
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    parse_report(report)  # the store's own grammar
    return report


def test_the_index_is_the_minor_number_not_nvmls_order(library, tmp_path):
    node = FakeNode(
        library, tmp_path, nvml_order=[2, 0, 3, 1], slowness={2: {"A": 2.0}, 0: {"A": 1.0}}
    )
    report = probe(node)
    machine = json.loads(node.machine.read_text())
    uuids = {gpu["minor"]: gpu["uuid"] for gpu in machine["gpus"]}
    assert {gpu["index"]: gpu["uuid"] for gpu in report["gpus"]} == uuids
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1, 2, 3]
    times = {(t["index"], t["class"]): t["value_ms"] for t in report["timings"]}
    assert times[2, "A"] / times[0, "A"] == pytest.approx(2.0, rel=0.02)
    links = {(k["a"], k["b"]): k["class"] for k in report["links"]}
    assert links == {
        (0, 1): "NV3",
        (2, 3): "NV3",
        **dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "SYS"),
    }


def test_what_is_known_of_a_gpu(library, tmp_path):
    node = FakeNode(library, tmp_path, cpus=["0-7", "8-15"])
    report = probe(node, "--no-timings")
    gpu = report["gpus"][2]
    clocks = gpu.pop("clocks_mhz")
    assert (clocks[0], clocks[-1], len(clocks)) == (1530, 135, 187)
    assert gpu == {
        "index": 2,
        "uuid": gpu["uuid"],
        "name": "Tesla V100-SXM2-16GB",
        "model": "v100",
        "pci": "00000000:88:00.0",
        "numa": 1,
        "cpus": "8-15",
        "memory_mb": 16160,
        "max_clock_mhz": 1530,
        "default_clock_mhz": 1312,
        "power_limit_w": 300.0,
        "temperature_c": 40,
        "nvlink_version": "2.0",
        "nvlinks": 3,
        "nvswitch_links": 0,
    }
    assert (report["schema"], report["node"], report["driver"], report["backend"]) == (
        "gpu-aware-probe/2",
        "n1",
        "550.54.15",
        None,
    )
    assert (report["timings"], report["errors"]) == ([], [])


# Degree and bandwidth as the vendors state them: GB/s in one direction, per machine.
@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        ("dgx-1v", {("NV1", 25.0): 8, ("NV2", 50.0): 8, ("SYS", 15.76): 12}),
        ("hgx-a100-4", {("NV4", 100.0): 6}),
        ("dgx-a100", {("NV12", 300.0): 28}),
        ("pcie-4", {("PIX", 31.5): 1, ("PXB", 31.5): 2, ("SYS", 31.5): 3}),
    ],
)
def test_links_of_known_machines(library, tmp_path, kind, pairs):
    report = probe(FakeNode(library, tmp_path, kind), "--no-timings")
    counted = {}
    for link in report["links"]:
        key = link["class"], link["gbps"]
        counted[key] = counted.get(key, 0) + 1
    assert counted == pairs
    assert all(link["a"] < link["b"] for link in report["links"])


@pytest.mark.shared
def test_the_cube_mesh_agrees_with_the_published_graph(library, tmp_path):
    shared = Path(os.environ.get("GPU_AWARE_SHARED", ROOT.parent / "shared"))
    file = shared / "data" / "topologies" / "dgx-1-v100.json"
    if not file.exists():
        pytest.skip("no measured data beside the repository")
    published = json.loads(file.read_text())["edges"]
    report = probe(FakeNode(library, tmp_path, "dgx-1v"), "--no-timings")
    assert {(k["a"], k["b"]): k["class"] for k in report["links"]} == {
        (e["a"], e["b"]): e["class"] for e in published
    }


def test_a_lost_gpu_is_named_and_the_others_are_reported(library, tmp_path):
    node = FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1])
    machines.lose(node.machine, 3)
    report = probe(node)
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1, 2]
    assert report["errors"] == [
        {"index": 3, "call": "nvmlDeviceGetHandleByIndex", "error": "GPU is lost"}
    ]
    assert len(report["timings"]) == 9
    assert len(report["links"]) == 3


def test_the_index_of_two_lost_gpus_is_not_known(library, tmp_path):
    node = FakeNode(library, tmp_path)
    machines.lose(node.state, 0)
    machines.lose(node.state, 3)
    assert [fault["index"] for fault in probe(node)["errors"]] == [None, None]


def test_a_detail_that_cannot_be_read_costs_only_itself(library, tmp_path):
    node = FakeNode(library, tmp_path)
    machines.add_fault(node.machine, "nvmlDeviceGetPowerManagementLimit", minor=1, error="UNKNOWN")
    machines.add_fault(node.machine, "nvmlDeviceGetMemoryAffinity", error="NOT_SUPPORTED")
    report = probe(node)
    assert [gpu["power_limit_w"] for gpu in report["gpus"]] == [300.0, None, 300.0, 300.0]
    assert [gpu["numa"] for gpu in report["gpus"]] == [None] * 4  # not supported is no failure
    assert report["errors"] == [
        {"index": 1, "call": "nvmlDeviceGetPowerManagementLimit", "error": "Unknown Error"}
    ]
    assert len(report["timings"]) == 12


def test_without_nvlink_queries_the_pcie_path_stands(library, tmp_path):
    node = FakeNode(library, tmp_path)
    machines.add_fault(node.machine, "nvmlDeviceGetNvLinkState", minor=0, error="UNKNOWN")
    report = probe(node, "--no-timings")
    assert {k["class"] for k in report["links"] if k["a"] == 0} == {"PHB", "SYS"}
    assert [gpu["nvlinks"] for gpu in report["gpus"]] == [None, 3, 3, 3]
    assert [fault["call"] for fault in report["errors"]] == ["nvmlDeviceGetNvLinkState"]


def test_a_node_whose_driver_is_missing(library, tmp_path):
    node = FakeNode(library, tmp_path)
    machines.add_fault(node.machine, "nvmlInit", error="DRIVER_NOT_LOADED")
    report = probe(node, code=1)
    assert report["gpus"] == []
    assert report["errors"] == [{"index": None, "call": "nvmlInit", "error": "Driver Not Loaded"}]


def test_the_table_for_people(library, tmp_path):
    node = FakeNode(library, tmp_path)
    done = node.run("gpu_aware_profile.cli", "node")
    assert done.returncode == 0
    assert "Tesla V100-SXM2-16GB" in done.stdout
    assert "NV3" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "cudax"], "unknown timing backend 'cudax'; known: fake"),
        (["--repeats", "0"], "Invalid value for '--repeats'"),
    ],
)
def test_wrong_options(library, tmp_path, options, words):
    done = FakeNode(library, tmp_path).run("gpu_aware_profile.cli", "node", *options)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_class_is_an_error_of_the_report(library, tmp_path):
    report = probe(FakeNode(library, tmp_path), "--class", "A", "--class", "Z")
    assert {t["class"] for t in report["timings"]} == {"A"}
    assert len(report["errors"]) == 4
    assert "no class 'Z'; its classes: A, B, C" in report["errors"][0]["error"]


def machine_with(tmp_path, **changes):
    file = tmp_path / "machine.json"
    machines.write_json(file, {**machines.build("two-socket-4", "n1"), **changes})
    uuid = json.loads(file.read_text())["gpus"][2]["uuid"]
    return file, (2, uuid)


def test_equal_machines_give_equal_times_in_any_order(tmp_path):
    file, gpu = machine_with(tmp_path)
    forth = FakeTiming(file, tmp_path)
    a, b = forth.samples(*gpu, "A", 5), forth.samples(*gpu, "B", 5)
    back = FakeTiming(file, tmp_path)
    assert back.samples(*gpu, "B", 5) == b
    assert back.samples(*gpu, "A", 5) == a
    assert len(set(a)) == 5


def test_noise_has_the_size_that_the_file_says(tmp_path):
    file, gpu = machine_with(tmp_path, noise=0.02)
    samples = FakeTiming(file, tmp_path).samples(*gpu, "A", 4000)
    slowness = json.loads(file.read_text())["gpus"][2]["slowness"]["A"]
    median, spread = median_and_spread(samples)
    assert median == pytest.approx(110.0 * slowness, rel=0.002)
    assert spread == pytest.approx(0.02, rel=0.1)


def test_the_median_is_not_moved_by_disturbed_repeats(tmp_path):
    file, gpu = machine_with(tmp_path, noise=0.0, outliers=0.2)
    samples = FakeTiming(file, tmp_path).samples(*gpu, "A", 200)
    assert max(samples) == pytest.approx(1.5 * min(samples))
    assert median_and_spread(samples) == (pytest.approx(min(samples)), 0.0)


def test_an_override_changes_slowness(tmp_path):
    file, gpu = machine_with(tmp_path, noise=0.0)
    machines.set_slowness(tmp_path / "state", 2, {"A": 3.0})
    assert FakeTiming(file, tmp_path / "state").samples(*gpu, "A", 1) == [330.0]
    assert FakeTiming(file, tmp_path / "absent").samples(*gpu, "A", 1) != [330.0]


def test_a_backend_that_cannot_work_here_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NVML_MACHINE", str(tmp_path / "absent.json"))
    with pytest.raises(SourceError, match="cannot work here"):
        timing_backend("fake")


def test_median_and_spread_by_hand():
    assert median_and_spread([10.0, 11.0, 9.0, 30.0, 10.0]) == (10.0, pytest.approx(0.14826))
    assert median_and_spread([5.0]) == (5.0, 0.0)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("Quadro RTX 5000", "rtx5000"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA", None),
        ("", None),
    ],
)
def test_model_words(name, word):
    assert model_word(name) == word


@pytest.mark.parametrize(
    ("cpus", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 8], "0-2,8"), ([1, 3, 4], "1,3-4")]
)
def test_cpu_lists(cpus, text):
    assert cpu_list(cpus) == text
