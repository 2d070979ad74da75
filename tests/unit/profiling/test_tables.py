"""Summaries of measured clusters, and the width of tables."""

import csv
from pathlib import Path

import pytest
from needs import shared_data

from gpu_aware_profile.store_writer import recompute_scores
from gpu_aware_profile.tables import SUMMARY, score_table, summarise
from slurm_gpu_aware.model.profile import GpuScore
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import Run, put_timings
from slurm_gpu_aware.store.profiles import score_rows


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "gpus", "spread", "best", "worst"),
    [
        ("longhorn_resnet", 336, "6.2%", 0.945, 1.120),
        ("longhorn_bert", 136, "1.5%", 0.986, 1.039),
        ("longhorn_pagerank", 172, "2.6%", 0.971, 1.004),
        ("frontera_resnet", 296, "2.2%", 0.984, 1.145),
        ("frontera_bert", 276, "1.0%", 0.991, 1.060),
        ("frontera_pagerank", 248, "0.1%", 0.999, 1.001),
        ("lonestar6_resnet", 219, "7.7%", 0.949, 2.201),
    ],
)
def test_measured_clusters_through_import_and_store(
    tmp_path: Path, name: str, gpus: int, spread: str, best: float, worst: float
) -> None:
    """The numbers are those that stand beside the data, computed there independently."""
    with shared_data(f"variability/{name}.csv").open() as stream:
        rows = [
            Run(row["node"], int(row["slot"]), "A", 1000.0, float(row["value_ms"]))
            for row in csv.DictReader(stream)
        ]
    with open_store(tmp_path / "store.db") as store:
        put_timings(store, rows)
        recompute_scores(store, ("A",))
        (summary,) = summarise(score_rows(store))
    assert summary["gpus"] == gpus
    assert f"{summary['geomean_over_best']:.1%}" == spread
    assert (round(summary["best"], 3), round(summary["worst"], 3)) == (best, worst)


def test_a_usual_cluster_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        GpuScore("c196-041", 3, "A", 66046.2, 1.0045, 1.0028, 1, o, 0.0, "rtx5000", "GPU-1")
        for o in (0, 1, 2)
    ]
    now = 12 * 86400 + 7200.0
    for text in (score_table(rows, now), SUMMARY.text(summarise(rows), now)):
        assert max(map(len, text.splitlines())) <= 80
    assert "own score" in score_table(rows, now)
