"""What setup --roll asks of Slurm about jobs: types become features."""

from __future__ import annotations

from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.deploy.job_requests import untype_pending


def test_typed_requests_become_features(slurm: SlurmFolder) -> None:
    typed = {"tres_per_node": "gres/gpu:v100:2", "admin_comment": ""}
    slurm.write(
        [
            parked("7", **typed),
            parked("8", **typed, features="big"),
            parked("9", **typed, features="[a|b]"),
            parked("10"),
        ],
        ["n1"],
    )
    changed, complaints = untype_pending(slurm.client(), frozenset({"v100"}))
    assert changed == ["7", "8"]
    assert list(complaints) == ["9"]
    asked = {i: (job["tres_per_node"], job["features"]) for i, job in slurm.jobs.items()}
    assert asked["7"] == ("gres/gpu:2", "gpu_v100")
    assert asked["8"] == ("gres/gpu:2", "big&gpu_v100")
    assert asked["9"] == ("gres/gpu:v100:2", "[a|b]")
