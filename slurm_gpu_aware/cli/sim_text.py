"""Texts of ``gpu-aware simulate``: bad rows, progress, the table, the JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.cli.output import paragraph, say, table
from slurm_gpu_aware.simulator.history import KNOWLEDGE, LIMITS, RECORDED
from slurm_gpu_aware.simulator.report import calibration, counted
from slurm_gpu_aware.simulator.result import compared, ended_in_all
from slurm_gpu_aware.time_text import age

if TYPE_CHECKING:
    from slurm_gpu_aware.cli.sim_inputs import Inputs
    from slurm_gpu_aware.simulator.result import Result

__all__ = ["Progress", "as_json", "say_inputs", "say_results", "table_text"]

_MOST_ROWS = 20
_SETTINGS = (
    *("order", "round_s", "backfill", "migration_s"),
    *("variability", "locality", "communication_share"),
)
"""Settings in the output."""


def say_inputs(inputs: Inputs, given: Collection[str]) -> None:
    """Print rows left out, the origin of the work, and classes without scores on stderr.

    ``given``: classes with a file of measured times.
    """
    trace, name = inputs.trace, inputs.trace.name
    for row in trace.bad_rows[:_MOST_ROWS]:
        say(f"{name}: {row.unit} {row.line}: {row.reason}")
    if trace.bad_rows:
        more = len(trace.bad_rows) > _MOST_ROWS
        rest = f" (these are {_MOST_ROWS}; --json and --out list all)" if more else ""
        say(f"{name}: {counted(len(trace.bad_rows), 'bad row')} left out{rest}")
    for reason, count in sorted(trace.skipped.items()):
        say(f"{name}: {counted(count, 'job')} left out: {reason}")
    known = inputs.recorded
    if known:
        parts = [f"{known[how]} {words}" for how, words in KNOWLEDGE.items() if known.get(how)]
        say(f"work of recorded jobs: run time / slowdown on their nodes; {'; '.join(parts)}")
    if trace.background:
        jobs = counted(len(trace.background), "job holds its", "jobs hold their")
        say(f"{name}: {jobs} recorded GPUs in every run and not compared")
    truth, classes = inputs.site.truth, Counter(job.app_class for job in trace.jobs)
    if not truth or not inputs.settings[0].variability:
        return
    for kind in sorted(set(classes) - set(truth)):
        jobs = counted(classes[kind], "job")
        say(f"{name}: class {kind} ({jobs}) has no scores: all GPUs count as equal")
    if unused := ", ".join(sorted(set(given) - set(classes))):
        say(f"--variability {unused}: no job is of this class; another column? --class-column NAME")


def say_results(results: Sequence[Result]) -> None:
    """Print infeasible jobs, and whether a record is of another cluster, on stderr."""
    for result in results:
        peak = int(result.used_gpus.max())
        if result.recorded and peak > result.total_gpus:
            say(
                f"{result.trace.name}: up to {peak} GPUs were in use at a time, but this cluster "
                f"has {result.total_gpus}: the history is of another cluster"
            )
        reasons = Counter(reason for _, reason in result.infeasible)
        for reason, count in reasons.most_common(_MOST_ROWS):
            example = next(job for job, why in result.infeasible if why == reason)
            jobs = counted(count, "job")
            say(f"{result.settings.label}: {jobs} never ran, such as {example}: {reason}")


class Progress:
    """Ended jobs per policy: on a terminal a line that is rewritten, else a line per quarter."""

    def __init__(self, labels: Sequence[str], jobs: int) -> None:
        self._labels = labels
        self._jobs = jobs
        self._last = -1
        self._terminal = sys.stderr.isatty()

    def show(self, done: Sequence[int]) -> None:
        """Show counts of ended jobs, one per policy."""
        total = self._jobs * len(self._labels)
        step = sum(done) * (100 if self._terminal else 4) // max(total, 1)
        if step == self._last:
            return
        self._last = step
        parts = [
            f"{label} {100 * n // max(self._jobs, 1)}%"
            for label, n in zip(self._labels, done, strict=True)
        ]
        text = f"simulating {self._jobs} jobs: {', '.join(parts)}"
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        else:
            say(text)

    def done(self) -> None:
        """Show that all runs have ended, also those with infeasible jobs."""
        if not self._terminal:
            self.show([self._jobs] * len(self._labels))
        elif self._last >= 0:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def as_json(inputs: Inputs, results: Sequence[Result]) -> dict[str, Any]:
    """The output's JSON: inputs, settings, and a summary of each run (`result.compared`)."""
    trace, settings = inputs.trace, inputs.settings[0]
    return {
        "trace": trace.name,
        "cluster": inputs.site.label,
        "runs": compared(results),
        "compared_jobs": int(ended_in_all(results).sum()),
        "input": {
            "jobs": len(trace.jobs),
            "bad_rows": [{"line": row.line, "reason": row.reason} for row in trace.bad_rows],
            "skipped": dict(trace.skipped),
            "recorded": dict(inputs.recorded),
            "background": len(trace.background),
        },
        "limits": list(LIMITS) if any(result.recorded for result in results) else [],
        "site": inputs.site.as_json(),
        "settings": {
            **{name: getattr(settings, name) for name in _SETTINGS},
            "interference": settings.interference is not None,
        },
    }


_COLUMNS = ("avg_jct_s", "p99_jct_s", "avg_wait_s", "avg_slowdown", "makespan_s", "utilization")
_FORMATS = {"avg_slowdown": "{:.3f}", "utilization": "{:.0%}"}


def table_text(output: dict[str, Any]) -> str:
    """The numbers as a table; the last column compares policies with the first one.

    A record has no entry in this column; a sentence below compares the model with it.
    """
    first = next(run for run in output["runs"] if run["policy"] != RECORDED)
    headers = ["policy", "ended", "avg JCT", "p99 JCT", "avg wait", "slowdown", "makespan", "GPUs"]
    headers.append(f"JCT vs {first['policy']}")
    rows, below = [], ""
    common = output["compared_jobs"]
    for run in output["runs"]:
        ratio = run["ratio_to_first"].get("avg_jct_s")
        if run["policy"] == RECORDED:
            ratio = None
            below = f"\n\n{paragraph(calibration(run, first))}" if common else ""
        values = [_cell(key, run[key]) for key in _COLUMNS]
        against = "" if ratio is None else f"{100 * (ratio - 1):+.1f}%"
        rows.append((run["policy"], run["jobs"], *values, against))
    what = f"{output['trace']} on {output['cluster']}; variability: {output['site']['variability']}"
    head = paragraph(what)
    if any(run["jobs"] != common for run in output["runs"]):
        head += f"\ntimes are those of the {counted(common, 'job')} that ended in every run"
    return f"{head}\n\n{table(headers, rows, right=headers[1:])}{below}"


def _cell(key: str, value: float | None) -> str:
    if key not in _FORMATS:
        return age(value)
    return "" if value is None else _FORMATS[key].format(value)
