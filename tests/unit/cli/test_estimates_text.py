"""Sentences on estimates in ``explain``, and ``report`` without a folder."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from commands import gpu_aware
from store_samples import decision

from slurm_gpu_aware.cli.explain import explain_text
from slurm_gpu_aware.features.estimates.view import estimate_text
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

ASKED = {"gpus": 2, "name": "train", "account": "bio"}


def text(**estimate: Any) -> str:
    usual = {"seconds": 2410.0, "source": "name", "runs": 12, "limit_s": 14_400.0}
    return estimate_text({"estimate": {**usual, **estimate}}, "alice", ASKED)


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        ({}, "about 40 min, from 12 earlier runs named train of alice; limit 4 h"),
        ({"runs": 1}, "about 40 min, from 1 earlier run named train of alice; limit 4 h"),
        ({"source": "user", "seconds": 7500.0}, "about 2 h 5 min, from 12 earlier runs of alice;"),
        (
            {"source": "account", "seconds": 63.0},
            "about 1 min, from 12 earlier runs of account bio",
        ),
        ({"seconds": 0.2}, "about 1 s, from"),
        ({"limit_s": None}, "of alice; no time limit"),
        (
            {"source": "limit", "runs": 0},
            "at most its limit, as no earlier run is like it; limit 4 h",
        ),
    ],
)
def test_words(estimate: dict[str, Any], words: str) -> None:
    assert words in text(**estimate)


def test_without_an_estimate_there_are_no_words() -> None:
    assert estimate_text({}) == ""
    assert estimate_text({"estimate": "much"}) == ""


def test_a_waiting_job_and_a_placed_one_tell_their_estimate() -> None:
    estimate = {"seconds": 2410.0, "source": "name", "runs": 12, "limit_s": 14_400.0}
    answer: dict[str, Any] = {
        "job_id": "7",
        "state": "waiting",
        "waiting": {"reason": "no 4 free GPUs", "estimate": estimate},
        "waiting_as_of": 1000.0,
        "decisions": [],
        "events": [],
        "tasks": [],
        "slurm": None,
        "selector_away": None,
    }
    shown = " ".join(explain_text(answer).split())
    assert (
        "Its run time on median GPUs is expected to be about 40 min, from 12 earlier runs with its"
        " name; limit 4 h."
    ) in shown
    placed = decision("7", asked=ASKED, why={"estimate": estimate}, state="started")
    answer |= {"state": "started", "waiting": None, "decisions": [vars(placed)]}
    shown = explain_text(answer)
    assert "about 40 min, from 12 earlier runs named train of alice; limit 4 h" in shown
    assert "seconds=" not in shown


def report(folder: Path, *args: str, stderr: bool = False) -> str:
    config = folder / "config.toml"
    config.write_text(f'[store]\npath = "{folder}/store.db"\n')
    done = gpu_aware("report", *args, config=config)
    assert done.exit_code == 0, done.output
    return done.stderr if stderr else done.stdout


def test_report_compares_run_times_with_what_was_expected(tmp_path: Path) -> None:
    now = time.time()
    with open_store(tmp_path / "store.db") as store:
        for number in range(10):
            start = now - 5000.0
            estimate = {"seconds": 600.0, "source": "name", "runs": 5, "limit_s": 7200.0}
            if number == 9:
                estimate = {"seconds": 7200.0, "source": "limit", "runs": 0, "limit_s": 7200.0}
            one = decision(
                str(number),
                slowdown=1.5,
                why={"estimate": estimate},
                state="ended",
                outcome_at=start + 200.0 * (number + 1),
                outcome={"start_s": start, "state": "COMPLETED"},
            )
            Ledger(store).add_decision(one)
        Ledger(store).add_decision(decision("99", why={"limit_s": math.inf}, state="ended"))
    rows = json.loads(report(tmp_path, "--json"))["estimates"]
    assert [(row["source"], row["jobs"]) for row in rows] == [
        ("name", 9),
        ("limit", 1),
        ("all", 10),
    ]
    assert rows[0]["median"] == pytest.approx(1000 / 900)
    assert rows[0]["within"] == pytest.approx(4 / 9)  # up to 900 s
    shown = report(tmp_path)
    assert "same user and name" in shown
    assert "50% ended within the expected time" in " ".join(shown.split())
    said = " ".join(report(tmp_path, stderr=True).split())
    assert "The energy of no job is known: accounts = /var/lib/" in said


def test_report_without_estimates_says_so(tmp_path: Path) -> None:
    open_store(tmp_path / "store.db").close()
    assert "No job that ended in the last 7 days" in report(tmp_path, "--days", "7")
