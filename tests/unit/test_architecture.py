"""A room uses only rooms below it, and the core knows no Slurm, no database and no clock."""

import ast
from pathlib import Path

import slurm_gpu_aware

ROOT = Path(slurm_gpu_aware.__file__).parent
SHARED = {"bounds", "errors", "lockfile", "text_file"}
"""Modules beside the rooms: bounds of foreign numbers, errors, locks, texts of files."""
MODEL = SHARED | {"model"}
CORE_BELOW = MODEL | {"variability", "topology", "energy"}
ALLOWED = {
    "bounds": set(),
    "errors": set(),
    "lockfile": set(),
    "text_file": {"errors"},
    "model": SHARED,
    "config": MODEL,
    "variability": MODEL,
    "topology": MODEL,
    "energy": MODEL,
    "placement": CORE_BELOW,
    "sizing": CORE_BELOW,
    "planning": CORE_BELOW | {"placement", "sizing"},
    "slurm": MODEL | {"config"},
    "gate": MODEL | {"config", "slurm"},
    "admission": MODEL | {"config", "slurm", "gate", "topology"},
    "store": MODEL | {"config"},
    "selector": CORE_BELOW
    | {"config", "slurm", "gate", "admission", "planning", "placement", "store"},
    "simulator": CORE_BELOW | {"config", "slurm", "planning", "placement", "sizing", "store"},
    "clocks": SHARED | {"slurm"},
    "deploy": MODEL | {"config", "slurm", "gate", "store"},
}
AGAINST_AN_ARROW = {
    ("admission/profile_arrays.py", "store"),
    ("admission/profiled_cluster.py", "store"),
    ("admission/snapshot.py", "store"),
    ("store/outliers.py", "variability"),
    ("store/profiles.py", "variability"),
    ("store/timings.py", "variability"),
    ("selector/daemon.py", "clocks"),
    ("deploy/check.py", "cli"),
    ("deploy/checks_ours.py", "cli"),
    ("deploy/checks_slurm.py", "cli"),
    ("deploy/node_control.py", "admission"),
    ("deploy/restore_all.py", "selector"),
}
"""What is still to be moved."""
CORE = ("bounds", "model", "variability", "topology", "energy", "placement", "sizing", "planning")
FOREIGN = {"sqlite3", "sqlite_utils", "subprocess", "time", "datetime", "os", "socket", "click"}


def modules(room):
    package = ROOT / room
    if package.is_dir():
        return sorted(package.rglob("*.py"))
    return [path for path in [ROOT / f"{room}.py"] if path.exists()]  # energy, sizing: to come


def imported(path):
    """(top-level package, room of ours or None) for every import in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        for name in names:
            parts = name.split(".")
            ours = parts[0] == "slurm_gpu_aware"
            yield parts[0], (parts[1] if ours and len(parts) > 1 else None)


def test_imports_point_one_way():
    wrong = {
        (str(path.relative_to(ROOT)), used)
        for room, below in ALLOWED.items()
        for path in modules(room)
        for _, used in imported(path)
        if used is not None and used != room and used not in below
    }
    assert wrong == AGAINST_AN_ARROW


def test_the_core_is_pure():
    wrong = [
        f"{path.relative_to(ROOT)} imports {top}"
        for room in CORE
        for path in modules(room)
        for top, _ in imported(path)
        if top in FOREIGN
    ]
    assert wrong == []


def test_every_room_is_listed():
    rooms = {p.stem if p.is_file() else p.name for p in ROOT.iterdir()}
    rooms -= {"__init__", "__pycache__", "cli", "py"}
    assert {r for r in rooms if not r.startswith(".") and r != "py.typed"} <= set(ALLOWED)
