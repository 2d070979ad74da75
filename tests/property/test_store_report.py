"""Whatever arrives as a report is merged or refused by name; nothing else happens."""

import copy
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from record_samples import REPORT as VALID
from record_samples import places

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import Collective, PairBandwidth
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.ingest import ingest_report
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.store.report import parse_report

LONG = "x" * 200_000
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.sampled_from([10**400, -(10**400), 1e308, math.inf, math.nan]),
        st.floats(),
        st.text(max_size=30),
        st.sampled_from(
            ["n1", "A", "NV2", "SYS", "n1'; DROP TABLE gpus;--", "\0", "\ud800", "../x", LONG]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["index", "class", "value_ms", "a", "b", "gbps", "uuid", "name", "gpus"]
            ),
            inner,
        ),
    ),
    max_leaves=8,
)


PLACES = list(places(VALID))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("store") / "store.db") as opened:
        yield opened


def test_the_valid_report_is_read() -> None:
    probe = parse_report(json.loads(json.dumps(VALID)))
    assert sorted(probe.gpus) == [0, 1]
    assert probe.runs[0].value_ms == 103.2
    assert probe.faults[0].slot is None
    assert probe.nics[0].gpus == {0: "PIX", 1: "SYS"}
    # The report lists the pair as 1, 0.
    assert probe.bandwidths == (PairBandwidth("n1", 0, 1, 1000.0, 46.5, 47.0, None, 1.9),)
    assert probe.collectives == (Collective("n1", (0, 1), "all_reduce", 1000.0, 44.5),)


@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=2))
@example([(("node",), LONG)])
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_changed_fields_are_merged_or_refused(
    store: Store, changes: list[tuple[tuple[Any, ...], Any]]
) -> None:
    changed = copy.deepcopy(VALID)
    for place, value in changes:
        with suppress(KeyError, IndexError, TypeError):  # lies in what the first replaced
            set_at(changed, place, value)
    store.execute("DELETE FROM nodes")
    said = ""
    try:
        ingest_report(store, parse_report(changed))
        merged = len(changed["gpus"])
    except SourceError as exc:
        merged, said = 0, str(exc)
    assert len(said) < 1000
    assert len(load_profile(store).gpus) == merged
    recompute_scores(store)


def set_at(report: Any, place: tuple[Any, ...], value: Any) -> None:
    """Set a value at a place of a report."""
    *path, last = place
    for key in path:
        report = report[key]
    report[last] = value


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("gpus", 1, "index"), 0, r"gpus\[1\].index: GPU 0 occurs twice"),
        (("links", 0, "b"), 5, r"links\[0\]: 0 and 5 are not two GPUs"),
        (("timings", 0, "index"), 7, r"timings\[0\].index: GPU 7 is not in this report"),
        (("nics", 1, "name"), "mlx5_0", "nics: a name occurs twice"),
        (("nics", 0, "gpus", 1, "index"), 0, r"nics\[0\].gpus\[1\].index: GPU 0 .* occurs twice"),
        (("nics", 0, "nics", 0, "name"), "ib9", r"nics\[0\].nics\[0\].name: 'ib9' is not another"),
        (
            ("nics",),
            [VALID["nics"][1]] * 65,
            "nics: .* at most 64 entries, .* not one of 65",
        ),
        (("bandwidths", 0, "b"), 1, r"bandwidths\[0\]: 1 and 1 are not two GPUs"),
        (("collectives", 0, "gpus"), [0, 0], r"collectives\[0\].gpus: \[0, 0\] is not two"),
        (
            ("collectives", 0, "gpus"),
            [0] * 65,
            r"gpus: expected a list of at least 2 and at most 64 entries",
        ),
        (("collectives",), VALID["collectives"] * 4097, "collectives: expected .* at most 4096"),
    ],
)
def test_a_part_that_does_not_suit_the_others_is_named(
    place: tuple[Any, ...], value: Any, reason: str
) -> None:
    """Fields that are wrong by themselves: `test_record_properties`."""
    changed = copy.deepcopy(VALID)
    set_at(changed, place, value)
    with pytest.raises(SourceError, match=reason):
        parse_report(changed)
