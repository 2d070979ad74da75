"""models: fit, show and plot, and rows of the store that are none."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from commands import gpu_aware, refusal, succeeded, words
from store_samples import fit_models, ingest_sweep, watts

from slurm_gpu_aware.features.models.performance_model import NamedSample, PerformanceSample
from slurm_gpu_aware.features.models.store import put_samples
from slurm_gpu_aware.store.database import open_store

CLOCKS = (900, 1000, 1100, 1200, 1312, 1400, 1530)


def write_site(folder: Path) -> Path:
    """A configuration whose store has a sweep of clocks of class A, and one application."""
    sample = PerformanceSample(2, 1, 8.0, 1530.0, 0.3, 400.0)
    with open_store(folder / "store.db") as store:
        ingest_sweep(store, CLOCKS, slots=(0, 1))
        put_samples(store, [NamedSample("bert", "v100", 5.0, sample, "A")], source="import")
    return write_config(folder)


def write_config(folder: Path) -> Path:
    file = folder / "config.toml"
    file.write_text(f'[store]\npath = "{folder}/store.db"\n')
    return file


@pytest.fixture
def site_config(tmp_path: Path) -> Path:
    return write_site(tmp_path)


@pytest.fixture(scope="module")
def fitted_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = write_site(tmp_path_factory.mktemp("fitted")).with_name("store.db")
    done = fit_models(store)
    assert "fitted 1 model of classes and 1 of applications" in done.stderr
    return store


@pytest.fixture
def fitted_config(tmp_path: Path, fitted_store: Path) -> Path:
    shutil.copy(fitted_store, tmp_path / "store.db")
    return write_config(tmp_path)


def shown(config: Path, *args: str) -> list[dict]:
    done = succeeded(gpu_aware("models", "show", "--json", *args, config=config))
    return json.loads(done.stdout)


def test_an_application_that_was_measured_under_limits_gets_one(site_config: Path):
    """Half of its time scales with the clock, which a limit lowers."""
    clocks = {(mhz, 0): mhz for mhz in (900, 1100, 1300, 1400, 1530)}
    clocks |= {(1530, w): 1530 * ((w - 40) / 260) ** (1 / 3) for w in (200, 240, 270)}
    samples = [
        PerformanceSample(1, 1, 1.0, mhz, 0.5 + 765 / f, 40 + 260 * (f / 1530) ** 3, limit_w)
        for (mhz, limit_w), f in clocks.items()
    ]
    with open_store(site_config.with_name("store.db")) as store:
        named = [NamedSample("stencil", "v100", 5.0, one, "A") for one in samples]
        put_samples(store, named, source="import")
    assert gpu_aware("models", "fit", config=site_config).exit_code == 0
    (found,) = shown(site_config, "stencil", "--slowdown", "4")
    chosen = found["within_slowdown"]
    assert (chosen["clock_mhz"], chosen["limit_w"]) == (1530, 250)
    assert chosen["slowdown"] == pytest.approx(0.5 * ((260 / 210) ** (1 / 3) - 1), abs=0.005)


def test_the_least_energy_is_that_of_the_measured_curve(fitted_config: Path):
    (found,) = shown(fitted_config, "A")
    energies = {f: watts(f) / f for f in CLOCKS}
    best = min(energies, key=energies.__getitem__)
    assert found["most_efficient"]["clock_mhz"] == best
    saved = 1 - energies[best] / energies[1530]
    assert found["most_efficient"]["energy_saved"] == pytest.approx(saved, abs=0.03)
    assert found["most_efficient"]["slowdown"] == pytest.approx(1530 / best - 1, abs=0.03)
    assert found["quality"]["time_error"] < 0.02
    assert found["default"]["clock_mhz"] == 1530
    assert found["frontier"][0]["clock_mhz"] == 1530


def test_the_best_clock_within_a_slowdown(fitted_config: Path):
    for percent in (0, 5, 10, 40):
        (found,) = shown(fitted_config, "A", "--slowdown", str(percent))
        assert found["within_slowdown"]["slowdown"] <= percent / 100 + 1e-9
        assert found["within_slowdown"]["energy_saved"] >= 0


def test_an_application_at_one_clock_has_the_clocks_of_its_class(fitted_config: Path):
    (found,) = shown(fitted_config, "bert")
    assert found["gpus"] == 2
    assert found["quality"]["time_error"] is None
    assert found["most_efficient"]["clock_mhz"] < 1530
    assert found["default"]["power_w"] == pytest.approx(400.0, rel=0.02)


def test_the_tables(fitted_config: Path):
    text = words("models", "show", config=fitted_config)
    for part in ("class A", "application bert", "within 10%"):
        assert part in text
    text = words("models", "show", "A", config=fitted_config)
    for part in ("least energy", "1530 MHz", "900 to 1530 MHz"):
        assert part in text
    assert "not measured" not in text
    of_three = words("models", "show", "A", "--gpus", "3", config=fitted_config)
    assert "3: not measured; changes in % count" in of_three


def test_the_picture(fitted_config: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    succeeded(gpu_aware("models", "plot", "A", str(tmp_path / "a.png"), config=fitted_config))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    nowhere = str(tmp_path / "no" / "a.png")
    refusal(gpu_aware("models", "plot", "A", nowhere, config=fitted_config))


def test_without_models_and_with_a_wrong_name(fitted_config: Path):
    said = refusal(gpu_aware("models", "show", "gpt2", config=fitted_config))
    assert "no model of 'gpt2'; known: A, bert" in said


def test_nothing_to_fit(tmp_path: Path):
    file = write_config(tmp_path)
    open_store(tmp_path / "store.db").close()
    assert "nothing to fit" in refusal(gpu_aware("models", "fit", config=file))
    assert "'gpu-aware models fit' makes them" in gpu_aware("models", "show", config=file).stderr


HOSTILE = [
    ("UPDATE models SET content = ?", "{"),
    ("UPDATE models SET content = replace(content, '\"io_s\"', ?)", '"x"'),
    ("UPDATE models SET name = ?", "\x1b[31m$x^{2}$"),
    ("UPDATE models SET gpu_model = ?", "\n" * 10),
]


@pytest.mark.parametrize(("statement", "value"), HOSTILE)
def test_hostile_models_stop_nothing(
    fitted_config: Path, tmp_path: Path, statement: str, value: str
):
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute(statement, (value,))
    for args in (["show"], ["show", "A"], ["plot", "A", str(tmp_path / "a.png")], ["fit"]):
        done = gpu_aware("models", *args, config=fitted_config)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "\x1b" not in done.output


def test_a_model_of_the_largest_numbers_stops_nothing(fitted_config: Path, tmp_path: Path):
    with sqlite3.connect(tmp_path / "store.db") as connection:
        rows = connection.execute("SELECT kind, content FROM models").fetchall()
        for kind, content in rows:
            values = json.loads(content)
            for part in ("throughput", "power"):
                for name in values[part]:
                    if name.endswith(("_s", "_w", "slope", "knee")):
                        values[part][name] = 1e30
            found = json.dumps(values), kind
            connection.execute("UPDATE models SET content = ? WHERE kind = ?", found)
    assert len(shown(fitted_config)) == 2
    assert gpu_aware("models", "show", config=fitted_config).exit_code == 0


def test_hostile_samples_stop_nothing(site_config: Path, tmp_path: Path):
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE model_samples SET time_s = 1e300, batch_size = -1, gpus = 0")
        connection.execute("UPDATE timings SET power_w = -1 WHERE clock_mhz = 900")
    done = succeeded(gpu_aware("models", "fit", config=site_config))
    assert "no model of application bert on v100: no usable sample" in done.stderr


def test_place_says_what_a_step_of_size_and_clock_would_bring(fitted_config: Path) -> None:
    arguments = ["place", "--gpus", "1", "--class", "A"]
    text = words(*arguments, config=fitted_config)
    for part in ("A on v100: ", ": 1 GPU at ", " MHz would end it ", " more energy."):
        assert part in text
    size = json.loads(words(*arguments, "--json", config=fitted_config))["size"]
    assert size["gpus"] == 1
    assert size["clock_mhz"] in CLOCKS
    assert size["power_w"] == pytest.approx(watts(size["clock_mhz"]), rel=0.1)
    done = gpu_aware(*arguments, "--application", "none", config=fitted_config)
    assert "no performance model none for v100 is in the store; that of A counts." in (
        " ".join(done.stderr.split())
    )
