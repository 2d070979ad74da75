"""Losses of jobs, and their sums."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_gpu_aware.cli.output import blocks_text
from slurm_gpu_aware.features.shadow.losses import Account, GpuSet, Sets, ShadowJob, Watch, account
from slurm_gpu_aware.features.shadow.page import (
    ShadowFacts,
    sentence,
    shadow_blocks,
    unwatched,
    week_of,
)
from slurm_gpu_aware.features.shadow.view import as_values

DAY_S = 86_400.0
NOW = 1_795_900_000.0


def gpu_set(node: str = "n1", slots: tuple[int, ...] = (0,), **facts: Any) -> GpuSet:
    known = {"level": "node", "score": 1.0, "slowdown": 1.0, "gbps": 100.0, "direct": True}
    return GpuSet(((node, slots),), **{**known, **facts})


def start(given: GpuSet, ours: GpuSet | None, number: int = 1, **fields: Any) -> ShadowJob:
    usual = {"started_at": NOW, "ended_at": NOW + 3600.0, "power_w": 500.0}
    sets = Sets(given, ours)
    return ShadowJob(str(number), "alice", "gpu", "A", sets=sets, **{**usual, **fields})


def of(*jobs: ShadowJob) -> Account:
    return account(jobs, NOW + DAY_S, week_of)


def test_a_slow_gpu_costs_time_and_energy() -> None:
    total = of(start(gpu_set(score=1.25, slowdown=1.25), gpu_set("n2"))).total
    (loss,) = total.of("slow")
    assert loss.slower == pytest.approx(0.25)
    assert total.time_s == pytest.approx(720.0)  # of an hour at 1.25 a fifth is lost
    assert total.energy_j == pytest.approx(360_000.0)
    assert sentence(loss, "slow") == "25% slower on n1:0 than on n2:0, which was free"


def test_what_clocks_would_save_is_of_the_jobs_of_which_it_is_known() -> None:
    same = gpu_set()
    known = start(same, same, 1, saves=0.2), start(same, same, 2, saves=0.0)
    found = of(*known, start(same, same, 3), start(same, None, 4, saves=0.5))
    assert found.total.spent_j == pytest.approx(2 * 3600.0 * 500.0)
    assert found.total.saved_j == pytest.approx(0.2 * 3600.0 * 500.0)
    facts = ShadowFacts(found, 30, [Watch(NOW, NOW + DAY_S)])
    said = " ".join(blocks_text(shadow_blocks(facts)).split())
    assert "would save 0.1 kWh, 10% of the energy of these jobs." in said
    nothing = of(start(same, same)).total
    assert (nothing.spent_j, nothing.saved_j) == (None, None)


def test_a_job_that_runs_counts_up_to_the_last_look() -> None:
    one = start(gpu_set(score=2.0, slowdown=2.0), gpu_set("n2"), ended_at=None)
    assert of(one).total.time_s == pytest.approx(DAY_S / 2)


def test_what_slurm_did_better_is_taken_off() -> None:
    lost = start(gpu_set(score=1.25, slowdown=1.25), gpu_set("n2"), 1)
    gained = start(gpu_set(), gpu_set("n2", score=1.25, slowdown=1.25), 2)
    total = of(lost, gained).total
    assert total.time_s == pytest.approx(720.0 - 900.0)
    assert [one.job.job_id for one in total.better] == ["2"]
    assert of(lost, gained).nothing_lost is False


def test_a_pair_without_a_link() -> None:
    given = gpu_set(slots=(0, 2), gbps=12.0, direct=False)
    total = of(start(given, gpu_set(slots=(0, 1)))).total
    (loss,) = total.of("links")
    assert total.unlinked == 1
    assert loss.bandwidth == pytest.approx(0.88)
    said = "no direct link on n1:0,2 (12 GB/s); n1:0,1 was free (100 GB/s)"
    assert sentence(loss, "links") == said


def test_links_that_are_as_good_or_not_known_are_no_loss() -> None:
    same = gpu_set(slots=(0, 2), gbps=12.0, direct=False)
    assert of(start(same, gpu_set("n2", (0, 2), gbps=12.0, direct=False))).total.of("links") == []
    unknown = gpu_set(slots=(0, 2), gbps=None, direct=None)
    found = of(start(unknown, gpu_set("n2", (0, 1))))
    assert found.total.of("links") == []
    assert any("1 of 1 compared jobs with several GPUs" in said for said in found.missing())


def test_a_node_that_was_broken_up_without_need() -> None:
    one = start(gpu_set(broken=("n1",)), gpu_set("n2"), waited_s=7200.0, waiting_job="9")
    (loss,) = of(one).total.of("nodes")
    assert sentence(loss, "nodes") == "broke up n1; n2:0 was free; job 9 waited 2 h for it"
    assert of(one).total.waited_s == 7200.0
    needed = start(gpu_set(broken=("n1",)), gpu_set("n2", broken=("n2",)))
    assert of(needed).total.of("nodes") == []


def test_what_is_not_known_is_said_and_not_zero() -> None:
    blank = {"score": None, "slowdown": None}
    found = of(start(gpu_set(**blank), gpu_set("n2"), power_w=None))
    assert (found.total.time_s, found.total.energy_j) == (None, None)
    missing = " ".join(found.missing())
    assert "1 of 1 compared jobs have no scores" in missing
    assert "no performance model" in missing
    assert not found.total.of("slow")


def test_nothing_to_gain_is_said_only_where_jobs_were_compared() -> None:
    assert of(start(gpu_set(), gpu_set("n2"))).nothing_lost is True
    assert of(replace(start(gpu_set(), None), reason="its form")).nothing_lost is None
    assert of().nothing_lost is None


UNSCORED = start(gpu_set(score=None, slowdown=None), gpu_set("n2"), 1)
UNLINKED = start(gpu_set(slots=(0, 2), gbps=None, direct=None), gpu_set("n2", (0, 1)), 2)


@pytest.mark.parametrize("unknown", [UNSCORED, UNLINKED])
def test_nothing_to_gain_is_not_said_where_it_is_not_known(unknown: ShadowJob) -> None:
    found = of(start(gpu_set(), gpu_set("n2"), 3), unknown)
    assert found.nothing_lost is None
    values = as_values(ShadowFacts(found, 30, [Watch(NOW, NOW + 1)]))
    assert values["nothing_to_gain"] is None
    said = blocks_text(shadow_blocks(ShadowFacts(found, 30, [Watch(NOW, NOW + 1)])))
    assert "There is nothing to gain" not in said
    assert "It is not known whether there is anything to gain." in said
    slow = start(gpu_set(score=1.25, slowdown=1.25), gpu_set("n2"), 4)
    assert of(slow, unknown).nothing_lost is False


def test_differences_within_the_noise_are_no_loss() -> None:
    assert of(start(gpu_set(score=1.004, slowdown=1.004), gpu_set("n2"))).total.of("slow") == []


def test_groups_by_week_and_partition() -> None:
    jobs = [start(gpu_set(), gpu_set("n2"), n, started_at=NOW + n * 7 * DAY_S) for n in range(2)]
    other = replace(jobs[0], partition="long")
    left = replace(start(gpu_set(), None, 5), reason="its form")
    found = of(*jobs, other, left)
    assert [(g.partition, g.jobs, len(g.losses)) for g in found.groups] == [
        ("gpu", 2, 1),
        ("long", 1, 1),
        ("gpu", 1, 1),
    ]
    assert week_of(NOW) < week_of(NOW + 7 * DAY_S)
    assert found.reasons == (("its form", 1),)
    values = as_values(ShadowFacts(found, 30, [Watch(NOW, NOW + 1)]))
    assert values["not_compared"] == {"its form": 1}
    assert values["compared"] == 3


def test_time_in_which_the_shadow_did_not_run() -> None:
    assert unwatched([Watch(0.0, 10.0), Watch(70.0, 80.0), Watch(75.0, 90.0)]) == 60.0
    assert unwatched([]) == 0.0
