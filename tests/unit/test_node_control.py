"""What setup --roll asks of Slurm about jobs: types become features."""

from __future__ import annotations

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.slurm.node_control import NodeControl


def test_typed_requests_become_features(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    monkeypatch.setenv("FAKE_SLURM", str(slurm.home))
    typed = {"TresPerNode": "gres/gpu:v100:2", "AdminComment": "(null)"}
    slurm.write(
        [
            parked("7", **typed),
            parked("8", **typed, Features="big"),
            parked("9", **typed, Features="[a|b]"),
            parked("10"),
        ],
        ["n1"],
    )
    changed, complaints = NodeControl().untype_pending(frozenset({"v100"}))
    assert changed == ["7", "8"]
    assert list(complaints) == ["9"]
    asked = {i: (job["TresPerNode"], job.get("Features")) for i, job in slurm.jobs.items()}
    assert asked["7"] == ("gres/gpu:2", "gpu_v100")
    assert asked["8"] == ("gres/gpu:2", "big&gpu_v100")
    assert asked["9"] == ("gres/gpu:v100:2", "[a|b]")
