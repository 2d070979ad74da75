"""The list of features in a copy of the package: with the page's example, and without any."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_MODULE = re.compile(
    r"As `slurm_gpu_aware/(features/\w+/\w+\.py)`:\n\n```python\n(.*?)```", re.DOTALL
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the package, and with what writes the rules of the filter."""
    unused = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "slurm_gpu_aware", tmp_path / "slurm_gpu_aware", ignore=unused)
    shutil.copytree(ROOT / "etc/lua", tmp_path / "etc/lua")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/generate.py", tmp_path / "docs")
    return tmp_path


def change_list(copy: Path, pattern: str, text: str) -> None:
    path = copy / "slurm_gpu_aware/features/__init__.py"
    changed, count = re.subn(pattern, text, path.read_text(), flags=re.DOTALL)
    assert count == 1
    path.write_text(changed)


def run_with(copy: Path, *tests: str) -> None:
    """Run tests with the package of the copy."""
    paths = [copy, ROOT / "profiling", ROOT / "tests/lua"]
    files = [str(ROOT / "tests/unit" / name) for name in tests]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout  # 5 if there was no test


def test_the_example_works_in_one_folder_and_one_line(copy: Path) -> None:
    section = (ROOT / "docs/architecture.md").read_text().partition("## Add a feature\n")[2]
    section = section.partition("\n## ")[0]
    package = copy / "slurm_gpu_aware"
    (package / "features/night").mkdir()
    (package / "features/night/__init__.py").write_text('"""Night."""\n')
    modules = _MODULE.findall(section)
    assert len(modules) == 2
    for name, text in modules:
        (package / name).write_text(text)
    ((before, added),) = re.findall(r"```diff\n (.*\n)\+(.*\n) .*\n```", section)
    change_list(copy, re.escape(before), before + added)
    run_with(copy, "feature_example.py")


def test_with_an_empty_list_jobs_are_placed_and_left(copy: Path) -> None:
    change_list(copy, r"\nFEATURES = \(.*?\n\)", "\nFEATURES: tuple[str, ...] = ()")
    run_with(copy, "selector/test_without_features.py", "selector/test_leaver.py")


def test_with_an_empty_list_a_simulation_places_jobs(copy: Path) -> None:
    change_list(copy, r"\nFEATURES = \(.*?\n\)", "\nFEATURES: tuple[str, ...] = ()")
    run_with(copy, "simulator/test_rounds.py")
