"""Trace of a site's history: the rows of ``sacct`` that are finished jobs with GPUs."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_gpu_aware.bounds import MIN_RUN_S, PROBE_JOB, quoted
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.model.class_history import ClassHistory, GivenClass
from slurm_gpu_aware.model.job_hints import AUTO, CLASS, JobHints, parse_comment
from slurm_gpu_aware.placement.policy import policy_names
from slurm_gpu_aware.simulator.history import select_window
from slurm_gpu_aware.simulator.trace import Trace, TraceJob, by_keys, checked, read_csv
from slurm_gpu_aware.slurm.accounting import Missing
from slurm_gpu_aware.slurm.sacct import BAD_ROW, SacctRow, is_sacct, sacct_rows
from slurm_gpu_aware.text_file import BadRow, decoded, read_data, read_text

PROBE = "probe of gpu-aware-profile sweep"  # Reason under which ``read_sacct`` counts our own jobs.
_JOB_ID = re.compile(r"[0-9]{1,10}(_([0-9]{1,10}|\[.*\])|\+[0-9]{1,10})?(\..+)?")
"""Job, array task or pending tasks, component of a heterogeneous job; the step is optional."""
_REQUEUE_S = 86_400.0
"""A row of the same id and user that is submitted up to this long after the end of another is the
same job, requeued. After a longer time it is another job, because job ids repeat. Units: s."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One row: a job, or one run of a requeued job."""

    line: int
    job_id: str
    user: str
    submit_s: float
    end_s: float  # End of the run; submission if it did not start.
    job: TraceJob | None  # None: not a GPU job that started.
    ended: bool  # A GPU job that started and has ended.
    given: bool  # Whether its comment named the class.


def read_trace(
    path: Path | str,
    *,
    class_column: str = "class",
    default_class: str = "B",
    classes: Sequence[str] = ("A", "B", "C"),
) -> Trace:
    """Jobs of a file: output of ``sacct`` (text or JSON), else CSV. Raises SourceError."""
    file = Path(path)
    data = read_data(file)  # once: the file may be a pipe
    recorded = is_sacct(data[:4096].decode("utf-8-sig", errors="replace"))
    # users' comments may not be UTF-8
    text = decoded(data, file, errors="replace" if recorded else "strict")
    if recorded:
        return read_sacct(file, text=text, classes=tuple(classes), default_class=default_class)
    return read_csv(file, text=text, class_column=class_column, default_class=default_class)


def read_sacct(
    source: Path | str,
    *,
    classes: tuple[str, ...] = ("A", "B", "C"),
    default_class: str = "B",
    text: str | None = None,
    now: float | None = None,
    days: float | None = None,
) -> Trace:
    """Read a saved file, or ``text`` if given (then ``source`` is only its name).

    ``now`` (Unix s) and ``days`` are the end and the length of the time window, see
    ``history.select_window``; None: the latest recorded time, and everything. Raises SourceError if
    the file cannot be read, or is neither parsable2 output with the needed columns nor JSON.
    """
    if text is None:
        text = read_text(source, errors="replace")
    unit, rows = sacct_rows(text, source)
    missing = Missing()
    runs: list[_Run] = []
    bad: list[BadRow] = []
    skipped: Counter[str] = Counter()
    for line, row in rows:
        try:
            missing.note(row)
            if isinstance(row, Exception):
                raise row
            runs.append(_run(line, row, classes, default_class, skipped))
        except KeyError as exc:
            bad.append(BadRow(line, f"no {exc.args[0]!r} in this record", unit))
        except BAD_ROW as exc:
            bad.append(BadRow(line, str(exc), unit))
    last, again, requeued = _last_runs(runs, unit)
    last = _with_classes(last, default_class)
    skipped["an earlier run of a requeued job"] += requeued
    jobs, background, left_out = select_window(
        [run.job for run in last if run.job is not None and run.ended],
        [run.job for run in last if run.job is not None and not run.ended],
        now=now,
        seconds=None if days is None else days * 86_400.0,
    )
    bad = sorted([*bad, *again], key=lambda row: row.line)
    trace = Trace.of(Path(source).name, jobs, bad, skipped + left_out)
    known = (*missing.of_history(), *missing.of_jobs())
    return replace(trace, background=tuple(background), missing=known)


def _run(
    line: int,
    row: SacctRow,
    classes: tuple[str, ...],
    default_class: str,
    skipped: Counter[str],
) -> _Run:
    """The row as a run; counts in ``skipped`` why it is not a job. Raises for a bad row."""
    if not _JOB_ID.fullmatch(row.job_id):
        raise ValueError(f"JobID is {quoted(row.job_id)}, expected the number of a job")
    if not row.state:
        raise ValueError("no State")
    reason = _no_job(row)
    hints = _hints(row.text("Comment"), classes) if reason is None else JobHints()
    asked = hints.get(CLASS)
    job = checked(_job(row, asked or default_class, hints)) if reason is None else None
    if reason is not None or row.running:
        skipped[reason or "still running"] += 1
    submit = row.submit_s or -math.inf
    end = submit if row.start_s is None else row.start_s + row.elapsed_s
    ended = job is not None and not row.running
    given = asked is not None and asked != AUTO
    return _Run(line, row.job_id, row.text("User"), submit, end, job, ended, given)


def _last_runs(runs: Sequence[_Run], unit: str) -> tuple[list[_Run], list[BadRow], int]:
    """Last runs, submitted when the first was; repeated ids; the number of earlier runs."""
    last: dict[str, _Run] = {}
    other: list[_Run] = []
    requeued = 0
    # the order of sacct within a job is not documented; equal times keep that of the file
    for run in sorted(runs, key=lambda run: run.submit_s):
        before = last.get(run.job_id)
        if before is not None:
            again = run.submit_s - before.end_s <= _REQUEUE_S
            if again and before.user == run.user:
                requeued += before.ended
                job = run.job
                if job is not None and math.isfinite(before.submit_s):
                    job = replace(job, submit_s=min(before.submit_s, job.submit_s))
                run = replace(run, submit_s=before.submit_s, job=job)
            elif before.ended:
                other.append(before)
        last[run.job_id] = run
    text = "job {} occurs again in {} {}; the last record counts"
    bad = [
        BadRow(run.line, text.format(run.job_id, unit, last[run.job_id].line), unit)
        for run in other
    ]
    return sorted(last.values(), key=lambda run: run.line), bad, requeued


def _with_classes(runs: Sequence[_Run], default_class: str) -> list[_Run]:
    """The runs with classes for ``auto``, from the jobs that were submitted before, as live."""
    history = ClassHistory()
    found: dict[int, _Run] = {}
    for run in sorted(runs, key=lambda run: run.submit_s):
        job = run.job
        if job is None:
            continue
        user, name, account = job.user or "", job.name or "", job.account or ""
        if run.given:
            history.note(GivenClass(user, job.app_class, run.submit_s, name, account, run.job_id))
        elif job.app_class == AUTO:
            known = history.of(user, name, account)
            app_class = default_class if known is None else known[1].app_class
            found[run.line] = replace(run, job=replace(job, app_class=app_class))
    return [found.get(run.line, run) for run in runs]


def _no_job(row: SacctRow) -> str | None:
    """Why the row is not a GPU job that started; None: it is one."""
    if row.is_step:
        return "job step"
    if row.on_mig:
        return "MIG slices"
    if row.gpus == 0:
        # Slurm gives each job that starts at least a CPU
        told = row.text("AllocTRES") or row.text("ReqTRES") or not row.ran
        return "no GPU" if told else "no TRES recorded, so its GPUs are not known"
    if row.text("JobName").startswith(PROBE_JOB):
        return PROBE
    if not row.ran or (row.running and row.elapsed_s == 0):
        return "still running" if row.running else "never started"
    return None


def _job(row: SacctRow, app_class: str, hints: JobHints) -> TraceJob:
    """The job of a row that started; its work is the recorded run time."""
    start, submit, run_s = row.start_s or 0.0, row.submit_s, max(row.elapsed_s, MIN_RUN_S)
    if submit is None:
        raise ValueError(f"job {row.job_id}: no submission time")
    if start < submit:
        raise ValueError(
            f"job {row.job_id} starts {submit - start:g} s before its submission; local times do "
            "so where clocks change: run sacct with SLURM_TIME_FORMAT=%s"
        )
    return TraceJob(
        job_id=row.job_id,
        submit_s=submit,
        gpus=row.gpus,
        duration_s=run_s,
        nodes=row.wanted_nodes,
        app_class=app_class,
        time_limit_s=row.time_limit_s,
        priority=row.priority,
        user=row.text("User") or None,
        name=row.text("JobName") or None,
        account=row.text("Account") or None,
        recorded_start_s=start,
        recorded_run_s=run_s,
        recorded_nodes=row.nodes,
        recorded_slots=row.slots,
        **by_keys(hints, plain=row.job_id.isdigit()),
    )


def _hints(comment: str, classes: tuple[str, ...]) -> JobHints:
    """The job hints of a comment; of one that has none, or wrong ones, no hint."""
    lists = {"classes": classes, "policies": policy_names()}
    try:
        return parse_comment(comment, HINTS, lists) or JobHints()
    except RequestError:
        return JobHints()
