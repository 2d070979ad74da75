"""Power of a job at the clocks that it tried, from the records of its nodes."""

import random
from typing import Any

import pytest

from slurm_gpu_aware.features.power.explorations import explored_power
from slurm_gpu_aware.store.ledger import Event

WATTS = {1500: 300.0, 1200: 200.0, 900: 140.0}
GPUS = {"n1": [0, 2]}
LIMIT_W = 250.0


def story(
    node: str = "n1", skew_s: float = 0.0, watts: dict[int, float] = WATTS, **wrong: Any
) -> list[Event]:
    """Records of the agent at each change, 20 s apart; ``wrong``: in that at 1200 MHz."""
    found, at, mj = [], 1000.0 + skew_s, 10**14
    for mhz in (*watts, 0):
        detail = {"node": node, "gpus": GPUS["n1"], "mhz": mhz, "counter_mj": mj, "seq": 5}
        found.append(Event("7", "clock_set", {**detail, **(wrong if mhz == 1200 else {})}, at))
        at += 20.0
        mj += round(20e3 * watts.get(mhz, 0.0))
    return found


def numbered(*records: Event, gpus: object = GPUS) -> list[Event]:
    begin = [
        Event("7", "released", {}, 900.0),
        Event("7", "started", {"gpus": gpus}, 910.0),
        Event("7", "exploring", {}, 2000.0),  # by another clock than that of the nodes
    ]
    return [
        Event(e.job_id, e.kind, e.detail, e.at, id=i) for i, e in enumerate([*begin, *records], 1)
    ]


def powers(given: list[Event]) -> dict[int, float]:
    return dict(explored_power(given, tuple(WATTS), 10.0, LIMIT_W).power_w)


def test_power_at_each_clock_is_that_between_two_records() -> None:
    given = numbered(*story())
    random.Random(1).shuffle(given)
    measured = explored_power(given, tuple(WATTS), 10.0, LIMIT_W)
    assert (measured.gpus, measured.nodes) == (2, 1)
    assert list(measured.power_w) == [1500, 1200, 900]
    assert dict(measured.power_w) == pytest.approx(WATTS)


def test_power_of_several_nodes_is_added_where_each_knows_it() -> None:
    both = {"n1": [0, 2], "n2": [0, 2]}
    first, second = story(), story("n2", skew_s=-500.0)
    mixed = [one for pair in zip(first, second, strict=True) for one in pair]
    assert powers(numbered(*mixed, gpus=both)) == pytest.approx(
        {m: 2 * w for m, w in WATTS.items()}
    )
    late = [*first, *second[:3]]  # the last change of n2 is not known
    assert powers(numbered(*late, gpus=both)) == pytest.approx({1500: 600.0, 1200: 400.0})


def test_the_first_clock_counts_from_the_prolog_on() -> None:
    first, *others = story()
    begin = numbered()
    given = [begin[0], first, *begin[1:], *others]
    given = [Event("7", e.kind, e.detail, e.at, id=i) for i, e in enumerate(given, 1)]
    assert powers(given) == pytest.approx(WATTS)


def test_what_an_earlier_run_recorded_does_not_count() -> None:
    again = numbered(*story(watts={1500: 50.0}), Event("7", "released", {}, 1.0), *numbered()[1:])
    assert powers(again) == {}


def test_records_that_were_read_twice_count_once() -> None:
    assert powers(numbered(*story(), *story())) == pytest.approx(WATTS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"counter_mj": None},
        {"counter_mj": "int"},
        {"counter_mj": True},
        {"counter_mj": 5},  # the driver was loaded anew
        {"counter_mj": 10**15},  # more than two GPUs can draw
        {"gpus": [0, 2, 3]},
        {"gpus": "dict"},
        {"mhz": None},
        {"node": "n9"},
    ],
)
def test_a_wrong_record_costs_the_clocks_beside_it(wrong: dict[str, Any]) -> None:
    given = powers(numbered(*story(**wrong)))
    assert given.keys() <= {900, 1500}
    assert given.get(900) in (None, pytest.approx(140.0))
    assert given.get(1500, 0.0) <= 2 * LIMIT_W * 1.05


@pytest.mark.parametrize("gpus", [None, {}, "n1", {"n1": []}])
def test_without_the_gpus_of_its_start_nothing_is_known(gpus: object) -> None:
    assert powers(numbered(*story(), gpus=gpus)) == {}


def test_a_clock_that_lasted_too_short_is_left_out() -> None:
    assert dict(explored_power(numbered(*story()), (1500,), 20.5, LIMIT_W).power_w) == {}


def test_a_program_that_still_starts_is_not_taken_for_little_power() -> None:
    slow = {1500: 90.0, 1200: 150.0, 900: 140.0}
    assert powers(numbered(*story(watts=slow))) == pytest.approx({1200: 150.0, 900: 140.0})
    noisy = {1500: 149.0, 1200: 150.0, 900: 151.0}
    assert powers(numbered(*story(watts=noisy))) == pytest.approx(noisy)
