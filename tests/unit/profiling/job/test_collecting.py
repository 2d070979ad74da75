"""Records in a folder that all users may write to."""

import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from needs import needs_root

from gpu_aware_profile.imports import collecting
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models.store import application_pairs, application_samples

HEADER = "application,gpu_model,gpus,nodes,clock_mhz,time_s,power_w\n"
ROW = "resnet50,v100,2,1,1380,0.25,400\n"
OLD_S = 1000.0


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "records"
    made.mkdir()
    made.chmod(0o1733)
    return made


def leave(folder, text=HEADER + ROW, name="gpu-aware-job-7.csv", age_s=OLD_S):
    file = folder / name
    file.write_text(text)
    os.utime(file, (time.time() - age_s,) * 2)
    return file


def collect(store, folder):
    return collecting.collect(store, folder, ("A", "B", "C"), time.time())


def test_rows_are_stored_under_their_owners_name(store, folder, monkeypatch):
    monkeypatch.setattr(collecting, "user_name", lambda number: "ada")
    file = leave(folder)
    assert collect(store, folder) == (1, ())
    (one,) = application_samples(store)
    assert (one.name, one.sample.clock_mhz, one.sample.time_s) == ("ada/resnet50", 1380.0, 0.25)
    assert one.taken_at == pytest.approx(time.time() - OLD_S, abs=60)
    assert not file.exists()


def test_the_power_of_a_job_without_marks_is_stored(store, folder):
    leave(folder, HEADER + ROW.replace("0.25", ""))
    assert collect(store, folder) == (1, ())
    (one,) = application_samples(store)
    assert math.isnan(one.sample.time_s)
    assert one.sample.power_w == 400.0


def test_a_job_that_may_run_keeps_its_file(store, folder):
    file = leave(folder, age_s=10.0)
    assert collect(store, folder) == (0, ())
    assert file.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEADER + ROW.replace("0.25", "-1"), "line 2"),
        (HEADER + ROW.replace("0.25,400", ","), "line 2"),
        ("a,b\n1,2\n", "no column 'application', 'gpu_model', 'gpus', 'time_s'"),
        (HEADER.replace("clock_mhz", "gpus") + ROW, "column 'gpus' occurs twice"),
        ("", "no column"),
        ("\0", "NUL byte"),
        (HEADER + '"', "not CSV"),
        (HEADER + "x" * (1 << 16), "larger than 64 KiB"),
        (HEADER + ROW.replace("resnet50", "r" * 64), "not a valid name"),
        (HEADER + "".join(ROW.replace("resnet50", f"r{k}") for k in range(21)), "most 20 may"),
    ],
)
def test_a_wrong_file_is_named_and_deleted_and_stores_nothing(store, folder, text, why):
    bad, good = leave(folder, text, "a.csv"), leave(folder, name="b.csv")
    found = collect(store, folder)
    assert found.stored == 1
    (sentence,) = found.refused
    assert why in sentence
    assert len(sentence) < 400
    assert not bad.exists()
    assert not good.exists()
    assert len(application_pairs(store)) == 1


def test_a_wrong_file_is_named_with_its_user(store, folder, monkeypatch):
    monkeypatch.setattr(collecting, "user_name", lambda number: "ada")
    leave(folder, "a,b\n1,2\n", "a.csv")
    (sentence,) = collect(store, folder).refused
    assert sentence.startswith("a.csv of ada: no column")


AS_USER = """
import os, sys, time
from pathlib import Path
from gpu_aware_profile.imports import collecting
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.database import open_store
with open_store(Path(sys.argv[1]) / "store.db") as store:
    os.setgid(65534)
    os.setuid(int(sys.argv[2]))
    try:
        print(collecting.collect(store, Path(sys.argv[1]) / "left", ("A",), time.time()))
    except SourceError as exc:
        print(exc)
"""


@needs_root
@pytest.mark.parametrize(
    ("mode", "owner", "file_mode", "told"),
    [
        (0o1777, 0, 0o644, "left: user nobody may not read and delete the files of others"),
        (0o1733, 0, 0o644, "left: user nobody may not read and delete the files of others"),
        (0o1733, 65534, 0o600, "a.csv of 4711: this user may not read it: Permission denied"),
    ],
)
def test_without_the_right_it_says_so_and_stores_nothing(mode, owner, file_mode, told):
    """In a folder that other users can enter."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        folder = base / "left"
        folder.mkdir()
        file = leave(folder, "a,b\n1,2\n", "a.csv")
        file.chmod(file_mode)
        os.chown(file, 4711, 4711)
        os.chown(folder, owner, owner)
        folder.chmod(mode)
        words = [sys.executable, "-c", AS_USER, name, "65534"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        assert told in done.stdout
        assert file.exists()


def test_no_link_pipe_or_second_name_is_read(store, folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(HEADER + ROW)
    (folder / "link.csv").symlink_to(secret)
    (folder / "hard.csv").hardlink_to(secret)
    os.mkfifo(folder / "pipe.csv")
    (folder / "sub.csv").mkdir()
    for entry in folder.iterdir():
        os.utime(entry, (OLD_S,) * 2, follow_symlinks=False)
    (folder / "other.txt").write_text("x")
    found = collect(store, folder)
    assert found.stored == 0
    assert len(found.refused) == 3  # a folder is no record, and stays
    assert [entry.name for entry in folder.iterdir() if entry.suffix == ".csv"] == ["sub.csv"]
    assert secret.exists()
    assert (folder / "other.txt").exists()
    assert application_samples(store) == []


def test_no_name_of_a_user_and_an_application_is_that_of_another_user(store, folder, monkeypatch):
    for number, owner in enumerate(("john", "john.doe", "john/doe", "")):
        monkeypatch.setattr(collecting, "user_name", lambda _, owner=owner: owner)
        leave(folder, HEADER + ROW + ROW.replace("resnet50", "doe.resnet50"), f"{number}.csv")
        assert len(collect(store, folder).refused) == (number >= 2)
    assert [name for name, _ in sorted(application_pairs(store))] == [
        *("john.doe/doe.resnet50", "john.doe/resnet50", "john/doe.resnet50", "john/resnet50")
    ]


def test_files_of_other_names_displace_no_record(store, folder, monkeypatch):
    monkeypatch.setattr(collecting, "_MOST_FILES", 3)
    for number in range(10):
        (folder / f"a{number}").touch()
        leave(folder, name=f"b{number}.csv", age_s=10.0)
    leave(folder, name="z.csv")
    assert collect(store, folder).stored == 1


def test_no_number_of_files_displaces_those_of_another_user(store, folder, monkeypatch):
    """Mallory's files are owned by this process, ada's by another number."""
    monkeypatch.setattr(collecting, "_MOST_FILES", 3)
    for number in range(10):
        leave(folder, HEADER + "wrong,\n", name=f"b{number}.csv")
    leave(folder, name="z.csv")
    real = os.scandir

    class Entry:
        def __init__(self, entry):
            self.name, self._entry = entry.name, entry

        def is_dir(self, *, follow_symlinks):
            return self._entry.is_dir(follow_symlinks=follow_symlinks)

        def stat(self, *, follow_symlinks):
            known = self._entry.stat(follow_symlinks=follow_symlinks)
            own = known.st_uid + (self.name == "z.csv")
            return SimpleNamespace(st_uid=own, st_mtime=known.st_mtime)

    def scandir(path):
        with real(path) as entries:
            return nullcontext([Entry(entry) for entry in entries])

    monkeypatch.setattr(os, "scandir", scandir)
    found = collect(store, folder)
    assert (found.stored, len(found.refused)) == (1, 3)
    monkeypatch.undo()
    assert len(collect(store, folder).refused) == 7


def test_a_folder_that_cannot_be_read_is_an_error(store, tmp_path):
    with pytest.raises(SourceError, match="cannot be read"):
        collect(store, tmp_path / "none")
