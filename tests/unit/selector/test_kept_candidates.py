"""Candidates kept from round to round: what drops them, and that nothing else does."""

from collections.abc import Callable
from typing import Any

import pytest
from memory_slurm import node_record, reservation_record
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.admission import translate
from slurm_gpu_aware.features.estimates.history import JobKind
from slurm_gpu_aware.features.estimates.live import Estimates
from slurm_gpu_aware.selector import candidates as module

USED = {"gres_used": "gpu:g0:1(IDX:0),gpu:g1:1(IDX:1),gpu:g2:1(IDX:2)"}


@pytest.fixture
def bench(slurm: SlurmFolder) -> RoundsBench:
    """Jobs 7 and 8 wait: their node has no two free GPUs."""
    slurm.write([parked(), parked("8")], ["n1"])
    slurm.set(nodes=[node_record("n1", **USED)])
    bench = RoundsBench(slurm)
    bench.run()  # it writes into the jobs why they wait
    return bench


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the jobs that are translated."""
    ids: list[str] = []

    def counted(gated: Any, context: Any) -> Any:
        ids.append(gated.id)
        return translate.to_request(gated, context)

    monkeypatch.setattr(module, "to_request", counted)
    return ids


def test_unchanged_jobs_are_translated_once(bench: RoundsBench, translated: list[str]) -> None:
    for _ in range(3):
        assert bench.run().queued == 2
    assert sorted(translated) == ["7", "8"]


def test_a_changed_job_is_translated_again_and_no_other(
    slurm: SlurmFolder, bench: RoundsBench, translated: list[str]
) -> None:
    bench.run()
    translated.clear()
    slurm.change("8", priority=7)
    bench.run()
    assert translated == ["8"]


def change_node(slurm: SlurmFolder, **fields: Any) -> None:
    slurm.set(nodes=[node | fields for node in slurm.get("nodes")])


def add_run(slurm: SlurmFolder, bench: RoundsBench) -> None:
    reader = bench.rounds.site.of(Estimates).reader
    reader.history.add(JobKind("alice", "x", "", 2, 60.0), 30.0)
    reader.version += 1


@pytest.mark.parametrize(
    "change",
    [
        lambda slurm, bench: slurm.set(nodes=[*slurm.get("nodes"), node_record("n2", **USED)]),
        lambda slurm, bench: change_node(slurm, features="new"),
        lambda slurm, bench: change_node(slurm, state="MIXED+DRAIN"),
        lambda slurm, bench: slurm.set(tiers={"gpu": 7}),
        lambda slurm, bench: slurm.reserve(
            *slurm.get("reservations"), reservation_record("maintenance", node_list="n1")
        ),
        add_run,
    ],
    ids=["node", "features", "drain", "partition", "reservation", "history"],
)
def test_a_change_of_the_site_drops_all(
    slurm: SlurmFolder,
    bench: RoundsBench,
    translated: list[str],
    change: Callable[[SlurmFolder, RoundsBench], None],
) -> None:
    bench.run()
    translated.clear()
    change(slurm, bench)
    bench.run()
    assert sorted(translated) == ["7", "8"]


def test_what_jobs_use_of_a_node_drops_nothing(
    slurm: SlurmFolder, bench: RoundsBench, translated: list[str]
) -> None:
    bench.run()
    translated.clear()
    change_node(slurm, alloc_cpus=3)
    slurm.change("9", exclusive=2)  # --exclusive=user: its node is its user's alone
    bench.run()
    assert translated == []


def test_beside_a_reservation_of_nodes_nothing_is_kept(
    slurm: SlurmFolder, bench: RoundsBench, translated: list[str]
) -> None:
    held = reservation_record("maintenance", node_list="n2")
    before = slurm.get("reservations")
    slurm.reserve(*before, held)
    bench.run()
    bench.run()
    assert sorted(translated) == ["7", "7", "8", "8"]
    translated.clear()
    slurm.reserve(*before)  # nor what was made beside it, when it has ended
    bench.run()
    assert sorted(translated) == ["7", "8"]


@pytest.mark.parametrize(
    "fields",
    [
        {"partition": "gpu,gpu2"},
        {"time_min": 5},
        {"comment": "class=auto"},
        {"pn_min_memory": 0},
        {"admin_comment": "gpuaware/1;tn=gres/gpu:2;mc=1;nn=1-2", "num_nodes": 1, "max_nodes": 2},
    ],
    ids=["partitions", "time-min", "class", "memory", "nodes"],
)
def test_what_rests_on_free_resources_or_other_jobs_is_not_kept(
    slurm: SlurmFolder, bench: RoundsBench, translated: list[str], fields: dict[str, Any]
) -> None:
    slurm.change("8", **fields)
    bench.run()
    bench.run()
    assert translated.count("7") == 1
    assert translated.count("8") == 2


def test_a_job_that_could_not_start_is_translated_again(
    bench: RoundsBench, translated: list[str]
) -> None:
    bench.run()
    translated.clear()
    bench.rounds._backoff.punish("8", misplaced=True)
    bench.run(10_000.0)
    assert translated == ["8"]


def test_a_kept_job_is_placed_when_its_gpus_are_free(
    slurm: SlurmFolder, bench: RoundsBench, translated: list[str]
) -> None:
    bench.run()
    bench.run()
    slurm.set(nodes=[node_record("n1")])
    assert sorted(bench.run().placed) == ["7", "8"]
    assert sorted(translated) == ["7", "8"]
