"""NICs and their paths from sysfs: made trees, and NVML's answer as the oracle."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from fake_nvml import FakeNode
from fake_sysfs import add_function, add_nic, link, make_sysfs
from hypothesis import given
from hypothesis import strategies as st

from gpu_aware_profile.devices.driver import PciDevice, nics, path_class, pci_device
from slurm_gpu_aware.store.report import parse_report

KINDS = ("dgx-1v", "two-socket-4", "hgx-a100-4", "dgx-a100", "pcie-4")


@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_gives_the_classes_of_nvml(library: Path, tmp_path: Path, kind: str) -> None:
    node = FakeNode(library, tmp_path, kind)
    machine = json.loads(node.machine.read_text())
    sysfs = make_sysfs(tmp_path / "sys", machine, {})
    of_nvml = node.python(
        "import json; from gpu_aware_profile.devices.nvml import Nvml\n"
        "with Nvml() as nvml:\n"
        "    gpus = dict(nvml.devices())\n"
        "    print(json.dumps([[a, b, gpus[a].pci(), gpus[b].pci(), gpus[a].ancestor(gpus[b])]"
        " for a in gpus for b in gpus if a < b]))"
    )
    assert len(of_nvml) == len(list(combinations(machine["gpus"], 2)))
    for _, _, one, other, word in of_nvml:
        devices = pci_device(sysfs, one), pci_device(sysfs, other)
        assert None not in devices
        assert path_class(*devices) == word  # type: ignore[arg-type]


def test_a_report_has_the_nics_of_the_node(library: Path, tmp_path: Path) -> None:
    node = FakeNode(library, tmp_path, "dgx-1v")
    machine = json.loads(node.machine.read_text())
    adapters = {"mlx5_0": ("0/0/0/0", "0000:0c:00.0"), "mlx5_1": ("1/0/0/1", "1000:54:00.0")}
    sysfs = make_sysfs(tmp_path / "sys", machine, adapters)
    done = node.run(
        *["gpu_aware_profile.cli", "node", "--json", "--no-timings", "--node-name", "n1"],
        *["--sysfs", str(sysfs)],
    )
    first, second = parse_report(json.loads(done.stdout)).nics
    assert first._replace(gpus={}) == ("mlx5_0", "0000:0c:00.0", 0, {}, {"mlx5_1": "SYS"})
    assert [first.gpus[i] for i in range(8)] == ["PIX"] * 2 + ["PHB"] * 2 + ["SYS"] * 4
    assert [second.gpus[i] for i in range(8)] == ["SYS"] * 4 + ["PXB"] * 2 + ["PHB"] * 2


def test_adapters_have_one_name_each_and_virtual_ones_none(tmp_path: Path) -> None:
    root = ["pci0000:17", "0000:17:00.0"]
    card = add_function(tmp_path, [*root, "0000:1a:00.0"], 0)
    add_nic(tmp_path, "mlx5_0", card, "ib0", "ib1")
    plain = add_function(tmp_path, [*root, "0000:1b:00.0"], 0)
    add_nic(tmp_path, "", plain, "eth0")
    virtual = add_function(tmp_path, [*root, "0000:1a:00.1"], 0)
    add_nic(tmp_path, "mlx5_1", virtual, "ib2")
    link(virtual / "physfn", card)
    guest = add_function(tmp_path, ["pci0000:00", "0000:00:03.0"], -1)
    (guest / "virtio2").mkdir()
    add_nic(tmp_path, "", guest / "virtio2", "eth1")
    controller = add_function(tmp_path, ["pci0000:00", "0000:00:14.0"], -1)
    (controller / "usb1" / "1-1").mkdir(parents=True)
    add_nic(tmp_path, "", controller / "usb1" / "1-1", "usb0")
    link(tmp_path / "class" / "net" / "lo", tmp_path / "devices" / "virtual")  # no device
    found = nics(tmp_path, {0: "00000000:1A:00.0", 1: "00000000:99:00.0"})
    assert [(nic["name"], nic["pci"], nic["numa"]) for nic in found] == [
        ("eth1", "0000:00:03.0", -1),
        ("mlx5_0", "0000:1a:00.0", 0),
        ("eth0", "0000:1b:00.0", 0),
    ]
    assert found[2]["nics"] == [
        {"name": "eth1", "class": "SYS"},
        {"name": "mlx5_0", "class": "PIX"},
    ]
    assert found[2]["gpus"] == [{"index": 0, "class": "PIX"}]  # GPU 1 is not in the tree


@pytest.mark.parametrize("pci", ["", "1A:00.0", "0000:1a:00.9", "zzzz:1A:00.0", "../../etc"])
def test_an_address_that_sysfs_does_not_have(tmp_path: Path, pci: str) -> None:
    assert pci_device(tmp_path, pci) is None
    assert nics(tmp_path / "absent", {0: pci}) == []


BRIDGES = st.lists(st.sampled_from(["a", "b"]), max_size=5)


@given(BRIDGES, BRIDGES, st.integers(0, 1), st.integers(0, 1))
def test_paths_by_counting_the_bridges_between(
    one: list[str], other: list[str], host: int, numa: int
) -> None:
    """Names of bridges are their paths, as in a tree; the oracle counts what lies between."""
    paths = [
        (f"pci{root}", *("/".join(up[: i + 1]) for i in range(len(up))), leaf)
        for root, up, leaf in ((0, one, "x"), (host, other, "y"))
    ]
    a, b = PciDevice(paths[0], 0), PciDevice(paths[1], numa if host else 0)
    shared = set(paths[0]) & set(paths[1])
    between = max(len(set(path) - shared) - 1 for path in paths)
    if host:
        expected = "SYS" if numa else "NODE"
    elif shared == {"pci0"}:
        expected = "PHB"
    else:
        expected = "PIX" if between <= 1 else "PXB"
    assert path_class(a, b) == path_class(b, a) == expected
