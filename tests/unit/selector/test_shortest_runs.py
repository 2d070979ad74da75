"""The files from which the filter knows earlier runs, written by a real reader of runs."""

import logging
import math
import os
import pwd
from pathlib import Path

import pytest
from test_run_history import NOW, RunFolder, row

from slurm_gpu_aware.config.settings import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.features.due_dates.shortest_runs import ShortestRuns, shortest_text
from slurm_gpu_aware.features.estimates import history as estimates
from slurm_gpu_aware.features.estimates.declared import EstimatesConfig
from slurm_gpu_aware.features.estimates.history import KEPT_GROUPS, JobKind, RunHistory
from slurm_gpu_aware.features.estimates.live import RunReader
from slurm_gpu_aware.filter_rules import MAX_RUNS_BYTES

OURS = pwd.getpwuid(os.getuid())
OTHER = next(entry for entry in pwd.getpwall() if entry.pw_uid != OURS.pw_uid)
NOBODY_HAS = 987_654_321


def kind(user: str = OURS.pw_name, name: str = "train", gpus: int = 2) -> JobKind:
    return JobKind(user, name, "bio", gpus, 14_400.0)


@pytest.fixture
def files(tmp_path: Path) -> ShortestRuns:
    return ShortestRuns(tmp_path / "submitted.runs")


def files_of(files: ShortestRuns) -> dict[str, str]:
    return {file.name: file.read_text() for file in files.folder.iterdir()}


def test_the_least_of_a_name() -> None:
    runs = {
        "train": [(2, 60.9), (1, 100.0), (8, 50.0), (1, math.inf)],
        "cut off": [(1, math.inf)],
        "": [(1, 5.0)],
        "\udcff\n/\0é": [(1, 5.0)],
        "no name \ud800": [(1, 5.0)],
        "x" * 128: [(1, 7.0)],
        "x" * 128 + "y": [(2, 6.0)],
    }
    assert shortest_text(runs).splitlines() == [
        f"{b'train'.hex()} 50 100",
        "ff0a2f00c3a9 5 5",
        f"{'78' * 128} 6 7",
    ]


def test_a_user_with_many_long_names_stays_below_the_bound(files: ShortestRuns) -> None:
    history = RunHistory()
    for i in range(3 * KEPT_GROUPS):
        history.add(kind(name="\N{DESERT}" * 120 + f"{i}" * 5), 1e10)
        history.add(kind(name=f"{i}" + "\N{DESERT}" * 120), 1e10)
    files.write_all(history)
    (text,) = files_of(files).values()
    assert len(text) < MAX_RUNS_BYTES
    runs = {f"{i:03d}" + "x" * 125: [(99_999, 1e10)] for i in range(2 * KEPT_GROUPS)}
    assert len(shortest_text(runs)) < MAX_RUNS_BYTES
    assert len(shortest_text(runs).splitlines()) == KEPT_GROUPS


def test_users_that_are_unknown_or_gone(files: ShortestRuns) -> None:
    files.folder.mkdir()
    for name in (str(NOBODY_HAS), "1.new", str(OTHER.pw_uid)):
        (files.folder / name).write_text("747261696e 1 1\n")
    history = RunHistory()
    for user in (OURS.pw_name, "no such user", "", "a\0b", "../x", "é" * 128, "\udcff", "\ud800"):
        history.add(kind(user), 60.0)
    files.write_all(history)
    assert files_of(files) == {str(OURS.pw_uid): "747261696e 60 120\n"}


def test_of_two_names_of_an_id_the_one_that_slurm_uses_has_the_file(
    files: ShortestRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the name without runs would remove the file of the other."""
    known = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", lambda name: OURS if name == "alias" else known(name))
    history = RunHistory()
    history.add(kind(), 60.0)
    history.add(kind("alias", "other"), 60.0)
    files.write_all(history)
    assert files_of(files) == {str(OURS.pw_uid): "747261696e 60 120\n"}
    history = RunHistory()
    history.add(kind(), 60.0)
    files.write(history, {OURS.pw_name})
    assert files_of(files) == {str(OURS.pw_uid): "747261696e 60 120\n"}


def test_a_user_that_is_displaced(files: ShortestRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    history = RunHistory()
    for user in (OURS.pw_name, OTHER.pw_name):
        history.add(kind(user), 60.0)
    files.write_all(history)
    assert set(files_of(files)) == {str(OURS.pw_uid), str(OTHER.pw_uid)}
    monkeypatch.setattr(estimates, "ALL_GROUPS", len(history) - 1)
    history.add(kind(OTHER.pw_name), 50.0)
    files.write(history, {OTHER.pw_name})
    assert files_of(files) == {str(OTHER.pw_uid): "747261696e 50 100\n"}


def test_only_what_has_changed_is_written(files: ShortestRuns) -> None:
    history = RunHistory()
    history.add(kind(), 60.0)
    files.write_all(history)
    file = files.folder / str(OURS.pw_uid)
    assert files.folder.stat().st_mode & 0o777 == 0o700
    before = file.stat().st_ino, file.stat().st_mtime_ns
    history.add(kind(), 70.0)
    files.write(history, {OURS.pw_name})
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before
    history.add(kind(), 50.0)
    files.write(history, {OURS.pw_name})
    assert file.read_text() == "747261696e 50 100\n"
    assert [path.name for path in files.folder.iterdir()] == [file.name]


def test_a_folder_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ShortestRuns(tmp_path / "gone" / "submitted.runs")
    history = RunHistory()
    history.add(kind(), 60.0)
    with caplog.at_level(logging.WARNING):
        files.write_all(history)
        files.write(history, {OURS.pw_name})
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert "due dates" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def runs_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    one = RunFolder(tmp_path)
    one.config = Config(
        store=StoreConfig(path=tmp_path / "store.db"),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
    ).put(EstimatesConfig(1))
    one.reader = RunReader(one.config, clock=lambda: one.now)
    return one


def test_the_reader_writes_at_first_and_with_later_runs(runs_there: RunFolder) -> None:
    mine = row(User=OURS.pw_name)
    runs_there.sacct(mine)
    runs_there.reader.read()
    file = runs_there.config.events.runs_folder / str(OURS.pw_uid)
    assert file.read_text() == "747261696e 1200 2400\n"
    runs_there.reader.renew()
    runs_there.now += 600
    later = row("8", NOW - 500, User=OURS.pw_name, ElapsedRaw="300")
    other = row("9", NOW - 500, User=OTHER.pw_name, ElapsedRaw="300")
    runs_there.sacct(mine, later, other)
    runs_there.reader.read()
    runs_there.reader.renew()
    assert file.read_text() == "747261696e 300 600\n"
    assert file.with_name(str(OTHER.pw_uid)).read_text() == "747261696e 300 600\n"


def test_without_estimates_there_is_no_file(runs_there: RunFolder) -> None:
    runs_there.sacct(row(User=OURS.pw_name))
    runs_there.reader.read()
    config = Config(events=runs_there.config.events).put(EstimatesConfig(0))
    RunReader(config).start()
    assert list(runs_there.config.events.runs_folder.iterdir()) == []
