"""Whatever arrives as a report is merged or refused by name; nothing else happens."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.interconnect import Collective, PairBandwidth
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.ingest import ingest_report
from slurm_gpu_aware.store.profiles import load_profile
from slurm_gpu_aware.store.report import parse_report

VALID: dict[str, Any] = {
    "schema": "gpu-aware-probe/2",
    "node": "n1",
    "taken_at": 1000.0,
    "driver": "550",
    "backend": "fake",
    "gpus": [
        {"index": 0, "uuid": "GPU-0", "clocks_mhz": [1530], "power_limit_w": 300.0},
        {"index": 1, "uuid": "GPU-1", "numa": None, "nvlink_version": "2.0", "nvlinks": 2},
    ],
    "links": [{"a": 0, "b": 1, "class": "NV2", "gbps": 50.0}],
    "nics": [
        {
            "name": "mlx5_0",
            "pci": "0000:1a:00.0",
            "numa": 0,
            "gpus": [{"index": 0, "class": "PIX"}, {"index": 1, "class": "SYS"}],
            "nics": [{"name": "eth0", "class": "NODE"}],
        },
        {"name": "eth0", "pci": "0000:3b:00.0"},
    ],
    "link_backend": "nccl",
    "bandwidths": [{"a": 1, "b": 0, "ab_gbps": 47.0, "ba_gbps": 46.5, "latency_us": 1.9}],
    "collectives": [{"gpus": [1, 0], "operation": "all_reduce", "gbps": 44.5}],
    "timings": [{"index": 0, "class": "A", "value_ms": 103.2, "samples": 5, "spread": 0.004}],
    "errors": [{"index": None, "call": "nvmlInit", "error": "no"}],
}

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=30),
        st.sampled_from(
            ["n1", "A", "NV2", "SYS", "n1'; DROP TABLE gpus;--", "\0", "\ud800", "../x"]
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


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    if isinstance(value, dict):
        entries: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    else:
        return
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


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


@given(st.sampled_from(PLACES), JSON)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_one_changed_field_is_merged_or_refused(
    store: Store, place: tuple[Any, ...], value: Any
) -> None:
    changed = copy.deepcopy(VALID)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    store.execute("DELETE FROM nodes")
    try:
        ingest_report(store, parse_report(changed))
        merged = len(changed["gpus"])
    except SourceError:
        merged = 0
    assert len(load_profile(store).gpus) == merged


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("schema",), "gpu-aware-probe/1", "schema is 'gpu-aware-probe/1', expected"),
        (("node",), "n1 n2", "'n1 n2' is not a node name"),
        (("gpus", 1, "index"), 0, r"gpus\[1\].index: GPU 0 occurs twice"),
        (("gpus", 0, "clocks_mhz"), [1530, "x"], r"gpus\[0\].clocks_mhz: expected a list of MHz"),
        (("links", 0, "b"), 5, r"links\[0\]: 0 and 5 are not two GPUs"),
        (("links", 0, "class"), "NVLINK", "not NVn, XGMIn, PIX, PXB, PHB, NODE or SYS"),
        (("timings", 0, "index"), 7, r"timings\[0\].index: GPU 7 is not in this report"),
        (("timings", 0, "value_ms"), True, r"timings\[0\].value_ms: expected a number"),
        (("timings", 0, "value_ms"), 0, r"timings\[0\].value_ms: 0 is not 1e-06 to 1e\+12"),
        (("errors", 0, "call"), None, r"errors\[0\].call: expected a text"),
        (("gpus", 0, "uuid"), "GPU\ud800", r"gpus\[0\].uuid: expected a text"),
        (("gpus",), {"0": {}}, "gpus: expected a list of objects"),
        (("gpus", 1, "nvlink_version"), "9" * 99, r"gpus\[1\].nvlink_version: .* not a version"),
        (("gpus", 1, "nvlinks"), 100, r"gpus\[1\].nvlinks: expected a whole number, not 100"),
        (("nics", 0, "name"), "../mlx5", r"nics\[0\].name: '../mlx5' is not the name of a NIC"),
        (("nics", 0, "pci"), "1a:00.0", r"nics\[0\].pci: '1a:00.0' is not a PCI address"),
        (("nics", 1, "name"), "mlx5_0", "nics: a name occurs twice"),
        (("nics", 0, "gpus", 1, "index"), 0, r"nics\[0\].gpus\[1\].index: GPU 0 .* occurs twice"),
        (("nics", 0, "nics", 0, "name"), "ib9", r"nics\[0\].nics\[0\].name: 'ib9' is not another"),
        (("nics",), [{}] * 65, "nics: 65 NICs, more than 64"),
        (("bandwidths", 0, "b"), 1, r"bandwidths\[0\]: 1 and 1 are not two GPUs"),
        (("bandwidths", 0, "ab_gbps"), 0, r"bandwidths\[0\].ab_gbps: 0 is not 1e-06 to"),
        (("bandwidths", 0, "latency_us"), 1e300, r"bandwidths\[0\].latency_us: 1e\+300 is not"),
        (("collectives", 0, "gpus"), [0, 0], r"collectives\[0\].gpus: \[0, 0\] is not two"),
        (("collectives", 0, "gpus"), [0, [1]], r"collectives\[0\].gpus: .* is not two or more"),
        (("collectives", 0, "gpus"), [0] * 65, r"collectives\[0\].gpus: .* is not two or more"),
        (
            ("collectives", 0, "operation"),
            "all",
            r"collectives\[0\].operation: 'all' is not one of",
        ),
        (("collectives", 0, "gbps"), float("nan"), r"collectives\[0\].gbps: nan is not"),
        (("collectives", 0, "size_bytes"), 1 << 51, r"collectives\[0\].size_bytes: expected"),
        (("collectives",), [{}] * 4097, "collectives: 4097 of them, more than 4096"),
    ],
)
def test_the_wrong_field_is_named(place: tuple[Any, ...], value: Any, reason: str) -> None:
    changed = copy.deepcopy(VALID)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(SourceError, match=reason):
        parse_report(changed)
