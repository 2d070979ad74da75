"""Energy of jobs from the records of their nodes."""

from typing import Any

import pytest
from store_samples import decision, started

from slurm_gpu_aware.features.energy.accounts import checked_rows, energy_rows, job_energy
from slurm_gpu_aware.features.energy.declared import EnergyConfig
from slurm_gpu_aware.features.energy.metrics import METRICS
from slurm_gpu_aware.features.energy.text import checked_table, energy_table
from slurm_gpu_aware.store.ledger import Decision, Event


def energy(node: str, joules: float | None, *, run: int = 0, **detail: Any) -> Event:
    usual = {"node": node, "restarts": run, "gpus": [0, 1], "seconds": 10.0, "energy_j": joules}
    return Event("7", "energy", {**usual, **detail}, 100.0)


def test_nodes_and_runs_are_added_up() -> None:
    events = [
        started("n1", "n2"),
        energy("n1", 100.0),
        energy("n2", 200.0),
        started("n3", run=1),
        energy("n3", 700.0, run=1),
        energy("n3", 700.0, run=1),  # written twice
    ]
    found = job_energy(events)
    assert (found.energy_j, found.gpu_s, found.runs, found.unknown) == (1000.0, 60.0, 2, ())
    assert found.mean_w == pytest.approx(1000 / 60)


ENDED = Event("7", "started", {"restarts": 0, "nodes": ["n1"], "types": ["g0"]}, 90.0)
"""A run that was seen after its end only: its GPUs are not known."""
ONE, TWO = started("n1"), started("n1", "n2")
KNOWN, LOST = energy("n1", 100.0), energy("n1", None, error="GPU 0: reset")
ACCOUNTS = {
    "no record": ([ONE], None, ()),
    "no start": ([energy("n1", 900.0)], None, ()),
    "nothing": ([], None, ()),
    "a silent node": ([TWO, KNOWN], 100.0, ("n2: its epilog recorded nothing",)),
    "a reset": ([TWO, LOST, energy("n2", 5.0)], 5.0, ("n1: GPU 0: reset",)),
    "other nodes": ([ONE, KNOWN, energy("n9", 900.0), energy("n9", None)], 100.0, ()),
    "a run that did not start": ([ONE, KNOWN, energy("n1", 900.0, run=1)], 100.0, ()),
    "a run that has ended": ([ENDED, KNOWN, energy("n9", 900.0)], 100.0, ()),
}


@pytest.mark.parametrize("case", ACCOUNTS)
def test_only_what_its_own_nodes_recorded_of_its_runs_counts(case: str) -> None:
    events, joules, unknown = ACCOUNTS[case]
    found = job_energy(events)
    if joules is None:
        assert found is None
    else:
        assert (found.energy_j, found.runs, found.unknown) == (joules, 1, unknown)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), True, "much", 1e999, 1e9])
def test_amounts_that_a_node_made_up_count_as_not_known(bad: Any) -> None:
    found = job_energy([started("n1"), energy("n1", bad)])
    assert (found.energy_j, found.mean_w, len(found.unknown)) == (0.0, None, 1)


def test_rows_by_user_and_class_count_complete_accounts_only() -> None:
    jobs = [
        decision("7", user="alice", asked={"class": "A"}),
        decision("8", user="alice", asked={"class": "B"}),
        decision("9", user="bob", asked={}),
    ]
    whole = energy("n1", 7.2e6, seconds=36_000.0)
    part = Event("8", "energy", {**energy("n1", None).detail}, 100.0)
    starts = [started("n1"), Event("8", "started", started("n1").detail, 90.0)]
    rows = {(r["by"], r["name"]): r for r in energy_rows(jobs, [*starts, whole, part])}
    assert list(rows) == [
        *(("user", "alice"), ("user", "bob")),
        *(("class", "A"), ("class", "B"), ("class", "none"), ("all", "")),
    ]
    alice = rows["user", "alice"]
    assert (alice["jobs"], alice["measured"], alice["kwh"]) == (2, 1, 2.0)
    assert alice["gpu_hours"] == pytest.approx(20)
    assert rows["class", "B"]["mean_w"] is None
    assert rows["all", ""]["jobs"] == 3
    assert energy_rows(jobs, [*starts, part]) == []


def saving(
    job_id: str = "7", slower: float = 0.02, at_most: float = 0.03, **asked: str
) -> Decision:
    """A job of class A at a clock that saves a fifth."""
    why = {"clock_mhz": 1110, "saves": 0.2, "slower": slower, "at_most": at_most}
    return decision(job_id, why={"energy": why}, asked={"class": "A", **asked})


def checked(job_id: object, **found: object) -> Event:
    return Event(str(job_id), "clock_checked", found, 9.0)


def test_what_a_clock_has_saved_is_told_with_its_error() -> None:
    """100 J at a clock that saves a fifth: 25 J less than at the default clock."""
    job = saving(slower=0.25, at_most=0.27, account="physics")
    events = [started("n1"), energy("n1", 100.0)]
    rows = {row["by"]: row for row in energy_rows([job], events)}
    assert rows["account"]["name"] == "physics"
    for row in rows.values():
        assert row["saved_kwh"] * 3.6e6 == pytest.approx(25.0)
        assert row["saved_error_kwh"] * 3.6e6 == pytest.approx(2.5)
        assert row["lost_gpu_hours"] * 3600 == pytest.approx(4.0)
    (metric,) = (one for one in METRICS if one.name == "gpu_aware_day_saved_joules")
    assert metric.samples([rows["class"]]) == [(("A",), pytest.approx(25.0))]
    text = energy_table(list(rows.values()), 1, EnergyConfig(price_kwh=1e6, co2_kg_kwh=1e6))
    assert "6.94 at 1e+06 per kWh, 6.9 kg CO2" in " ".join(text.split())
    refused = Event("7", "clock_failed", {"node": "n1"}, 100.0)
    for taken_back in (refused, checked("7", slow=True, slower=0.4)):
        assert energy_rows([job], [*events, taken_back])[-1]["saved_kwh"] == 0.0
    plain = energy_rows([decision("7")], events)
    assert "saved" not in energy_table(plain, 1, EnergyConfig())


def test_predictions_stand_beside_what_jobs_measured() -> None:
    jobs = [saving("0", model="bert"), saving("1"), saving("2"), saving("3")]
    events = [
        checked(0, slow=True, slower=0.1, saves=0.1),
        checked(1, slow=False, slower=0.01, saves=0.3),
        checked(2, slow=False, slower=0.03, saves=None),
        checked(3, slow=False, error="it marked no iteration"),
        checked(4, slow=False, slower=0.5, saves=None),
    ]
    fits = {"says": "time within 1.0%"}, {"error": "no usable sample"}
    events += [Event("0", "model_fitted", fit, 10.0) for fit in fits]
    rows = checked_rows([*jobs, decision("4")], events)
    assert [(row["name"], row["jobs"], row["slow"], row["fitted"]) for row in rows] == [
        ("alice/bert", 1, 1, 1),
        ("class A", 2, 0, 0),
    ]
    assert rows[1]["slower"] == 0.02
    assert rows[1]["measured_slower"] == pytest.approx(0.02)
    assert rows[1]["measured_saves"] == 0.3
    (row,) = (line.split() for line in checked_table(rows).splitlines() if "class A" in line)
    assert row == ["class", "A", "2", "0", "0", "2.0%", "2.0%", "20.0%", "30.0%"]
    assert checked_table([]) == ""


def test_one_job_with_wild_marks_does_not_change_what_its_class_measured() -> None:
    measured = (0.01, 0.02, 0.03, 0.04, 1e12)
    events = [checked(i, slow=False, slower=one, saves=-one) for i, one in enumerate(measured)]
    (row,) = checked_rows([saving(str(i)) for i in range(5)], events)
    assert (row["measured_slower"], row["measured_saves"]) == (0.03, -0.03)
