"""Power that a round counts: of jobs on a move, on lost nodes, and of those that end."""

import time
from dataclasses import replace

import numpy as np
import pytest
from memory_slurm import node_record
from slurm_folder import SlurmFolder, parked, run_by_slurm
from test_mover import put_times, requeues, runs_for_hours
from test_site_power import (
    IDLE_W,
    NODES,
    Exploring,
    class_a,
    fitted,
    limit,
    powered,
    set_limit,
    show,
)

from slurm_gpu_aware.features.power.power_budget import PowerState
from slurm_gpu_aware.features.power.site_power import SitePower
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.store.database import open_store

__all__ = ["fitted", "powered"]

MAX_W = 300.0
"""Power limit of a GPU."""
MODELLED = "class=A,freq=auto"
UNKNOWN = "class=A,freq=auto,model=bert"


def running_7(site: SlurmFolder, comment: str = MODELLED) -> Rounds:
    """A selector that explores, under a limit that leaves too little for it; job 7 runs."""
    limit(site, IDLE_W + 2 * (MAX_W - 50.0) - 100.0)
    one = Exploring(site)
    one.starts(3, comment=comment)
    return one.rounds


def state_of(site: SlurmFolder, rounds: Rounds, one: RunningJob, **kept_w: float) -> PowerState:
    """The power state of a round that finds this job."""
    cluster = Cluster.build(tuple(NODES), np.ones((2, 4), dtype=np.bool_), model=("v100", "v100"))
    cluster = replace(cluster, running=(one,))
    jobs = {name.removeprefix("job"): above_w for name, above_w in kept_w.items()}
    profile = LedgerWriter(site.store).profile()
    return rounds.site.of(SitePower).state(cluster, profile, PlanSettings(auto_clocks=True), jobs)


def hold(job_id: str, *gpus: tuple[int, tuple[int, ...]]) -> RunningJob:
    return RunningJob(job_id, gpus, time.time() + 3600.0, app_class="A")


def test_a_job_on_a_move_counts_with_what_is_kept_for_it(powered: SlurmFolder) -> None:
    rounds = running_7(powered)
    for job_id in ("7", "8"):  # whether or not this selector has placed it
        moving = hold(job_id, (1, (0, 1, 2)))
        kept = state_of(powered, rounds, moving, **{f"job{job_id}": 123.0}).running[job_id]
        assert (kept.gpus, kept.max_w, kept.table) == (3, 123.0 + 3 * 50.0, None)
        assert not kept.adjustable


def test_a_job_on_a_move_is_not_explored(powered: SlurmFolder) -> None:
    rounds = running_7(powered, UNKNOWN)
    set_limit(powered, "5000")
    there = hold("7", (0, (0, 1)))
    state_of(powered, rounds, there, job7=100.0)
    assert powered.events("exploring") == []
    state_of(powered, rounds, there)
    assert len(powered.events("exploring")) == 1


def test_no_model_is_missed_of_a_job_whose_gpus_slurm_shows_no_more(powered: SlurmFolder) -> None:
    """Regression: while it ended, it was said that it might get GPUs of several models."""
    rounds = running_7(powered, UNKNOWN)
    assert rounds.site.of(SitePower).reading().no_model.keys() == {"7"}
    state_of(powered, rounds, hold("7"))
    assert rounds.site.of(SitePower).reading().no_model == {}


def test_power_is_kept_from_a_requeue_to_the_restart(powered: SlurmFolder) -> None:
    """As much as the job drew, not the limits of the GPUs that are kept for it."""
    limit(powered, IDLE_W + 4 * (MAX_W - 50.0) + 150.0)
    moves = "[moves]\nenabled = true\nfirst_s = 0.0\nlast_s = 0.0"
    powered.configure(f'[placement]\npolicy = "pal"\n{moves}')
    with open_store(powered.store) as store:
        put_times(store, n1=200.0, n2=100.0)
    moving = parked("7", comment="class=A,freq=auto,move=ok")
    powered.write([moving, run_by_slurm("9", "n2", user_name="bob")], NODES)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["7"]["nodes"] == "n1", powered.said
    runs_for_hours(powered)
    powered.change("9", state="COMPLETED", nodes="")
    assert powered.round() == 0, powered.said
    assert requeues(powered) == 1, powered.said
    (begun,) = powered.events("move_begun")
    kept_w = begun.detail["power_w"]
    assert 0 < kept_w < 2 * (MAX_W - 50.0) - 10.0
    powered.change("7", reason="None")  # Slurm delays it, and does not say so yet
    assert powered.round() == 0, powered.said
    assert powered.jobs["7"]["state"] == "PENDING"
    assert show(powered)["last"]["planned_w"] == pytest.approx(IDLE_W + kept_w, abs=0.2)


@pytest.mark.parametrize("state", ["DOWN", "IDLE+DRAIN", "MIXED+DRAIN"])
def test_a_job_on_a_lost_node_counts_until_it_ends(powered: SlurmFolder, state: str) -> None:
    """Its GPUs still draw power, though Slurm starts no other job on the node."""
    limit(powered, 5000.0)
    powered.write([class_a("7", comment="class=A")], NODES)
    assert powered.round(2) == 0, powered.said
    assert powered.jobs["7"]["state"] == "RUNNING"
    before_w = show(powered)["last"]["planned_w"]
    node = powered.jobs["7"]["nodes"]
    lost = node_record(node, state=state, gres_used="gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)")
    powered.set(nodes=[lost, *(node_record(name) for name in NODES if name != node)])
    assert powered.round() == 0, powered.said
    assert powered.jobs["7"]["state"] == "RUNNING"
    # The two idle GPUs of its node count no more: Slurm cannot use them.
    assert show(powered)["last"]["planned_w"] == pytest.approx(before_w - 2 * 50.0, abs=0.2)
