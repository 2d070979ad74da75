"""Import of times of applications for performance models."""

import math
from pathlib import Path

import pytest

from slurm_gpu_aware.features.models.performance_model import (
    NOT_LOCKED,
    NamedSample,
    PerformanceSample,
)
from slurm_gpu_aware.features.models.store import application_samples
from slurm_gpu_aware.store.database import open_store

HEAD = (
    "application,gpu_model,gpus,nodes,batch_size,clock_mhz,limit_w,time_s,power_w,class,taken_at\n"
)
GOOD = "bert,a100,16,2,8,1200,250,0.25,4000,A,1000\n"


def stored(tmp_path: Path) -> list[NamedSample]:
    with open_store(tmp_path / "store.db") as store:
        return application_samples(store)


def test_all_columns(tmp_path: Path, imported):
    said = imported("-", "--taken-at", "77", text=HEAD + GOOD + "gpt2,a100,1,,,,,0.5,,,\n")
    assert "imported 2 samples of 2 applications" in said
    assert stored(tmp_path) == [
        NamedSample(
            *("bert", "a100", 77.0),
            PerformanceSample(16, 2, 8.0, 1200.0, 0.25, 4000.0, limit_w=250),
            "A",
        ),
        NamedSample("gpt2", "a100", 77.0, PerformanceSample(1, 1, 1.0, NOT_LOCKED, 0.5)),
    ]


def test_the_required_columns_are_enough(tmp_path: Path, imported):
    imported("-", text="application,gpu_model,gpus,time_s\nbert,a100,2,0.5\n")
    (sample,) = stored(tmp_path)
    assert sample.sample == PerformanceSample(2, 1, 1.0, NOT_LOCKED, 0.5)


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("application", "", "application is empty"),
        ("application", "a b", "application 'a b' is not a valid name"),
        ("application", "x" * 65, "is not a valid name"),
        ("gpu_model", "A100", "gpu_model 'A100' is not a valid name"),
        ("gpus", "0", "gpus is 0: expected 1 to 99999"),
        ("gpus", "1.5", "not a whole number"),
        ("nodes", "17", "nodes is 17: more than the 16 GPUs"),
        ("batch_size", "0", "batch_size is 0"),
        ("batch_size", "nan", "not a finite number"),
        ("clock_mhz", "1e9", "clock_mhz is 1e+09"),
        ("limit_w", "250.5", "not a whole number"),
        ("time_s", "-1", "must be a time of"),
        ("power_w", "0", "power_w is 0"),
        ("class", "Z", "class 'Z' is not one of A, B, C"),
        ("taken_at", "1e300", "not a past time"),
    ],
)
def test_one_bad_row_stores_nothing(tmp_path: Path, refused, column, cell, reason):
    cells = dict(zip(HEAD.strip().split(","), GOOD.strip().split(","), strict=True)) | {
        column: cell
    }
    said = refused("-", text=HEAD + GOOD + ",".join(cells.values()) + "\n")
    assert f"line 3: {reason}" in said or reason in said
    assert not (tmp_path / "store.db").exists() or stored(tmp_path) == []


def test_a_row_needs_a_time_or_a_power(tmp_path: Path, imported, refused):
    assert "line 2: time_s is empty" in refused("-", text=HEAD + GOOD.replace("0.25,4000", ","))
    imported("-", text=HEAD + GOOD.replace("0.25", ""))
    ((_, _, _, sample, _),) = stored(tmp_path)
    assert math.isnan(sample.time_s)
    assert sample.power_w == 4000.0


def test_good_rows_are_kept_if_asked(tmp_path: Path, run_import):
    done = run_import(
        "-", "--skip-bad", text=HEAD + GOOD + "bert,a100,0,1,8,1200,0.25,4000,A,1000\n"
    )
    assert done.exit_code == 3
    assert len(stored(tmp_path)) == 1


def test_a_class_for_all_rows_is_refused(run_import):
    done = run_import(
        "-", "--class", "A", text="application,gpu_model,gpus,time_s\nbert,a100,2,0.5\n"
    )
    assert "only times are of a class; leave --class out" in done.stderr
