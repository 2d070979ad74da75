"""What setup --roll asks of Slurm: types become features, no job starts while files are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.errors import NoAnswerError, SourceError
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


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Takes the text of a ``scontrol``, in which ``{folder}`` is a folder of its own."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(scontrol: str) -> None:
        for name, text in (
            ("scontrol", scontrol.format(folder=tmp_path)),
            ("squeue", "#!/bin/sh\n"),
        ):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)

    return write


def sent(folder: Path) -> list[str]:
    return [line.split(" reservation")[0] for line in (folder / "log").read_text().splitlines()]


def test_no_job_starts_before_the_slurmds_have_read_their_files(
    tmp_path: Path, scripted: Callable[[str], None]
) -> None:
    scripted(SCONTROL)
    NodeControl().reconfigure()
    looks = ["-o show node"] * 3
    assert sent(tmp_path) == ["create", "-o show node", "reconfigure", *looks, "delete"]


TIMED_OUT = "echo 'slurm_reconfigure error: Socket timed out on send/recv operation' >&2; exit 1"


def test_a_lost_answer_is_no_refusal(tmp_path: Path, scripted: Callable[[str], None]) -> None:
    """A large slurmctld takes longer than scontrol waits; the slurmds begin anew all the same."""
    scripted(SCONTROL.replace("touch reconfigured", f"touch reconfigured; {TIMED_OUT}"))
    NodeControl().reconfigure()
    assert sent(tmp_path)[-1] == "delete"


def test_a_refusal_is_told(
    scripted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeControl, "SLURMDS_S", 0.5)
    scripted(SCONTROL.replace("touch reconfigured", "echo 'Access denied' >&2; exit 1"))
    with pytest.raises(SourceError, match="Access denied") as caught:
        NodeControl().reconfigure()
    assert not isinstance(caught.value, NoAnswerError)


def test_restarted_in_the_meantime(
    scripted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers again, but the slurmds, that register one by one, were never told."""
    monkeypatch.setattr(NodeControl, "SLURMDS_S", 1.5)
    script = SCONTROL.replace("] || start=200", "] || later=1")
    script = script.replace(
        "    echo", '    [ ! -e reconfigured ] || [ "$later" ] || start=None\n    echo', 1
    )
    scripted(script.replace("touch reconfigured", f"touch reconfigured; {TIMED_OUT}"))
    with pytest.raises(NoAnswerError, match="Socket timed out"):
        NodeControl().reconfigure()


@pytest.mark.parametrize("reply", ["", TIMED_OUT])
def test_a_slurmctld_that_hangs(
    tmp_path: Path,
    scripted: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    reply: str,
) -> None:
    """Its reply to reconfigure may have come before; nobody is asked to delete the reservation."""
    monkeypatch.setattr(NodeControl, "ANSWER_S", 0.6)
    hangs = f"[ ! -e reconfigured ] || {{{{ {TIMED_OUT}; }}}}\n"
    script = SCONTROL.replace("cd {folder}\n", "cd {folder}\n" + hangs)
    scripted(script.replace("touch reconfigured", f"touch reconfigured; {reply}"))
    with pytest.raises(NoAnswerError, match="slurmctld has not answered for 1 s"):
        NodeControl().reconfigure()
    assert "delete" not in sent(tmp_path)
