"""The ledger as the daemon keeps it: who may read the copy, and when it is due."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.slurm.parse_cluster import parse_config
from slurm_gpu_aware.store.database import published_path

CONFIG = "SLURM_VERSION = 24.11.5\nPrivateData             = {}\n"


@pytest.mark.parametrize(
    ("setting", "private"),
    [("none", False), ("jobs", True), ("accounts,jobs,users", True), ("usage,nodes", False)],
)
def test_private_data_is_read(setting: str, private: bool) -> None:
    assert parse_config(CONFIG.format(setting)).private_jobs is private


def mode(path: Path) -> int:
    return published_path(path).stat().st_mode & 0o777


@pytest.mark.parametrize(("setting", "bits"), [("none", 0o644), ("jobs,users", 0o640)])
def test_the_copy_is_as_private_as_slurm(tmp_path: Path, setting: str, bits: int) -> None:
    slurm = FakeSlurm(tmp_path)
    slurm.write([parked()], ["n1"])
    (slurm.home / "private-data").write_text(setting)
    slurm.round()
    assert mode(slurm.store) == bits


def test_before_slurm_has_answered_the_copy_is_private(tmp_path: Path) -> None:
    books = Books(tmp_path / "store.db")
    books.event("7", "parked", {}, 1.0)
    books.publish()
    assert mode(tmp_path / "store.db") == 0o640
