"""The power limit in force: grammar, schedule, what was set, and what does not count."""

import math
import os
import time
from pathlib import Path

import pytest

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.features.power.declared import OFF, PowerConfig, PowerLimit, parse_limit
from slurm_gpu_aware.features.power.power_limit import (
    SetLimit,
    limit_in_force,
    parse_until,
    power_file,
    read_set_limit,
    write_set_limit,
)

NOON = time.mktime((2026, 5, 4, 12, 0, 0, 0, 0, -1))
HOUR = 3600.0


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(store=StoreConfig(path=tmp_path / "store.db"))


def with_power(config: Config, **power: object) -> Config:
    return config.put(PowerConfig(**power))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("off", OFF),
        ("20000", PowerLimit(watts=20_000.0)),
        ("eta=0.7", PowerLimit(eta=0.7)),
        ("eta=.5", PowerLimit(eta=0.5)),
        ("eta=1", PowerLimit(eta=1.0)),
    ],
)
def test_a_limit_is_read_and_written_alike(text: str, limit: PowerLimit) -> None:
    assert parse_limit(text) == limit
    assert parse_limit(str(limit)) == limit


NO_LIMITS = "0 -1 1e3 20000W eta=0 eta=0.0 eta=1.1 eta=-1 eta=nan OFF inf eta= eta=0.7,off ١٠"


@pytest.mark.parametrize("text", ["", "eta=0.7 ", "9" * 10, *NO_LIMITS.split()])
def test_other_texts_are_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match="is not off, watts, or eta=X"):
        parse_limit(text)


def test_watts_of_a_limit() -> None:
    assert parse_limit("eta=0.7").watts_of(1000.0) == pytest.approx(700.0)
    assert parse_limit("900").watts_of(1000.0) == 900.0
    assert parse_limit("off").watts_of(1000.0) == math.inf


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        *(("90min", 1.5), ("90m", 1.5), ("8h", 8), ("2d", 48)),
        *(("18:30", 6.5), ("9:00", 21), ("12:00", 24)),
    ],
)
def test_until(text: str, hours: float) -> None:
    assert parse_until(text, NOON) == NOON + hours * HOUR


@pytest.mark.parametrize(
    "text", ["", "25:00", "12:60", "0h", "8", "8 h", "8s", "8hm", "tomorrow", "-1h"]
)
def test_other_texts_are_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time like"):
        parse_until(text, NOON)


def test_the_configuration_holds_without_anything_else(config: Config) -> None:
    assert limit_in_force(config, NOON).limit == OFF
    assert limit_in_force(with_power(config, eta=0.7), NOON).limit == PowerLimit(eta=0.7)
    held = limit_in_force(with_power(config, power_budget_watts=900.0), NOON)
    assert (held.limit, held.words) == (PowerLimit(watts=900.0), "900 W, as configured")


def test_the_schedule_goes_before_it_also_past_midnight(config: Config) -> None:
    config = with_power(config, eta=0.9, schedule={"22:00-06:00": "off", "12:00-13:30": "800"})
    night, noon = {22, 23, 0, 1, 2, 3, 4, 5}, {12, 13}
    for hours in range(24):
        clock = (12 + hours) % 24
        expected = "off" if clock in night else "800" if clock in noon else "eta=0.9"
        assert str(limit_in_force(config, NOON + hours * HOUR).limit) == expected, clock
    assert str(limit_in_force(config, NOON + 1.5 * HOUR).limit) == "eta=0.9"


def test_what_is_set_goes_before_all_until_its_time(config: Config) -> None:
    config = with_power(config, eta=0.9, schedule={"00:00-23:59": "800"})
    write_set_limit(config, SetLimit("700", NOON, NOON + HOUR))
    assert str(limit_in_force(config, NOON + HOUR - 1).limit) == "700"
    assert str(limit_in_force(config, NOON + HOUR).limit) == "800"
    write_set_limit(config, SetLimit("off", NOON))
    held = limit_in_force(config, NOON + 99 * HOUR)
    assert held.limit == OFF
    assert held.words == "off, set at 2026-05-04 12:00:00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"limit": "eta=2", "set_at": 1, "until": null}',
        '{"limit": 700, "set_at": 1, "until": null}',
        '{"limit": "700", "set_at": null, "until": 1}',
        '{"limit": "700", "set_at": 1, "until": "x"}',
        '{"limit": "700", "set_at": true, "until": 1}',
        '{"limit": "700", "set_at": 1, "until": 1, "more": 1}',
        '{"limit": "700"' + " " * 5000 + "}",
    ],
)
def test_a_damaged_file_does_not_count_and_the_words_say_so(config: Config, text: str) -> None:
    config = with_power(config, eta=0.9)
    power_file(config).write_text(text)
    with pytest.raises(ConfigError, match=r"power\.json"):
        read_set_limit(config)
    held = limit_in_force(config, NOON)
    assert held.limit == PowerLimit(eta=0.9)
    assert "what was set does not count" in held.words


def test_a_file_that_others_may_write_does_not_count(config: Config) -> None:
    write_set_limit(config, SetLimit("700", NOON))
    os.chmod(power_file(config), 0o666)
    with pytest.raises(ConfigError, match="others than its owner may write it"):
        read_set_limit(config)


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("eta = 0.8\npower_budget_watts = 100", "power.eta: power_budget_watts is set, too"),
        ("eta = 0", "power.eta: expected a number above 0 and up to 1, not 0"),
        ("eta = 1.5", "power.eta: expected a number above 0 and up to 1, not 1.5"),
        ("power_budget_watts = -5", "power.power_budget_watts: expected a number above 0"),
        ('power_budget_watts = "5"', "power.power_budget_watts: expected a number"),
        ('clocks = "on"', "power.clocks: expected auto or default, not 'on'"),
        ("margin = 1", "power.margin: expected a number of at least 0 and below 1"),
        ("idle_watts = 500", "power.idle_watts: must be less than power.gpu_watts"),
        ("gpu_watts = 0", "power.gpu_watts: expected a number above 0"),
        ("budget = 3", "power.budget: unknown; known: clocks, eta"),
        ('schedule = {"22:00-6:00" = "off"}', "power.schedule.22:00-6:00: '22:00-6:00' is not a"),
        ('schedule = {"22:00-22:00" = "off"}', "is empty"),
        ('schedule = {"22:00-06:00" = "eta=2"}', "'eta=2' is not off, watts, or eta=X"),
        ('schedule = {"22:00-06:00" = 5}', "expected a text, not 5"),
        (
            'schedule = {"22:00-06:00" = "off", "05:00-07:00" = "9"}',
            "power.schedule.05:00-07:00: overlaps with 22:00-06:00",
        ),
    ],
)
def test_a_wrong_section_stops_the_start_with_its_key(
    tmp_path: Path, lines: str, wrong: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[power]\n{lines}\n")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(file) in str(error.value)
    assert wrong in str(error.value)
