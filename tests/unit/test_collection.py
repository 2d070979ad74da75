"""All processes collect the same tests, on every day: workers that differ end the whole run."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).parents[2]


def collecting(*what: Path | str, options: tuple[str, ...] = (), **environment: str) -> Popen[str]:
    """A process of its own that prints the ids of the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"  # two processes, and those of other tests, read the files
    # Plain assertions: to rewrite them takes ten times as long as to collect
    pytest_options = ("--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider")
    return Popen(
        [sys.executable, "-m", "pytest", *pytest_options, *options, *map(str, what)],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(Path(__file__).parent), **environment},
        stdout=PIPE,
        text=True,
    )


def collected(process: Popen[str]) -> list[str]:
    said, _ = process.communicate()
    assert process.returncode == 0, (process.returncode, said[-3000:])
    return [line for line in said.splitlines() if "::" in line]


def elsewhere(*what: Path | str) -> Popen[str]:
    """A leap day's last second, in summer time on the other side of the world."""
    day = datetime(2028, 2, 29, 10, 59, 59, tzinfo=UTC)
    return collecting(
        *what,
        options=("-p", "other_circumstances"),
        GPU_AWARE_TESTS_AHEAD_S=str(day.timestamp() - datetime.now(UTC).timestamp()),
        PYTHONHASHSEED="2",
        TZ="Pacific/Auckland",
        LC_ALL="C",
    )


@pytest.mark.parametrize(
    "folders", [("tests/unit", "tests/property", "tests/lua"), ("tests/slurm",)]
)
def test_every_process_collects_the_same_tests_on_every_day(folders: tuple[str, ...]) -> None:
    processes = [collecting(*folders, PYTHONHASHSEED="1", TZ="UTC"), elsewhere(*folders)]
    here, there = map(collected, processes)
    assert len(here) > 100
    assert here == there


def test_every_process_tries_the_same_examples() -> None:
    """Whatever it has imported by then."""
    assert len(providers._get_local_constants()) == 0


DIFFERENT = """import datetime, os, time, pytest
@pytest.mark.parametrize("value", [
    time.time(),
    str(datetime.date.today()),
    f"{datetime.datetime.now():%j}",
    time.strftime("%H", time.localtime(0)),
    ",".join({"a", "b", "c", "d", "e", "f"}),
    os.listdir("/")[0],
    next(os.scandir("/")).name,
    os.cpu_count(),
    str(object()),
])
def test_it(value): pass
"""


def test_names_that_depend_on_their_process_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    file.write_text(DIFFERENT)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    processes = [collecting(file, PYTHONHASHSEED="1", TZ="UTC"), elsewhere(file)]
    here, there = map(collected, processes)
    assert len(here) == len(there) == 9
    assert not set(here) & set(there)
