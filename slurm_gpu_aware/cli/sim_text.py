"""What ``gpu-aware simulate`` says: bad rows, progress, the table, the JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.cli.output import age, paragraph, say, table
from slurm_gpu_aware.simulator.recorded import KNOWLEDGE, LIMITS, RECORDED
from slurm_gpu_aware.simulator.result import compared, ended_in_all

if TYPE_CHECKING:
    from slurm_gpu_aware.cli.sim_inputs import Inputs
    from slurm_gpu_aware.simulator.result import Result
    from slurm_gpu_aware.simulator.trace import Trace

__all__ = [
    "Progress",
    "as_json",
    "say_classes",
    "say_never",
    "say_peak",
    "say_recorded",
    "say_rows",
    "table_text",
]

_MOST_ROWS = 20


def say_rows(trace: Trace) -> None:
    """Tell on stderr what was not used, with line numbers and counts."""
    for row in trace.bad_rows[:_MOST_ROWS]:
        say(f"{trace.name}: {row.unit} {row.line}: {row.reason}")
    if trace.bad_rows:
        more = len(trace.bad_rows) - _MOST_ROWS
        rest = f" (these are {_MOST_ROWS}; --json and --out list all)" if more > 0 else ""
        rows = "1 bad row" if len(trace.bad_rows) == 1 else f"{len(trace.bad_rows)} bad rows"
        say(f"{trace.name}: {rows} left out{rest}")
    for reason, count in sorted(trace.skipped.items()):
        say(f"{trace.name}: {count} job{'' if count == 1 else 's'} left out: {reason}")


def say_classes(inputs: Inputs, given: Collection[str]) -> None:
    """Tell on stderr where classes of jobs and of scores do not meet.

    ``given`` are the classes for which the user named a file.
    """
    truth = inputs.site.truth
    if not truth or not inputs.settings[0].variability:
        return
    name, jobs = inputs.trace.name, Counter(job.app_class for job in inputs.trace.jobs)
    for kind in sorted(set(jobs) - set(truth)):
        count = "1 job" if jobs[kind] == 1 else f"{jobs[kind]} jobs"
        say(f"{name}: class {kind} ({count}) has no scores: all GPUs are equal to it")
    unused = ", ".join(sorted(set(given) - set(jobs)))
    if unused:
        say(f"--variability {unused}: no job is of this class; another column? --class-column NAME")


def say_recorded(inputs: Inputs) -> None:
    """Tell on stderr how the work of recorded jobs was found, and who only holds GPUs."""
    known = inputs.recorded
    if known:
        parts = [f"{known[how]} {words}" for how, words in KNOWLEDGE.items() if known.get(how)]
        say(f"recorded jobs: run time / slowdown where they ran is their work; {'; '.join(parts)}")
    if inputs.trace.background:
        count = len(inputs.trace.background)
        jobs = "1 job holds its" if count == 1 else f"{count} jobs hold their"
        say(f"{inputs.trace.name}: {jobs} recorded GPUs in every run without being compared")


def say_peak(result: Result) -> None:
    """Tell if a record cannot be one of this cluster."""
    peak = int(result.used_gpus.max())
    if peak > result.total_gpus:
        say(
            f"{result.trace.name}: up to {peak} GPUs were in use at a time, this cluster has "
            f"{result.total_gpus}: it is not the one of this history"
        )


def say_never(result: Result) -> None:
    """Tell which jobs could never run on this cluster, and why."""
    reasons = Counter(reason for _, reason in result.never)
    for reason, count in reasons.most_common(_MOST_ROWS):
        example = next(job for job, why in result.never if why == reason)
        jobs = f"{count} job{'s' if count != 1 else ''}"
        say(f"{result.settings.label}: {jobs} never ran, such as {example}: {reason}")


class Progress:
    """Jobs done per policy: one line that is rewritten on a terminal, else one per quarter."""

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
        """All runs are at their end, also those with jobs that never ran: leave the line."""
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
            "order": settings.order,
            "round_s": settings.round_s,
            "backfill": settings.backfill,
            "migration_s": settings.migration_s,
            "variability": settings.variability,
            "locality": settings.locality,
            "communication_share": settings.communication_share,
            "interference": settings.interference is not None,
        },
    }


def table_text(output: dict[str, Any]) -> str:
    """The numbers for a person; the last column compares policies with the first of them.

    A record is no policy, so that its place in that column is empty: below the table stands how
    far the model is from it.
    """
    from slurm_gpu_aware.simulator.report import calibration

    headers = ["policy", "ended", "avg JCT", "p99 JCT", "avg wait", "slowdown", "makespan", "GPUs"]
    rows = []
    for run in output["runs"]:
        recorded = run["policy"] == RECORDED
        ratio = None if recorded else run["ratio_to_first"].get("avg_jct_s")
        rows.append(
            (
                run["policy"],
                run["jobs"],
                age(run["avg_jct_s"]),
                age(run["p99_jct_s"]),
                age(run["avg_wait_s"]),
                "" if run["avg_slowdown"] is None else f"{run['avg_slowdown']:.3f}",
                age(run["makespan_s"]),
                "" if run["utilization"] is None else f"{100 * run['utilization']:.0f}%",
                "" if ratio is None else f"{100 * (ratio - 1):+.1f}%",
            )
        )
    head = f"{output['trace']} on {output['cluster']}; variability: {output['site']['variability']}"
    common = output["compared_jobs"]
    if any(run["jobs"] != common for run in output["runs"]):
        jobs = "1 job" if common == 1 else f"{common} jobs"
        head += f"\ntimes are those of the {jobs} that ended in every run"
    first = next(run for run in output["runs"] if run["policy"] != RECORDED)
    against = f"JCT vs {first['policy']}"
    body = table([*headers, against], rows, right=[*headers[1:], against])
    for run in output["runs"]:
        if run["policy"] == RECORDED and common:
            body += f"\n\n{paragraph(calibration(run, first))}"
    return f"{head}\n\n{body}"
