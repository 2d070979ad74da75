"""A room uses only rooms below it, and the core knows no Slurm, no database and no clock."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import gpu_aware_profile
import slurm_gpu_aware
from slurm_gpu_aware.placement.policy import policy_names

ROOT = Path(slurm_gpu_aware.__file__).parent
SHARED = {"agent_reports", "bounds", "clock_conf", "errors", "files", "filter_rules"}
SHARED |= {"metric", "node_orders", "records", "service", "text_file", "time_text"}
"""Modules beside the rooms: no room, and used by several."""
MODEL = SHARED | {"model"}
CORE_BELOW = MODEL | {"variability", "topology"}
ALLOWED = {
    "agent_reports": {"bounds", "files", "records"},
    "bounds": set(),
    "clock_conf": set(),
    "errors": set(),
    "service": set(),
    "filter_rules": {"bounds"},
    "metric": set(),
    "node_orders": set(),
    "records": {"bounds"},
    "files": {"errors", "text_file"},
    "text_file": {"bounds", "errors"},
    "time_text": set(),
    "model": SHARED,
    "config": MODEL,
    "variability": MODEL,
    "topology": MODEL,
    "placement": CORE_BELOW,
    "planning": CORE_BELOW | {"placement"},
    "slurm": MODEL | {"config"},
    "gate": MODEL | {"config", "slurm"},
    "admission": MODEL | {"config", "slurm", "gate", "topology"},
    "store": MODEL | {"config"},
    "page": CORE_BELOW | {"config", "slurm", "store"},
    "selector": CORE_BELOW
    | {"config", "slurm", "gate", "admission", "planning", "placement", "store"},
    "simulator": CORE_BELOW | {"slurm", "planning", "placement"},
    "clocks": SHARED | {"slurm"},
    "exporter": MODEL | {"config", "selector", "slurm", "store"},
    "deploy": MODEL | {"config", "slurm", "gate", "store"},
}
LAYERS = {
    "model": """
        due_dates/due_date hints models/fitting models/least_squares
        models/performance_model models/site_models models/tables models/throughput shadow/losses
    """,
    "config": "power/power_limit",
    "planning": """
        baselines/afs_and_zeus due_dates/free_gpus due_dates/plan due_dates/queue due_dates/sts
        due_dates/together due_dates/work estimates/history moves/front moves/movable
        moves/moved power/menu power/power_budget power/powerflow registry sizes/speeds
    """,
    "admission": "",
    "store": "classes/store models/store shadow/store",
    "selector": """
        due_dates/shortest_runs energy/refits models/refit
        moves/under_way power/clock_orders
        power/explorations power/job_tables power/site_power shadow/compared
        shadow/daemon shadow/moments
    """,
    "simulator": "baselines/elastic",
    "page": "",
    "cli": """
        estimates/view models/commands power/commands
        power/run_tables queue_order/view shadow/view
    """,
}
"""Room whose rules a module of a feature keeps: what it may import, and what may import it."""
BY_NAME = {"declared": "model", "stage": "planning", "live": "selector", "metrics": "selector"}
BY_NAME |= {"admission": "admission", "page": "page", "simulated": "simulator"}
BY_NAME |= {"simulate_options": "cli", "checks": "cli", "text": "cli", "accounts": "selector"}
"""The same of modules that every feature may have."""
for _path in sorted(ROOT.glob("features/*/*.py")):
    if _path.stem in BY_NAME:
        LAYERS[BY_NAME[_path.stem]] += f" {_path.parent.name}/{_path.stem}"
THE_LIST = ("FEATURES", "folders", "found", "load_facts", "wrong_entry")
"""Names of the package of features itself."""
ROOM_OF = {name: room for room, names in LAYERS.items() for name in names.split()}
PROFILING = Path(gpu_aware_profile.__file__).parent
PROFILING_ALLOWED = {
    "devices": set(),
    "child": set(),
    "backends": {"child"},
    "counter_tools": {"child"},
    "job_watch": {"devices"},
    "kernels": {"backends"},
    "links": {"backends", "child", "devices"},
    "probe": {"backends", "child", "devices", "links"},
    "tables": set(),
    "store_writer": set(),
    "report": {"tables"},
    "sweeps": {"child", "report", "tables"},
    "levels": {"backends", "child", "kernels", "sweeps"},
    "imports": {"store_writer"},
    "watch": {"child", "devices", "store_writer", "sweeps", "tables"},
    "cli": {"store_writer"},
}
"""Rooms of `gpu_aware_profile` below the commands, which may import all."""
CORE = ("bounds", "model", "variability", "topology", "placement", "planning")
FINDS = {"folders", "found", "hints", "registry"}
"""What the package of features itself has for all: its list, and what goes through it."""
OF_ALL = ("run_options", "simulation")
"""Commands' modules that find features by the list, too."""
FEATURELESS = ("model", "variability", "topology", "placement", "planning")
"""Rooms that do not know the list, either."""
FOREIGN = {
    *("sqlite3", "subprocess", "time", "datetime", "os", "socket", "click"),
    *("io", "pathlib", "shutil", "tempfile", "glob", "urllib", "http", "csv", "json", "gzip"),
    *("threading", "queue", "asyncio", "signal", "sys"),
}
PLANNER = ("placement", "planning")
DECORATORS = {"placement/level_views.py"}
"""Modules of the planner that may take a function: to decorate it."""
DEFAULTS = {"config/settings.py"}
"""Modules outside placement that may name policies: a site's defaults."""


@cache
def syntax_nodes(path):
    """All nodes of a module's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(autouse=True, scope="module")
def _forget_trees():
    yield
    syntax_nodes.cache_clear()


def modules(room, root=ROOT):
    """Those of a room, and those of features that keep its rules."""
    package = root / room
    if not package.is_dir():
        return [path for path in [root / f"{room}.py"] if path.exists()]
    features = LAYERS.get(room, "").split() if root == ROOT else []
    return [*sorted(package.rglob("*.py")), *(ROOT / f"features/{name}.py" for name in features)]


def imported(path):
    """(top-level package, room of ours or None) for every import in a file."""
    packages = (ROOT.name, PROFILING.name)
    for node in syntax_nodes(path):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module in packages or names[0].startswith(f"{ROOT.name}.features"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            ours = parts[0] in packages
            room = parts[1] if ours and len(parts) > 1 else None
            if room == "features":
                of_list = parts[2] in THE_LIST
                name = parts[2] if parts[2] in ROOM_OF else "/".join(parts[2:4])
                room = "model" if of_list else ROOM_OF.get(name, f"{name}, not in LAYERS")
            yield parts[0], room


def test_imports_point_one_way():
    wrong = {
        (str(path.relative_to(package)), used)
        for package, allowed in ((ROOT, ALLOWED), (PROFILING, PROFILING_ALLOWED))
        for room, below in allowed.items()
        for path in modules(room, package)
        for top, used in imported(path)
        if top == package.name and used not in (None, room) and used not in below
    }
    assert wrong == set()


def test_features_are_found_through_their_list():
    wrong = {
        (str(path.relative_to(ROOT).with_suffix("")), name)
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("features", "cli") or path.stem in OF_ALL
        for node in syntax_nodes(path)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in re.findall(rf"{ROOT.name}\.features(?:\.| import )(\w+)", ast.unparse(node))
        if name not in FINDS or path.relative_to(ROOT).parts[0] in FEATURELESS
    }
    assert wrong == set()


def test_the_core_is_pure():
    wrong = [
        f"{path.relative_to(ROOT)} imports {top}"
        for room in CORE
        for path in modules(room)
        for top, _ in imported(path)
        if top in FOREIGN
    ]
    assert wrong == []


def plain_calls(rooms):
    """(place, name, number of arguments) of each call of a plain name in these rooms."""
    for path in (path for room in rooms for path in modules(room)):
        for node in syntax_nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.func.id, len(node.args)


def test_the_core_opens_no_file():
    wrong = {place for place, name, _ in plain_calls(CORE) if name in ("open", "print", "input")}
    assert wrong == set()


def test_no_callback_goes_into_the_planner():
    """What a signature cannot name it cannot take: the planner's modules do not know the word."""
    wrong = {
        str(path.relative_to(ROOT))
        for room in PLANNER
        for path in modules(room)
        for node in syntax_nodes(path)
        if isinstance(node, ast.ImportFrom) and any(a.name == "Callable" for a in node.names)
    }
    assert wrong == DECORATORS


def test_policies_are_named_in_placement_only():
    names = set(policy_names()) - {"slurm"}  # the word for Slurm itself
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] != "placement"
        and str(path.relative_to(ROOT)) not in DEFAULTS
        for node in syntax_nodes(path)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert wrong == []


def test_nothing_probes_for_attributes_in_the_planner():
    """A policy declares what it can do."""
    probes = {("hasattr", 2), ("getattr", 3)}
    assert {place for place, *call in plain_calls(PLANNER) if tuple(call) in probes} == set()


def test_every_room_is_listed():
    rooms = {p.stem if p.is_file() else p.name for p in ROOT.iterdir()}
    rooms -= {"__init__", "__pycache__", "cli", "features", "py"}
    assert {r for r in rooms if not r.startswith(".") and r != "py.typed"} <= set(ALLOWED)
    rooms = {path.stem for path in PROFILING.iterdir() if path.stem != "py"}
    assert rooms - {"__init__", "__pycache__", "commands"} == set(PROFILING_ALLOWED)


def test_every_module_of_a_feature_keeps_the_rules_of_a_room():
    there = {str(p.relative_to(ROOT / "features"))[:-3] for p in ROOT.glob("features/**/*.py")}
    named = {name for name in there if not name.endswith("__init__")}
    assert named - set(ROOM_OF) == set(), "name each in LAYERS, in the package whose rules it keeps"
    assert set(ROOM_OF) - named == set(), "LAYERS names modules that are not there"


def test_the_simulator_takes_from_slurm_only_its_accounts_and_shares():
    texts = [path.read_text() for path in modules("simulator")]
    used = {name for text in texts for name in re.findall(r"slurm_gpu_aware\.slurm\.(\w+)", text)}
    assert used == {"accounting", "multifactor", "sacct"}


def test_no_module_and_no_function_grows_too_long():
    """400 lines of a module; 60 of a function, its docstring not counted."""
    wrong = []
    for path in (path for package in (ROOT, PROFILING) for path in sorted(package.rglob("*.py"))):
        if path.read_text().count("\n") > 400:
            wrong.append(str(path))
        for node in syntax_nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = node.body[0]
            said = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) else 0
            if node.end_lineno - node.lineno + 1 - said > 60:
                wrong.append(f"{path}:{node.lineno} {node.name}")
    assert wrong == []


def test_programs_of_nodes_do_not_load_the_record_layer():
    """They run with the Python of a node, which may have the standard library only."""
    code = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    folder = getattr(importlib.import_module(name), "__path__", [])
    for module in pkgutil.iter_modules(folder, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(sorted({"msgspec", "sqlite_utils"} & set(sys.modules)))
"""
    of_nodes = ("probe", "devices", "links", "backends", "job_watch", "kernels")
    rooms = [f"{ROOT.name}.clocks", *(f"{PROFILING.name}.{room}" for room in of_nodes)]
    argv = [sys.executable, "-c", code, *rooms]
    assert subprocess.check_output(argv, text=True, timeout=300) == "[]\n"


def test_each_file_of_the_package_is_installed():
    wanted = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    patterns = wanted["tool"]["setuptools"]["package-data"][ROOT.name]
    files = {path.relative_to(ROOT) for path in ROOT.rglob("*.*") if path.is_file()}
    data = {path for path in files if path.suffix not in (".py", ".pyc", ".so", ".o")}
    assert {str(path) for path in data if not any(map(path.match, patterns))} == set()
