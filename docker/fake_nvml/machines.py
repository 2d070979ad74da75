#!/usr/bin/env python3
"""Write and change the machine files of the fake NVML library (format: README.md beside this).

Standard library only: it runs inside the compute containers as ``fake-gpu``.

    fake-gpu write --kind two-socket-4 --node n1 --seed 1 --out /etc/gpu-aware-fake/n1.json
    fake-gpu slow n1.json 2 A=1.4 B=1.2     GPU 2 (Slurm's index) becomes slower
    fake-gpu slow-run n1 2 0 A=1.3          its first run is slower, the others are not
    fake-gpu fault n1.json --call nvmlDeviceSetGpuLockedClocks --gpu 2 --error NO_PERMISSION
    fake-gpu lose n1.json 3                 GPU 3 falls off the bus
    fake-gpu xid n1.json 3 79               the driver reports XID 79 of GPU 3
    fake-gpu fact n1 3 throttle_reasons=64  NVML answers this of GPU 3
    fake-gpu heal n1.json                   all faults away

``slow``, ``fault``, ``lose``, ``xid`` and ``heal`` take a machine file or a state folder; for a
folder they change its ``override.json``, which counts before the machine file and may lie on a
shared volume. ``slow-run`` and ``fact`` take a state folder.
"""

import argparse
import json
import os
import random
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = "fake-gpu-machine/1"

# Clocks: V100 has steps of 7.5 MHz, written rounded down; A100 steps of 15 MHz.
V100 = {
    "name": "Tesla V100-SXM2-16GB",
    "model": "v100",
    "memory_mb": 16160,
    "clocks": {
        "memory_mhz": [877],
        "graphics_mhz": [15 * k // 2 for k in range(204, 17, -1)],
        "default_mhz": 1312,
    },
    "power_limit_w": 300,
    "power_min_w": 150,
    "power_idle_w": 42,
    "pcie_gen": 3,
    "nvlink_version": 2,
}
A100 = {
    "name": "NVIDIA A100-SXM4-40GB",
    "model": "a100",
    "memory_mb": 40960,
    "clocks": {
        "memory_mhz": [1215],
        "graphics_mhz": list(range(1410, 209, -15)),
        "default_mhz": 1095,
    },
    "power_limit_w": 400,
    "power_min_w": 100,
    "power_idle_w": 52,
    "pcie_gen": 4,
    "nvlink_version": 4,  # NVML's number for NVLink 3.0
    "remapped": 0,
}
A100_PCIE = {
    **{k: v for k, v in A100.items() if k != "nvlink_version"},
    "name": "NVIDIA A100-PCIE-40GB",
    "power_limit_w": 250,
}


def _links(**by_count: Sequence[str]) -> list[dict[str, int]]:
    """``n2=["03", "04"]``: two NVLinks between GPUs 0 and 3, and between 0 and 4."""
    return [
        {"a": int(pair[0]), "b": int(pair[1]), "links": int(count[1:])}
        for count, pairs in by_count.items()
        for pair in pairs
    ]


# "pcie": socket/host bridge/root port/switch of each GPU, in the order of the minor numbers.
KINDS: dict[str, dict[str, Any]] = {
    # Hybrid cube mesh: inside each half three of six pairs doubled, four links across.
    "dgx-1v": {
        "gpu": V100,
        "pci": ["06", "07", "0A", "0B", "85", "86", "89", "8A"],
        "pcie": ["0/0/0/0"] * 2 + ["0/0/1/0"] * 2 + ["1/0/0/0"] * 2 + ["1/0/1/0"] * 2,
        "nvlinks": _links(
            n1=["01", "02", "13", "26", "37", "45", "46", "57"],
            n2=["03", "04", "12", "15", "23", "47", "56", "67"],
        ),
    },
    # Two GPUs on each of two sockets; of six NVLinks three join them, and three lead to the CPU (as
    # IBM AC922, 4 GPUs).
    "two-socket-4": {
        "gpu": V100,
        "pci": ["1A", "1C", "88", "8A"],
        "pcie": ["0/0/0/0", "0/0/1/0", "1/0/0/0", "1/0/1/0"],
        "nvlinks": _links(n3=["01", "23"]),
        "cpu_nvlinks": 3,
    },
    # Four GPUs, each pair joined by four NVLinks.
    "hgx-a100-4": {
        "gpu": A100,
        "pci": ["07", "0F", "47", "4E"],
        "pcie": ["0/0/0/0", "0/0/1/0", "0/1/0/0", "0/1/1/0"],
        "nvlinks": _links(n4=["01", "02", "03", "12", "13", "23"]),
    },
    # Eight GPUs, twelve NVLinks each into a switch fabric.
    "dgx-a100": {
        "gpu": A100,
        "pci": ["07", "0F", "47", "4E", "87", "90", "B7", "BD"],
        "pcie": ["0/0/0/0"] * 2 + ["0/1/0/0"] * 2 + ["1/0/0/0"] * 2 + ["1/1/0/0"] * 2,
        "nvswitch_links": 12,
    },
    # No NVLink: 0-1 under one switch, 2 behind a second switch, 3 on the other socket.
    "pcie-4": {
        "gpu": A100_PCIE,
        "pci": ["21", "22", "25", "A1"],
        "pcie": ["0/0/0/0", "0/0/0/0", "0/0/0/1", "1/0/0/0"],
    },
}

# Iteration time of the median GPU, part of it that scales with the clock, and load; the standard
# deviation of the GPUs; time with loaded neighbours over that with idle ones.
CLASSES = {
    "A": {"base_ms": 110.0, "clock_share": 0.95, "load": 0.9},
    "B": {"base_ms": 240.0, "clock_share": 0.6, "load": 0.7},
    "C": {"base_ms": 66.0, "clock_share": 0.1, "load": 0.5},
}
LEVELS = {
    "A": {"switch": 1.1, "rack": 1.15, "row": 1.2, "cluster": 1.3},
    "B": {"switch": 1.2, "rack": 1.3, "row": 1.4, "cluster": 1.6},
    "C": {"switch": 1.05, "rack": 1.1, "row": 1.15, "cluster": 1.2},
}
SPREADS = {"A": 0.06, "B": 0.025, "C": 0.004}
LOADED = {"A": 1.03, "B": 1.02, "C": 1.0}


def build(
    kind: str,
    node: str,
    *,
    seed: int = 0,
    cpus: Sequence[str] | None = None,
    nvml_order: Sequence[int] | None = None,
    slowness: Mapping[int, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Return a machine.

    ``nvml_order`` lists the minor numbers in NVML's order (default: ascending), ``cpus`` the CPU
    list of each socket, ``slowness`` what shall differ from the seeded draw, by minor number.
    """
    facts = KINDS[kind]
    pcie, pci = facts["pcie"], facts["pci"]
    draw = random.Random(f"{seed}/{node}")
    gpus = {}
    for minor in range(len(pci)):
        character = draw.gauss(0, 1)  # a slow chip is slow for every class
        gpus[minor] = {
            "minor": minor,
            "uuid": "GPU-" + str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{node}.{seed}.{minor}.fake")),
            "pci": f"00000000:{pci[minor]}:00.0",
            "pcie": pcie[minor],
            "socket": int(pcie[minor].split("/")[0]),
            "temperature_c": 38 + minor,
            "slowness": {
                name: round(max(0.85, 1 + spread * (0.9 * character + 0.3 * draw.gauss(0, 1))), 4)
                for name, spread in SPREADS.items()
            },
        }
    for minor, wanted in (slowness or {}).items():
        gpus[minor]["slowness"].update(wanted)
    sockets = 1 + max(gpu["socket"] for gpu in gpus.values())
    lists = list(cpus or [])
    lists += [None] * (sockets - len(lists))
    machine: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": kind,
        "node": node,
        "driver": "550.54.15",
        "seed": seed,
        "noise": 0.003,
        "run_noise": 0.001,
        "classes": {name: dict(entry) for name, entry in CLASSES.items()},
        "loaded": dict(LOADED),
        "levels": {name: dict(factors) for name, factors in LEVELS.items()},
        **facts["gpu"],
        "pcie_lanes": 16,
        "sockets": [{"numa": i, "cpus": lists[i]} for i in range(sockets)],
        "gpus": [gpus[minor] for minor in (nvml_order or sorted(gpus))],
    }
    for key in ("nvlinks", "nvswitch_links", "cpu_nvlinks"):
        if key in facts:
            machine[key] = facts[key]
    return machine


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file in one step: a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.chmod(0o644)
    temporary.replace(path)


def _target(path: Path) -> tuple[Path, dict[str, Any]]:
    if path.is_dir() or path.suffix != ".json":
        path = path / "override.json"
        return path, json.loads(path.read_text()) if path.exists() else {}
    return path, json.loads(path.read_text())


def set_slowness(path: Path, minor: int, wanted: Mapping[str, float]) -> None:
    """Change a GPU's slowness in a machine file, or in the override of a state folder."""
    file, content = _target(path)
    if "gpus" in content:
        gpu = next(g for g in content["gpus"] if g["minor"] == minor)
        gpu.setdefault("slowness", {}).update(wanted)
    else:
        content.setdefault("slowness", {}).setdefault(str(minor), {}).update(wanted)
    write_json(file, content)


def add_fault(
    path: Path,
    call: str,
    *,
    minor: int | None = None,
    error: str | int | None = None,
    hang_s: float = 0.0,
) -> None:
    """Let a call hang, fail, or both; ``minor`` None: for every GPU."""
    file, content = _target(path)
    fault: dict[str, Any] = {"call": call}
    if minor is not None:
        fault["gpu"] = minor
    if error is not None:
        fault["error"] = error
    if hang_s:
        fault["hang_s"] = hang_s
    content.setdefault("faults", []).append(fault)
    write_json(file, content)


def lose(path: Path, minor: int) -> None:
    """Let a GPU fall off the bus: every call to it answers GPU_IS_LOST."""
    file, content = _target(path)
    content["lost"] = sorted({*content.get("lost", []), minor})
    write_json(file, content)


def slow_run(path: Path, minor: int, run: int, factors: Mapping[str, float]) -> None:
    """Let one run of each measurement, counted from 0, be slower; ``path``: a state folder."""
    file, content = _target(path)
    if "gpus" in content:
        raise ValueError("a slow run is named in a state folder")
    content.setdefault("slow_runs", []).append({"gpu": minor, "run": run, "factors": dict(factors)})
    write_json(file, content)


def report_xid(path: Path, minor: int, xid: int) -> None:
    """Let the driver report an XID event to those that wait for one."""
    file, content = _target(path)
    content.setdefault("xids", []).append({"gpu": minor, "xid": xid})
    write_json(file, content)


def set_facts(path: Path, minor: int, facts: Mapping[str, float]) -> None:
    """Change numbers that NVML answers of a GPU; ``path``: a state folder."""
    file, content = _target(path)
    if "gpus" in content:
        raise ValueError("a fact is changed in a state folder")
    content.setdefault("facts", {}).setdefault(str(minor), {}).update(facts)
    write_json(file, content)


def heal(path: Path) -> None:
    """Remove all faults, facts and XID events; slowness stays."""
    file, content = _target(path)
    content.pop("lost", None)
    content.pop("faults", None)
    content.pop("xids", None)
    content.pop("facts", None)
    write_json(file, content)


def _pairs(words: Sequence[str]) -> dict[str, float]:
    return {name: float(value) for name, _, value in (word.partition("=") for word in words)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fake-gpu", description="Machine files of the fake GPUs")
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="write a machine file")
    write.add_argument("--kind", choices=sorted(KINDS), required=True)
    write.add_argument("--node", required=True)
    write.add_argument("--seed", type=int, default=0)
    write.add_argument("--cpus", action="append", help="CPU list of a socket; once per socket")
    write.add_argument("--nvml-order", help="minor numbers in NVML's order, as 2,0,3,1")
    write.add_argument(
        "--slow", action="append", default=[], metavar="GPU:CLASS=X", help="as 2:A=1.4"
    )
    write.add_argument("--out", type=Path, help="default: stdout")
    slow = commands.add_parser("slow", help="set a GPU's slowness")
    slow.add_argument("path", type=Path)
    slow.add_argument("gpu", type=int)
    slow.add_argument("values", nargs="+", metavar="CLASS=X")
    unlucky = commands.add_parser("slow-run", help="make one run of a GPU slower")
    unlucky.add_argument("path", type=Path)
    unlucky.add_argument("gpu", type=int)
    unlucky.add_argument("run", type=int, help="counted from 0")
    unlucky.add_argument("values", nargs="+", metavar="CLASS=X")
    fault = commands.add_parser("fault", help="let a call fail or hang")
    fault.add_argument("path", type=Path)
    fault.add_argument("--call", required=True, help="NVML name without version, or *")
    fault.add_argument("--gpu", type=int)
    fault.add_argument("--error", help="as NO_PERMISSION, NOT_SUPPORTED, GPU_IS_LOST")
    fault.add_argument("--hang-s", type=float, default=0.0)
    lost = commands.add_parser("lose", help="let a GPU fall off the bus")
    lost.add_argument("path", type=Path)
    lost.add_argument("gpu", type=int)
    event = commands.add_parser("xid", help="let the driver report an XID event")
    event.add_argument("path", type=Path)
    event.add_argument("gpu", type=int)
    event.add_argument("xid", type=int)
    fact = commands.add_parser("fact", help="change numbers that NVML answers of a GPU")
    fact.add_argument("path", type=Path)
    fact.add_argument("gpu", type=int)
    fact.add_argument("values", nargs="+", metavar="KEY=NUMBER")
    healed = commands.add_parser("heal", help="take all faults away")
    healed.add_argument("path", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 for wrong usage."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if args.command == "write":
            slowness: dict[int, dict[str, float]] = {}
            for word in args.slow:
                gpu, _, value = word.partition(":")
                slowness.setdefault(int(gpu), {}).update(_pairs([value]))
            order = [int(m) for m in args.nvml_order.split(",")] if args.nvml_order else None
            machine = build(
                args.kind,
                args.node,
                seed=args.seed,
                cpus=args.cpus,
                nvml_order=order,
                slowness=slowness,
            )
            if args.out:
                write_json(args.out, machine)
            else:
                json.dump(machine, sys.stdout, indent=1)
                print()
        elif args.command == "slow":
            set_slowness(args.path, args.gpu, _pairs(args.values))
        elif args.command == "fault":
            add_fault(args.path, args.call, minor=args.gpu, error=args.error, hang_s=args.hang_s)
        elif args.command == "lose":
            lose(args.path, args.gpu)
        elif args.command == "slow-run":
            slow_run(args.path, args.gpu, args.run, _pairs(args.values))
        elif args.command == "fact":
            set_facts(args.path, args.gpu, _pairs(args.values))
        elif args.command == "xid":
            report_xid(args.path, args.gpu, args.xid)
        else:
            heal(args.path)
    except (KeyError, ValueError, StopIteration, OSError) as exc:
        parser.error(f"{args.command}: {exc!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
