"""Ill GPUs, by what their driver tells and what their peers have."""

from dataclasses import replace

import pytest

from gpu_aware_profile.watch.hardware import facts_of_site, findings, unread
from slurm_gpu_aware.model.profile import GpuHealth
from slurm_gpu_aware.store.watch_state import Reading

WELL = GpuHealth(4, 4, 4, 16, 16, 0, 12, 0, 0, False, False, "")
NAME = "NVIDIA A100-SXM4-40GB"


def fleet_facts(**odd):
    """Eight GPUs; GPU 3 has these readings."""
    seen = {("n1", slot): Reading(NAME, WELL) for slot in range(8)}
    seen["n1", 3] = Reading(NAME, replace(WELL, **odd))
    return seen


def texts(seen):
    return {gpu: [one.text for one in own] for gpu, own in findings(seen).items()}


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        ({}, None),
        ({"throttle": "sw_power_cap"}, None),
        ({"remapped": 3}, None),
        ({"pcie_gen": 1, "performance_state": 8}, None),  # an idle GPU lowers it
        ({"active_nvlinks": 11}, "11 of 12 NVLinks are active"),
        ({"pcie_gen": 1}, "PCIe generation 1 instead of 4"),
        ({"pcie_lanes": 8}, "PCIe width x8 instead of x16"),
        ({"pcie_lanes": 8, "pcie_lanes_most": 8}, "PCIe width x8 instead of x16"),  # its slot
        ({"ecc_now": 1}, "1 uncorrectable memory error"),
        ({"ecc_now": 2}, "2 uncorrectable memory errors"),
        ({"remap_pending": True}, "a bad row of its memory waits for a reset"),
        (
            {"remap_pending": True, "remap_failed": True},
            "a bad row of its memory could not be replaced",
        ),
        (
            {"throttle": "hw_slowdown hw_thermal_slowdown"},
            "throttles: its hardware lowers its clock, it is too hot",
        ),
    ],
)
def test_readings_of_one_gpu_among_well_ones(odd, text):
    assert texts(fleet_facts(**odd)) == ({} if text is None else {("n1", 3): [text]})


def test_what_is_not_read_finds_nothing_and_is_said():
    nothing = dict.fromkeys(vars(WELL))
    seen = fleet_facts(**nothing)
    assert findings(seen) == {}
    assert set(unread(seen)) == {
        *("PCIe generation", "PCIe width", "NVLinks", "ECC errors", "row remapping"),
        "throttle reasons",
    }
    assert all(gpus == [("n1", 3)] for gpus in unread(seen).values())


def test_a_gpu_alone_is_judged_by_the_table():
    health = replace(WELL, active_nvlinks=11, pcie_gen=3, pcie_gen_gpu=None, pcie_lanes=8)
    assert texts({("n1", 0): Reading(NAME, health)}) == {
        ("n1", 0): [
            "11 of 12 NVLinks are active",
            "PCIe generation 3 instead of 4",
            "PCIe width x8 instead of x16",
        ]
    }


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("NVIDIA H200", 18),
        ("NVIDIA H100 80GB HBM3", 18),
        ("Tesla V100-SXM2-16GB", 6),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
    ],
)
def test_nvlinks_of_models(name, links):
    seen = {("n1", 0): Reading(name, replace(WELL, active_nvlinks=1, pcie_gen=None))}
    found = texts(seen).get(("n1", 0), [])
    assert found == ([] if links is None else [f"1 of {links} NVLinks are active"])


def test_old_hosts_are_a_fact_of_the_site():
    """All GPUs have PCIe 3 where the model could have 4: none of them is ill."""
    old = replace(WELL, pcie_gen=3, pcie_gen_most=3)
    seen = {("n1", slot): Reading(NAME, old) for slot in range(4)}
    assert findings(seen) == {}
    said = [f"most {NAME} have 3 as PCIe generation, the model has 4"]
    assert facts_of_site(seen) == said


def test_a_node_of_another_design_is_said_and_not_ill():
    """All its slots have eight lanes; one GPU of another node has eight lanes in a wide slot."""
    narrow = replace(WELL, pcie_lanes=8, pcie_lanes_most=8)
    seen = fleet_facts(pcie_lanes=8) | {("n2", slot): Reading(NAME, narrow) for slot in range(4)}
    assert texts(seen) == {("n1", 3): ["PCIe width x8 instead of x16"]}
    assert facts_of_site(seen) == [f"n2: PCIe width 8 on all GPUs, most {NAME} have 16"]


def test_a_node_whose_links_are_all_below_their_slots_is_ill():
    low = replace(WELL, pcie_gen=1)
    seen = fleet_facts() | {("n2", slot): Reading(NAME, low) for slot in range(4)}
    assert {gpu[0] for gpu in findings(seen)} == {"n2"}


def test_products_are_compared_apart():
    seen = fleet_facts() | {
        ("n2", slot): Reading("NVIDIA A100-PCIE-40GB", replace(WELL, active_nvlinks=0))
        for slot in range(4)
    }
    assert findings(seen) == {}


def test_faults_of_the_probe():
    seen = fleet_facts()
    seen["n1", 3] = Reading(NAME, WELL, (("xid", "XID 48: double bit ECC error"),))
    seen["n1", 4] = Reading("", None, (("nvmlDeviceGetHandleByIndex", "GPU is lost"),))
    seen["n1", 5] = Reading(NAME, WELL, (("nvmlDeviceGetPowerUsage", "Unknown Error"),))
    seen["n1", 6] = Reading(NAME, WELL, (("result", "element 3 differs"),))
    assert texts(seen) == {
        ("n1", 3): ["XID 48: double bit ECC error"],
        ("n1", 4): ["cannot be read: GPU is lost"],
        ("n1", 6): ["computes wrong results: element 3 differs"],
    }


def test_throttled_while_it_was_measured():
    seen = fleet_facts()
    reasons = ("hw_power_brake_slowdown", "sw_power_cap")
    seen["n1", 3] = Reading(NAME, WELL, throttled=reasons)
    assert texts(seen) == {("n1", 3): ["throttles: its power supply brakes it"]}


def test_a_hostile_error_text_is_bounded():
    seen = fleet_facts()
    seen["n1", 3] = Reading(NAME, WELL, (("xid", "x" * 10_000),))
    assert len(texts(seen)["n1", 3][0]) <= 120
