"""Pending jobs that ask for a GPU model by its feature ask for its type again before it goes."""

from typing import Any

import pytest
from memory_slurm import MemorySlurm, node_record, reservation_record
from slurm_folder import Interleaved, SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.deploy.gpu_types import ReturnedTypes, return_types
from slurm_gpu_aware.files import hold_selector_lock

ASKS = {"licenses": "", "admin_comment": "", "features": "gpu_v100", "stuck": True}
"""As the rollout or the filter leaves a job that does not wait at the gate."""
RECORD = "gpuaware/1;tn=gres/gpu:2;feat=gpu_v100;mc=1;mt=v100"


def back(slurm: SlurmFolder, *jobs: dict[str, Any], gres: str = "gpu:v100:4") -> ReturnedTypes:
    slurm.set(jobs=list(jobs), nodes=[node_record("n1", gres=gres)])
    return returned(slurm, slurm.client())


def returned(slurm: SlurmFolder, client: MemorySlurm) -> ReturnedTypes:
    return return_types(client, Config(store=StoreConfig(path=slurm.store)), {"a100", "v100"})


@pytest.mark.parametrize(
    "why",
    [
        {"reason": "JobHeldUser", "priority": 0},
        {"reason": "BeginTime", "eligible_time": 4_000_000_000},
        {"reason": "DependencyNeverSatisfied", "dependency": "afterok:3(failed)"},
        {"reason": "Resources"},
    ],
    ids=["held", "begin", "dependency", "resources"],
)
def test_a_job_that_may_wait_for_ever_gets_its_type_back(
    slurm: SlurmFolder, why: dict[str, Any]
) -> None:
    outcome = back(slurm, parked("7", **ASKS, **why))
    assert (outcome.changed, outcome.wrong) == (["7"], {})
    job = slurm.jobs["7"]
    assert (job["tres_per_node"], job["features"]) == ("gres/gpu:v100:2", "")


@pytest.mark.parametrize(
    ("asked", "typed"),
    [
        ({"tres_per_node": "gres/gpu"}, "gres/gpu:v100"),
        ({"tres_per_node": "gres/nic:1,gres/gpu:4"}, "gres/nic:1,gres/gpu:v100:4"),
        ({"tres_per_job": "gres/gpu:4"}, "gres/gpu:v100:4"),
        ({"tres_per_task": "cpu=2,gres/gpu=1"}, "cpu=2,gres/gpu:v100=1"),
        ({"tres_per_socket": "gres/gpu:1"}, "gres/gpu:v100:1"),
    ],
)
def test_all_forms_keep_their_counts(slurm: SlurmFolder, asked: dict[str, str], typed: str) -> None:
    (name,) = asked
    assert back(slurm, parked("7", **{**ASKS, "tres_per_node": "", **asked})).changed == ["7"]
    assert slurm.jobs["7"][name] == typed


@pytest.mark.parametrize(
    ("features", "left"),
    [
        ("big&gpu_v100", "big"),
        ("gpu_v100&big", "big"),
        ("gpu_v100,big", "big"),
        ("(big|small)&gpu_v100", "big|small"),
    ],
)
def test_the_owners_constraint_stays(slurm: SlurmFolder, features: str, left: str) -> None:
    assert back(slurm, parked("7", **{**ASKS, "features": features})).changed == ["7"]
    assert slurm.jobs["7"]["features"] == left


def test_the_type_is_spelled_as_slurm_spells_it(slurm: SlurmFolder) -> None:
    assert back(slurm, parked("7", **ASKS), gres="gpu:V100:4").changed == ["7"]
    assert slurm.jobs["7"]["tres_per_node"] == "gres/gpu:V100:2"


def test_a_parked_job_is_left_to_slurm(slurm: SlurmFolder) -> None:
    """As typed requests are where no node has one type per GPU."""
    slurm.reserve(reservation_record("gpuaware_pool"))
    record = f"{RECORD};lic=matlab:2"
    pool = {"licenses": "matlab:2,gpuaware:1", "resv_name": "gpuaware_pool"}
    asked = {**ASKS, "admin_comment": record, **pool}
    assert back(slurm, parked("7", **asked)).changed == ["7"]
    job = slurm.jobs["7"]
    assert (job["licenses"], job["resv_name"], job["admin_comment"]) == ("matlab:2", "", "")
    assert job["tres_per_node"] == "gres/gpu:v100:2"


def test_a_comment_of_the_site_comes_back(slurm: SlurmFolder) -> None:
    asked = {**ASKS, "admin_comment": f"{RECORD};ac=billing%20x;sel=opened:0:1"}
    back(slurm, parked("7", **asked))
    assert slurm.jobs["7"]["admin_comment"] == "billing x"


def test_the_rest_of_an_array_changes_without_its_running_task(slurm: SlurmFolder) -> None:
    task = {**ASKS, "array_job_id": 7}
    running = parked("8", **task, array_task_id=0, state="RUNNING", nodes="n1")
    assert back(slurm, parked("7", **task, array_task_str="1-3"), running).changed == ["7"]
    jobs = slurm.jobs
    assert (jobs["7"]["features"], jobs["8"]["features"]) == ("", "gpu_v100")
    assert slurm.get("touched_running") == []


def test_a_job_that_has_started_needs_nothing(slurm: SlurmFolder) -> None:
    """It starts between the two updates, or ran before."""
    starts = parked("7", **{**ASKS, "stuck": False})
    outcome = back(slurm, starts, parked("8", **ASKS, state="RUNNING", nodes="n1"))
    assert (outcome.changed, outcome.wrong) == ([], {})
    assert slurm.jobs["7"]["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("fields", "why", "command"),
    [
        (
            {"features": "gpu_v100|gpu_a100"},
            "names several models",
            "scontrol update JobId=7 Features=CONSTRAINT",
        ),
        (
            {"features": "[gpu_v100|big]"},
            "its constraint is",
            "scontrol update JobId=7 Features=CONSTRAINT",
        ),
        ({"features": "gpu_a100"}, "no node has GPUs of type a100", "JobId=7 Features="),
        ({"tres_per_node": ""}, "it asks for no GPUs", "scontrol update JobId=7 Features="),
        ({"het_job_id": 7}, "heterogeneous", "scancel 7"),
    ],
)
def test_a_job_that_cannot_be_changed_is_named_with_what_to_type(
    slurm: SlurmFolder, fields: dict[str, Any], why: str, command: str
) -> None:
    before = parked("7", **{**ASKS, **fields})
    outcome = back(slurm, before)
    assert outcome.changed == []
    assert why in outcome.wrong["7"]
    assert command in outcome.wrong["7"]
    assert slurm.jobs["7"] == before


def test_what_slurm_refuses_keeps_the_feature(slurm: SlurmFolder) -> None:
    """Without type and feature it could start on GPUs of any model."""
    slurm.set(refuse=["7"])
    outcome = back(slurm, parked("7", **{**ASKS, "features": "big&gpu_v100"}))
    assert "scontrol update JobId=7 TresPerNode=gres/gpu:v100:2 Features=big" in outcome.wrong["7"]
    assert slurm.jobs["7"]["features"] == "big&gpu_v100"


def test_a_killed_run_is_finished_by_the_next(slurm: SlurmFolder) -> None:
    job = parked("7", **{**ASKS, "tres_per_node": "gres/gpu:v100:2"})
    assert back(slurm, job).changed == ["7"]
    assert (slurm.jobs["7"]["tres_per_node"], slurm.jobs["7"]["features"]) == (
        "gres/gpu:v100:2",
        "",
    )


def test_a_placed_job_is_the_selectors(slurm: SlurmFolder) -> None:
    asked = {**ASKS, "admin_comment": f"{RECORD};sel=released:0:1", "req_nodes": "n1"}
    outcome = back(slurm, parked("7", **asked))
    assert "it is placed" in outcome.wrong["7"]


def test_no_selector_binds_a_job_between_reading_and_updates(slurm: SlurmFolder) -> None:
    """It would be bound to a node, without our record and without its model."""
    slurm.set(jobs=[], nodes=[node_record("n1", gres="gpu:v100:4")])
    assert slurm.round() == 0  # it has run on this host before
    job = parked("7", admin_comment=RECORD, features="gpu_v100", stuck=True)
    slurm.set(jobs=[job])
    client = Interleaved(slurm)
    assert returned(slurm, client).changed == ["7"]
    assert client.codes != [0]
    assert "another selector runs" in slurm.said
    job = slurm.jobs["7"]
    assert (job["tres_per_node"], job["features"]) == ("gres/gpu:v100:2", "")
    assert (job["req_nodes"], job["licenses"], job["admin_comment"]) == ("", "", "")


def test_a_working_selector_keeps_all_jobs(slurm: SlurmFolder) -> None:
    gated = parked("7", admin_comment=RECORD, features="gpu_v100", stuck=True)
    with hold_selector_lock(slurm.store):
        outcome = back(slurm, gated, parked("8", **ASKS), parked("9", stuck=True))
    assert (outcome.changed, list(outcome.wrong)) == ([], ["7", "8"])
    assert "changes only while no selector works: another selector runs" in outcome.wrong["7"]
    assert [call for call in slurm.calls if call[0] == "update"] == []
