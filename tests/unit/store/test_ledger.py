"""The ledger: what goes in comes out, in order; pruning keeps what is open."""

import math
from dataclasses import replace

import numpy as np
import pytest
from store_samples import decision

from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ledger import EVENT_KINDS, STATES, Ledger, RoundRecord


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store)


def test_a_decision_comes_back_as_it_was(ledger: Ledger) -> None:
    given = decision(victims=["90", "91"], exact=False, restarts=2)
    number = ledger.add_decision(given)
    (stored,) = ledger.decisions("98")
    assert stored == replace(given, id=number)
    assert ledger.decisions("99") == []


def test_numbers_of_numpy_are_stored_as_numbers(ledger: Ledger) -> None:
    ledger.add_decision(
        decision(
            slots=[np.array([1, 2]), (np.int64(1), np.int64(2))],
            score=np.float64(1.25),
            clock_mhz=np.int64(1312),
            why={"cells": np.array([[1.0, 2.0]]), "tried": np.int64(3), "nodes": ("n1",)},
        )
    )
    (stored,) = ledger.decisions("98")
    assert stored.slots == [[1, 2], [1, 2]]
    assert (stored.score, stored.clock_mhz) == (1.25, 1312)
    assert stored.why == {"cells": [[1.0, 2.0]], "tried": 3, "nodes": ["n1"]}


def test_numbers_without_end_are_stored_as_null(ledger: Ledger, store: Store) -> None:
    """``Infinity`` is not JSON: other programs, and SQLite itself, refuse it."""
    why = {"limit_s": math.inf, "cells": np.array([1.0, np.nan]), "set": {3, 1}, "n": np.int64(2)}
    ledger.add_decision(decision(why=why))
    (stored,) = ledger.decisions("98")
    assert stored.why == {"limit_s": None, "cells": [1.0, None], "set": [1, 3], "n": 2}
    assert store.query("SELECT json_extract(why, '$.n') FROM decisions")[0][0] == 2


def test_outcomes_are_merged_and_may_be_repeated(ledger: Ledger) -> None:
    number = ledger.add_decision(decision())
    ledger.set_outcome(number, "released", 102.0, {"took_ms": 80})
    ledger.set_outcome(number, "started", 103.0)
    ledger.set_outcome(number, "started", 103.0, {"gpus": [0, 3]})
    (stored,) = ledger.decisions("98")
    assert (stored.state, stored.outcome_at) == ("started", 103.0)
    assert stored.outcome == {"took_ms": 80, "gpus": [0, 3]}


def test_an_outcome_of_nothing_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="no decision 5"):
        ledger.set_outcome(5, "ended", 1.0)


def test_every_state_is_known(ledger: Ledger) -> None:
    for state in STATES:
        ledger.set_outcome(ledger.add_decision(decision()), state, 1.0)
    is_open = {one.state for one in ledger.open_decisions()}
    assert is_open == {"planned", "prepared", "released", "started"}


def test_misspelt_states_and_kinds_are_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="unknown state 'endet'; known: planned"):
        ledger.add_decision(decision(state="endet"))
    with pytest.raises(ValueError, match="unknown event kind 'park'; known: parked"):
        ledger.add_event("1", "park", {}, 1.0)


def test_events_come_in_order_of_time(ledger: Ledger) -> None:
    ledger.add_event("5", "started", {"node": "n1"}, 30.0)
    ledger.add_event("5", "parked", {}, 10.0)
    ledger.add_event("6", "parked", {}, 20.0)
    assert [(e.kind, e.at) for e in ledger.events("5")] == [("parked", 10.0), ("started", 30.0)]


def test_events_of_one_second_come_as_they_were_told(ledger: Ledger) -> None:
    """Slurm tells starts in whole seconds: a job does not start before its gate was opened."""
    ledger.add_event("5", "released", {}, 17.6)
    ledger.add_event("5", "started", {}, 17.0)
    ledger.add_event("5", "parked", {}, 16.9)
    assert [e.kind for e in ledger.events("5")] == ["parked", "released", "started"]


def test_every_kind_is_stored(ledger: Ledger) -> None:
    detail = {"text": "ümläut \U0001f600 'quote'"}
    for kind in EVENT_KINDS:
        ledger.add_event("1", kind, detail, 1.0)
    assert [(e.kind, e.detail) for e in ledger.events("1")] == [(k, detail) for k in EVENT_KINDS]


def test_the_gpus_that_jobs_were_given_are_those_of_their_last_start(ledger: Ledger) -> None:
    ledger.add_event("1", "started", {"gpus": {"n1": [0, 1]}}, 10.0)
    ledger.add_event("1", "started", {"gpus": {"n2": [2, 3]}}, 30.0)
    ledger.add_event("1", "requeued", {}, 20.0)
    ledger.add_event("2_7", "started", {"nodes": ["n1"], "types": ["g0"]}, 10.0)
    assert ledger.gpus_given() == {"1": {"n2": [2, 3]}}


def test_rounds_come_back(ledger: Ledger) -> None:
    given = RoundRecord(10.0, 1.5, queued=3, placed=2, waiting=1, trigger="submit")
    ledger.add_round(given)
    ledger.add_round(replace(given, started_at=15.0, detail={"errors": 1}))
    newest, oldest = ledger.last_rounds()
    assert oldest == replace(given, id=oldest.id)
    assert (newest.started_at, newest.detail) == (15.0, {"errors": 1})


def test_only_the_newest_round_keeps_the_waiting_jobs(ledger: Ledger) -> None:
    round_ = RoundRecord(10.0, 1.5, 3, 2, 1, detail={"waiting": [{"job_id": "7"}]})
    ledger.add_round(round_)
    ledger.add_round(replace(round_, started_at=20.0))
    newest, oldest = ledger.last_rounds()
    assert (newest.detail, oldest.detail) == (round_.detail, {})
    assert oldest.waiting == 1


def test_pruning_keeps_what_may_still_run(ledger: Ledger) -> None:
    old = ledger.add_decision(decision("1", decided_at=10.0))
    running = ledger.add_decision(decision("2", decided_at=10.0))
    ledger.add_decision(decision("3", decided_at=90.0, state="ended"))
    ledger.set_outcome(old, "ended", 20.0)
    ledger.set_outcome(running, "started", 11.0)
    for job in ("1", "2", "3"):
        ledger.add_event(job, "parked", {}, 5.0)
    ledger.add_event("3", "ended", {}, 95.0)
    ledger.add_round(RoundRecord(5.0, 1.0, 0, 0, 0))
    ledger.prune(50.0)
    assert [d.job_id for job in "123" for d in ledger.decisions(job)] == ["2", "3"]
    assert ledger.events("1") == []
    assert len(ledger.events("2")) == 1
    assert [e.kind for e in ledger.events("3")] == ["ended"]
    assert ledger.last_rounds() == []
