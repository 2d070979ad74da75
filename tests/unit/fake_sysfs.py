"""A sysfs tree for the GPUs of a fake machine and for NICs, as Linux lays it out."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def add_function(root: Path, chain: Iterable[str], numa: int) -> Path:
    """Make a PCI function below ``chain`` (host bridge, bridges, itself); return its folder."""
    folder = root.joinpath("devices", *chain)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "numa_node").write_text(f"{numa}\n")
    link(root / "bus" / "pci" / "devices" / folder.name, folder)
    return folder


def link(at: Path, target: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(os.path.relpath(target, at.parent))


def chain_of(pcie: str, address: str) -> list[str]:
    """Folders of a device at ``socket/host bridge/root port/switch`` (see docker/fake_nvml)."""
    socket, bridge, port, switch = (int(word) for word in pcie.split("/"))
    domain = f"{socket:03x}{bridge:x}"
    return [
        f"pci{domain}:00",
        f"{domain}:00:{port:02x}.0",  # root port
        f"{domain}:01:00.0",  # upstream port of the first switch
        f"{domain}:02:{switch:02x}.0",  # its port to the second switch
        f"{domain}:03:00.0",
        f"{domain}:04:{int(address.split(':')[1], 16) & 31:02x}.0",
        address,
    ]


def add_nic(root: Path, name: str, device: Path, *interfaces: str) -> None:
    """A NIC with an InfiniBand device (empty name: none) and network interfaces."""
    if name:
        (device / "infiniband" / name).mkdir(parents=True)
        link(device / "infiniband" / name / "device", device)
        link(root / "class" / "infiniband" / name, device / "infiniband" / name)
    for interface in interfaces:
        (device / "net" / interface).mkdir(parents=True)
        link(device / "net" / interface / "device", device)
        link(root / "class" / "net" / interface, device / "net" / interface)


def make_sysfs(root: Path, machine: Mapping[str, Any], nics: Mapping[str, tuple[str, str]]) -> Path:
    """Tree of a machine file. ``nics``: InfiniBand name -> (pcie as in the file, PCI address)."""
    for gpu in machine["gpus"]:
        address = gpu["pci"].lower()[4:]
        add_function(root, chain_of(gpu["pcie"], address), gpu["socket"])
    for name, (pcie, address) in nics.items():
        device = add_function(root, chain_of(pcie, address), int(pcie.split("/")[0]))
        add_nic(root, name, device, f"ib{name[-1]}")
    return root
