"""Columns of results: every number of a run, its names and how it is written.

The JSON of ``gpu-aware simulate``, its table and the page of ``gpu-aware report`` come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_gpu_aware.features import found
from slurm_gpu_aware.time_text import duration

if TYPE_CHECKING:
    from slurm_gpu_aware.simulator.result import Mask, Result

Of = Callable[["Result", "Mask | None", str], Any]
"""The value of a run under a key; times and slowdowns are those of a mask's jobs (None: all)."""


class Column(NamedTuple):
    """A number of a run."""

    key: str  # In a run's summary; behind a dot the key in its value.
    of: Of | None = None  # None: it is a part of another value, or compares runs (`over_seeds`).
    page: str = ""  # Header in the page; empty: not there.
    table: str = ""  # Header in the table of the terminal; empty: not there.
    form: str | Callable[[Any], str] = "{:g}"  # How a known value is written.
    needs: str = ""  # Key that a run of the folder has to know; empty: the column is always there.
    compared: bool = False  # Its ratio to the first run is in the summary, too.

    def text(self, value: Any) -> str:
        """A known value in words."""
        return self.form.format(value) if isinstance(self.form, str) else self.form(value)

    def in_run(self, run: Mapping[str, Any]) -> Any:
        """The value in a summary; None: unknown."""
        key, _, part = self.key.partition(".")
        value = run.get(key)
        return value.get(part) if part and value is not None else value


def gain_text(gain: Mapping[str, float]) -> str:
    """``4.0% (1.2 to 7.9)``, or ``4.0%`` of a single seed."""
    mean, low, high = (round(100 * gain[key], 1) + 0.0 for key in ("mean", "low", "high"))
    return f"{mean:.1f}%" if low == mean == high else f"{mean:.1f}% ({low:.1f} to {high:.1f})"


def _ratio_text(each: Mapping[str, float]) -> str:
    return f"{each['median']:.2f} ({each['p5']:.2f} to {each['p95']:.2f})"


def _jobs(result: Result, among: Mask | None, key: str) -> float | None:
    """``avg_jct_s``: the average of ``Result.jct_s``."""
    how, values = key.split("_", 1)
    return result.statistic(values, how, among)


def _makespan(result: Result, among: Mask | None, key: str) -> float:
    return result.makespan_s(among)


def _energy(result: Result, among: Mask | None, key: str) -> Any:
    return result.energy_numbers.get(key)


_OF_JOBS, _KWH = "job_energy_kwh", "energy_kwh"
_OF_RUNS = (
    Column("policy", lambda r, *_: r.settings.label, "policy", "policy", "{}"),
    Column("order", lambda r, *_: None if r.recorded else r.settings.order),
    Column("jobs", lambda r, *_: int(r.done.sum()), "ended", "ended"),
    Column("killed", lambda r, *_: int(r.killed.sum()), "killed"),
    Column("infeasible", lambda r, *_: len(r.infeasible), "never ran"),
    Column("avg_jct_s", _jobs, "avg JCT", "avg JCT", duration, compared=True),
    Column("gain", None, "gain", form=gain_text),
    Column("each_job", None, "each job's JCT, ratio", form=_ratio_text),
    Column("each_job.slower", None, "slower", form="{:.0%}"),
    Column("median_jct_s", _jobs, "median JCT", "median JCT", duration, compared=True),
    Column("p99_jct_s", _jobs, "p99 JCT", "p99 JCT", duration, compared=True),
    Column("avg_wait_s", _jobs, "avg wait", "avg wait", duration, compared=True),
    Column("median_wait_s", _jobs),
    Column("p99_wait_s", _jobs),
    Column("avg_slowdown", _jobs, "slowdown", "slowdown", "{:.3f}", compared=True),
    Column("median_slowdown", _jobs),
    Column(
        *("avg_bounded_slowdown", _jobs, "bounded slowdown", "bounded", "{:.2f}"), compared=True
    ),
    Column("median_bounded_slowdown", _jobs),
    Column("p99_bounded_slowdown", _jobs),
    Column("p99_slowdown", _jobs),
    Column("avg_run_s", lambda r, among, _: r.statistic("ran_s", "avg", among)),
    Column("makespan_s", _makespan, "makespan", form=duration, compared=True),
    Column("utilization", lambda r, m, _: r.utilization(m), "GPUs in use", "GPUs", "{:.0%}"),
    Column("fragmentation", lambda r, *_: r.fragmentation(), "fragmentation", form="{:.1%}"),
    Column("preemptions", lambda r, *_: int(r.preemptions.sum())),
    Column("migrations", lambda r, *_: int(r.migrations.sum())),
    Column("job_energy_kwh", _energy, "energy of jobs, kWh", "jobs, kWh", "{:.1f}", _OF_JOBS),
    Column("energy_kwh", _energy, "energy, kWh", "kWh", "{:.1f}", _KWH),
    Column("idle_energy_kwh", _energy, "of it idle GPUs", form="{:.1f}", needs=_KWH),
    Column("peak_power_w", _energy, "peak power, W", form="{:.0f}", needs=_KWH),
    Column("power_limit_w", _energy, "power limit, W", form="{:.0f}", needs="power_limit_w"),
)
_OF_ROUNDS = (
    Column("placement_ms", lambda r, *_: r.placement_times()),
    Column("placement_ms.median", None, "round, ms, median", form="{:.2f}"),
    Column("placement_ms.max", None, "round, ms, max", form="{:.1f}"),
)


@cache
def columns() -> tuple[Column, ...]:
    """All columns, with those of features."""
    features = found("simulated", "SIMULATED")
    return (*_OF_RUNS, *(column for one in features for column in one.columns), *_OF_ROUNDS)


def columns_of(
    runs: Iterable[Mapping[str, Any]], where: Callable[[Column], str]
) -> Iterator[Column]:
    """The columns of the page or the table (``where``) of which the runs know something."""
    known = {key for run in runs for key, value in run.items() if value is not None}
    return (c for c in columns() if where(c) and (not c.needs or c.needs in known))
