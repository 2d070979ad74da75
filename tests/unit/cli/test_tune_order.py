"""``gpu-aware tune`` on orders of the queue: what is proposed, who pays, and when nothing is."""

import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from click.testing import Result
from commands import gpu_aware, refusal, succeeded
from tune_samples import BEGIN_S, DAY_S, write_config, write_store

from slurm_gpu_aware.config.load import load_config, tuned_path
from slurm_gpu_aware.features.queue_order.view import changes, payers_of
from slurm_gpu_aware.simulator.trace import TraceJob

DAYS = 14
HEADER = (
    "JobID|User|Account|JobName|Submit|Start|ElapsedRaw|TimelimitRaw|State|AllocTRES|ReqTRES"
    "|NodeList|Priority"
)


def write_queue(path: Path, hour_s: float, begin_s: int = BEGIN_S) -> None:
    """Each morning 16 jobs of 4 GPUs: every fourth of 6 h (``physics``), the others of 1 h."""
    rng = np.random.default_rng(3)
    lines = [HEADER]
    for number in range(DAYS * 16):
        day, place = divmod(number, 16)
        submit = begin_s + day * DAY_S + place * 600 + int(rng.integers(60))
        long = place % 4 == 3
        who = ("ann", "physics", "sim") if long else ("bob", "bio", "test")
        run = int((6 if long else 1) * hour_s * rng.uniform(0.8, 1.2))
        tres = "gres/gpu=4"
        cells = (number + 1, *who, submit, submit + 60, run, 720 if long else 120, "COMPLETED")
        lines.append("|".join(map(str, (*cells, tres, tres, "n1", 1))))
    path.write_text("\n".join(lines) + "\n")


def tune_order(folder: Path, *more: str, queue: str = "", hour_s: float = 3600.0) -> Result:
    """The command on two nodes of four GPUs; ``queue``: keys of ``[queue]``."""
    write_queue(folder / "history", hour_s)
    file = write_config(folder, "apply = true")
    file.write_text(f"{file.read_text()}[queue]\n{queue}\n")
    options = ["--sacct", str(folder / "history"), "--days", str(DAYS), "--seeds", "4"]
    options += ["--nodes", "2", "--gpus-per-node", "4", *more]
    with mock.patch("slurm_gpu_aware.cli.tune._step_back"):
        return gpu_aware("tune", *options, config=file)


def json_of(done: Result) -> dict[str, Any]:
    """The part of the JSON on orders."""
    return json.loads(succeeded(done).stdout)["order"]


def test_shorter_first_is_proposed_with_what_each_account_pays(tmp_path: Path) -> None:
    done = succeeded(tune_order(tmp_path, "--order", "equal", "--order", "expected=1"))
    text = " ".join(done.stdout.split())
    assert "expected=1 is ahead of the present setting, slurm" in text
    assert "Among jobs of equal priority alone: 0.0%." in text  # no two come at once
    assert "With expected=1 jobs of 1 of 2 accounts or users take longer" in text
    assert '[queue] order = "expected" run_time_weight = 1 Words for users: Among waiting' in text
    assert "at most 4 times its expected run time, and for no more than 1 d." in text
    assert not tuned_path(load_config(tmp_path / "config.toml")).exists()

    found = json_of(tune_order(tmp_path, "--order", "expected=1", "--json"))
    assert (found["present"], found["proposed"], found["pays"]) == ("slurm", "expected=1", True)
    assert [one["candidate"] for one in found["candidates"]] == ["slurm", "expected=1"]
    (_, best) = found["candidates"]
    assert 0.0 < best["low"] < best["gain"] < best["high"]
    assert {"slowest_tenth_s", "longest_wait_s", "wide_jct_s"} <= best["changes"].keys()
    assert best["changes"]["wide_jct_s"] is None  # no job has 8 GPUs
    paid_by = found["payers"]["expected=1"]
    assert [*paid_by] == ["physics", "bio"]  # who pays most comes first
    assert (paid_by["physics"]["pays"], paid_by["bio"]["pays"]) == (True, False)
    assert paid_by["bio"]["high"] < 0.0 < paid_by["physics"]["low"]
    assert found["config"] == ["[queue]", 'order = "expected"', "run_time_weight = 1"]


def test_the_report_of_the_shadow_proposes_an_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the jobs of ``sacct``, on the cluster of the store; Slurm has started them."""
    hour_before_the_first_jobs = int(time.time()) - 15 * DAY_S + 3600  # of the last 14 days
    write_queue(tmp_path / "history", 7200.0, hour_before_the_first_jobs)
    write_store(tmp_path / "store.db", 1.0)
    file = write_config(tmp_path)
    command = tmp_path / "sacct"
    command.write_text(f"#!/bin/sh\ncat {tmp_path}/history\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("slurm_gpu_aware.features.queue_order.view.COMPARED", ("expected=1",))
    monkeypatch.setattr("slurm_gpu_aware.cli.tune._step_back", lambda: None)
    done = succeeded(gpu_aware("report", "--shadow", "--orders", config=file))
    assert "[queue]\n    order = " in done.stdout
    assert "slowest 10%" in done.stdout
    again = gpu_aware("report", "--shadow", "--orders", "--json", config=file)
    found = json.loads(again.stdout)
    assert (found["jobs"], found["order"]["proposed"]) == (0, "expected=1")
    assert {*found["order"]["payers"]["expected=1"]} == {"physics", "bio"}
    assert "order" not in json.loads(gpu_aware("report", "--shadow", "--json", config=file).stdout)
    assert gpu_aware("report", "--orders", config=file).exit_code == 2


def test_where_no_job_waits_there_is_nothing_to_gain(tmp_path: Path) -> None:
    options = ["--order", "backfill", "--order", "expected=1"]
    done = succeeded(tune_order(tmp_path, *options, hour_s=200.0))
    text = " ".join(done.stdout.split())
    assert "There is nothing to gain by another order: no candidate is ahead of slurm" in text
    assert "config.toml" not in text
    assert "Words for users" not in text


def test_the_present_order_is_compared_and_stays_if_it_is_the_best(tmp_path: Path) -> None:
    options = ["--order", "equal", "--json"]
    keys = 'order = "expected"\nrun_time_weight = 1\npassed_factor = 6'
    found = json_of(tune_order(tmp_path, *options, queue=keys))
    assert found["present"] == found["best"] == "expected=1"
    assert [one["candidate"] for one in found["candidates"]] == ["slurm", "expected=1", "equal"]
    assert (found["proposed"], found["words"], found["config"]) == (None, "", [])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--order", "random"], "unknown order 'random'"),
        (["--order", "expected=1e9"], "expected a weight from 0 to 100"),
        (["--order", "backfill=2"], "unknown order 'backfill=2'"),
    ],
)
def test_a_wrong_order_is_refused_before_anything_runs(
    tmp_path: Path, options: list[str], why: str
) -> None:
    done = tune_order(tmp_path, *options)
    assert why in refusal(done)
    assert (done.stdout, "recorded jobs" in done.stderr) == ("", False)


def test_who_pays_is_the_account_or_else_the_user() -> None:
    jobs = [TraceJob(str(n), float(n), 1, 60.0, user=f"u{n % 2}", account="a") for n in range(4)]
    assert payers_of(jobs) == ["u0", "u1", "u0", "u1"]  # all have one account
    jobs[3] = replace(jobs[3], account="b")
    assert payers_of(jobs) == ["a", "a", "a", "b"]


def test_a_payer_of_few_jobs_is_left_out_and_noise_does_not_pay() -> None:
    slurm = [{"a": 100.0, "b": 100.0, "c": 50.0}, {"a": 110.0, "b": 90.0}, {"a": 90.0, "b": 95.0}]
    ours = [{"a": 120.0, "b": 140.0, "c": 90.0}, {"a": 133.0, "b": 60.0}, {"a": 109.0, "b": 95.0}]
    found = changes({"slurm": slurm, "backfill": ours}, "backfill")
    assert [*found] == ["a", "b"]
    assert found["a"].mean == pytest.approx(math.prod([1.2, 133 / 110, 109 / 90]) ** (1 / 3) - 1)
    assert found["a"].pays
    assert found["b"].low < 0.0 < found["b"].high
    assert not found["b"].pays
