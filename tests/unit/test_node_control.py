"""What setup --roll asks of Slurm: types become features, no job starts while files are read."""

from __future__ import annotations

import os
from pathlib import Path

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


SCONTROL = """\
#!/bin/sh
# A slurmd begins anew at the third look after the reconfigure; n2 does not answer.
cd {folder}
case "$*" in
*"show node"*)
    [ ! -e reconfigured ] || echo x >>looks
    start=100
    [ "$(wc -l <looks 2>/dev/null || echo 0)" -lt 3 ] || start=200
    echo "NodeName=n1 Arch=x State=IDLE ThreadsPerCore=1 SlurmdStartTime=$start LastBusyTime=7"
    echo "NodeName=n2 Arch=x State=DOWN*+NOT_RESPONDING ThreadsPerCore=1 SlurmdStartTime=100 Last=7"
    ;;
reconfigure) touch reconfigured ;;
esac
echo "$*" >>log
"""


def test_no_job_starts_before_the_slurmds_have_read_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("scontrol", SCONTROL.format(folder=tmp_path)), ("squeue", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    NodeControl().reconfigure()
    sent = [line.split(" reservation")[0] for line in (tmp_path / "log").read_text().splitlines()]
    looks = ["-o show node"] * 3
    assert sent == ["create", "-o show node", "reconfigure", *looks, "delete"]
