"""What setup --roll asks of Slurm about jobs: types become features, where srun allows it."""

from pathlib import Path
from typing import Any

import pytest
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.deploy.gpu_types import TypedJobs

TYPED = {"tres_per_node": "gres/gpu:v100:2", "admin_comment": "", "licenses": ""}


class State:
    """StateSaveLocation with the files of batch jobs as slurmctld writes them."""

    def __init__(self, slurm: SlurmFolder) -> None:
        self._folder = slurm.home / "state"
        slurm.set(settings={"StateSaveLocation": str(self._folder)})

    def batch(self, number: int, *environment: str, script: str = "srun ./x\n") -> Path:
        folder = self._folder / f"hash.{number % 10}" / f"job.{number}"
        folder.mkdir(parents=True)
        texts = b"".join(text.encode() + b"\0" for text in environment)
        count = len(environment).to_bytes(4, "little")
        (folder / "environment").write_bytes(count + texts)
        (folder / "script").write_bytes(f"#!/bin/bash\n{script}".encode() + b"\0")
        return folder


def convert(slurm: SlurmFolder) -> tuple[list[str], list[str]]:
    said: list[str] = []
    return TypedJobs(slurm.client(), said.append).convert(frozenset({"v100"})), said


def test_typed_requests_become_features(slurm: SlurmFolder) -> None:
    state = State(slurm)
    for number in (7, 8, 9, 10, 11):
        state.batch(number, "HOME=/", "SLURM_GPUS_PER_NODE=2")
    slurm.write(
        [
            parked("7", **TYPED),
            parked("8", **TYPED, features="big"),
            parked("9", **TYPED, features="[a|b]"),
            parked("10"),
            parked("11", **{**TYPED, "tres_per_node": "", "tres_per_job": "gres/gpu:v100:4"}),
        ],
        ["n1"],
    )
    changed, said = convert(slurm)
    assert changed == ["7", "8", "11"]
    assert "jobs 7, 8, 11 now ask for a feature instead of a GPU type" in said
    assert any(line.startswith("job 9 can start only on nodes") for line in said)
    asked = {i: (job["tres_per_node"], job["features"]) for i, job in slurm.jobs.items()}
    assert asked["7"] == ("gres/gpu:2", "gpu_v100")
    assert asked["8"] == ("gres/gpu:2", "big&gpu_v100")
    assert asked["9"] == ("gres/gpu:v100:2", "[a|b]")
    assert slurm.jobs["11"]["tres_per_job"] == "gres/gpu:4"


@pytest.mark.parametrize(
    ("environment", "script", "why"),
    [
        ("SLURM_GPUS_PER_NODE=v100:2", "srun ./x\n", "its environment names the type"),
        ("SLURM_TRES_PER_TASK=cpu=1,gres/gpu:v100=1", "", "(SLURM_TRES_PER_TASK)"),
        ("SLURM_GRES=gpu:v100", "", "(SLURM_GRES)"),
        ("SLURM_GPUS=2", "srun --gres=gpu:v100:1 ./x\n", "its script asks for GPU type v100"),
        ("SLURM_GPUS=2", "srun -G v100:1 ./x\n", "its script asks for GPU type v100"),
        ("SLURM_GPUS=2", "#SBATCH --gpus=v100:2\nsrun ./x\n", None),
        ("SBATCH_GPUS=v100:2", "", None),
        ("SLURM_GPUS=v1000:2", "srun --gpus=v100s:2\n", None),
    ],
)
def test_where_srun_inside_asks_for_the_type_a_job_keeps_it(
    slurm: SlurmFolder, environment: str, script: str, why: str | None
) -> None:
    State(slurm).batch(7, environment, script=script)
    slurm.write([parked("7", **TYPED)], ["n1"])
    changed, said = convert(slurm)
    assert changed == ([] if why else ["7"])
    assert why is None or why in said[0]


def test_without_files_a_job_keeps_its_type(slurm: SlurmFolder) -> None:
    """srun and salloc have none; one that is too large is not read."""
    folder = State(slurm).batch(8)
    with (folder / "environment").open("r+b") as file:
        file.truncate(1 << 25)
    slurm.write([parked("7", **TYPED), parked("8", **TYPED)], ["n1"])
    changed, said = convert(slurm)
    assert changed == []
    assert "no script" in said[0]
    assert "too large" in said[1]


def test_tasks_of_an_array_have_the_files_of_the_array(slurm: SlurmFolder) -> None:
    State(slurm).batch(70, "SLURM_GPUS=2")
    task: dict[str, Any] = {**TYPED, "array_job_id": 70, "array_task_id": 3}
    slurm.write([parked("75", **task)], ["n1"])
    assert convert(slurm)[0] == ["70_3"]


def test_several_types_stay(slurm: SlurmFolder) -> None:
    State(slurm).batch(7)
    asked = {**TYPED, "tres_per_node": "gres/gpu:v100:1,gres/gpu:a100:1"}
    slurm.write([parked("7", **asked)], ["n1"])
    assert convert(slurm) == (
        [],
        ["job 7 can start only on nodes with GPUs of its type: it asks for several types"],
    )


def test_a_single_job_asks(slurm: SlurmFolder) -> None:
    State(slurm).batch(7, "SLURM_GPUS=2")
    slurm.write([parked("7", **TYPED)], ["n1"])
    assert convert(slurm)[1] == ["job 7 now asks for a feature instead of a GPU type"]


@pytest.mark.parametrize("seen", [True, False], ids=["before", "meanwhile"])
def test_an_array_that_has_begun_to_start_is_not_stranded(slurm: SlurmFolder, seen: bool) -> None:
    """An update by the id of the array also concerns the running task, and is refused for it."""
    State(slurm).batch(7, "SLURM_GPUS=2")
    array: dict[str, Any] = {**TYPED, "array_job_id": 7, "stuck": True}
    task = {"array_task_id": 0, "state": "RUNNING", "nodes": "n1"}
    rest, first = parked("7", **array, array_task_str="1-3"), parked("8", **array, **task)
    slurm.write([rest, first] if seen else [rest], ["n1"])
    client: Any = slurm.client()
    update = client.update_jobs

    def start_first(updates: Any) -> Any:
        slurm.set(jobs=[rest, first])
        return update(updates)

    client.update_jobs = start_first
    said: list[str] = []
    assert TypedJobs(client, said.append).convert({"v100"}) == ["7"]
    assert said == ["job 7 now asks for a feature instead of a GPU type"]
    assert (slurm.jobs["7"]["features"], slurm.jobs["8"]["features"]) == ("gpu_v100", "")


def test_a_job_that_starts_meanwhile_is_not_stranded(slurm: SlurmFolder) -> None:
    State(slurm).batch(7, "SLURM_GPUS=2")
    slurm.write([parked("7", **TYPED)], ["n1"])
    client: Any = slurm.client()
    update = client.update_jobs

    def start(updates: Any) -> Any:
        slurm.change("7", state="RUNNING", nodes="n1")
        return update(updates)

    client.update_jobs = start
    said: list[str] = []
    assert TypedJobs(client, said.append).convert({"v100"}) == []
    assert said == []


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("gpuaware/1;tn=gres/gpu:v100:2;mc=1", "it waits to be placed by node"),
        ("gpuaware/1;tn=gres/gpu:v100:2;mc=1;lf=it%20names%20a%20GPU%20type", None),
        ("a comment of the site", None),
    ],
    ids=["placed by us", "left to Slurm", "not ours"],
)
def test_a_job_that_nodes_mode_has_parked_keeps_its_type(
    slurm: SlurmFolder, record: str, why: str | None
) -> None:
    """The selector writes back what its record has: the type would return, with the feature."""
    State(slurm).batch(7, "SLURM_GPUS=2")
    job = parked("7", **{**TYPED, "admin_comment": record})
    slurm.write([job], ["n1"])
    changed, said = convert(slurm)
    assert changed == ([] if why else ["7"])
    asked = (slurm.jobs["7"]["tres_per_node"], slurm.jobs["7"]["features"])
    assert asked == (("gres/gpu:v100:2", "") if why else ("gres/gpu:2", "gpu_v100"))
    assert why is None or why in said[0]
