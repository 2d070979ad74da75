"""The selector takes what tune has set, within the admin's bounds, and shows it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.load import Tuned, load_config, tuned_path, write_tuned
from slurm_gpu_aware.config.settings import Config, StoreConfig, TuneConfig
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.selector.policy_options import PolicyInForce, config_in_force

TUNE = TuneConfig(apply=True, allowed=("packed", "random"), ranges={"random": {"seed": [0, 9]}})
SET = Tuned(
    "random",
    {"seed": 3},
    set_at=1_790_000_000.0,
    gain_percent=4.1,
    low_percent=2.0,
    high_percent=6.3,
)


@pytest.fixture
def tuned(tmp_path: Path) -> Config:
    return Config(store=StoreConfig(path=tmp_path / "store.db"), tune=TUNE)


def test_a_change_and_a_removal_are_taken(tuned: Config) -> None:
    policy = PolicyInForce(tuned)
    own = tuned.placement.policy
    assert (policy.settings.policy, policy.words) == (own, own)
    write_tuned(tuned, SET)
    policy.refresh()
    assert policy.settings.policy == "random"
    assert policy.options == {"random": {"seed": 3}}
    assert policy.words == str(SET)
    write_tuned(tuned, replace(SET, policy="packed", options={}))
    policy.refresh()
    assert policy.settings.policy == "packed"
    tuned_path(tuned).unlink()
    policy.refresh()
    assert (policy.settings.policy, policy.words) == (own, own)
    write_tuned(tuned, SET)
    assert PolicyInForce(tuned).settings.policy == "random"  # at its start


@pytest.mark.parametrize("content", ["", "{}", '{"policy": "random"', "\0" * 4096])
def test_a_damaged_file_never_stops_the_selector(tuned: Config, content: str) -> None:
    write_tuned(tuned, SET)
    policy = PolicyInForce(tuned)
    tuned_path(tuned).write_text(content)
    policy.refresh()
    own = tuned.placement.policy
    assert policy.settings.policy == own
    assert f"{own}, as configured, because what tune has set does not count: " in policy.words
    assert PolicyInForce(tuned).settings.policy == own
    assert config_in_force(tuned) == tuned


def test_an_option_that_the_policy_refuses_does_not_count(tuned: Config) -> None:
    write_tuned(tuned, replace(SET, options={"seed": 0.5}))
    policy = PolicyInForce(tuned)
    assert policy.settings.policy == tuned.placement.policy
    assert "does not count" in policy.words


def test_wrong_options_of_the_configuration_stop_the_start(tuned: Config) -> None:
    with pytest.raises(ConfigError, match=r"policies\.random\.none: unknown option"):
        PolicyInForce(replace(tuned, policies={"random": {"none": 1}}))
    for ranges in ({"none": [0, 1]}, {"seed": [0.5, 1]}):
        tune = replace(TUNE, ranges={"random": ranges})
        with pytest.raises(ConfigError, match=r"tune\.ranges\.random\."):
            PolicyInForce(replace(tuned, tune=tune))


def test_the_selector_places_by_it_and_status_shows_it(slurm: SlurmFolder) -> None:
    with slurm.config.open("a") as file:
        file.write('[tune]\napply = true\nallowed = ["packed"]\n')
    config = load_config(slurm.config)
    slurm.write([parked()], ["n1", "n2"])
    write_tuned(config, replace(SET, policy="packed", options={}))
    assert slurm.round() == 0, slurm.said
    (decision,) = slurm.ledger("7")
    assert decision.policy == "packed"
    words = "packed, set by tune on 2026-09-21: gain over packed 4.1% (2.0 to 6.3)"
    assert f"policy {words}" in slurm.said
    done = slurm.run("gpu-aware", "--config", str(slurm.config), "status", "--json")
    assert json.loads(done.stdout)["policy"] == words

    tuned_path(config).write_text("no JSON")
    slurm.write([parked("8")], ["n1", "n2"])
    assert slurm.round() == 0, slurm.said
    (decision,) = slurm.ledger("8")
    assert decision.policy == config.placement.policy
    assert "does not count" in slurm.said
    done = slurm.run("gpu-aware", "--config", str(slurm.config), "status")
    assert "does not count" in " ".join(done.stdout.split())
