"""Reading all jobs again and again: only what changed is parsed, and nobody can hide behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpu_aware.slurm import parse
from slurm_gpu_aware.slurm.job_reader import JobReader, parse_jobs
from slurm_gpu_aware.slurm.records import SlurmJob

RECORDED = Path(__file__).parents[1] / "data" / "slurm-24.11" / "jobs.txt"
RUNNING = RECORDED.read_text(errors="surrogateescape").partition("\n")[0]
SHARES = RUNNING[RUNNING.index("  Nodes=") : RUNNING.index(" MinCPUsNode=")]
ENDED = RUNNING.replace("JobState=RUNNING", "JobState=COMPLETED").replace(SHARES, "")


def record(number: int, text: str = ENDED, **values: str) -> str:
    text = text.replace("JobId=116 ", f"JobId={number} ")
    for key, value in values.items():
        before, _, rest = text.partition(f" {key}=")
        text = f"{before} {key}={value} {rest.partition(' ')[2]}"
    return text


class Counting:
    """How many records were parsed since the last look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        self._inner = parse._fields
        monkeypatch.setattr(parse, "_fields", self)

    def __call__(self, *args: object) -> object:
        self._count += 1
        return self._inner(*args)  # type: ignore[arg-type]

    def look(self) -> int:
        count, self._count = self._count, 0
        return count


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


def read(reader: JobReader, *records: str) -> dict[int, SlurmJob]:
    found = reader.read("\n".join(records) + "\n")
    assert found == parse_jobs("\n".join(records) + "\n")
    return {job.raw_id: job for job in found.jobs}


def test_only_what_changed_is_parsed(counting: Counting) -> None:
    reader = JobReader()
    jobs = [record(n) for n in range(1, 40)]
    reader.read("\n".join(jobs))
    assert counting.look() == 39
    jobs[4] = record(5, Restarts="2")
    found = reader.read("\n".join([*jobs, record(40)]))
    assert counting.look() == 2
    assert len(found.jobs) == 40
    assert found.jobs[4].restarts == 2
    reader.read("\n".join(jobs[:10]))
    reader.read("\n".join(jobs))
    assert counting.look() == 29  # of jobs that were gone nothing is kept


def test_the_time_that_a_job_has_run_is_no_change(counting: Counting) -> None:
    reader = JobReader()
    for run_time in ("00:00:09", "00:00:10", "1-00:00:00"):
        found = reader.read(record(1, RUNNING, RunTime=run_time))
        assert [share.gpus for share in found.jobs[0].shares] == [(0, 1)]
    assert counting.look() == 1
    ended = reader.read(record(1, ENDED, RunTime="1-00:00:01"))
    assert (ended.jobs[0].state, ended.jobs[0].shares) == ("COMPLETED", ())


def test_the_same_as_by_a_first_reading() -> None:
    reader = JobReader()
    text = RECORDED.read_text(errors="surrogateescape")
    for later in (text, text.replace("RunTime=00:00:1", "RunTime=00:00:2"), text):
        found, once = reader.read(later), parse_jobs(later)
        assert found == once
        assert found.doubtful
    assert reader.read("No jobs in the system\n").jobs == []


def test_a_record_that_a_user_lengthens_is_another_one() -> None:
    reader = JobReader()
    plain = [record(1), record(2)]
    assert set(read(reader, *plain)) == {1, 2}
    forged = record(1, JobName="x JobState=RUNNING")
    assert set(read(reader, forged, plain[1])) == set()
    for tail in ("JobId=2 JobName=y UserId=root(0)", record(2)):
        assert 2 not in read(reader, plain[0] + f"Comment=x\n{tail}", plain[1])
    for tail in (f"JobId={'9' * 5000} x", "JobId=3", "JobId=\u0663 x"):  # no number of Slurm's
        found = read(reader, plain[0] + f"Comment=x\n{tail}", plain[1])
        assert found[2].user == "alice"
        assert found[1].comment == f"x\n{tail}"
    assert set(read(reader, *plain)) == {1, 2}


def test_the_digest_of_a_doubtful_record_stands_still_while_it_runs() -> None:
    reader = JobReader()
    named = record(1, RUNNING, JobName="x JobState=PENDING")
    digests = [
        reader.read(named.replace("RunTime=00:00:15", f"RunTime=00:00:{second}")).digests
        for second in (15, 16)
    ]
    assert list(digests[0]) == [1]
    assert digests[0] == digests[1]
    assert reader.read(record(1, RUNNING, JobName="y JobState=PENDING")).digests != digests[0]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("shard:1(1/4,0/4)", ()),
        ("gpu:a100(CNT:2)", ()),
        ("gpu:g0:1(IDX:0),tmp(CNT:10)", (0,)),
        ("gpu:g0:1(IDX:0),gpu:g1:1(IDX:1),VramPerGpu(CNT:0)", (0, 1)),
        ("gpu:1g.5gb:1(IDX:3),mps:a100:50(50/100,0/100)", (3,)),
    ],
)
def test_gres_of_running_jobs(gres: str, gpus: tuple[int, ...]) -> None:
    head, _, rest = RUNNING.partition(" GRES=")
    found = parse_jobs(f"{head} GRES={gres} {rest.partition(' ')[2]}")
    assert found.doubtful == []
    assert [share.gpus for share in found.jobs[0].shares] == [gpus]


def test_counts_that_slurm_shortens() -> None:
    (job,) = parse_jobs(
        record(1, NumCPUs="2K", NumNodes="1K-2K", ReqTRES="cpu=2K,mem=1.5T,node=1K,gres/tmp=512G")
    ).jobs
    assert (job.cpus, job.min_nodes, job.max_nodes) == (2048, 1024, 2048)
    assert job.req_tres == {"cpu": 2048, "mem": 1572864, "node": 1024, "gres/tmp": 512 * 1024**3}
