"""The gateway over ``scontrol``: complaints, and jobs that must be read a second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.slurm.cli_gateway import CliGateway
from slurm_gpu_aware.slurm.client import JobUpdate

FORGED = "x JobState=RUNNING"


def saying(folder: Path, text: str) -> CliGateway:
    """A gateway whose ``scontrol`` reads what it is told and complains."""
    script = folder / "scontrol"
    (folder / "said").write_text(text)
    script.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {folder}/said >&2\n")
    script.chmod(0o755)
    return CliGateway(scontrol=str(script))


@pytest.mark.parametrize(
    ("sent", "text", "refused"),
    [
        ("7", "Access/permission denied for job 7", "7"),
        ("98_3", "98_3: Requested node configuration is not available", "98_3"),
        ("98", "98_[4-9]: Requested node configuration is not available", "98"),
        ("98", "98_[0-5,...]: Job/step already completing or completed", "98"),
        ("98", "98_3: Job/step already completing or completed\n98_[4-9]: No error", "98"),
        ("98_3", "scontrol: scontrol: 98_3: Invalid license specification", "98_3"),
        ("98", "98_3: No error\n98_[4-9]: No error", None),
    ],
)
def test_complaints_are_known_by_their_job(
    tmp_path: Path, sent: str, text: str, refused: str | None
) -> None:
    gateway = saying(tmp_path, text + "\n")
    found = gateway.update_jobs([JobUpdate(sent, (("Licenses", ""),))])
    assert list(found) == ([] if refused is None else [refused])


def looks(slurm: FakeSlurm) -> list[int]:
    """Which jobs were read as JSON since the last call."""
    log = slurm.home / "log"
    given = [json.loads(line)[0] for line in log.read_text().splitlines()]
    log.unlink()
    return [int(argv[2]) for argv in given if "--json" in argv]


def test_doubtful_jobs_that_stay_the_same_are_read_once(slurm: FakeSlurm) -> None:
    (slurm.home / "json").touch()
    slurm.write([parked(str(n), JobName=FORGED) for n in range(100, 130)], ["n1"])
    gateway = CliGateway(scontrol=slurm.scontrol)
    readings = [(len(gateway.jobs()), len(looks(slurm)), len(gateway.unread)) for _ in range(3)]
    assert readings == [(20, 20, 10), (30, 10, 0), (30, 0, 0)]


def test_doubtful_jobs_that_change_take_turns(slurm: FakeSlurm) -> None:
    (slurm.home / "json").touch()
    gateway = CliGateway(scontrol=slurm.scontrol)
    numbers = range(100, 130)
    seen: list[set[int]] = []
    for reading in range(3):
        jobs = [parked(str(n), JobName=FORGED, Priority=str(reading)) for n in numbers]
        slurm.write([parked("7"), *jobs], ["n1"])
        read = {job.raw_id for job in gateway.jobs()}
        seen.append(set(looks(slurm)))
        assert len(seen[-1]) == 20
        assert read == seen[-1] | {7}
        assert gateway.unread == set(numbers) - read
    assert seen[0] | seen[1] == set(numbers)
    assert seen[2] != seen[1]


def test_a_job_that_does_not_exist_is_not_unread(slurm: FakeSlurm) -> None:
    (slurm.home / "json").touch()
    slurm.write([parked("7", Comment="x\nJobId=8 JobName=y UserId=z")], ["n1"])
    gateway = CliGateway(scontrol=slurm.scontrol)
    assert [job.id for job in gateway.jobs()] == ["7"]
    assert gateway.unread == frozenset()
    (slurm.home / "json").unlink()
    gateway = CliGateway(scontrol=slurm.scontrol)
    gateway.jobs()
    assert gateway.unread == {8}


def answering(folder: Path, text: str, as_json: str = "") -> CliGateway:
    """A gateway whose ``scontrol`` shows one text, and one JSON."""
    script = folder / "scontrol"
    (folder / "text").write_text(text)
    (folder / "json").write_text(as_json)
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--json*) cat {folder}/json ;; *) cat {folder}/text ;; esac\n'
    )
    script.chmod(0o755)
    return CliGateway(scontrol=str(script))


def test_a_node_that_cannot_be_understood_is_left_out_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = "NodeName=n1 State=IDLE Gres=gpu:4,shard:32 GresUsed=gpu:0(IDX:N/A),shard:0(0/8,0/8)\n"
    gateway = answering(tmp_path, f"{good}NodeName=n2 State=IDLE Gres=gpu:2G CPULoad=0.1\n")
    assert [node.name for node in gateway.nodes()] == ["n1"]
    answering(tmp_path, f"{good}NodeName=n2 State=IDLE Gres=gpu:2G CPULoad=0.2\n")
    assert [node.name for node in gateway.nodes()] == ["n1"]
    assert [record.getMessage() for record in caplog.records] == [
        "node n2 is left out: 'gpu:2G' is not a GRES of GPUs; expected gpu[:type]:count"
    ]


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 200_000,
        '{"jobs": [{"job_state": []}]}',
        '{"jobs": [{"job_state": ["PENDING"], "priority": {"set": true, "infinite": false,'
        ' "number": Infinity}}]}',
        '{"jobs": [7]}',
        '{"jobs": {}, "errors": ',
    ],
)
def test_a_job_whose_json_cannot_be_understood_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    gateway = answering(tmp_path, f"JobId=8 JobName={FORGED} UserId=alice(2001)\n", answer)
    for _ in range(2):
        assert gateway.jobs() == []
        assert gateway.unread == {8}
    assert len([r for r in caplog.records if "job 8 is passed over" in r.getMessage()]) == 1
