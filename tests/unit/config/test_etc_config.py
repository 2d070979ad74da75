"""etc/config.toml says what the code does: values are the defaults, no key is missing."""

import dataclasses
import re
from pathlib import Path

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import DEFAULT_KINDS, LEVELS, ClassConfig, Config, File
from slurm_gpu_aware.features.power.declared import PowerConfig

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "etc" / "config.toml"
_KEY = re.compile(r"(?:# )?([a-z_0-9]+) = ", re.MULTILINE)


def test_values_equal_the_defaults():
    assert dataclasses.replace(load_config(FILE), source=None) == Config()


def test_every_key_is_there_and_explained():
    text = FILE.read_text()
    wanted = {f.name for f in dataclasses.fields(ClassConfig)}
    for section in dataclasses.fields(File):
        if section.name in ("classes", "policies", "source"):
            continue
        value = getattr(File(), section.name)
        assert f"[{section.name}]" in text
        wanted |= {f.name for f in dataclasses.fields(value)}
    wanted -= {"defaults", "levels", "ranges", "schedule"}  # sections of their own
    for kind in DEFAULT_KINDS:
        assert f"[site.defaults.{kind}]" in text
    assert "[placement.levels]" in text
    assert "[power.schedule]" in text
    wanted |= set(LEVELS)
    assert wanted - set(_KEY.findall(text)) == set()


def test_the_commented_examples_are_valid(tmp_path: Path):
    """Every example that is commented out can be switched on as it stands, one limit of power."""
    example = re.compile(r"^# ((?:[a-z_]+ = |\[|\"[0-9]).*)")
    lines = [example.sub(r"\1", line) for line in FILE.read_text().splitlines()]
    lines.remove("eta = 0.8")
    active = tmp_path / "config.toml"
    active.write_text("\n".join(lines))
    config = load_config(active)
    assert config.classes["A"].clock_mhz == 1380
    assert config.placement.max_clock_mhz == 1530
    assert list(config.placement.penalties) == list(LEVELS)
    assert set(config.site.defaults) == set(DEFAULT_KINDS)
    assert config.site.defaults["partition"] == {"train": "class=A"}
    assert set(config.policies["topo-aware"]) == {"weights", "interference"}
    assert config.events.jobcomp_file is not None
    assert config.of(PowerConfig).power_budget_watts == 20_000
    assert config.of(PowerConfig).schedule == {"17:00-20:00": "eta=0.6"}
