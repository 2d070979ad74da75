"""Boards of one model: told apart by the form and the memory that their names have."""

from pathlib import Path

import pytest
from store_samples import ingest, report

from slurm_gpu_aware.model.hardware_graph import board_of
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import newest_runs
from slurm_gpu_aware.variability.drift import outliers
from slurm_gpu_aware.variability.scores import scores_of_gpus


@pytest.mark.parametrize(
    ("names", "board"),
    [
        (("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), "40gb pcie"),
        (("NVIDIA A100 80GB PCIe",), "80gb pcie"),
        (("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"), "80gb sxm"),
        (("NVIDIA H100 80GB HBM3",), "80gb hbm3"),
        (("NVIDIA H100 PCIe",), "pcie"),
        (("Tesla V100-SXM2-16GB",), "16gb sxm"),
        (("NVIDIA H20-3e",), "3e"),
        (("NVIDIA RTX PRO 6000 Blackwell Server Edition",), "server"),
        (("NVIDIA L40S", "NVIDIA GeForce RTX 3060", "", None), ""),
    ],
)
def test_what_a_name_says_of_a_board(names: tuple[str | None, ...], board: str) -> None:
    assert {board_of(name) for name in names} == {board}


def test_a_score_is_relative_to_the_same_board(store_path: Path) -> None:
    """1,555 and 2,039 GB/s: no A100 of 40 GB is slow because others have 80 GB."""
    with open_store(store_path) as store:
        for node, size, time_ms in (("n1", 40, 131.0), ("n2", 40, 131.0), ("n3", 80, 100.0)):
            swept = report(node, times=dict.fromkeys(range(4), time_ms))
            for gpu in swept["gpus"]:
                gpu |= {"name": f"NVIDIA A100-SXM4-{size}GB", "model": "a100"}
            ingest(store, swept)
        timings = newest_runs(store)
    assert {row.model for row in timings} == {"a100"}
    assert {score.raw for score in scores_of_gpus(timings)} == {1.0}
    assert min(s.raw for s in scores_of_gpus(timings, reference="cluster")) < 0.8
    slow = [row._replace(value_ms=3 * row.value_ms) if row.node == "n3" else row for row in timings]
    assert outliers(slow) == []
