"""Facts of an assignment: their values in the ledger, and their words."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from slurm_gpu_aware import records
from slurm_gpu_aware.cli.job_text import facts_of
from slurm_gpu_aware.features.due_dates.declared import DueAccount
from slurm_gpu_aware.features.energy.declared import SavingClock
from slurm_gpu_aware.features.moves.declared import Moved, Returned
from slurm_gpu_aware.model.facts import Fact, Facts, Summary
from slurm_gpu_aware.placement.facts import Cells, Chosen, ChosenNode, InGroup, TriedCell
from slurm_gpu_aware.placement.policies.topo_aware import Alternative, Utility
from slurm_gpu_aware.planning.facts import Preempts, Reserved

MOVED = Moved("n2 GPU 0", 1.3, 900.0, 3600.0, 60.0, "n1 GPU 0", 1.0, starts=("8", "9"))
FACTS = Facts(
    (
        Cells((TriedCell("node", 1.0, 1.5, True),), 1),
        Chosen((ChosenNode("n1", 2, (0, 1), (1.0, 1.5)),), "mean_score", "A"),
        Utility(0.9, alternatives=(Alternative("n1 GPU 0", 0.5, 1.0, 1.0, 1.0),), threshold=0.5),
        InGroup("rack", 2),
        Preempts(("7", "8"), 1),
        Reserved("9", "n1 GPU 3", {"n1": (3,)}),
        SavingClock(1110, saves=0.2, slower=0.01, at_most=0.02, limit_w=250),
        Returned(move=MOVED),
        DueAccount(1e9, growth=((2e9, 4),)),
    )
)


def test_what_the_ledger_holds_gives_the_same_facts_again() -> None:
    text = json.dumps(FACTS.plain())
    stored = json.loads(text.replace("-Infinity", "null").replace("Infinity", "null"))
    assert Facts.read(stored) == FACTS
    assert FACTS.of(SavingClock).allowed == math.inf  # type: ignore[union-attr]


def test_words_stand_on_their_lines_in_order() -> None:
    assert FACTS.lines() == {
        "why": "the least slowdown by distance and slowest GPU; the highest utility, 0.90; all"
        " nodes in one rack (2 tried); preempts 1 of 7, 8 (Slurm chooses); free, but reserved for"
        " job 9: n1 GPU 3; moved, but its new GPUs were no longer free",
        "saves energy": "about 20% at 1110 MHz and 250 W, at most 2.0% slower",
        "due": "2001-09-09 01:46:40; no earlier run of its name says whether it is met",
    }
    assert FACTS.text == FACTS.lines()["why"]
    assert FACTS.also(InGroup("row", 0)).text.endswith("; all nodes in one row")


@pytest.mark.parametrize(
    ("why", "lines"),
    [
        (
            {"summary": "the fastest pair", "power": {"gpus": 1, "power_w": 9.0}},
            {"why": "the fastest pair"},
        ),
        ({"summary": "s", "model": "no table"}, {"why": "s", "model": "no table"}),
        ({"summary": "s", "woken": ["n1", "n2"]}, {"why": "s", "woken up": "n1, n2"}),
        (
            {
                "summary": "s",
                "due": {"due_s": 1.0, "in_time": None, "ends_s": None, "text": "soon"},
            },
            {"why": "s", "due": "soon"},
        ),
        ({"summary": "s", "sockets": "on each", "cells": 3, "ties": 2}, {"why": "s"}),
        ({"unknown": {"a": 1}, "due": {"due_s": "never"}}, {}),
    ],
)
def test_what_earlier_releases_stored_is_shown_as_it_was(
    why: dict[str, Any], lines: dict[str, str]
) -> None:
    assert facts_of(why).lines() == lines


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("due", {"due_s": 1e12}),
        ("due", {"due_s": 1e300}),
        ("due", {"due_s": math.nan}),
        ("moved", {**records.plain(MOVED), "time_ratio": 0}),
        ("moved", {**records.plain(MOVED), "remaining_s": math.inf}),
        ("power", {"gpus": 1, "power_w": 10**400}),
    ],
)
def test_a_fact_whose_values_have_no_words_hides_no_other(key: str, values: object) -> None:
    why = {key: values, "rule": {"policy": "pm-first"}}
    assert facts_of(why).lines() == {"why": "the fastest free GPUs, however far apart"}


def test_a_move_says_what_others_gain() -> None:
    moved = Moved("n1 GPUs 0,1", 1.0, -60.0, 600.0, 0.0, "n1 GPU 0", starts=("8",), others_s=3600.0)
    assert moved.words().endswith(
        "takes 1 min more than the 10 min that it still needed; on what it gives back job 8 can"
        " start, 1 h sooner"
    )
    names = tuple(str(number) for number in range(8))
    assert (
        "jobs 0, 1, 2, 3, 4 and 3 more can start, the first of them 1 h sooner"
        in Moved("", 1.0, 0.0, 0.0, 0.0, starts=names, others_s=8 * 3600.0).words()
    )


def test_programs_that_plan_know_the_facts_of_all_policies() -> None:
    """They may read a row or a record of another policy than theirs."""
    code = """
import slurm_gpu_aware.features.registry
from slurm_gpu_aware.model.facts import Facts
print(Facts.read({"utility": {"utility": 0.9}}).text)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "the highest utility, 0.90\n"


def test_each_type_has_a_key_of_its_own() -> None:
    def all_of(kind: type[Fact]) -> list[type[Fact]]:
        return [one for sub in kind.__subclasses__() for one in (sub, *all_of(sub))]

    kinds = [kind for kind in all_of(Fact) if kind.__module__.startswith("slurm_gpu_aware.")]
    keys = [kind.key for kind in kinds if "spare" not in kind.__module__]
    assert Summary in kinds
    assert len(keys) == len(set(keys))
