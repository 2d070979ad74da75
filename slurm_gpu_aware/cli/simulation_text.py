"""Texts and JSON of ``gpu-aware simulate``: inputs, progress, results."""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click

from slurm_gpu_aware.cli.output import paragraph, say, table
from slurm_gpu_aware.cli.simulation import Inputs
from slurm_gpu_aware.features.estimates.simulated import estimate_of
from slurm_gpu_aware.simulator.columns import Column, columns_of
from slurm_gpu_aware.simulator.history import KNOWLEDGE, LIMITS, RECORDED
from slurm_gpu_aware.simulator.report import calibration, plain_summary
from slurm_gpu_aware.simulator.result import Result, ended_in_all, over_seeds
from slurm_gpu_aware.time_text import counted

_MOST_ROWS = 20
_SETTINGS = (
    *("order", "round_s", "backfill", "migration_s", "overrun"),
    *("variability", "locality", "communication_share"),
)
"""Settings in the output."""


def say_inputs(inputs: Inputs, given: Collection[str]) -> None:
    """Print what was left out on stderr; ``given``: classes with a file of measured times."""
    trace, name = inputs.trace, inputs.trace.name
    for row in trace.bad_rows[:_MOST_ROWS]:
        say(f"{name}: {row.unit} {row.line}: {row.reason}")
    if trace.bad_rows:
        more = len(trace.bad_rows) > _MOST_ROWS
        rest = f" (these are {_MOST_ROWS}; --json and --out list all)" if more else ""
        say(f"{name}: {counted(len(trace.bad_rows), 'bad row')} left out{rest}")
    for reason, count in sorted(trace.skipped.items()):
        say(f"{name}: {counted(count, 'job')} left out: {reason}")
    for sentence in trace.missing:
        say(f"{name}: {sentence}")
    known = inputs.recorded
    if known:
        parts = [f"{known[how]} {words}" for how, words in KNOWLEDGE.items() if known.get(how)]
        say(f"work of recorded jobs: run time / slowdown on their nodes; {'; '.join(parts)}")
    if trace.background:
        jobs = counted(len(trace.background), "job holds its", "jobs hold their")
        say(f"{name}: {jobs} recorded GPUs in every run, without being compared")
    truth, classes = inputs.site.truth, Counter(job.app_class for job in trace.jobs)
    if not truth or not inputs.settings[0].variability:
        return
    for kind in sorted(set(classes) - set(truth)):
        jobs = counted(classes[kind], "job")
        say(f"{name}: class {kind} ({jobs}) has no scores: all GPUs count as equal")
    if unused := ", ".join(sorted(set(given) - set(classes))):
        say(f"--variability {unused}: no job is of this class; another column? --class-column NAME")


def say_results(results: Sequence[Result]) -> None:
    """Print killed and infeasible jobs, and whether a record is of another cluster, on stderr."""
    for result in results:
        peak = int(result.used_gpus.max())
        if result.recorded and peak > result.total_gpus:
            say(
                f"{result.trace.name}: up to {peak} GPUs were in use at a time, but this cluster "
                f"has {result.total_gpus}: the history is of another cluster"
            )
        if killed := int(result.killed.sum()):
            example = result.trace.jobs[int(result.killed.argmax())].job_id
            jobs = counted(killed, "job")
            say(
                f"{result.settings.label}: {jobs} killed at the time limit, such as {example}; no "
                "run counts them (--overrun extend: longer limits)"
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
        """Show counts of ended jobs, one per policy and seed, the policies of a seed together."""
        total = max(self._jobs * len(self._labels), 1)
        step = sum(done) * (100 if self._terminal else 4) // total
        if step == self._last:
            return
        self._last = step
        each = [sum(done[i :: len(self._labels)]) for i in range(len(self._labels))]
        counts = zip(self._labels, each, strict=True)
        shares = ", ".join(f"{label} {100 * n // max(self._jobs, 1)}%" for label, n in counts)
        self._write(f"simulating {counted(self._jobs, 'job')}: {shares}")

    def done(self) -> None:
        """Show that all runs have ended, also those with infeasible jobs."""
        if not self._terminal:
            self.show([self._jobs] * len(self._labels))
        elif self._last >= 0:
            self._write("")

    def _write(self, text: str) -> None:
        if self._terminal:
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)
        else:
            say(text)


def as_json(inputs: Inputs, seeds: Sequence[Sequence[Result]]) -> dict[str, Any]:
    """The output's JSON: inputs and settings of the first seed, and summaries (`over_seeds`)."""
    results = seeds[0]
    trace, settings = inputs.trace, inputs.settings[0]
    return {
        "trace": trace.name,
        "cluster": inputs.site.label,
        "runs": over_seeds(seeds),
        "seeds": len(seeds),
        "compared_jobs": int(ended_in_all(results).sum()),
        "input": {
            "jobs": len(trace.jobs),
            "bad_rows": [{"line": row.line, "reason": row.reason} for row in trace.bad_rows],
            "skipped": dict(trace.skipped),
            "missing": list(trace.missing),
            "recorded": dict(inputs.recorded),
            "background": len(trace.background),
        },
        "limits": list(LIMITS) if any(result.recorded for result in results) else [],
        "site": inputs.site.as_json(),
        "settings": {
            **{name: getattr(settings, name) for name in _SETTINGS},
            "interference": settings.interference is not None,
            "estimate": estimate_of(settings, trace),
        },
    }


def table_text(output: dict[str, Any]) -> str:
    """The numbers as a table; the last column compares policies, but no record, with the first."""
    first = next(run for run in output["runs"] if run["policy"] != RECORDED)
    columns = list(columns_of(output["runs"], lambda column: column.table))
    headers = [*(column.table for column in columns), f"JCT vs {first['policy']}"]
    rows, below, paired = [], "", list[str]()
    common = output["compared_jobs"]
    for run in output["runs"]:
        ratio = run["ratio_to_first"].get("avg_jct_s")
        if run["policy"] == RECORDED:
            ratio = None
            below = f"\n\n{paragraph(calibration(run, first))}" if common else ""
        against = "" if ratio is None else f"{100 * (ratio - 1):+.1f}%"
        rows.append((*(_cell(column, column.in_run(run)) for column in columns), against))
        if run["each_job"] is not None:
            paired.append(_each_job(run, first["policy"]))
        if output["seeds"] > 1 and run["policy"] != RECORDED:
            rows.append(_range_row(run, columns))
    what = f"{output['trace']} on {output['cluster']}; variability: {output['site']['variability']}"
    head = paragraph(what)
    if any(run["jobs"] != common for run in output["runs"]):
        head += f"\ntimes are those of the {counted(common, 'job')} that ended in every run"
    below = "".join(f"\n\n{paragraph(line)}" for line in paired) + below
    if output["seeds"] > 1:
        head += f"\nmeans over {output['seeds']} seeds; below each, the lowest and the highest"
        gains = (line for line in plain_summary(output) if " gain " in line)
        below += "\n\n" + "\n".join(paragraph(line) for line in gains)
    return f"{head}\n\n{table(headers, rows, right=headers[1:])}{below}"


def _range_row(run: Mapping[str, Any], columns: Sequence[Column]) -> tuple[str, ...]:
    """Lowest and highest of the seeds, below a policy's means."""
    cells = ["  lowest..highest", ""]
    for column in columns[len(cells) :]:
        low, high = run["range"].get(column.key) or (None, None)
        same = not low or low == high
        cells.append("" if same else f"{_cell(column, low)}..{_cell(column, high)}")
    gain = run["gain"]
    ends = "" if gain is None else f"{-100 * gain['high']:+.1f}..{-100 * gain['low']:+.1f}%"
    return (*cells, ends)


def _each_job(run: Mapping[str, Any], first: str) -> str:
    """Each job's completion time against that with the first policy."""
    each = run["each_job"]
    return (
        f"{run['policy']}: each job takes {each['median']:.2f} times as long as with {first} "
        f"(median; 5% to 95%: {each['p5']:.2f} to {each['p95']:.2f}); {each['slower']:.0%} of the "
        "jobs take longer"
    )


def _cell(column: Column, value: float | None) -> str:
    return "" if value is None else column.text(value)
