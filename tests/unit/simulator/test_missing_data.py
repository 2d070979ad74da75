"""What a history does not have is said, never taken for none. One thing is missing at a time."""

import math
from pathlib import Path
from typing import Any

import pytest
from sacct_samples import RECORD, ROW, read_records, read_rows, record, sacct_text

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.sacct_trace import read_sacct, read_trace
from slurm_gpu_aware.slurm.sacct import SACCT_FIELDS

OTHER = ROW | {"JobID": "8", "User": "bob"}
NO_GPU = "no job has GPUs in accounting: AccountingStorageTRES in slurm.conf has no gres/gpu"
REFUSED = ("Submit", "Start", "ElapsedRaw", "State")
"""Without them no job can be played."""


def test_a_whole_history_lacks_nothing() -> None:
    trace = read_rows(ROW, OTHER)
    assert (trace.missing, trace.bad_rows, len(trace.jobs)) == ((), (), 2)


@pytest.mark.parametrize("name", [c for c in SACCT_FIELDS if c not in REFUSED])
def test_a_column_that_is_absent_is_said_with_its_cost(name: str) -> None:
    columns = [c if c != "JobID" else "JobIDRaw" for c in SACCT_FIELDS if c != name or c == "JobID"]
    if name != "JobID":
        columns[0] = "JobID"
    trace = read_rows(ROW | {"JobIDRaw": "7"}, OTHER | {"JobIDRaw": "8"}, columns=columns)
    assert [(job.job_id, job.gpus) for job in trace.jobs] == [("7", 2), ("8", 2)]
    if name in ("Partition", "NNodes", "ReqTRES"):  # not used, or another column tells it
        assert trace.missing == ()
        return
    said, cure = trace.missing
    assert said.startswith(f"no column {name}: ")
    assert cure == f"add to sacct's --format: {name}"


@pytest.mark.parametrize("name", REFUSED)
def test_a_column_without_which_no_job_can_be_played_is_refused(name: str) -> None:
    columns = [c for c in SACCT_FIELDS if c != name]
    with pytest.raises(SourceError, match=rf"h: no column '{name}'; make it with: SLURM_TIME_F"):
        read_rows(ROW, columns=columns)


@pytest.mark.parametrize("name", ["JobID", *REFUSED])
def test_an_empty_cell_is_no_zero(name: str) -> None:
    trace = read_rows(ROW, OTHER | {name: ""})
    assert [job.job_id for job in trace.jobs] == ["7"]
    assert len(trace.bad_rows) == 1 or trace.skipped == {"never started": 1}
    assert (name == "Start") == (trace.bad_rows == ())


@pytest.mark.parametrize("cell", ["", "Partition_Limit"])
def test_a_time_limit_that_is_not_recorded(cell: str) -> None:
    trace = read_rows(ROW, OTHER | {"TimelimitRaw": cell})
    assert trace.jobs[1].time_limit_s == math.inf
    assert trace.missing == (
        "TimelimitRaw is not known of 1 of 2 jobs: these jobs count as without time limit",
    )
    assert read_rows(ROW, OTHER | {"TimelimitRaw": "UNLIMITED"}).missing == ()


def test_comments_that_no_job_has() -> None:
    assert read_rows(ROW, OTHER | {"Comment": ""}).missing == ()  # a user need not write one
    (said,) = read_rows(ROW | {"Comment": ""}, OTHER | {"Comment": ""}).missing
    assert said.startswith("Comment is not known of 2 of 2 jobs: all jobs have the default class")
    assert "AccountingStoreFlags=job_comment in slurm.conf" in said


@pytest.mark.parametrize("tres", ["cpu=4,node=1", "cpu=4,gres/gpumem=8G,node=1"])
def test_gpus_that_no_job_has(tres: str) -> None:
    bare = {"AllocTRES": tres, "ReqTRES": tres}
    trace = read_rows(ROW | bare, OTHER | bare)
    assert trace.skipped == {"no GPU": 2}
    (said,) = trace.missing
    assert said.startswith(NO_GPU)
    assert "add AccountingStorageTRES=gres/gpu, then restart slurmctld" in said
    assert read_rows(ROW, OTHER | bare).missing == ()  # a job without GPUs beside one with


def test_gpus_by_type_only() -> None:
    typed = {"AllocTRES": "cpu=4,gres/gpu:a100=2"}
    (said,) = read_rows(ROW | typed, OTHER | typed).missing
    assert said.startswith("GPUs are recorded by type only")
    assert read_rows(ROW, OTHER | typed).missing == ()


@pytest.mark.parametrize(
    ("jobs", "days", "told"), [(100, 3, True), (99, 3, False), (100, 0, False)]
)
def test_gpus_that_are_recorded_since_some_day(jobs: int, days: int, told: bool) -> None:
    begin = 1790000100 - 86_400 * days
    bare = {"Submit": str(begin), "Eligible": "", "Start": str(begin), "AllocTRES": "cpu=4"}
    early = [OTHER | bare | {"JobID": str(100 + n), "ReqTRES": "cpu=4"} for n in range(jobs)]
    trace = read_rows(*early, ROW, OTHER)
    said = f"none of the {jobs} jobs in the first {days} days has GPUs: if AccountingStorageTRES"
    assert [text.startswith(said) for text in trace.missing] == [True] * told


def test_a_job_without_any_tres_is_no_job_without_gpus() -> None:
    trace = read_rows(ROW, OTHER | {"AllocTRES": "", "ReqTRES": ""})
    assert trace.skipped == {"no TRES recorded, so its GPUs are not known": 1}


@pytest.mark.parametrize("count", ["", "?", "many"])
def test_a_number_of_gpus_that_cannot_be_read_is_no_zero(count: str) -> None:
    trace = read_rows(ROW, OTHER | {"AllocTRES": f"cpu=4,gres/gpu={count}"})
    (bad,) = trace.bad_rows
    assert "has a number of GPUs that cannot be read" in bad.reason


def test_mig_is_seen_in_what_was_requested_too() -> None:
    columns = [c for c in SACCT_FIELDS if c != "AllocTRES"]
    mig = OTHER | {"ReqTRES": "gres/gpu:1g.10gb=1,gres/gpu=1"}
    trace = read_rows(ROW, mig, columns=columns)
    assert trace.skipped == {"MIG slices": 1}
    assert trace.missing[0].startswith("no column AllocTRES: ")


def test_jobs_of_one_user_may_be_all_that_is_shown() -> None:
    (said,) = read_rows(ROW, ROW | {"JobID": "8"}).missing
    assert said.startswith("all 2 jobs are of user 'alice': if others have jobs, these are missing")
    assert "PrivateData=jobs" in said
    (said,) = read_rows().missing
    assert said.startswith("no job at all: ")
    assert read_rows({"JobID": "garbage"}).missing == ()


# -- forms of the output


def test_columns_in_other_units_are_taken() -> None:
    columns = ["JobIDRaw", "User", "Submit", "Start", "Elapsed", "Timelimit", "State", "AllocTRES"]
    other = ROW | {"JobIDRaw": "7", "Elapsed": "01:05:00", "Timelimit": "1-01:30:00"}
    (job,) = read_rows(other, columns=columns).jobs
    assert (job.job_id, job.duration_s, job.time_limit_s) == ("7", 3900.0, 91_800.0)
    for cell, missing in {"UNLIMITED": 0, "Partition_Limit": 1}.items():
        trace = read_rows(other | {"Timelimit": cell}, columns=columns)
        assert trace.jobs[0].time_limit_s == math.inf
        assert sum(text.startswith("TimelimitRaw") for text in trace.missing) == missing


RAW = """\
JobIDRaw|User|Submit|Start|ElapsedRaw|TimelimitRaw|State|AllocTRES|NodeList
1001|u|1700000000|1700000100|3600|60|COMPLETED|cpu=64,gres/gpu=4|n01
"""


def test_job_id_raw_is_taken_with_and_without_the_option(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(RAW)
    for trace in (read_trace(file), read_sacct(file)):
        assert [(job.job_id, job.gpus) for job in trace.jobs] == [("1001", 4)]
        assert trace.missing[0].startswith("no column JobID: JobIDRaw stands for it")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RAW.partition("\n")[2], "no column 'JobID', 'Submit'"),  # --noheader
        (RAW.replace("JobIDRaw|", "").replace("1001|", ""), "no column 'JobID'"),
        (RAW.replace("|AllocTRES", "").replace("|cpu=64,gres/gpu=4", ""), "no column 'AllocTRES'"),
        (RAW.replace("|", "\t"), "columns between bars"),
        (RAW.replace("|", " "), "columns between bars"),
        ("Slurm accounting storage is disabled\n", "add AccountingStorageType="),
        ("       JobID    JobName      State\n------- --------- ------\n", "columns between bars"),
        ('{"jobs": [{"job_id": 7, "job_state": ["RUNNING"]}]}', "squeue or scontrol wrote it"),
        ('{"jobs": [], "errors": [{"error": "Unable to connect"}]}', "Unable to connect"),
    ],
)
def test_what_is_not_read_is_refused_alike(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(text)
    said = []
    for reader in (read_trace, read_sacct):
        with pytest.raises(SourceError, match=told) as raised:
            reader(file)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_lines_of_a_shell_before_the_header_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    bad = ROW | {"JobID": "x"}
    file.write_text(f"Loading slurm/24.11\nsacct: | a note\n{sacct_text(ROW, OTHER, bad)}")
    trace = read_trace(file)
    assert (len(trace.jobs), [row.line for row in trace.bad_rows]) == (2, [6])


def test_a_bar_at_the_end_of_each_line_is_parsable(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    text = sacct_text(ROW | {"Comment": "class=A a|b"}, OTHER)
    file.write_text(text.replace("\n", "|\n"))
    trace = read_trace(file)
    assert (len(trace.jobs), trace.bad_rows, trace.missing) == (2, (), ())


FORMS = """\
JobID|User|Account|Partition|Submit|Eligible|Start|ElapsedRaw|TimelimitRaw|State|AllocTRES|ReqTRES|NNodes|NodeList|Priority|JobName|Comment
1001|alice|acc|gpu|1700000000|1700000000|1700000100|3600|1440|COMPLETED|billing=64,cpu=64,energy=12345678,gres/gpu:a100=4,gres/gpu=4,mem=480G,node=1|billing=64,cpu=64,gres/gpu=4,mem=480G,node=1|1|gpu-a100-07|4294|train|class=A
1002|bob|acc|gpu|1700000010|1700000010|1700000200|60|UNLIMITED|CANCELLED by 20001|billing=8,cpu=8,gres/gpu=1,mem=64G,node=1|gres/gpu=1|1|n03-ib|100|x|y|a|b|c
1002.extern||acc||1700000010|1700000010|1700000200|60||COMPLETED|cpu=8,gres/gpu=1,node=1||1|n03-ib||extern|
1003+0|car\xf3l|acc|gpu|1700000020|1700000020|1700000300|120|60|COMPLETED|cpu=8,gres/gpu=2,node=1|gres/gpu=2|1|n[01-02,5]-ib|7|het|
1004_1|dave|acc|gpu|1700000030|1700000030|1700000400|10|Partition_Limit|OUT_OF_MEMORY|gres/gpu:h200=8,gres/gpu=8,node=1|gres/gpu=8|1|n01|7|arr|
1004_[2-90%4]|dave|acc|gpu|1700000030|Unknown|Unknown|0|60|PENDING||gres/gpu=8,node=1|1|None assigned|7|arr|
1005|eve|acc|gpu|1700000040|1700000040|None|0|60|CANCELLED by 20002||gres/gpu=8,node=1|1|None assigned|7|z|
1006|eve|acc|gpu|1700000050|1700000050|1700000500|100|60|NODE_FAIL|gres/gpu:1g.10gb=1,gres/gpu=1,node=1|gres/gpu=1|1|n01|7|mig|
1012|eve|acc|gpu|1700000050|1700000050|1700000500|100|4294967295|COMPLETED|cpu=72,gres/gpu=1K,node=128|gres/gpu=1K,node=128|128|n[001-128]|7|big|
1013|eve|acc|gpu|1700000050|1700000050|1700000500|100|60|PREEMPTED|gres/gpu=1,node=1|gres/gpu=1,node=1|1|gpu-1-2.cluster.example.org|7|fqdn|
"""  # noqa: E501


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("code", ["utf-8", "utf-8-sig", "latin-1"])
def test_forms_of_rows_in_any_encoding(tmp_path: Path, ends: str, code: str) -> None:
    file = tmp_path / "jobs.txt"
    file.write_bytes(FORMS.replace("\n", ends).encode(code))
    trace = read_trace(file)
    gpus = {job.job_id: job.gpus for job in trace.jobs}
    assert gpus == {"1001": 4, "1002": 1, "1003+0": 2, "1004_1": 8, "1012": 1024, "1013": 1}
    assert trace.jobs[4].nodes == 128
    assert trace.skipped == {"job step": 1, "never started": 2, "MIG slices": 1}
    assert trace.bad_rows == ()
    (said,) = trace.missing
    assert said.startswith("TimelimitRaw is not known of 1 of 6 jobs")


# -- JSON


def without(path: str, value: object = None) -> dict[str, Any]:
    """The record of another job without a field; ``value``: with this one instead."""
    job = holder = record(8, user="bob")
    *outer, last = path.split("/")
    for name in outer:
        holder = holder[name]
    del holder[last]
    if value is not None:
        holder[last] = value
    return job


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("time/limit", "TimelimitRaw"),
        ("user", "User"),
        ("nodes", "NodeList"),
        ("tres/allocated", ""),
        ("comment", ""),
        ("priority", ""),
        ("array", ""),
    ],
)
def test_a_field_that_a_record_does_not_have(path: str, name: str) -> None:
    assert read_records(RECORD, without("name")).missing == ()
    trace = read_records(RECORD, without(path))
    assert [job.gpus for job in trace.jobs] == [2, 2]
    assert [text.partition(" ")[0] for text in trace.missing] == ([name] if name else [])


@pytest.mark.parametrize("path", ["job_id", "time", "time/elapsed", "time/submission", "state"])
def test_a_record_without_what_a_job_needs_is_bad(path: str) -> None:
    trace = read_records(RECORD, without(path))
    assert [job.job_id for job in trace.jobs] == ["7"]
    (bad,) = trace.bad_rows
    assert (bad.line, bad.unit) == (2, "record")
    assert bad.reason == f"no {path.rpartition('/')[2]!r} in this record"


def test_a_record_without_tres_is_no_job_without_gpus() -> None:
    trace = read_records(RECORD, without("tres"))
    assert trace.skipped == {"no TRES recorded, so its GPUs are not known": 1}


@pytest.mark.parametrize(
    ("limit", "seconds", "missing"),
    [
        ({"set": True, "infinite": False, "number": 60}, 3600.0, 0),
        ({"set": False, "infinite": True, "number": 0}, math.inf, 0),  # 24.11
        ({"set": True, "infinite": True, "number": 0}, math.inf, 0),
        ({"set": False, "infinite": False, "number": 0}, math.inf, 1),
        (60, 3600.0, 0),  # before 23.02
        (4294967295, math.inf, 0),
    ],
)
def test_limits_of_the_json_of_several_releases(limit: Any, seconds: float, missing: int) -> None:
    trace = read_records(RECORD, without("time/limit", limit))
    assert trace.jobs[1].time_limit_s == seconds
    assert len(trace.missing) == missing


def test_a_gpu_without_its_number_is_no_zero() -> None:
    """Of energy no number is known, and none is needed."""
    job = without("tres/allocated", [{"type": "gres", "name": "gpu"}])
    (bad,) = read_records(RECORD, job).bad_rows
    assert "has a number of GPUs that cannot be read" in bad.reason


def test_a_site_whose_accounting_has_no_gpus() -> None:
    cpus = [{"type": "cpu", "name": "", "id": 1, "count": 1}]
    job = without("tres", {"allocated": cpus, "requested": cpus})
    trace = read_records(job, job | {"job_id": 9, "user": "carol"})
    assert trace.skipped == {"no GPU": 2}
    (said,) = trace.missing
    assert said.startswith(NO_GPU)
