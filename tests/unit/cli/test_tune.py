"""``gpu-aware tune`` on made-up sites: one with a clear winner, one where nothing pays."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import Result
from commands import gpu_aware, refusal, succeeded
from store_samples import fit_models, ingest_sweep
from tune_samples import write_config, write_history, write_store

from slurm_gpu_aware.cli.tuning import candidates_of
from slurm_gpu_aware.config.load import Candidate, load_config, read_tuned, tuned_path
from slurm_gpu_aware.config.settings import Config, TuneConfig
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.store.database import open_store


def tune(config: Path, *args: str) -> Result:
    """The command in this process, with its priority: `test_it_takes_only_what_others_leave`."""
    with mock.patch("slurm_gpu_aware.cli.tune._step_back"):
        return gpu_aware("tune", *args, config=config)


def slow_site(folder: Path, slow: float, keys: str = "", days: int = 14) -> tuple[Path, list[str]]:
    """(configuration, options) of a site whose slow GPUs take so many times as long."""
    write_store(folder / "store.db", slow)
    write_history(folder / "history", days)
    options = ["--sacct", str(folder / "history"), "--days", str(days), "--seeds", "4"]
    return write_config(folder, keys), [*options, "-c", "pal"]


def said_of(done: Result) -> dict[str, Any]:
    return json.loads(succeeded(done).stdout)


def refused_alone(done: Result) -> str:
    """What is said of a run that printed nothing."""
    assert done.stdout == ""
    return refusal(done)


def test_a_clear_winner_is_named_and_set_within_the_bounds(tmp_path: Path) -> None:
    config, options = slow_site(tmp_path, 1.8, 'apply = true\nallowed = ["pal"]')
    said = said_of(tune(config, *options, "--json"))
    assert (said["best"], said["pays"], said["replaces_present"]) == ("pal", True, True)
    assert (said["present"], said["applied"], said["seeds"]) == ("packed", False, 4)
    packed, pal = said["candidates"]
    assert (packed["candidate"], packed["gain"]) == ("packed", 0.0)
    # half of the GPUs are slow, and load is so low that packed need not take them
    assert 0.2 < pal["low"] < pal["gain"] < pal["high"] < 0.45
    assert pal["changes"]["gpu_s"] < -0.2
    assert pal["harms"] == []
    assert not tuned_path(load_config(config)).exists()

    done = succeeded(tune(config, *options, "--apply"))
    assert "pal is the best: the average completion time is shorter" in done.stdout
    assert "It is set; the selector takes it within seconds." in " ".join(done.stdout.split())
    assert "seed 4 of 4: 2 x" in done.stderr
    tuned = read_tuned(load_config(config))
    assert (tuned.policy, tuned.options) == ("pal", {})
    assert tuned.gain_percent == pytest.approx(100 * pal["gain"], abs=0.01)

    again = said_of(tune(config, *options, "--apply", "--json"))
    assert (again["present"], again["best"], again["applied"]) == ("pal", "pal", False)
    assert "It is the present setting." in again["summary"]


def test_where_nothing_pays_nothing_changes(tmp_path: Path) -> None:
    config, options = slow_site(tmp_path, 1.0, "apply = true")
    done = succeeded(tune(config, *options, "--apply"))
    text = " ".join(done.stdout.split())
    assert "Placement does not pay here: no candidate is ahead of packed" in text
    assert not tuned_path(load_config(config)).exists()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ('apply = true\nallowed = ["packed"]', "pal is not in tune.allowed (packed)"),
        ('apply = false\nallowed = ["pal"]', "tune.apply is false"),
    ],
)
def test_nothing_is_set_beyond_the_bounds(tmp_path: Path, keys: str, why: str) -> None:
    config, options = slow_site(tmp_path, 1.8, keys)
    if "apply = true" in keys:  # a candidate that was named is refused at once
        assert f"--apply: {why}" in refused_alone(tune(config, *options, "--apply"))
    else:
        done = succeeded(tune(config, *options, "--apply"))
        assert "nothing will be set" in done.stderr
        assert f"It is not set: {why}." in " ".join(done.stdout.split())
    assert not (tmp_path / "tuned.json").exists()


def test_a_damaged_file_counts_as_none_and_is_replaced(tmp_path: Path) -> None:
    config, options = slow_site(tmp_path, 1.8, "apply = true")
    (tmp_path / "tuned.json").write_text("{")
    said = said_of(tune(config, *options, "--apply", "--json"))
    assert (said["present"], said["applied"]) == ("packed", True)
    tuned = read_tuned(load_config(config))
    assert tuned.policy == "pal"


def test_another_cluster_needs_no_store(tmp_path: Path) -> None:
    """As simulate --what-if: --nodes, --gpus-per-node, --machine and --variability."""
    config = write_config(tmp_path)
    write_history(tmp_path / "history", 14)
    times = tmp_path / "times.csv"
    rows = [f"{g},m{n},{180 if g < 2 else 100}" for n in range(4) for g in range(4)]
    times.write_text("\n".join(["gpu,node,value_ms", *rows]) + "\n")
    options = ["--sacct", str(tmp_path / "history"), "--days", "14", "--seeds", "4", "-c", "pal"]
    options += ["--nodes", "4", "--gpus-per-node", "4", "--json"]
    done = tune(config, *options)
    assert [one["gain"] for one in said_of(done)["candidates"]] == [0.0, 0.0]
    assert "all GPUs count as equal; --variability" in done.stderr
    assert "no column Comment: all jobs have the default class" in done.stderr
    done = tune(config, *options, f"--variability=B={times}", "--variability", f"A={times}")
    packed, pal = said_of(done)["candidates"]
    assert (packed["gain"], pal["low"] > 0.1) == (0.0, True)
    assert "GPUs count as equal" not in done.stderr
    assert "--variability A: no job is of this class" in done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--nodes", "4", "--gpus-per-node", "4", "--apply"], "--nodes is another cluster"),
        (["--variability", "A=t.csv"], "--variability needs --nodes"),
        (["--gpus-per-node", "4"], "--gpus-per-node need --nodes"),
        (["--nodes", "4"], "give --gpus-per-node or --machine"),
        (["--nodes", "4", "--machine", "abacus"], "abacus"),
    ],
)
def test_a_cluster_that_is_half_given_is_refused(
    tmp_path: Path, options: list[str], why: str
) -> None:
    write_history(tmp_path / "history", 14)
    config = write_config(tmp_path)
    done = tune(config, "--sacct", str(tmp_path / "history"), "-c", "pal", *options)
    assert done.exit_code in (1, 2)
    assert why in done.stderr


def test_a_history_without_gpus_says_what_to_add(tmp_path: Path) -> None:
    write_history(tmp_path / "history", 14)
    text = (tmp_path / "history").read_text()
    (tmp_path / "history").write_text(text.replace("gres/gpu=", "cpu="))
    options = ["--sacct", str(tmp_path / "history"), "-c", "pal", "--nodes", "4"]
    said = refused_alone(tune(write_config(tmp_path), *options, "--gpus-per-node", "4"))
    assert "no job has GPUs in accounting: AccountingStorageTRES in slurm.conf" in said
    assert "Error: too little history: 0 jobs with GPUs" in said


def test_too_little_is_said_in_one_sentence(tmp_path: Path) -> None:
    config, options = slow_site(tmp_path, 1.8)
    write_history(tmp_path / "history", 14, 5)
    assert "Error: too little history: " in refused_alone(tune(config, *options))
    write_history(tmp_path / "history", 14)
    said = refused_alone(tune(config, *options, "--budget", "0.001"))
    assert "Error: the time is over after 0 of at least 4 seeds" in said
    with open_store(tmp_path / "store.db") as store:
        store.execute("DELETE FROM scores")
    assert "Error: the store has no times of any GPU" in refused_alone(tune(config, *options))
    (tmp_path / "store.db").unlink()
    assert "no store on this host" in refused_alone(tune(config, *options))


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        ("nonsense", "unknown policy 'nonsense'"),
        ("pal:x=1", "policy 'pal' has no option 'x'"),
        ("pal:x", "expected NAME or NAME:OPTION=NUMBER"),
        ("pal:x=1e9999", "expected NAME or NAME:OPTION=NUMBER"),
        ("pal:" + "x=1," * 200, "expected NAME or NAME:OPTION=NUMBER"),
        ("", "expected NAME or NAME:OPTION=NUMBER"),
    ],
)
def test_a_wrong_candidate_is_refused_before_anything_runs(
    tmp_path: Path, candidate: str, why: str
) -> None:
    config, options = slow_site(tmp_path, 1.8)
    said = refused_alone(tune(config, *options, "-c", candidate))
    assert why in said
    assert "recorded jobs" not in said


def test_the_candidates_are_packed_the_present_one_and_the_ends_of_the_ranges() -> None:
    ranges = {"random": {"seed": [1, 5]}}
    config = Config(tune=TuneConfig(allowed=("pal", "random"), ranges=ranges))
    found = candidates_of(config, (), Candidate("pm-first"))
    assert [*found] == ["packed", "pm-first", "pal", "random", "random:seed=1", "random:seed=5"]
    measured = {"eft": {"breaking": [0, 0.3], "longest_wait_s": [0, 86_400]}}
    bounded = Config(tune=TuneConfig(allowed=("eft",), ranges=measured))
    found = candidates_of(bounded, (), Candidate("packed"))
    assert [*found] == ["packed", "eft", "eft:breaking=0", "eft:breaking=0.3"]
    found = candidates_of(config, ("random:seed=2", "pal"), Candidate("packed"))
    assert [one.options for one in found.values()] == [{}, {"seed": 2}, {}]
    with pytest.raises(RequestError, match="nothing to compare packed with"):
        candidates_of(Config(tune=TuneConfig(allowed=("packed",))), (), Candidate("packed"))


BOUNDED = 'apply = true\nallowed = ["eft"]\n[tune.ranges.eft]\nlongest_wait_s = '


@pytest.mark.parametrize("high", [86_400, 360])
def test_the_longest_wait_of_packed_is_a_candidate_within_the_range(
    tmp_path: Path, high: int
) -> None:
    """Jobs wait for hours with packed, and longer by choice; the small bound forbids that."""
    options = slow_site(tmp_path, 1.8)[1][:-2]
    write_history(tmp_path / "history", 14, 33, shortest_h=3)
    config = write_config(tmp_path, f"{BOUNDED}[0, {high}]")
    said = said_of(tune(config, *options, "--apply", "--json"))
    packed, eft, bounded = said["candidates"]
    name, _, value = bounded["candidate"].partition("=")
    assert name == "eft:longest_wait_s"
    waits = [seed["longest_wait_s"] for seed in packed["seeds"]]
    if high > max(waits):  # that of the history itself, of which the seeds are draws
        assert min(waits) / 2 <= int(value) <= 2 * max(waits)
    else:
        assert int(value) == high
    assert any("the longest wait" in harm for harm in eft["harms"])
    tuned = read_tuned(load_config(config))
    if high == 360:
        assert (tuned.policy, tuned.options) == ("eft", {"longest_wait_s": 360})
        assert bounded["changes"]["longest_wait_s"] < 0.02
    else:
        assert tuned is None


def test_bounds_of_clocks_that_save_energy_are_compared_with_default_clocks(tmp_path: Path) -> None:
    config, options = slow_site(tmp_path, 1.2)
    config.write_text(f'{config.read_text()}[site]\ndefault_class = "A"\n')
    bounds = [*options[:-2], "--slowdown", "0.1,0.2"]
    failed = tune(config, *bounds)
    assert "the energy of jobs without a performance model is not known" in failed.stderr
    assert "seed 1" not in failed.stderr
    with open_store(tmp_path / "store.db") as store:
        for node in ("n1", "n2", "n3", "n4"):
            ingest_sweep(store, (900, 1100, 1200, 1312, 1400, 1530), node, dynamic_w=0.1)
    fit_models(tmp_path / "store.db")
    said = said_of(tune(config, *bounds, "--json"))
    default, *saving = said["clocks"]
    assert [one["candidate"] for one in saving] == ["slowdown=0.1", "slowdown=0.2"]
    assert default["changes"]["energy_j"] == 0
    for one, bound in zip(saving, (0.1, 0.2), strict=True):
        assert -0.2 < one["changes"]["energy_j"] < -0.05
        assert -bound - 0.01 < one["gain"] < 0  # few jobs wait here
    assert saving[1]["changes"]["energy_j"] < saving[0]["changes"]["energy_j"]
    shown = tune(config, *bounds).stdout
    assert ("energy" in shown.splitlines()[0], "slowdown=0.2" in shown) == (True, True)
    refused = tune(config, *options, "--slowdown", "0.1")
    assert "--slowdown is compared alone" in refused.stderr


def test_it_takes_only_what_others_leave(tmp_path: Path) -> None:
    """Priority and scheduling class of the process that runs the command."""
    config, options = slow_site(tmp_path, 1.8)
    command = [sys.executable, "-m", "slurm_gpu_aware.cli.main", "--config", str(config), "tune"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "seed 1" not in (line := process.stderr.readline()):
            assert line, "it ended before its first seed"
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        process.kill()
