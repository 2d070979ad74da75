"""Parking again, with clocks of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.config import Config
from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.service.rounds import Rounds
from slurm_gpu_aware.slurm.cli_gateway import CliGateway


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("FAKE_SLURM", str(fake.home))
    return fake


class Bench:
    """Rounds over the fake Slurm; ``wall`` may be set, ``steady`` runs on."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.wall, self.steady = 1_790_000_000.0, 5000.0
        self.rounds = Rounds(
            CliGateway(scontrol=slurm.scontrol),
            Config(),
            Books(slurm.store),
            gate_held_until=lambda: self.wall + 60.0,
            clock=lambda: self.wall,
            timer=lambda: self.steady,
        )


def test_a_clock_that_is_set_back_keeps_no_job_pinned(slurm: FakeSlurm) -> None:
    slurm.write([parked(stuck="1")], ["n1"])
    bench = Bench(slurm)
    bench.rounds.run()
    slurm.change("7", Reason="Resources")
    assert slurm.jobs["7"]["ReqNodeList"] == "n1"
    bench.wall -= 3600.0
    bench.steady += 31.0
    bench.rounds.run()
    assert slurm.jobs["7"]["Licenses"] == "gpuaware:1"
    assert slurm.jobs["7"]["ReqNodeList"] == "(null)"
    slurm.change("7", Reason="Licenses")
    bench.steady += 59.0
    assert bench.rounds.run().placed == []
    bench.steady += 2.0
    assert bench.rounds.run().placed == ["7"]
