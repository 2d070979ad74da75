"""A room uses only rooms below it, and the core knows no Slurm, no database and no clock."""

import ast
from pathlib import Path

import slurm_gpu_aware

ROOT = Path(slurm_gpu_aware.__file__).parent
BASE = {"cluster", "request", "assignment", "sockets", "errors", "penalties", "bounds"}
MODEL = BASE | {"variability", "topology", "energy", "text_file"}
ALLOWED = {
    "errors": set(),
    "bounds": set(),
    "text_file": {"errors"},
    "assignment": {"errors"},
    "penalties": {"errors"},
    "cluster": {"errors", "penalties", "sockets", "topology"},  # the last two: type annotations
    "sockets": {"cluster", "request"},
    "request": {"bounds", "cluster", "errors"},
    "config": {"bounds", "config_checks", "errors", "penalties"},
    "config_checks": {"bounds", "config", "errors", "penalties"},  # config: a type annotation only
    "nvml": {"errors"},
    "lockfile": set(),
    "clocks": {"errors", "lockfile", "slurm"},  # errors and slurm: late, for host lists
    "variability": BASE | {"text_file"},
    "topology": BASE,
    "energy": BASE,
    "placement": MODEL,
    "sizing": MODEL,
    "planning": MODEL | {"placement", "sizing"},
    "store": MODEL | {"config"},
    "slurm": MODEL | {"config", "store"},
    "simulator": MODEL | {"placement", "sizing", "planning", "config", "store", "slurm"},
    "service": MODEL
    | {"placement", "sizing", "planning", "config", "store", "slurm", "clocks", "lockfile"},
}
CORE = (
    "bounds",
    "penalties",
    "cluster",
    "request",
    "assignment",
    "sockets",
    "variability",
    "topology",
    "placement",
    "planning",
)
FOREIGN = {"sqlite3", "sqlite_utils", "subprocess", "time", "datetime", "os", "socket", "click"}


def modules(room):
    package = ROOT / room
    return sorted(package.rglob("*.py")) if package.is_dir() else [ROOT / f"{room}.py"]


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
    wrong = []
    for room, below in ALLOWED.items():
        for path in modules(room):
            if not path.exists():
                continue
            wrong += [
                f"{path.relative_to(ROOT)} imports {used}"
                for _, used in imported(path)
                if used is not None and used != room and used not in below
            ]
    assert wrong == []


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
