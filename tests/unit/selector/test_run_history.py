"""Earlier runs from a sacct of our own and from a real ledger."""

import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from store_samples import decision

from slurm_gpu_aware.bounds import PROBE_JOB
from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.features.estimates import live as run_history
from slurm_gpu_aware.features.estimates.declared import EstimatesConfig
from slurm_gpu_aware.features.estimates.history import JobKind
from slurm_gpu_aware.features.estimates.live import RunReader, run_of
from slurm_gpu_aware.slurm.sacct import SACCT_FIELDS
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Decision, Ledger

NOW = 1_790_000_000.0
TRAIN = JobKind("alice", "train", "bio", 2, 14_400.0)


def row(job: str = "7", start: float = NOW - 5000, **changes: object) -> str:
    cells = {
        "JobID": job,
        "User": "alice",
        "Account": "bio",
        "Submit": f"{start - 10:.0f}",
        "Start": f"{start:.0f}",
        "ElapsedRaw": "1200",
        "TimelimitRaw": "240",
        "State": "COMPLETED",
        "AllocTRES": "gres/gpu=2,node=1",
        "JobName": "train",
    }
    return "|".join(str((cells | changes).get(name, "")) for name in SACCT_FIELDS)


class RunFolder:
    """A folder with a command ``sacct``, a store, and a reader."""

    def __init__(self, folder: Path, days: int = 1) -> None:
        self.folder, self.now = folder, NOW
        store = StoreConfig(path=folder / "store.db")
        self.config = Config(store=store).put(EstimatesConfig(days))
        self.reader = RunReader(self.config, clock=lambda: self.now)

    def sacct(self, *rows: str, script: str = "") -> None:
        """What it answers; ``script`` comes before that."""
        text = "\n".join(["|".join(SACCT_FIELDS), *rows]) + "\n"
        (self.folder / "rows").write_text(text)
        command = self.folder / "sacct"
        command.write_text(
            f'#!/bin/sh\necho "$*" >> {self.folder}/asked\n{script}\ncat {self.folder}/rows\n'
        )
        command.chmod(0o755)

    def ledger(self, *decisions: Decision) -> None:
        with open_store(self.config.store.path) as store:
            for one in decisions:
                Ledger(store).add_decision(one)

    def runs(self, kind: JobKind = TRAIN) -> int:
        """Runs of a kind's finest group, after another reading."""
        self.reader.read()
        self.reader.renew()
        return self.reader.history.estimate(kind).runs

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def runs_there(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunFolder:
    """``param``: the days that it may ask for."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return RunFolder(tmp_path, getattr(request, "param", 1))


def test_runs_of_sacct_count_without_the_slowdown_of_their_placement(runs_there: RunFolder) -> None:
    runs_there.ledger(
        decision("7", decided_at=NOW - 9_000, slowdown=9.0),  # its run before a requeue
        decision("7", decided_at=NOW - 5_003, slowdown=2.0),
    )
    runs_there.sacct(row())
    runs_there.reader.read()
    assert runs_there.reader.renew()
    estimate = runs_there.reader.history.estimate(TRAIN)
    assert (estimate.source, estimate.runs) == ("name", 1)
    assert estimate.seconds == expected(600.0)


def expected(work_s: float) -> float:
    history = run_history.RunHistory()
    history.add(TRAIN, work_s)
    return history.estimate(TRAIN).seconds


@pytest.mark.parametrize(
    "changes",
    [
        *({"State": state} for state in ("PREEMPTED", "NODE_FAIL", "REQUEUED", "RUNNING")),
        {"State": "PENDING", "Start": "Unknown"},
        {"AllocTRES": "cpu=1"},
        {"AllocTRES": "gres/gpu:1g.5gb=1,gres/gpu=1"},
        {"JobName": f"{PROBE_JOB}-n1"},
        {"job": "7.batch"},
        {"ElapsedRaw": "soon"},
        {"Start": "yesterday"},
    ],
    ids=str,
)
def test_rows_that_tell_nothing_do_not_count(
    runs_there: RunFolder, changes: dict[str, str]
) -> None:
    runs_there.sacct(row(**changes), "damaged|row")
    assert runs_there.runs() == 0


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED by 1000", "OUT_OF_MEMORY"])
def test_ends_of_the_job_itself_count(runs_there: RunFolder, state: str) -> None:
    runs_there.sacct(row(State=state))
    assert runs_there.runs() == 1


@pytest.mark.parametrize(
    ("run_s", "start_s", "work_s"),
    [
        ([[1, 900.0], [2, 500.0]], NOW - 5_000, 1_700.0),
        ([[1, 900.0]], NOW - 5_000, None),  # its time with 2 GPUs is not known
        ([[2, 500.0]], NOW - 9_000, None),  # requeued by its owner after that
        ([], NOW - 5_000, None),
    ],
)
def test_a_moved_job_counts_with_its_work_before_the_move(
    runs_there: RunFolder, run_s: list[list[float]], start_s: float, work_s: float | None
) -> None:
    with open_store(runs_there.config.store.path) as store:
        ledger = Ledger(store)
        ledger.add_event("7", "move_begun", {"run_s": [[2, 1.0]]}, start_s - 2_000)
        ledger.add_event("7", "moved", {"start_s": start_s - 1_000}, start_s - 1_000)
        ledger.add_event("7", "move_begun", {"run_s": run_s}, start_s - 20)
        ledger.add_event("7", "moved", {"start_s": start_s}, start_s)
    runs_there.sacct(row("7"), row("8"))
    assert runs_there.runs() == (1 if work_s is None else 2)
    times = sorted(s for _, s in runs_there.reader.history.runs("alice", "train"))
    assert times == [1_200.0, *([] if work_s is None else [work_s])]


@pytest.mark.parametrize("state", ["PREEMPTED", "REQUEUED", "NODE_FAIL"])
def test_the_run_after_one_that_was_cut_does_not_count(runs_there: RunFolder, state: str) -> None:
    """It may be the rest of its work; sacct tells the run that was cut in an earlier reading, too.

    The number of a job of another user, or of one that had ended, says nothing.
    """
    cut = row("7", NOW - 8000, State=state)
    other = row("8", NOW - 8000, State=state, User="bob")
    ended = row("9", NOW - 8000, State="COMPLETED")
    runs_there.sacct(cut, other, ended, row("7"), row("8"), row("9"))
    assert runs_there.runs() == 3
    runs_there.now += 4000
    runs_there.sacct(row("7", NOW + 1000), row("8", NOW + 1000))
    assert runs_there.runs() == 4


def test_a_timeout_is_a_lower_bound(runs_there: RunFolder) -> None:
    runs_there.sacct(*(row(str(n), State="TIMEOUT", ElapsedRaw="14400") for n in range(3)))
    runs_there.runs()
    longer = replace(TRAIN, time_limit_s=50_000.0)
    assert runs_there.reader.history.estimate(longer).seconds == 50_000.0


def test_a_later_reading_adds_only_what_is_new(runs_there: RunFolder) -> None:
    runs_there.sacct(row())
    assert runs_there.runs() == 1
    runs_there.now += 600
    runs_there.sacct(row(), row("8", start=NOW - 700))
    assert runs_there.runs() == 2
    assert runs_there.runs() == 2
    assert "--starttime=now-1days" in runs_there.asked[0]
    assert "--starttime=now-130minutes" in runs_there.asked[1]


@pytest.mark.parametrize("runs_there", [3], indirect=True)
def test_days_are_asked_for_one_by_one_newest_first_up_to_a_number_of_runs(
    runs_there: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = runs_there
    site.sacct(row(), row("8"))
    assert site.runs() == 2  # each day tells the same two
    windows = [line.partition("--starttime=")[2].split()[:2] for line in site.asked]
    assert windows == [
        ["now-1days", "--endtime=now"],
        ["now-2days", "--endtime=now-1days"],
        ["now-3days", "--endtime=now-2days"],
    ]
    monkeypatch.setattr(run_history, "_MOST_RUNS", 1)
    site.reader = RunReader(site.config, clock=lambda: NOW)
    assert site.runs() == 1


def test_an_answer_without_end_is_cut(
    runs_there: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history, "_MOST_BYTES", 10_000)
    runs_there.sacct(
        row(), script=f"cat {runs_there.folder}/rows; while echo '{row('8')}'; do :; done"
    )
    assert runs_there.runs() == 2


def ended(job_id: str, ran: float, **changes: object) -> Decision:
    start = NOW - 5_000
    usual = {
        "asked": {"gpus": 2, "name": "train", "account": "bio", "time_limit_s": 14_400.0},
        "slowdown": 2.0,
        "state": "ended",
        "outcome_at": start + ran,
        "outcome": {"start_s": start, "state": "COMPLETED"},
    }
    return decision(job_id, **(usual | changes))


def test_without_sacct_the_ledgers_runs_count(
    runs_there: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs_there.sacct(script="exit 1")
    runs_there.ledger(
        ended("7", 1_200),
        ended("8", 1_200, outcome={"start_s": NOW - 5_000, "state": "unknown"}),
        ended("9", 1_200, outcome={"state": "CANCELLED"}),
        ended("10", -5),
        decision("11"),
    )
    assert runs_there.runs() == 1
    assert runs_there.reader.history.estimate(TRAIN).seconds == expected(600.0)
    assert runs_there.runs() == 1
    assert caplog.text.count("sacct tells no more runs") == 1
    runs_there.sacct(row("7"), row("8"))  # it answers again
    runs_there.now += 600
    assert runs_there.runs() == 2


def test_it_says_once_why_the_accounting_tells_nothing(
    runs_there: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """A site without gres/gpu in AccountingStorageTRES, and one without accounting at all."""
    none = {"AllocTRES": "cpu=4,node=1"}
    runs_there.sacct(row("7", **none), row("8", User="bob", **none))
    assert runs_there.runs() == runs_there.runs() == 0
    said = "no job has GPUs in accounting: AccountingStorageTRES in slurm.conf has no gres/gpu"
    assert caplog.text.count(said) == 1
    runs_there.sacct(script="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert runs_there.runs() == runs_there.runs() == 0
    assert caplog.text.count("storage is disabled: sacct tells nothing") == 1
    assert "AccountingStorageType=accounting_storage/slurmdbd" in caplog.text


def test_a_run_of_the_ledger_without_a_limit() -> None:
    run = run_of(ended("7", 100.0, asked={"gpus": 2}))
    assert run.kind == JobKind("alice", "", "", 2, math.inf)
    assert (run.work_s, run.cut_off) == (50.0, False)


def test_a_sacct_that_hangs_delays_nothing(runs_there: RunFolder) -> None:
    runs_there.sacct(script="sleep 30")
    runs_there.reader.start()
    assert runs_there.reader.renew() is False
    assert len(runs_there.reader.history) == 0
    runs_there.reader.stop()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "history")


def test_no_run_is_known_until_a_round_takes_the_first_reading(runs_there: RunFolder) -> None:
    """Else moves for due dates wait for the next look at them: half a minute."""
    reader = runs_there.reader
    runs_there.sacct(row())
    reader.start()
    deadline = time.monotonic() + 60
    while reader._first is None and time.monotonic() < deadline:
        time.sleep(0.01)
    reader.stop()
    assert reader.is_first
    assert reader.renew()
    assert not reader.is_first


@pytest.mark.parametrize("runs_there", [0], indirect=True)
def test_switched_off_it_reads_nothing(runs_there: RunFolder) -> None:
    runs_there.sacct(row())
    runs_there.reader.start()
    runs_there.reader.stop()
    assert not (runs_there.folder / "asked").exists()
    assert runs_there.reader._thread is None


def test_a_run_counts_with_the_gpus_that_it_had() -> None:
    """A moldable job asked for 2 and got 4."""
    asked = {"gpus": 2, "gpus_range": "1-8", "name": "train"}
    assert run_of(ended("7", 100.0, asked=asked, slots=[[0, 1, 2, 3]])).kind.gpus == 4


def test_no_name_or_comment_forges_a_run_of_another_user(runs_there: RunFolder) -> None:
    """sacct prints ends of lines as they are (24.11), and its usual separator is known to all."""
    separate = 'd="|"; for a; do case "$a" in --delimiter=*) d=${a#*=} ;; esac; done'
    runs_there.sacct(script=f'{separate}; sed "s/@/$d/g" {runs_there.folder}/rows; exit')
    forged = row("9", User="bob")
    mine = row(JobName="NAME", Comment="COMMENT").replace("|", "@")
    mine = mine.replace("NAME", f"x\n{forged}").replace("COMMENT", f"y\n{forged}\n")
    honest = row("8", User="bob", JobName="NAME").replace("|", "@").replace("NAME", "a|b")
    lines = ["@".join(SACCT_FIELDS), mine, honest]
    (runs_there.folder / "rows").write_text("\n".join(lines) + "\n")
    runs_there.reader.read()
    runs_there.reader.renew()
    assert runs_there.reader.history.runs("bob", "train") == ()
    assert runs_there.reader.history.runs("bob", "a|b") == ((2, 1200.0),)
