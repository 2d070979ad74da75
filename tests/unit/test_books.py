"""The ledger as the daemon keeps it: who may read the copy, and when it is due."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.config import Config, EventsConfig, SelectorConfig, StoreConfig
from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.service.selectd import Selector
from slurm_gpu_aware.slurm.cli_gateway import CliGateway
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


def test_the_next_copy_is_due_when_the_last_one_has_cost_its_share(tmp_path: Path) -> None:
    now = [100.0]
    ticks = iter([0.0, 0.0, 0.2])  # whether one is due, when it is begun, when it is done

    def clock() -> float:
        return now[0]

    books = Books(tmp_path / "store.db", clock=clock)
    assert books.publish_in_s is None
    books.event("7", "parked", {}, 1.0)
    assert books.publish_in_s == 0.0

    def costly() -> float:
        return now[0] + next(ticks, 0.2)

    books._clock = costly
    books.publish(force=True)
    books._clock = clock
    assert books.publish_in_s is None
    books.event("7", "planned", {}, 2.0)
    assert books.publish_in_s == pytest.approx(50 * 0.2)
    now[0] += 4.0
    assert books.publish_in_s == pytest.approx(6.0)
    books.close()


def test_no_round_is_run_for_a_copy_that_is_not_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_AWARE_CLOCK_CONFIG", str(tmp_path / "clock.conf"))
    config = Config(
        store=StoreConfig(path=tmp_path / "store.db"),
        events=EventsConfig(submit_file=tmp_path / "submitted"),
        selector=SelectorConfig(round_s=5.0),
    )
    selector = Selector(config, CliGateway(scontrol="/bin/false"))
    selector._books.event("7", "parked", {}, 1.0)
    selector._books.publish(force=True)
    selector._books.event("7", "planned", {}, 2.0)
    selector._books._publish_s = 1000.0
    assert selector._wait_s() == 5.0
    selector._books._publish_s = 0.0
    assert selector._wait_s() == 0.5
    selector.close()
