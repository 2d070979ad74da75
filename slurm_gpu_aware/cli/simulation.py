"""Inputs of ``gpu-aware simulate`` from its options, and its texts and JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from slurm_gpu_aware.cli.cluster_options import stored_cluster
from slurm_gpu_aware.cli.output import paragraph, say, table
from slurm_gpu_aware.config.settings import Config, PlacementConfig
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.placement.registry import make_policy, option_names
from slurm_gpu_aware.selector.policy_options import policy_options, read_interference
from slurm_gpu_aware.simulator.history import (
    BASELINE,
    KNOWLEDGE,
    LIMITS,
    RECORDED,
    with_slots,
    with_work,
    without_unsupported,
)
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.report import calibration, counted
from slurm_gpu_aware.simulator.result import Result, compared, ended_in_all
from slurm_gpu_aware.simulator.sacct_trace import read_sacct, read_trace
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import (
    SimulatedSite,
    stored_site,
    synthetic_site,
    with_scores,
)
from slurm_gpu_aware.simulator.timings import Timings, draw_scores, read_timings
from slurm_gpu_aware.simulator.trace import Trace, poisson_trace
from slurm_gpu_aware.slurm.sacct import live_history
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.time_text import age

__all__ = ["Inputs", "Progress", "as_json", "gather", "say_inputs", "say_results", "table_text"]

_LIVE_DAYS = 90
Given = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Jobs, site and settings of the runs."""

    trace: Trace
    site: SimulatedSite
    settings: tuple[SimSettings, ...]
    """One per policy."""
    recorded: Mapping[str, int]
    """Key of ``history.KNOWLEDGE`` -> number of recorded jobs."""

    def runs(self) -> list[Run]:
        """One run per policy."""
        return [Run(self.trace, self.site.cluster, self.site.truth, s) for s in self.settings]


def gather(config: Config, given: Given) -> Inputs:
    """Read and check all inputs. Raises RequestError, PolicyError or SourceError."""
    names = list(given["policies"] or (BASELINE, config.placement.policy))
    if given["what_if"]:
        # Slurm's own placement, so that errors of the model do not count as gains
        names = [BASELINE, *(n for n in names if n not in (BASELINE, f"{BASELINE}:sticky"))]
    trace = _with_sensitivity(config, _trace(config, given))
    profile = None
    if given["profile"]:
        profile, bad = read_interference(given["profile"])
        if bad:
            say(f"{given['profile']}: {len(bad)} entries left out, first: {bad[0]}")
    if given["interference"] and profile is None:
        raise RequestError("--interference needs --profile FILE.json with times of pairs of jobs")
    backfill = given["backfill"]
    classes = (*config.site.classes, *sorted({job.app_class for job in trace.jobs}))
    base = SimSettings(
        order=given["order"] or ("priority" if given["what_if"] else "fifo"),
        round_s=given["round_s"],
        backfill=config.placement.backfill if backfill is None else backfill,
        migration_s=given["migration_s"],
        classes=tuple(dict.fromkeys(classes)),
        locality=given["locality_effect"],
        variability=given["variability_effect"],
        communication_share=given["bandwidth_share"],
        interference=profile if given["interference"] else None,
    )
    offered = {"seed": given["seed"], **({"interference": profile} if profile else {})}
    site_options = policy_options(config)
    settings = tuple(_with_options(parse_policy(n, base), site_options, offered) for n in names)
    site = _site(config, given)
    if given["nodes"] is None and any(job.recorded_nodes for job in trace.jobs):
        with open_store(config.store.path, readonly=True) as store:
            trace = with_slots(trace, Ledger(store).gpus_given())
    trace = without_unsupported(trace, site.cluster)
    trace, recorded = with_work(trace, site.cluster, site.truth, base)
    return Inputs(trace, site, settings, recorded)


def _with_options(
    settings: SimSettings, site_options: Mapping[str, Mapping[str, Any]], offered: Mapping[str, Any]
) -> SimSettings:
    """The run with its policy's options: the site's, and the known ones of those ``offered``."""
    known = option_names(settings.policy)
    usable = {name: value for name, value in offered.items() if name in known}
    options = {**site_options.get(settings.policy, {}), **usable}
    make_policy(settings.policy, options)  # raises for a bad name or value
    return replace(settings, policy_options=options)


def _with_sensitivity(config: Config, trace: Trace) -> Trace:
    """The trace with the jobs of the site's bandwidth-sensitive classes set so, as live."""
    names = {name for name, entry in config.classes.items() if entry.bandwidth_sensitive}
    jobs = (
        replace(job, bandwidth_sensitive=True) if job.app_class in names else job
        for job in trace.jobs
    )
    return replace(trace, jobs=tuple(jobs)) if names else trace


def _trace(config: Config, given: Given) -> Trace:
    chosen = {n: given[n] for n in ("trace", "sacct", "synthetic") if given[n] is not None}
    if given["what_if"] and not chosen:
        chosen = {"sacct": "live"}
    if len(chosen) != 1:
        raise RequestError("give one source of jobs: TRACE, --sacct FILE|live, or --synthetic JOBS")
    ((kind, source),) = chosen.items()
    if given["what_if"] and kind != "sacct":
        raise RequestError("--what-if compares with Slurm's record: use it with --sacct")
    classes, default_class = config.site.classes, config.site.default_class
    known: dict[str, Any] = {"classes": classes, "default_class": default_class}
    if kind == "synthetic":
        rate, seed = given["jobs_per_hour"], given["seed"]
        return poisson_trace(source, rate, seed=seed, classes=classes)
    if kind == "trace":
        return read_trace(source, class_column=given["class_column"], **known)
    if source != "live":
        return read_sacct(source, days=given["days"], **known)
    days = given["days"] or _LIVE_DAYS
    text, now = live_history(days), time.time()
    return read_sacct(f"the last {days} days", text=text, now=now, days=days, **known)


def _site(config: Config, given: Given) -> SimulatedSite:
    config = replace(config, placement=_placement(config.placement, given["locality_penalty"]))
    same_indices = not given["any_indices"]
    if given["nodes"] is not None:
        site = synthetic_site(
            given["nodes"],
            given["gpus_per_node"],
            machine_name=given["machine"],
            penalties=config.placement.penalties,
            same_indices=same_indices,
        )
    elif given["machine"] or given["gpus_per_node"]:
        raise RequestError("--machine and --gpus-per-node need --nodes N")
    else:
        cluster, stored = stored_cluster(config)
        site = stored_site(replace(cluster, same_indices=same_indices), stored.raw_scores)
    timings = _timings(given["variability"])
    if not timings:
        return site
    return with_scores(
        site, draw_scores(timings, site.cluster.exists, given["draw"], given["seed"])
    )


def _placement(placement: PlacementConfig, penalty: float | None) -> PlacementConfig:
    """The site's placement with ``--locality-penalty``, if given. Raises RequestError."""
    if penalty is None:
        return placement
    for name, value in placement.levels.items():
        if name != "cluster" and value > penalty:
            raise RequestError(
                f"--locality-penalty {penalty:g} is less than placement.levels.{name} ({value:g}), "
                "a tighter level"
            )
    return replace(placement, levels={**placement.levels, "cluster": penalty})


def _timings(entries: Sequence[str]) -> dict[str, Timings]:
    """Class -> measured times, of ``CLASS=FILE.csv``. Raises RequestError, SourceError."""
    found: dict[str, Timings] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        if not name or not path:
            raise RequestError(f"--variability {entry!r}: expected CLASS=FILE.csv")
        if name in found:
            raise RequestError(f"--variability: class {name} is given twice")
        found[name] = read_timings(path)
        if bad := found[name].bad_rows:
            lines = ", ".join(str(row.line) for row in bad[:10])
            raise SourceError(f"{path}: {len(bad)} bad rows, first {lines}: {bad[0].reason}")
    return found


_MOST_ROWS = 20
_SETTINGS = (
    *("order", "round_s", "backfill", "migration_s"),
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
        total = max(self._jobs * len(self._labels), 1)
        step = sum(done) * (100 if self._terminal else 4) // total
        if step == self._last:
            return
        self._last = step
        counts = zip(self._labels, done, strict=True)
        shares = ", ".join(f"{label} {100 * n // max(self._jobs, 1)}%" for label, n in counts)
        self._write(f"simulating {self._jobs} jobs: {shares}")

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
    """The numbers as a table; the last column compares policies, but no record, with the first."""
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
