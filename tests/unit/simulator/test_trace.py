"""Traces: CSV and sacct. Bad rows are counted with their line, never dropped in silence."""

import math
from pathlib import Path

import pytest
from sacct_samples import NUMBER, cells_of, read_records, read_rows, record, row, sacct_text

from gpu_aware_profile.sweeps.sweep import Sweep
from slurm_gpu_aware.bounds import MIN_RUN_S
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.simulator.sacct_trace import read_sacct, read_trace
from slurm_gpu_aware.simulator.trace import read_csv
from slurm_gpu_aware.slurm.sacct import SACCT_FIELDS, sacct_command

HEADER = "job_id,submit_s,gpus,duration_s"


def from_text(text, **options):
    return read_csv("t", text=text, **options)


def test_jobs_are_sorted_by_submission_and_equal_times_keep_their_order():
    trace = from_text(f"{HEADER}\na,5,1,10\nb,0,2,20\nc,5,1,10\n")
    assert [job.job_id for job in trace.jobs] == ["b", "a", "c"]
    assert trace.jobs[0].gpus == 2
    assert trace.jobs[0].app_class == "B"
    assert trace.jobs[0].time_limit_s == math.inf


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(f"{HEADER}\na,0,1,1\n", encoding="utf-8-sig")
    assert [job.job_id for job in read_csv(file).jobs] == ["a"]
    file.write_text(sacct_text(row()), encoding="utf-8-sig")
    assert len(read_trace(file).jobs) == 1


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("class,vc,slower", None),
        ("time_limit", "ignored column: 'time_limit' (time_limit_s?)"),
        ("Slowr,x", "ignored columns: 'Slowr' (slower?), 'x'"),
        (",".join("abcdefghijklm"), f"ignored columns: {str([*'abcdefghij'])[1:-1]}, 3 more"),
    ],
)
def test_columns_that_are_not_known_are_named(columns, sentence):
    text = f"{HEADER},{columns}\na,0,1,10{',' * (1 + columns.count(','))}\n"
    assert from_text(text).missing == (() if sentence is None else (sentence,))


def test_optional_columns_and_another_class_column():
    text = f"{HEADER},class,kind,nodes,deadline_s,weight,bw\n1,0,4,9.5,A,C,2,99,2.5,high\n"
    text += "2,0,4,9.5,A,,,,,\n"
    first, second = from_text(text, class_column="kind").jobs
    assert (first.app_class, first.nodes, first.deadline_s) == ("C", 2, 99.0)
    assert (first.weight, second.weight) == (2.5, 1.0)
    assert first.bandwidth_sensitive
    assert (second.app_class, second.nodes, second.deadline_s) == ("B", None, None)
    assert from_text(text).jobs[0].app_class == "A"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,0,0,1", "gpus is 0"),
        ("x,0,1.5,1", "gpus is '1.5': not a whole number"),
        ("x,zero,1,1", "submit_s is 'zero'"),
        ("x,0,1,nan", "duration_s is 'nan': not a finite number"),
        ("x,0,1,0", "duration_s is 0"),
        ("x,-1,1,1", "submit_s is -1"),
        ("x,0,1", "3 cells, expected 4"),
        (",0,1,1", "job_id is empty"),
    ],
)
def test_a_bad_row_is_reported_with_its_line(row, reason):
    trace = from_text(f"{HEADER}\na,0,1,1\n{row}\nb,0,1,1\n")
    assert [job.job_id for job in trace.jobs] == ["a", "b"]
    (bad,) = trace.bad_rows
    assert bad.line == 3
    assert bad.reason.startswith(reason)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("nodes", "-1", "nodes is -1, expected 1 to 65536"),
        ("nodes", "0", "nodes is 0"),
        ("weight", "0", "weight is 0, expected 1e-09 to"),
        ("weight", "inf", "weight is 'inf': not a finite number"),
        ("pattern", "star", "pattern is 'star'"),
        ("time_limit_s", "0", "time_limit_s is 0, expected 0.001 to"),
        ("time_limit_s", "-60", "time_limit_s is -60"),
    ],
)
def test_an_optional_cell_out_of_range_is_a_bad_row(column, value, reason):
    trace = from_text(f"{HEADER},{column}\na,0,1,1,\nx,0,1,1,{value}\n")
    assert [job.job_id for job in trace.jobs] == ["a"]
    (bad,) = trace.bad_rows
    assert bad.line == 3
    assert bad.reason.startswith(reason)


def test_of_rows_for_one_job_the_last_counts_and_the_others_are_reported():
    trace = from_text(f"{HEADER}\na,0,1,1\nb,0,1,1\na,5,1,2\na,9,1,3\na,x,1,4\n")
    assert [(job.job_id, job.duration_s) for job in trace.jobs] == [("b", 1.0), ("a", 3.0)]
    assert [row.line for row in trace.bad_rows] == [2, 4, 6]
    assert trace.bad_rows[0].reason == "job a occurs again in line 5; the last record counts"


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    with pytest.raises(SourceError, match="no column 'gpus'"):
        from_text("job_id,submit_s,duration_s\n")
    with pytest.raises(SourceError, match="no column 'kind'"):
        from_text(f"{HEADER}\n", class_column="kind")
    with pytest.raises(SourceError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")


def test_sacct_text_becomes_a_trace():
    later = row("8_3", Submit="2026-09-21T15:33:30", Start="2026-09-21T15:40:00", Comment="x|y")
    trace = read_rows(later, row())
    first, second = trace.jobs
    assert (first.job_id, first.gpus, first.duration_s) == ("7", 2, 300.0)
    assert (first.submit_s, first.recorded_start_s) == (0.0, 100.0)
    assert (first.app_class, first.time_limit_s) == ("A", 3600.0)
    assert (first.user, first.name, first.account) == ("alice", "train", "bio")
    assert (first.recorded_nodes, first.recorded_slots) == (("n2",), (0, 2))
    assert (first.recorded_run_s, first.nodes) == (300.0, None)
    assert (second.job_id, second.app_class) == ("8_3", "B")
    assert trace.bad_rows == ()


def test_a_comment_with_a_policy_keeps_its_class():
    trace = read_rows(row(Comment="run 3 gpu:class=A,place=packed"))
    assert trace.jobs[0].app_class == "A"


def test_class_auto_is_what_the_user_gave_before():
    def at(minute, job_id, comment, **more):
        when = {"Submit": f"2026-09-21T14:{minute}:00", "Start": "2026-09-21T15:30:00"}
        return row(job_id, Comment=comment, **when, **more)

    text = sacct_text(
        at("30", "4", "class=auto"),
        at("10", "1", "class=auto"),  # nothing is known yet
        at("20", "2", "class=A"),
        at("40", "5", "class=auto", JobName="other"),  # by the account
        at("50", "6", "class=auto", User="eve"),
        at("25", "3", "class=C", User="eve", JobName="own"),
    )
    trace = read_sacct("jobs", text=text, default_class="B")
    found = {job.job_id: job.app_class for job in trace.jobs}
    assert found == {"1": "B", "2": "A", "3": "C", "4": "A", "5": "A", "6": "C"}


@pytest.mark.parametrize(
    ("eligible", "wait"),
    [("1790086400", 100), ("Unknown", 86500), ("", 86500), ("1789999999", 86500)],
)
def test_a_recorded_job_waits_from_when_it_was_eligible(eligible, wait):
    """It was submitted with --begin=+1day or behind another job: no GPU could shorten that."""
    job = read_rows(row("1"), row("2", Eligible=eligible, Start="1790086500")).jobs[1]
    assert job.recorded_start_s - job.submit_s == wait


def test_sacct_counts_what_is_no_finished_gpu_job():
    trace = read_rows(
        row("1", AllocTRES="cpu=4", ReqTRES="cpu=4"),
        row("2", State="RUNNING"),
        row("3", State="CANCELLED by 1000", Start="Unknown", ElapsedRaw="0", AllocTRES=""),
        row("4", State="CANCELLED by 1000", TimelimitRaw="UNLIMITED"),
        row("5.batch"),
        row("6", ElapsedRaw="soon"),
        row("7", TimelimitRaw="0"),
        row("12_[1-3,5...]", State="PENDING", Start="Unknown", ElapsedRaw="0"),
        row("12_[1-3].batch"),
    )
    assert [job.job_id for job in trace.jobs] == ["4"]
    assert trace.jobs[0].time_limit_s == math.inf
    counts = {"no GPU": 1, "still running": 1, "never started": 2, "job step": 2}
    assert trace.skipped == counts
    assert [bad.line for bad in trace.bad_rows] == [7, 8]
    assert trace.bad_rows[1].reason.startswith("time_limit_s is 0")


def test_a_job_that_ended_at_once_counts():
    """sacct has whole seconds; a job that never started has no TRES, whatever its start."""
    never = row("3", State="CANCELLED by 1000", ElapsedRaw="0", AllocTRES="", NodeList="")
    failed = row("2", State="FAILED", ElapsedRaw="0")
    trace = read_rows(row("1"), failed, never, row("4", ElapsedRaw="-1"))
    assert [(job.job_id, job.duration_s) for job in trace.jobs] == [("1", 300.0), ("2", MIN_RUN_S)]
    assert trace.skipped == {"never started": 2}
    assert trace.bad_rows == ()


def test_probes_of_a_sweep_are_no_jobs():
    """By the name that a sweep gives them, not by a name that only begins alike."""
    name = Sweep("20260921-153330", lambda report: None).job_name("n2")
    names = {"1": name, "2": "gpu-aware-probes", "3": "a|b"}
    trace = read_rows(*(row(job, JobName=text) for job, text in names.items()))
    assert [(job.job_id, job.app_class) for job in trace.jobs] == [("2", "A"), ("3", "B")]
    assert trace.skipped == {"probe of gpu-aware-profile sweep": 1}
    trace = read_records(record(1, name=name), record(2))
    assert [job.job_id for job in trace.jobs] == ["2"]


@pytest.mark.parametrize(
    ("asked", "got", "nodes"),
    [
        ("gres/gpu=2,node=2", "2", 2),
        ("gres/gpu=2,node=1", "2", None),  # Slurm spread it; the job did not ask for that
        ("gres/gpu=2", "2", 2),
        ("gres/gpu=2,node=1", "1", None),
        ("", "", None),
    ],
)
def test_a_recorded_job_keeps_the_nodes_that_it_asked_for(asked, got, nodes):
    assert read_rows(row(ReqTRES=asked, NNodes=got)).jobs[0].nodes == nodes


@pytest.mark.parametrize(
    ("tres", "slots"),
    [
        ("gres/gpu:g1=2,gres/gpu:g3=2,gres/gpu=4", (1, 3)),
        ("gres/gpu:g1=1,gres/gpu:g3=3,gres/gpu=4", ()),
        ("gres/gpu:a100=4,gres/gpu=4", ()),
        ("gres/gpu=4", ()),
    ],
)
def test_indices_are_recorded_where_each_gpu_has_its_type(tres, slots):
    trace = read_rows(row(AllocTRES=tres, NodeList="n[1-2]"))
    assert trace.jobs[0].recorded_slots == slots


@pytest.mark.parametrize(
    "damaged",
    [
        "garbage",
        cells_of(row("8"))[:40],  # cut off in the middle
        cells_of(row("8")).removesuffix("|class=A"),  # no comment, so the priority may be cut
        "the rest of a comment",
        cells_of(row("x")),
    ],
)
def test_a_damaged_row_is_bad_and_no_job_without_gpus(damaged):
    trace = read_rows(row("1"), damaged, row("2"))
    assert [job.job_id for job in trace.jobs] == ["1", "2"]
    assert [bad.line for bad in trace.bad_rows] == [3]
    assert trace.skipped == {}


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x0c", "\r", "|", "||"])
def test_a_comment_may_hold_what_python_takes_for_an_end_of_line(character, tmp_path):
    file = tmp_path / "history"
    text = sacct_text(row(Comment=f"one{character}two"), row("8"))
    file.write_bytes(text.replace("\n", "\r\n").encode())
    trace = read_sacct(file)
    assert len(trace.jobs) == 2
    assert trace.bad_rows == ()


def test_bars_beyond_a_last_column_that_is_no_comment_make_a_bad_row():
    head = "JobID|Submit|Start|ElapsedRaw|State|JobName|AllocTRES"
    text = f"{head}\n1|10|20|30|COMPLETED|a|gres/gpu=2\n2|10|20|30|COMPLETED|a|b|gres/gpu=2\n"
    trace = read_sacct("history", text=text)
    assert [job.job_id for job in trace.jobs] == ["1"]
    assert [bad.line for bad in trace.bad_rows] == [3]


def test_a_history_without_tres_is_refused():
    with pytest.raises(SourceError, match=r"no column 'AllocTRES'.*SLURM_TIME_FORMAT=%s sacct "):
        read_sacct("h", text="JobID|Submit|Start|ElapsedRaw|State\n1|10|20|30|COMPLETED\n")


def test_no_job_starts_before_its_submission():
    trace = read_rows(row(Start="1789999000"), row("8"))
    assert [job.job_id for job in trace.jobs] == ["8"]
    (bad,) = trace.bad_rows
    assert bad.line == 2
    assert "starts 1000 s before its submission" in bad.reason


def test_the_documentation_asks_sacct_for_what_is_read():
    page = Path(__file__).parents[3] / "docs" / "simulator.md"
    text = page.read_text(encoding="utf-8")
    assert f"fields={','.join(SACCT_FIELDS)}\nexport SLURM_TIME_FORMAT=%s\n" in text
    assert f"{' '.join(sacct_command(90)[:-1])} --format=$fields\n" in text


def test_mig_slices_are_no_gpus():
    trace = read_rows(row(AllocTRES="gres/gpu:a100_1g.5gb=1,gres/gpu=1"))
    assert (trace.jobs, trace.skipped) == ((), {"MIG slices": 1})


def test_a_requeued_job_is_its_last_run_submitted_at_the_first():
    runs = [
        row("1", State="PREEMPTED"),  # ends at 1790000400
        row("1", Submit="1790000401", Start="1790000500", ElapsedRaw="100", State="REQUEUED"),
        row("1", Submit="1790000600", Start="1790001000", ElapsedRaw="50"),
    ]
    earlier = row("2", Submit="1789999900", Eligible="1789999900")
    for order in (runs, runs[::-1]):
        trace = read_rows(*order, earlier)
        (job,) = (job for job in trace.jobs if job.job_id == "1")
        assert (job.submit_s, job.recorded_start_s, job.duration_s) == (100.0, 1100.0, 50.0)
        assert trace.bad_rows == ()
        assert trace.skipped == {"an earlier run of a requeued job": 2}


def test_a_requeued_job_that_still_runs_leaves_nothing():
    again = row("1", Submit="1790000600", Start="1790000700", State="RUNNING")
    trace = read_rows(row("1", State="NODE_FAIL"), again)
    assert trace.jobs == ()
    assert [job.job_id for job in trace.background] == ["1"]
    assert trace.skipped == {"an earlier run of a requeued job": 1, "still running": 1}


@pytest.mark.parametrize("other", [{"User": "bob"}, {"Submit": "1790100000"}])
def test_another_job_with_the_same_number_is_reported(other):
    later = row("1", **{"Submit": "1790000600", "Start": "1790200000", **other})
    trace = read_rows(row("1"), later)
    assert len(trace.jobs) == 1
    (bad,) = trace.bad_rows
    assert (bad.line, bad.reason) == (2, "job 1 occurs again in line 3; the last record counts")
    assert trace.skipped == {}


def test_sacct_json_says_the_same_as_text():
    assert read_records(record()).jobs == read_rows(row()).jobs
    array = {"job_id": 5, "task_id": {**NUMBER, "number": 3}}
    assert read_records(record(array=array)).jobs[0].job_id == "5_3"


def test_a_damaged_record_of_sacct_json_is_a_bad_row():
    """A record without one of its fields: `test_missing_data`."""
    trace = read_records(record(), None, record(state={"current": []}))
    assert [job.job_id for job in trace.jobs] == ["7"]
    assert [(bad.line, bad.unit) for bad in trace.bad_rows] == [(2, "record"), (3, "record")]


def test_sacct_json_keeps_every_digit():
    jobs = []
    for task in (1_000_001, 1_000_002):
        array = {"job_id": 5, "task_id": {**NUMBER, "number": task}}
        jobs.append(record(array=array, priority={**NUMBER, "number": 4_294_900_000 + task}))
        jobs[-1]["time"]["limit"]["number"] = 1_234_567
    first, second = read_records(*jobs).jobs
    assert (first.job_id, second.job_id) == ("5_1000001", "5_1000002")
    assert second.priority - first.priority == 1
    assert first.time_limit_s == 60 * 1_234_567


@pytest.mark.parametrize("text", ['{"jobs": 3}', "", "a|b\n", '{"nope": 1}', "{broken"])
def test_what_is_not_sacct_output_is_refused(text):
    with pytest.raises(SourceError):
        read_sacct("history", text=text)


def test_a_range_of_sizes_is_that_of_the_job_and_powers_of_two():
    """And a job that allows moves may be sized anew while it runs."""
    text = (
        "job_id,submit_s,gpus,duration_s,sizes,move\na,0,3,10,2-8,ok\nb,0,1,10,,\nc,0,4,10,4-4,no\n"
    )
    jobs = read_csv("t", text=text).jobs
    assert [(job.sizes, job.elastic) for job in jobs] == [
        ((2, 3, 4, 8), True),
        ((), None),
        ((4,), False),
    ]


@pytest.mark.parametrize("cell", ["4", "4-", "8-2", "0-4", "2-4x", "2-" + "9" * 12, "2-3"])
def test_a_range_without_the_jobs_gpus_is_a_bad_row(cell):
    text = f"job_id,submit_s,gpus,duration_s,sizes\na,0,4,10,{cell}\n"
    (bad,) = read_csv("t", text=text).bad_rows
    assert "sizes is" in bad.reason


def test_a_move_is_ok_or_no_or_the_time_of_a_restart():
    text = "job_id,submit_s,gpus,duration_s,move\na,0,4,10,yes\nb,0,4,10,90s\nc,0,4,10,ok\n"
    trace = read_csv("t", text=text)
    assert "expected ok, no, or how long a restart takes" in trace.bad_rows[0].reason
    assert [(job.elastic, job.restart_s) for job in trace.jobs] == [(True, 90.0), (True, None)]


def test_a_key_of_the_comment_that_a_stage_reads_is_a_column():
    text = "job_id,submit_s,gpus,duration_s,slower,other\na,0,4,10,5,x\nb,0,4,10,,\nc,0,4,10,60,\n"
    trace = read_csv("t", text=text)
    assert [job.hints for job in trace.jobs] == [JobHints({"slower": 5}), JobHints()]
    (bad,) = trace.bad_rows
    assert bad.reason == "slower is '60': expected percent from 0 to 50"


def test_epochs_are_a_column_as_in_the_comment():
    text = "job_id,submit_s,gpus,duration_s,epochs\na,0,4,10,90x10m\nb,0,4,10,\nc,0,4,10,90\n"
    trace = read_csv("t", text=text)
    assert [job.hints for job in trace.jobs] == [JobHints({"epochs": (90, 600)}), JobHints()]
    assert "the most epochs" in trace.bad_rows[0].reason


def test_recorded_jobs_say_in_their_comments_whether_they_move():
    """Array tasks and parts of heterogeneous jobs are not moved live."""
    comments = {"7": "class=A,move=90s", "8": "move=no", "9": "class=A", "10_1": "move=ok"}
    trace = read_rows(*(row(job_id, Comment=comment) for job_id, comment in comments.items()))
    found = {job.job_id: (job.elastic, job.restart_s) for job in trace.jobs}
    silent, refuses = (None, None), (False, None)
    assert found == {"7": (True, 90.0), "8": refuses, "9": silent, "10_1": refuses}
