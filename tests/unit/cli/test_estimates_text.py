"""Sentences on estimates in ``explain``, and ``report`` without a folder."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from commands import gpu_aware, succeeded
from store_samples import decision

from slurm_gpu_aware.cli.explain import explain_text
from slurm_gpu_aware.features.estimates.declared import Estimated
from slurm_gpu_aware.files import user_name
from slurm_gpu_aware.selector.job_answers import Reader
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Decision, Ledger

ASKED = {"gpus": 2, "name": "train", "account": "bio"}


def text(**estimate: Any) -> str:
    usual = {"seconds": 2410.0, "source": "name", "runs": 12, "limit_s": 14_400.0}
    return Estimated.said({**usual, **estimate})


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        ({}, "about 40 min on median GPUs, from 12 earlier runs with its name; limit 4 h"),
        ({"runs": 1}, "about 40 min on median GPUs, from 1 earlier run with its name; limit 4 h"),
        (
            {"source": "user", "seconds": 7500.0},
            "about 2 h 5 min on median GPUs, from 12 earlier runs of its user;",
        ),
        (
            {"source": "account", "seconds": 63.0},
            "about 1 min on median GPUs, from 12 earlier runs of its account",
        ),
        ({"seconds": 0.2}, "about 1 s on median GPUs, from"),
        ({"limit_s": None}, "with its name; no time limit"),
        (
            {"source": "limit", "runs": 0},
            "at most its limit, as no earlier run is like it; limit",
        ),
    ],
)
def test_words(estimate: dict[str, Any], words: str) -> None:
    assert words in text(**estimate)


def test_without_an_estimate_there_are_no_words() -> None:
    assert Estimated.said(None) == ""
    assert Estimated.said("much") == ""


def test_a_waiting_job_and_a_placed_one_tell_their_estimate() -> None:
    estimate = {"seconds": 2410.0, "source": "name", "runs": 12, "limit_s": 14_400.0}
    answer: dict[str, Any] = {"job_id": "7", "state": "waiting", "waiting_as_of": 1000.0}
    answer |= {"decisions": [], "events": [], "tasks": [], "slurm": None, "selector_away": None}
    answer["waiting"] = {"reason": "no 4 free GPUs", "estimate": estimate}
    shown = " ".join(explain_text(answer).split())
    assert (
        "Its run time is expected to be about 40 min on median GPUs, from 12 earlier runs with its"
        " name; limit 4 h."
    ) in shown
    placed = decision("7", asked=ASKED, why={"estimate": estimate}, state="started")
    answer |= {"state": "started", "waiting": None, "decisions": [vars(placed)]}
    shown = explain_text(answer)
    assert "about 40 min on median GPUs, from 12 earlier runs with its name; limit 4 h" in shown
    assert "seconds=" not in shown


def report(folder: Path, *args: str, stderr: bool = False) -> str:
    config = folder / "config.toml"
    config.write_text(f'[store]\npath = "{folder}/store.db"\n')
    done = succeeded(gpu_aware("report", *args, config=config))
    return done.stderr if stderr else done.stdout


def put_decisions(folder: Path, *decisions: Decision) -> None:
    with open_store(folder / "store.db") as store:
        for one in decisions:
            Ledger(store).add_decision(one)


def ended_job(
    number: int, user: str, ran_s: float, source: str = "name", **fields: Any
) -> Decision:
    """A job that was expected to take 600 s, or its limit."""
    start = time.time() - 5000.0
    seconds = 7200.0 if source == "limit" else 600.0
    estimate = {"seconds": seconds, "source": source, "runs": 5, "limit_s": 7200.0}
    times = {"outcome_at": start + ran_s, "outcome": {"start_s": start, "state": "COMPLETED"}}
    usual = {"user": user, "why": {"estimate": estimate}, "state": "ended", "slowdown": 1.0}
    return decision(str(number), **{**usual, **times, **fields})


def test_report_compares_run_times_with_what_was_expected(tmp_path: Path) -> None:
    jobs = [ended_job(n, "ann", 200.0 * (n + 1), slowdown=1.5) for n in range(9)]
    jobs.append(ended_job(9, "ann", 2000.0, "limit", slowdown=1.5))
    put_decisions(tmp_path, *jobs, decision("99", why={"limit_s": math.inf}, state="ended"))
    rows = json.loads(report(tmp_path, "--json"))["estimates"]
    assert [(r["source"], r["jobs"]) for r in rows] == [("name", 9), ("limit", 1), ("all", 10)]
    assert rows[0]["median"] == pytest.approx(1000 / 900)
    assert rows[0]["within"] == pytest.approx(4 / 9)  # up to 900 s
    shown = report(tmp_path)
    assert "same user and name" in shown
    assert "50% ended within the expected time" in " ".join(shown.split())
    said = " ".join(report(tmp_path, stderr=True).split())
    assert "The energy of no job is known: accounts = /var/lib/" in said


def test_report_tells_how_good_the_estimates_are_for_each_user(tmp_path: Path) -> None:
    """Bias and spread; first jobs of a name are counted, and the rest of a run is no run."""
    jobs = [ended_job(n, "ann", ran) for n, ran in enumerate((300.0, 600.0, 1200.0))]
    jobs += [ended_job(4, "ann", 60.0, "limit"), ended_job(5, "ann", 10.0, restarts=1)]
    jobs.append(ended_job(6, "bob", 60.0, "limit"))
    put_decisions(tmp_path, *jobs)
    ann, bob = json.loads(report(tmp_path, "--json"))["users"]
    assert (ann["user"], ann["jobs"], ann["cold"]) == ("ann", 4, 1)
    assert ann["median"] == pytest.approx(1.0)
    assert (ann["p10"], ann["p90"]) == (pytest.approx(0.6), pytest.approx(1.8))
    assert ann["within"] == pytest.approx(2 / 3)
    assert (bob["user"], bob["jobs"], bob["cold"], bob["median"]) == ("bob", 1, 1, None)
    shown = report(tmp_path)
    assert "ann      4           1    1.00  0.60  1.80            67%" in shown
    assert "bob      1           1       -     -     -              -" in shown


def test_an_ordinary_user_sees_the_own_row_only(tmp_path: Path) -> None:
    """Such a user reads the public copy; the rows of all users together stay."""
    me = user_name(os.geteuid())
    put_decisions(tmp_path, *(ended_job(n, u, 600.0) for n, u in enumerate(("ann", "ann", me))))
    with mock.patch.object(Reader, "note", return_value="From the public copy"):
        found = json.loads(report(tmp_path, "--json"))
        assert "ann" not in report(tmp_path)
    assert [row["user"] for row in found["users"]] == [me]
    assert found["estimates"][-1]["jobs"] == 3


def test_report_without_estimates_says_so(tmp_path: Path) -> None:
    open_store(tmp_path / "store.db").close()
    assert "No job that ended in the last 7 days" in report(tmp_path, "--days", "7")
