"""The probe of a node: real NVML binding over the fake library, fake timings."""

import json
import statistics
from collections import Counter
from types import SimpleNamespace

import pytest
from commands import succeeded
from fake_nvml import FakeNode, machines
from needs import shared_data

from gpu_aware_profile.devices.driver import PeerLink
from gpu_aware_profile.devices.nvml import cpu_list
from gpu_aware_profile.probe.node import _links, _peer_facts
from gpu_aware_profile.probe.runs import ReadableGpu
from slurm_gpu_aware.model.hardware_graph import model_word
from slurm_gpu_aware.store.report import parse_report


@pytest.fixture
def usual_node(library, tmp_path):
    return FakeNode(library, tmp_path)


def idle_medians(report):
    """(GPU, class) -> median over the runs with idle neighbours."""
    runs = {}
    for t in report["timings"]:
        if t["neighbours"] == "idle":
            runs.setdefault((t["index"], t["class"]), []).append(t["value_ms"])
    return {key: statistics.median(values) for key, values in runs.items()}


def test_the_index_is_the_minor_number_not_nvmls_order(library, tmp_path):
    node = FakeNode(
        library, tmp_path, nvml_order=[2, 0, 3, 1], slowness={2: {"A": 2.0}, 0: {"A": 1.0}}
    )
    report = node.probe()
    machine = json.loads(node.machine.read_text())
    uuids = {gpu["minor"]: gpu["uuid"] for gpu in machine["gpus"]}
    assert {gpu["index"]: gpu["uuid"] for gpu in report["gpus"]} == uuids
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1, 2, 3]
    times = idle_medians(report)
    assert times[2, "A"] / times[0, "A"] == pytest.approx(2.0, rel=0.02)
    links = {(k["a"], k["b"]): k["class"] for k in report["links"]}
    across = dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "SYS")
    assert links == {(0, 1): "NV3", (2, 3): "NV3", **across}


def test_what_is_known_of_a_gpu(library, tmp_path):
    node = FakeNode(library, tmp_path, cpus=["0-7", "8-15"])
    report = node.probe("--no-timings")
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
        "min_limit_w": 150.0,
        "power_profiles": None,  # from Blackwell on
        "requested_profiles": None,
        "temperature_c": 40,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "nvlink_version": "2.0",
        "nvlinks": 3,
        "nvswitch_links": 0,
        "health": {
            "pcie_gen": 3,
            "pcie_gen_most": 3,
            "pcie_gen_gpu": 3,
            "pcie_lanes": 16,
            "pcie_lanes_most": 16,
            "performance_state": 0,
            "active_nvlinks": 6,  # three of them to the CPU
            "ecc_now": 0,
            "remapped": None,  # from Ampere on
            "remap_pending": False,
            "remap_failed": None,
            "throttle": "",
        },
    }
    assert (report["schema"], report["node"]) == ("gpu-aware-probe/2", "n1")
    assert (report["driver"], report["cuda"], report["backend"]) == ("550.54.15", "12.4", None)
    assert (report["timings"], report["errors"]) == ([], [])


# Degree and bandwidth as the vendors state them: GB/s in one direction, per machine.
@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        # Six NVLinks a GPU, three of them to the CPU, do not join GPUs of two sockets.
        ("two-socket-4", {("NV3", 75.0): 2, ("SYS", 15.76): 4}),
        ("dgx-1v", {("NV1", 25.0): 8, ("NV2", 50.0): 8, ("SYS", 15.76): 12}),
        ("hgx-a100-4", {("NV4", 100.0): 6}),
        ("dgx-a100", {("NV12", 300.0): 28}),
        ("pcie-4", {("PIX", 31.5): 1, ("PXB", 31.5): 2, ("SYS", 31.5): 3}),
    ],
)
def test_links_of_known_machines(library, tmp_path, kind, pairs):
    report = FakeNode(library, tmp_path, kind).probe("--no-timings")
    assert Counter((link["class"], link["gbps"]) for link in report["links"]) == pairs
    assert all(link["a"] < link["b"] for link in report["links"])


def test_measured_links(library, tmp_path):
    node = FakeNode(library, tmp_path, "dgx-1v")
    machines.lose(node.machine, 2)
    report = node.probe("--no-timings", "--links")
    assert (report["backend"], report["link_backend"]) == (None, "fake")
    assert len(report["bandwidths"]) == len(report["links"]) == 21
    assert max(len(row["gpus"]) for row in report["collectives"]) == 7
    assert not any(2 in row["gpus"] for row in report["collectives"])
    done = node.run("gpu_aware_profile.cli", "node", "--no-timings", "--links")
    assert "a to b GB/s" in done.stdout
    assert "all-reduce of GPUs" in done.stdout


def test_real_gpus_without_cupy_cost_the_report_nothing(usual_node):
    code = (
        "import json\n"
        "from gpu_aware_profile.links import link_runs as links\n"
        "from gpu_aware_profile.probe.node import Wanted, probe\n"
        "links.brought = lambda *_: None\n"
        "links.find_spec = lambda name: None\n"
        "print(json.dumps(probe('n1', None, Wanted(links_s=60.0))))"
    )
    report = usual_node.python(code)
    assert len(parse_report(report).links) == 6
    (fault,) = report["errors"]
    assert fault["error"].startswith("CuPy is not installed")


@pytest.mark.shared
def test_the_cube_mesh_agrees_with_the_published_graph(library, tmp_path):
    published = json.loads(shared_data("topologies/dgx-1-v100.json").read_text())["edges"]
    report = FakeNode(library, tmp_path, "dgx-1v").probe("--no-timings")
    assert {(k["a"], k["b"]): k["class"] for k in report["links"]} == {
        (e["a"], e["b"]): e["class"] for e in published
    }


def test_a_lost_gpu_is_named_and_the_others_are_reported(library, tmp_path):
    node = FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1])
    machines.lose(node.machine, 3)
    report = node.probe()
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1, 2]
    assert report["errors"] == [
        {"index": 3, "call": "nvmlDeviceGetHandleByIndex", "error": "GPU is lost"}
    ]
    assert len(report["timings"]) == 3 * 3 * 3 * 2  # GPUs, classes, runs, idle and loaded
    assert len(report["links"]) == 3


def test_the_index_of_two_lost_gpus_is_not_known(usual_node):
    machines.lose(usual_node.state, 0)
    machines.lose(usual_node.state, 3)
    assert [fault["index"] for fault in usual_node.probe()["errors"]] == [None, None]


def test_a_detail_that_cannot_be_read_costs_only_itself(usual_node):
    machines.add_fault(
        usual_node.machine, "nvmlDeviceGetPowerManagementLimit", minor=1, error="UNKNOWN"
    )
    machines.add_fault(usual_node.machine, "nvmlDeviceGetMemoryAffinity", error="NOT_SUPPORTED")
    report = usual_node.probe()
    assert [gpu["power_limit_w"] for gpu in report["gpus"]] == [300.0, None, 300.0, 300.0]
    assert [gpu["numa"] for gpu in report["gpus"]] == [None] * 4  # not supported is no failure
    assert report["errors"] == [
        {"index": 1, "call": "nvmlDeviceGetPowerManagementLimit", "error": "Unknown Error"}
    ]
    assert len(report["timings"]) == 4 * 3 * 3 * 2


def test_readings_of_the_hardware(library, tmp_path):
    node = FakeNode(library, tmp_path, "hgx-a100-4")
    facts = {"nvlinks_down": 3, "pcie_lanes_now": 8, "pcie_gen_now": 1, "performance_state": 8}
    facts |= {"remapped": 2, "remap_pending": 1, "remap_failed": 1, "ecc_uncorrected_now": 5}
    node.state.mkdir()
    machines.set_facts(node.state, 2, facts | {"throttle_reasons": 0x88})
    machines.add_fault(node.machine, "nvmlDeviceGetGpuMaxPcieLinkGeneration", error=13)
    report = parse_report(node.probe("--no-timings"))
    assert vars(report.health[2]) == {
        "pcie_gen": 1,
        "pcie_gen_most": 4,
        "pcie_gen_gpu": None,
        "pcie_lanes": 8,
        "pcie_lanes_most": 16,
        "performance_state": 8,
        "active_nvlinks": 9,
        "ecc_now": 5,
        "remapped": 2,
        "remap_pending": True,
        "remap_failed": True,
        "throttle": "hw_power_brake_slowdown hw_slowdown",
    }
    assert report.faults == ()
    assert report.health[1].active_nvlinks == 12


def test_without_nvlink_queries_the_pcie_path_stands(usual_node):
    machines.add_fault(usual_node.machine, "nvmlDeviceGetNvLinkState", minor=0, error="UNKNOWN")
    report = usual_node.probe("--no-timings")
    assert {k["class"] for k in report["links"] if k["a"] == 0} == {"PHB", "SYS"}
    assert [gpu["nvlinks"] for gpu in report["gpus"]] == [None, 3, 3, 3]
    assert [fault["call"] for fault in report["errors"]] == ["nvmlDeviceGetNvLinkState"]


def test_a_node_whose_driver_is_missing(usual_node):
    machines.add_fault(usual_node.machine, "nvmlInit", error="DRIVER_NOT_LOADED")
    report = usual_node.probe(code=1)
    assert report["gpus"] == []
    assert report["errors"] == [{"index": None, "call": "nvmlInit", "error": "Driver Not Loaded"}]


def test_the_table_for_people(usual_node):
    done = succeeded(usual_node.run("gpu_aware_profile.cli", "node"))
    assert "Tesla V100-SXM2-16GB" in done.stdout
    assert "NV3" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "cudax"], "no timing backend 'cudax' works here; known: kernels"),
        (["--runs", "0"], "Invalid value for '--runs'"),
    ],
)
def test_wrong_options(usual_node, options, words):
    done = usual_node.run("gpu_aware_profile.cli", "node", *options)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_class_is_an_error_of_the_report(usual_node):
    report = usual_node.probe("--class", "A", "--class", "Z")
    assert {t["class"] for t in report["timings"]} == {"A"}
    assert len(report["errors"]) == 4  # one per GPU, not one per run
    assert "no class 'Z'; its classes: A, B, C" in report["errors"][0]["error"]


def test_a_run_has_its_conditions(usual_node):
    report = usual_node.probe("--class", "A", "--runs", "2")
    rows = [row for row in report["timings"] if row["index"] == 1]
    assert [row["neighbours"] for row in rows] == ["idle", "idle", "loaded", "loaded"]
    idle, loaded = rows[0], rows[2]
    assert loaded["value_ms"] / idle["value_ms"] == pytest.approx(1.03, rel=0.005)
    assert rows[0]["value_ms"] != rows[1]["value_ms"]  # noise from run to run
    # Power of the fake machine: idle + load x (limit - idle) x (clock / max clock)^3
    assert idle["power_w"] == pytest.approx(42 + 0.9 * (300 - 42) * (1312 / 1530) ** 3, abs=0.01)
    assert idle["energy_j"] == pytest.approx(idle["power_w"] * idle["value_ms"] / 1e3, rel=1e-3)
    assert (idle["sm_mhz"], idle["memory_mhz"], idle["temperature_c"]) == (1312, 877, 39)
    assert (idle["clock_mhz"], idle["throttle"], idle["samples"]) == (0, "", 25)


def test_two_probes_agree_and_an_unlucky_run_is_no_slow_gpu(library, tmp_path):
    node = FakeNode(library, tmp_path, slowness={3: {"A": 1.5}, 2: {"A": 1.0}})
    first, second = (node.probe("--class", "A") for _ in range(2))
    values = [[row["value_ms"] for row in report["timings"]] for report in (first, second)]
    assert values[0] == values[1]
    machines.slow_run(node.state, 2, 1, {"A": 1.5})
    third = node.probe("--class", "A")
    before, after = idle_medians(first), idle_medians(third)
    assert after[2, "A"] == pytest.approx(before[2, "A"], rel=0.005)
    assert after[3, "A"] / after[2, "A"] == pytest.approx(1.5, rel=0.01)
    now = [row["value_ms"] for row in third["timings"]]
    changed = [a for a, b in zip(values[0], now, strict=True) if a != b]
    assert len(changed) == 2  # one run with idle and one with loaded neighbours


def test_a_single_gpu_and_no_loaded_runs(usual_node):
    report = usual_node.probe("--class", "A", "--no-loaded")
    assert {row["neighbours"] for row in report["timings"]} == {"idle"}
    machine = json.loads(usual_node.machine.read_text())
    machines.write_json(usual_node.machine, {**machine, "gpus": machine["gpus"][:1]})
    assert {row["neighbours"] for row in usual_node.probe()["timings"]} == {"idle"}


def test_a_gpu_that_is_divided_has_no_time(usual_node):
    machine = json.loads(usual_node.machine.read_text())
    minors = [gpu["minor"] for gpu in machine["gpus"]]
    machine["gpus"][minors.index(1)]["mig"] = 1
    machine["gpus"][minors.index(2)]["mig"] = 0
    machines.write_json(usual_node.machine, machine)
    report = usual_node.probe("--class", "A", "--runs", "1", "--no-loaded")
    assert [row["index"] for row in report["timings"]] == [0, 2, 3]
    (fault,) = report["errors"]
    assert (fault["index"], "divided into instances" in fault["error"]) == (1, True)
    links = usual_node.probe("--no-timings", "--links")
    assert [(row["a"], row["b"]) for row in links["bandwidths"]] == [(0, 2), (0, 3), (2, 3)]


def test_throttle_reasons_are_named(usual_node):
    machine = json.loads(usual_node.machine.read_text())
    machine["gpus"][0]["throttle_reasons"] = 0x04 | 0x40 | 0x200 | 0x01  # the last: idle
    machines.write_json(usual_node.machine, machine)
    row = usual_node.probe("--class", "C", "--runs", "1")["timings"][0]
    assert row["throttle"] == "board_limit hw_thermal_slowdown sw_power_cap"


def test_without_events_and_telemetry_there_are_times(usual_node):
    machines.add_fault(
        usual_node.machine, "nvmlDeviceGetTotalEnergyConsumption", error="NOT_SUPPORTED"
    )
    calls = ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetPowerUsage", "nvmlDeviceRegisterEvents")
    calls = dict(enumerate(calls, 1))
    for minor, call in calls.items():
        machines.add_fault(usual_node.machine, call, minor=minor, error="UNKNOWN")
    report = usual_node.probe("--class", "A", "--runs", "1", "--no-loaded")
    assert [row["power_w"] is None for row in report["timings"]] == [False, False, True, False]
    faults = {fault["index"]: fault["call"] for fault in report["errors"]}
    assert (faults, len(report["errors"])) == (calls, 3)
    for call, error in (("nvmlEventSetFree", "UNKNOWN"), ("nvmlEventSetCreate", "NOT_SUPPORTED")):
        machines.add_fault(usual_node.machine, call, error=error)
        assert len(usual_node.probe("--class", "A", "--runs", "1", "--no-loaded")["timings"]) == 4


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetPowerUsage"])
def test_a_gpu_that_hangs_its_driver_costs_only_itself(usual_node, call):
    machines.add_fault(usual_node.state, call, minor=1, hang_s=600)
    report = usual_node.probe("--class", "A", "--runs", "2")
    assert [row["index"] for row in report["timings"]] == [0, 2, 3] * 4
    assert [(fault["index"], fault["error"]) for fault in report["errors"]] == [
        (1, "no answer within 5 s")
    ]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("Quadro RTX 5000", "rtx5000"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtxpro6000maxq"),
        ("NVIDIA RTX PRO 4500 Blackwell", "rtxpro4500"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("Quadro RTX 6000", "rtx6000"),
        ("NVIDIA GeForce RTX 2080", "rtx2080"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper"),
        ("NVIDIA TITAN RTX", "titanrtx"),
        ("NVIDIA GeForce RTX 4090 D", "rtx4090d"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090laptop"),
        ("HGX GB200", "gb200"),
        ("NVIDIA GB200", "gb200"),
        ("GRID A100X-40C", "a100x"),
        ("NVIDIA H100 NVL", "h100nvl"),
        ("NVIDIA GeForce RTX 5090 D v2", "rtx5090dv2"),
        ("NVIDIA CMP 170HX", "cmp170hx"),
        ("AMD Instinct MI300X", "mi300x"),
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


def test_links_of_another_vendor():
    """Two dies joined by four xGMI links, and a third one without a direct link to the first."""
    peers = {0: "1" * 4, 1: "0" * 4 + "2", 2: "1"}
    device = SimpleNamespace(pcie_gbps=lambda: 31.5, ancestor=lambda _: "NODE")
    gpus = [
        ReadableGpu(i, device, {"pci": f"{i}"}, [PeerLink("XGMI", to, 50.0, None) for to in ends])
        for i, ends in peers.items()
    ]
    links = {(k["a"], k["b"]): (k["class"], k["gbps"]) for k in _links(gpus, [])}
    assert links == {(0, 1): ("XGMI4", 200.0), (0, 2): ("NODE", 31.5), (1, 2): ("XGMI1", 50.0)}
    nothing = {"nvlink_version": None, "nvlinks": 0, "nvswitch_links": 0}
    assert _peer_facts(gpus[0].peers) == nothing
