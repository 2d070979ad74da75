"""Power that a round counts: of jobs on a move, on lost nodes, and of those that end."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from commands import gpu_aware
from memory_slurm import node_record
from slurm_folder import SlurmFolder, parked
from test_mover import events, requeues, runs_for_hours
from test_site_power import (
    IDLE_W,
    NODES,
    answered,
    explored,
    fitted,
    job,
    limit,
    run,
    show,
    site,
)

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.power import PowerState
from slurm_gpu_aware.model.profile import GpuScore
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import put_scores

__all__ = ["fitted", "site"]

MAX_W = 300.0
"""Power limit of a GPU."""
MODELLED = "class=A,freq=auto"
UNKNOWN = "class=A,freq=auto,model=bert"


def running_7(site: SlurmFolder, comment: str = MODELLED) -> Rounds:
    """A selector that explores, under a limit that leaves too little for it; job 7 runs."""
    limit(site, IDLE_W + 2 * (MAX_W - 50.0) - 100.0)
    rounds, now = explored(site)
    answered(site, rounds, now[0])
    site.write([job("7", comment=comment)], NODES)
    run(site, rounds, now, 3)
    assert site.jobs["7"]["state"] == "RUNNING"
    return rounds


def state_of(site: SlurmFolder, rounds: Rounds, one: RunningJob, **kept_w: float) -> PowerState:
    """The power state of a round that finds this job."""
    cluster = Cluster.build(tuple(NODES), np.ones((2, 4), dtype=np.bool_), model=("v100", "v100"))
    cluster = replace(cluster, running=(one,))
    jobs = {name.removeprefix("job"): above_w for name, above_w in kept_w.items()}
    profile = LedgerWriter(site.store).profile()
    found = rounds.power.state(cluster, profile, PlanSettings(auto_clocks=True), jobs)
    assert found is not None
    return found


def hold(job_id: str, *gpus: tuple[int, tuple[int, ...]]) -> RunningJob:
    return RunningJob(job_id, gpus, time.time() + 3600.0, app_class="A")


def test_a_job_on_a_move_counts_with_what_is_kept_for_it(site: SlurmFolder) -> None:
    rounds = running_7(site)
    for job_id in ("7", "8"):  # whether or not this selector has placed it
        moving = hold(job_id, (1, (0, 1, 2)))
        kept = state_of(site, rounds, moving, **{f"job{job_id}": 123.0}).running[job_id]
        assert (kept.gpus, kept.max_w, kept.table) == (3, 123.0 + 3 * 50.0, None)
        assert not kept.adjustable


def test_a_job_on_a_move_is_not_explored(site: SlurmFolder) -> None:
    rounds = running_7(site, UNKNOWN)
    done = gpu_aware("power", "set", "5000", config=site.config)
    assert done.exit_code == 0, done.stderr
    there = hold("7", (0, (0, 1)))
    state_of(site, rounds, there, job7=100.0)
    assert events(site, "exploring") == []
    state_of(site, rounds, there)
    assert len(events(site, "exploring")) == 1


def test_no_model_is_missed_of_a_job_whose_gpus_slurm_shows_no_more(site: SlurmFolder) -> None:
    """Regression: while it ended, it was said that it might get GPUs of several models."""
    rounds = running_7(site, UNKNOWN)
    reading = rounds.power.reading()
    assert reading is not None
    assert reading.no_model.keys() == {"7"}
    state_of(site, rounds, hold("7"))
    reading = rounds.power.reading()
    assert reading is not None
    assert reading.no_model == {}


def test_power_is_kept_from_a_requeue_to_the_restart(site: SlurmFolder) -> None:
    """As much as the job drew, not the limits of the GPUs that are kept for it."""
    limit(site, IDLE_W + 4 * (MAX_W - 50.0) + 150.0)
    with site.config.open("a") as config:
        config.write('[placement]\npolicy = "pal"\n[moves]\nenabled = true\n')
        config.write("first_s = 0.0\nlast_s = 0.0\n")
    scores = [
        GpuScore(name, slot, "A", 100 * score, score, score, 0, 0, 1000.0)
        for name, score in (("n1", 2.0), ("n2", 1.0))
        for slot in range(4)
    ]
    with open_store(site.store) as store:
        put_scores(store, scores)
    other = {"licenses": "", "admin_comment": "", "nodes": "n2", "slots": [0, 1, 2, 3]}
    moving = parked("7", comment="class=A,freq=auto,move=ok")
    site.write([moving, parked("9", state="RUNNING", user_name="bob", **other)], NODES)
    assert site.round(2) == 0, site.said
    assert site.jobs["7"]["nodes"] == "n1", site.said
    runs_for_hours(site)
    site.change("9", state="COMPLETED", nodes="")
    assert site.round() == 0, site.said
    assert requeues(site) == 1, site.said
    (begun,) = events(site, "move_begun")
    kept_w = begun.detail["power_w"]
    assert 0 < kept_w < 2 * (MAX_W - 50.0) - 10.0
    site.change("7", reason="None")  # Slurm delays it, and does not say so yet
    assert site.round() == 0, site.said
    assert site.jobs["7"]["state"] == "PENDING"
    assert show(site)["last"]["planned_w"] == pytest.approx(IDLE_W + kept_w, abs=0.2)


@pytest.mark.parametrize("state", ["DOWN", "IDLE+DRAIN", "MIXED+DRAIN"])
def test_a_job_on_a_lost_node_counts_until_it_ends(site: SlurmFolder, state: str) -> None:
    """Its GPUs still draw power, though Slurm starts no other job on the node."""
    limit(site, 5000.0)
    site.write([job("7", comment="class=A")], NODES)
    assert site.round(2) == 0, site.said
    assert site.jobs["7"]["state"] == "RUNNING"
    before_w = show(site)["last"]["planned_w"]
    node = site.jobs["7"]["nodes"]
    lost = node_record(node, state=state, gres_used="gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)")
    site.set(nodes=[lost, *(node_record(name) for name in NODES if name != node)])
    assert site.round() == 0, site.said
    assert site.jobs["7"]["state"] == "RUNNING"
    # The two idle GPUs of its node count no more: Slurm cannot use them.
    assert show(site)["last"]["planned_w"] == pytest.approx(before_w - 2 * 50.0, abs=0.2)
