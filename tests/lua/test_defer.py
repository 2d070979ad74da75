"""The begin time that the filter gives while parked jobs wait in the holding pool."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from luafilter import Filter, MakeFilter

from slurm_gpu_aware.config.settings import EventsConfig
from slurm_gpu_aware.gate.admin_comment import parse
from slurm_gpu_aware.gate.licence_gate import defer_until

NODE = {"tres_per_node": "gres/gpu:1"}


@pytest.fixture
def submitted(filter_: Filter) -> Path:
    """The submit file, and beside it the word of the selector."""
    path = filter_.folder / "submitted"
    defer_until(EventsConfig(path).defer_file, time.time() + 90)
    return path


def begin_of(job: dict[str, Any]) -> int | None:
    given = job.get("begin_time")
    return None if given is None else int(given)


def is_ahead(begin: int | None, seconds: int, before: float) -> bool:
    """Whether it is so far ahead of a time between ``before`` and now.

    The clock of whole seconds lags some milliseconds behind the finer one.
    """
    assert begin is not None
    return int(before - 0.1) <= begin - seconds <= time.time()


def test_a_job_begins_soon_and_the_record_says_so(filter_: Filter, submitted: Path) -> None:
    before = time.time()
    job = filter_.submit(**NODE).job
    begin = begin_of(job)
    assert is_ahead(begin, 10, before)
    record = parse(job["admin_comment"])
    assert record is not None
    assert record.begin_s == begin
    assert job["licenses"] == "gpuaware:1"


OR = {**NODE, "licenses": "a|b"}


@pytest.mark.parametrize("asked", [OR, {**OR, "shared": 0}])
@pytest.mark.parametrize(
    "fields", [{}, {"script": None}, {"begin_time": 1_600_000_000}, {"dependency": "afterok:7"}]
)
def test_a_job_that_passes_the_gate_begins_when_the_first_job_is_guarded(
    make_filter: MakeFilter, asked: dict[str, Any], fields: dict[str, Any]
) -> None:
    """While a job waits; on an idle cluster it starts at once."""
    filter_ = make_filter()
    waiting = EventsConfig(filter_.folder / "submitted").waiting_file
    given = begin_of(filter_.submit(**asked, **fields).job)
    assert given == fields.get("begin_time")
    defer_until(waiting, time.time() + 90)
    before = time.time()
    assert is_ahead(begin_of(filter_.submit(**asked, **fields).job), 5, before)
    defer_until(waiting, 0.0)
    assert begin_of(filter_.submit(**asked, **fields).job) == given


def test_other_jobs_that_pass_the_gate_begin_as_they_say(make_filter: MakeFilter) -> None:
    filter_ = make_filter()
    defer_until(EventsConfig(filter_.folder / "submitted").waiting_file, time.time() + 90)
    several = filter_.submit(**NODE, clusters="a,b").job
    assert begin_of(several) is None  # sbatch would choose the cluster that starts it sooner
    assert begin_of(filter_.submit(**OR, comment="gpu:test-only").job) is None
    later = {"begin_time": 1_900_000_000}
    for fields in (later, {"immediate": 1}):
        job = filter_.submit(**OR, **fields).job
        assert begin_of(job) == fields.get("begin_time")
    for fields in ({"shared": 1}, {"partition": "elsewhere"}):
        assert filter_.submit(**NODE | {"tres_per_node": None} | fields).written == []


@pytest.mark.parametrize(
    "fields",
    [
        {"begin_time": 1_900_000_000},
        {"dependency": "afterok:7"},
        {"priority": 0},
        {"reservation": "class"},
        {"script": None},
    ],
    ids=["--begin", "--dependency", "--hold", "--reservation", "salloc"],
)
def test_jobs_that_wait_anyway_and_interactive_jobs_are_not_deferred(
    filter_: Filter, submitted: Path, fields: dict[str, Any]
) -> None:
    job = filter_.submit(**NODE, **fields).job
    assert job["licenses"] == "gpuaware:1"
    assert begin_of(job) == fields.get("begin_time")
    assert ";bt=" not in job["admin_comment"]


def test_a_job_that_is_not_parked(filter_: Filter, submitted: Path) -> None:
    assert filter_.submit(tres_per_node="gres/gpu:1", cron_job=True).written == []
    assert filter_.submit(num_tasks=4).written == []


@pytest.mark.parametrize("nodes", [None, "n" * 2000], ids=["whole record", "record of a part"])
def test_a_job_that_is_left_to_slurm_is_deferred_too(
    filter_: Filter, submitted: Path, nodes: str | None
) -> None:
    job = filter_.submit(**NODE, comment="place=off", req_nodes=nodes).job
    record = parse(job["admin_comment"])
    assert record is not None
    assert (record.left, record.partial) == ("place=off", nodes is not None)
    assert record.begin_s == begin_of(job) is not None


@pytest.mark.parametrize(
    "text",
    ["", "soon\n", "0\n", "-5\n", "1e300\n", "nan\n", "4000000000\n", "x" * 100_000],
)
def test_words_that_no_selector_wrote(filter_: Filter, submitted: Path, text: str) -> None:
    submitted.with_name("submitted.defer").write_text(text)
    outcome = filter_.submit(**NODE)
    assert (outcome.rc, outcome.log) == (0, [])
    assert begin_of(outcome.job) is None
    assert outcome.job["licenses"] == "gpuaware:1"


def test_a_selector_that_has_gone(filter_: Filter, submitted: Path) -> None:
    defer_until(EventsConfig(submitted).defer_file, time.time() - 1)
    assert begin_of(filter_.submit(**NODE).job) is None
    submitted.with_name("submitted.defer").unlink()
    assert begin_of(filter_.submit(**NODE).job) is None


def test_a_fifo_does_not_block(make_filter: MakeFilter, tmp_path: Path) -> None:
    filter_ = make_filter()
    os.mkfifo(tmp_path / "submitted.defer")
    assert begin_of(filter_.submit(**NODE).job) is None
