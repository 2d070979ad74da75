"""The file of tune: it counts only where the admin allows it, and no other content does."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware import records
from slurm_gpu_aware.config.load import (
    Candidate,
    Tuned,
    load_config,
    out_of_bounds,
    read_tuned,
    tuned_path,
    with_tuned,
    write_tuned,
)
from slurm_gpu_aware.config.settings import Config, StoreConfig, TuneConfig
from slurm_gpu_aware.errors import ConfigError, SourceError

GOOD = {
    "policy": "pal",
    "options": {"depth": 0.2},
    "set_at": 1_790_000_000,
    "gain_percent": 4.1,
    "low_percent": 2.0,
    "high_percent": 6.3,
}
TUNE = TuneConfig(
    apply=True, allowed=("pal", "random"), ranges={"pal": {"depth": [0.05, 0.3], "cap": [0, 1]}}
)


@pytest.fixture
def with_tune(tmp_path: Path) -> Config:
    return Config(store=StoreConfig(path=tmp_path / "store.db"), tune=TUNE)


def put(config: Config, content: object) -> Path:
    path = tuned_path(config)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_what_is_written_is_read_and_shown(with_tune: Config) -> None:
    tuned = Tuned(**GOOD)
    old = os.umask(0o077)
    try:
        write_tuned(with_tune, tuned)
    finally:
        os.umask(old)
    assert tuned_path(with_tune).stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tuned_path(with_tune).parent.iterdir()] == ["tuned.json"]
    assert read_tuned(with_tune) == tuned
    shown = "pal:depth=0.2, set by tune on 2026-09-21: gain over packed 4.1% (2.0 to 6.3)"
    assert str(tuned) == shown


def test_it_counts_only_with_the_admins_word(with_tune: Config, tmp_path: Path) -> None:
    put(with_tune, "damaged")
    assert read_tuned(replace(with_tune, tune=TuneConfig())) is None
    nowhere = StoreConfig(path=tmp_path / "none" / "store.db")
    assert read_tuned(replace(with_tune, store=nowhere)) is None


def test_the_policy_and_its_options_replace_the_configured_ones(with_tune: Config) -> None:
    with_tune = replace(with_tune, policies={"pal": {"depth": 0.1, "other": "kept"}, "x": {"y": 1}})
    changed = with_tuned(with_tune, Tuned(**GOOD))
    assert changed.placement.policy == "pal"
    assert changed.policies == {"pal": {"depth": 0.2, "other": "kept"}, "x": {"y": 1}}
    assert with_tuned(with_tune, None) is with_tune


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        (Candidate("packed"), "packed is not in tune.allowed (pal, random)"),
        (Candidate("random", {"seed": 1}), "random: seed is not in tune.ranges.random"),
        (Candidate("pal", {"depth": 0.31}), "pal: depth = 0.31 is not within 0.05 to 0.3"),
        (Candidate("pal", {"cap": 0, "depth": 0.0}), "pal: depth = 0 is not within 0.05 to 0.3"),
        (Candidate("pal", {"depth": 0.3, "cap": 1}), None),
        (Candidate("random"), None),
    ],
)
def test_the_bounds(candidate: Candidate, why: str | None) -> None:
    assert out_of_bounds(TUNE, candidate) == why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not JSON"),
        ("[" * 4000, "nested too deep"),
        ("\0", "NUL byte"),
        ("[]", "value: expected keys with values, not []"),
        ({}, "policy: expected a name, and it is missing"),
        ({**GOOD, "more": 1}, "more: unknown; known: gain_percent, high_percent"),
        ({**GOOD, "policy": "packed"}, "packed is not in tune.allowed"),
        ({**GOOD, "options": {"": 1}}, "options: expected keys that are a name, not ''"),
        ({**GOOD, "options": {"depth": 0.31}}, "is not within 0.05 to 0.3"),
        ({**GOOD, "options": {"unknown": 0.1}}, "unknown is not in tune.ranges.pal"),
        (json.dumps(GOOD) + " " * 5000, "larger than 4096 bytes"),
        (json.dumps(GOOD).replace("4.1", "9" * 3000), "gain_percent: expected a number from"),
    ],
)
def test_damaged_content_is_refused_with_a_sentence(
    with_tune: Config, content: object, why: str
) -> None:
    put(with_tune, content)
    with pytest.raises(ConfigError, match=r"tuned\.json: ") as caught:
        read_tuned(with_tune)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_a_folder_and_a_pipe_are_refused(with_tune: Config, tmp_path: Path) -> None:
    path, real = put(with_tune, GOOD), tmp_path / "real.json"
    real.write_text(path.read_text())
    for make, why in (
        (lambda: path.symlink_to(real), "cannot be read"),
        (lambda: os.link(real, path), "plain file with one name"),
        (lambda: os.mkfifo(path, 0o644), "not a plain file"),
        (path.mkdir, r"plain file|cannot be read"),
    ):
        path.unlink()
        make()
        with pytest.raises(ConfigError, match=why):
            read_tuned(with_tune)


def test_a_file_that_others_may_write_is_refused(with_tune: Config) -> None:
    path = put(with_tune, GOOD)
    for mode in (0o664, 0o646):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="others than its owner may write it"):
            read_tuned(with_tune)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_is_root_or_that_of_the_folder(with_tune: Config) -> None:
    path = put(with_tune, GOOD)
    folder = path.parent
    os.chown(path, 4321, -1)
    with pytest.raises(ConfigError, match="belongs to neither root"):
        read_tuned(with_tune)
    os.chown(folder, 4321, -1)
    assert read_tuned(with_tune) == Tuned(**GOOD)
    os.chown(path, 0, -1)
    assert read_tuned(with_tune) == Tuned(**GOOD)


def test_writing_replaces_a_link_and_not_what_it_points_to(
    with_tune: Config, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    tuned_path(with_tune).symlink_to(tmp_path / "precious")
    write_tuned(with_tune, Tuned(**GOOD))
    assert (tmp_path / "precious").read_text() == "precious"
    assert read_tuned(with_tune) == Tuned(**GOOD)


def test_a_folder_that_is_not_there_is_said(with_tune: Config, tmp_path: Path) -> None:
    with_tune = replace(with_tune, store=StoreConfig(path=tmp_path / "none" / "store.db"))
    with pytest.raises(SourceError, match=r"tuned\.json: cannot be written"):
        write_tuned(with_tune, Tuned(**GOOD))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_values), json_values)
def test_any_content_is_a_tuned_policy_or_a_value_error(changes: Any, other: Any) -> None:
    for content in ({**GOOD, **changes}, other):
        try:
            tuned = records.read(content, Tuned, closed=True)
        except ValueError:
            continue
        assert isinstance(str(tuned), str)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("allowed = []", "tune.allowed: at least one policy is needed"),
        ('allowed = ["none"]', "tune.allowed: unknown policy 'none'"),
        ("ranges.packed.x = 1", r"tune.ranges.packed: expected a table|tune.ranges.packed.x"),
        ("ranges.pal.x = [1]", r"tune.ranges.pal.x: expected \[lowest, highest\]"),
        ("ranges.pal.x = [2, 1]", r"tune.ranges.pal.x: expected \[lowest, highest\]"),
        ("ranges.pal.x = [0, true]", r"tune.ranges.pal.x: expected \[lowest, highest\]"),
        ("ranges.pal.x = [0, inf]", r"tune.ranges.pal.x: expected \[lowest, highest\]"),
        ("ranges.none.x = [0, 1]", "tune.ranges.none: unknown policy"),
    ],
)
def test_wrong_bounds_stop_the_start(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[tune]\n{text}\n")
    with pytest.raises(ConfigError, match=why):
        load_config(file, known_policies=("packed", "pal", "pal+mapa", "random", *_defaults()))


def _defaults() -> tuple[str, ...]:
    return (*Config().placement.allowed, *Config().tune.allowed)
