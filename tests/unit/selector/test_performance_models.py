"""Performance models of the store: lookup, and rows that are none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu_aware.features.models.fitting import fit_model
from slurm_gpu_aware.features.models.least_squares import prior_of
from slurm_gpu_aware.features.models.performance_model import PerformanceSample
from slurm_gpu_aware.features.models.store import ModelRow, put_models, read_models
from slurm_gpu_aware.store.database import open_store

MODEL = fit_model(
    [PerformanceSample(1, 1, 1.0, 1400.0, 1.0, 200.0)],
    prior_of("A", "a100"),
    1400.0,
    name="A",
    gpu_model="a100",
)


def row_of(kind="class", name="A", gpu_model="a100", content=None, **errors) -> ModelRow:
    quality = replace(MODEL.quality, **errors)
    values = replace(MODEL, name=name, gpu_model=gpu_model, quality=quality).values()
    return ModelRow(kind, name, gpu_model, 1.0, json.dumps(values) if content is None else content)


@pytest.fixture
def read_rows(tmp_path: Path):
    def models(*rows: ModelRow):
        with open_store(tmp_path / "store.db") as store:
            put_models(store, rows)
            return read_models(store, 0.15)

    return models


def test_the_application_comes_before_the_class(read_rows):
    found = read_rows(row_of(), row_of("application", "bert"), row_of("application", "A", "v100"))
    assert found.of("bert", "A", "a100").name == "bert"
    assert found.of("gpt2", "A", "a100").name == "A"
    assert found.of(None, "A", "a100").name == "A"
    assert found.of(None, "A", "v100") is None
    assert found.of("bert", "B", "v100") is None
    assert len(list(found)) == 3


def test_what_a_user_has_measured_comes_first_for_that_user_only(read_rows):
    found = read_rows(row_of("application", "bert"), row_of("application", "ada/bert"), row_of())
    assert found.of("bert", "A", "a100", "ada").name == "ada/bert"
    assert found.of("bert", "A", "a100", "bob").name == "bert"
    assert found.of(None, "A", "a100", "ada").name == "A"


@pytest.mark.parametrize("what", ["time_error", "power_error", "energy_error"])
def test_a_model_that_was_further_off_than_the_site_allows_is_not_used(read_rows, what):
    own, classes = row_of("application", "ada/bert", **{what: 0.2}), row_of(**{what: 0.15})
    found = read_rows(own, classes)
    assert found.of("bert", "A", "a100", "ada").name == "A"
    assert found.too_wrong("bert", "a100", "ada").name == "ada/bert"
    assert found.too_wrong("bert", "a100", "bob") is None
    of_all = read_rows(own, row_of("application", "bert"))
    assert of_all.of("bert", "A", "a100", "ada").name == "bert"
    assert read_rows(own, row_of(**{what: 0.16})).of("bert", "A", "a100", "ada") is None
    assert read_rows(row_of(**{what: 0.14})).too_wrong("A", "a100", "ada") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}', "[" * 100_000])
def test_a_row_that_is_no_model_is_left_out_and_named(read_rows, content):
    found = read_rows(row_of(name="B", content=content), row_of())
    assert [kept.name for kept, _ in found] == ["A"]
    (sentence,) = found.unreadable
    assert "the model of class B on a100 is not valid" in sentence
