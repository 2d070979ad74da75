"""NICs and measured bandwidths in the store: what comes back, and what goes with a GPU."""

from typing import Any

from store_samples import ingest, report

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.model.hardware_graph import ALL_REDUCE, Collective, Nic, PairBandwidth
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import (
    forget_gpus,
    newest_bandwidths,
    newest_collectives,
    nics_of,
    put_bandwidths,
    put_collectives,
)
from slurm_gpu_aware.store.profiles import load_profile

PATHS_OF_NIC = {
    "gpus": [{"index": 0, "class": "PIX"}, {"index": 3, "class": "SYS"}],
    "nics": [{"name": "eth0", "class": "SYS"}],
}
SETS = ([0, 1], [1, 2, 3], [0, 1, 2, 3])


def measured(taken_at: float = 1000.0, *, gbps: float = 47.0, **changes: Any) -> dict[str, Any]:
    """A report with NICs and bandwidths of 4 GPUs."""
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    return {
        **report(taken_at=taken_at),
        "link_backend": "nccl",
        "nics": [
            {"name": "mlx5_0", "pci": "0000:1a:00.0", "numa": 0, **PATHS_OF_NIC},
            {"name": "eth0", "pci": "0000:3b:00.0"},
        ],
        "bandwidths": [
            {"a": a, "b": b, "ab_gbps": gbps, "both_gbps": 2 * gbps, "latency_us": 1.9}
            for a, b in pairs
        ],
        "collectives": [
            {"gpus": gpus, "operation": ALL_REDUCE, "gbps": gbps, "size_bytes": 1 << 28}
            for gpus in SETS
        ],
        **changes,
    }


def test_a_report_comes_back(store: Store) -> None:
    ingest(store, measured())
    assert nics_of(store, "n1") == [
        Nic("mlx5_0", "0000:1a:00.0", 0, {0: "PIX", 3: "SYS"}, {"eth0": "SYS"}),
        Nic("eth0", "0000:3b:00.0", None, {}, {}),
    ]
    assert newest_bandwidths(store, "n1")[0] == PairBandwidth(
        "n1", 0, 1, 1000.0, 47.0, None, 94.0, 1.9
    )
    assert newest_collectives(store, ALL_REDUCE) == [
        Collective("n1", tuple(gpus), ALL_REDUCE, 1000.0, 47.0, 1 << 28) for gpus in SETS
    ]
    assert newest_bandwidths(store, "n2") == newest_collectives(store, "broadcast") == []


def test_the_newest_measurement_counts_and_a_report_without_one_keeps_it(store: Store) -> None:
    ingest(store, measured(1000.0, gbps=40.0))
    ingest(store, measured(3000.0, gbps=50.0))
    ingest(store, measured(2000.0, gbps=10.0))  # arrives late
    ingest(store, report(taken_at=4000.0))
    assert {pair.ab_gbps for pair in newest_bandwidths(store)} == {50.0}
    assert {one.gbps for one in newest_collectives(store, ALL_REDUCE)} == {50.0}
    assert nics_of(store, "n1") == []  # the newest report saw none
    assert len(store.query("SELECT * FROM collectives")) == 9


def test_a_replaced_board_takes_its_measurements_away(store: Store) -> None:
    ingest(store, measured(1000.0))
    newer = report(taken_at=2000.0)
    newer["gpus"][0]["uuid"] = "GPU-new"
    newer["timings"] = newer["timings"][1:]
    ingest(store, newer)
    recompute_scores(store)
    assert set(load_profile(store).scores["A"]) == {("n1", 1), ("n1", 2), ("n1", 3)}
    assert {(pair.a, pair.b) for pair in newest_bandwidths(store)} == {(1, 2), (1, 3), (2, 3)}
    assert [one.gpus for one in newest_collectives(store, ALL_REDUCE)] == [(1, 2, 3)]
    ingest(store, measured(1500.0))  # a late report, from before the exchange
    assert [one.gpus for one in newest_collectives(store, ALL_REDUCE)] == [(1, 2, 3)]
    assert load_profile(store).gpus["n1", 0].uuid == "GPU-new"


def test_a_forgotten_gpu_or_node_takes_its_measurements_away(store: Store) -> None:
    ingest(store, measured())
    forget_gpus(store, "n1", 3)
    assert {pair.b for pair in newest_bandwidths(store)} == {1, 2}
    assert [one.gpus for one in newest_collectives(store, ALL_REDUCE)] == [(0, 1)]
    forget_gpus(store, "n1")
    assert newest_bandwidths(store) == newest_collectives(store, ALL_REDUCE) == []
    assert store.query("SELECT * FROM nics") == []


def test_an_import_replaces_a_measurement_of_the_same_moment(store: Store) -> None:
    ingest(store, measured())
    put_bandwidths(store, [PairBandwidth("n1", 0, 1, 1000.0, 45.0)], source="import")
    put_collectives(store, [Collective("n1", (0, 1), ALL_REDUCE, 1000.0, 44.0)], source="import")
    assert newest_bandwidths(store)[0] == PairBandwidth("n1", 0, 1, 1000.0, 45.0)
    assert newest_collectives(store, ALL_REDUCE)[0].gbps == 44.0
