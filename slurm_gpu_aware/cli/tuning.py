"""Inputs and runs of ``gpu-aware tune``, its texts and JSON."""

import math
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurm_gpu_aware.cli.output import say, table
from slurm_gpu_aware.cli.simulate import simulate
from slurm_gpu_aware.cli.simulation import Given, Inputs, gather, with_options
from slurm_gpu_aware.cli.simulation_text import Progress, say_inputs
from slurm_gpu_aware.config.load import Candidate, Tuned, out_of_bounds, tuned_path, write_tuned
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.energy.simulated import with_bound
from slurm_gpu_aware.features.queue_order.declared import QueueConfig
from slurm_gpu_aware.features.queue_order.simulated import RunOrder
from slurm_gpu_aware.features.queue_order.stage import OrderRule, rule_of
from slurm_gpu_aware.features.queue_order.view import COMPARED, SLURM, paid
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.placement.policy import PACKED
from slurm_gpu_aware.selector.policy_options import policy_options
from slurm_gpu_aware.simulator.history import with_work
from slurm_gpu_aware.simulator.parallel import Run, run_all
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.tuning import (
    LEAST_SEEDS,
    MEASURES,
    Verdict,
    compare,
    covered_days,
    drawn_days,
    drawn_runs,
    measures,
    percent,
)
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.profiles import newest_runs
from slurm_gpu_aware.time_text import duration

Found = Mapping[str, Sequence[Mapping[str, float]]]
"""Label of a candidate -> its measures, per seed."""
BOUND = "longest_wait_s"
"""Option whose candidate is not an end of its range, but measured (`bounded_candidates`)."""
DEFAULT_CLOCKS = "default"  # Label of the run at these.
_STEP_S = 60  # The measured bound is a multiple of this.
_CANDIDATE = re.compile(r"([a-z0-9+-]{1,40})(?::(.{1,200}))?")
_OPTION = re.compile(r"([a-z_]{1,40})=(-?[0-9]{1,9}(\.[0-9]{1,9})?)")


class _LateError(Exception):
    """The time is over."""


@dataclass(frozen=True, eq=False)
class History:
    """What is replayed."""

    inputs: Inputs
    days: range
    runs: Sequence[GpuTiming]  # All runs of the newest measurement of each GPU and class.


@dataclass(frozen=True, eq=False)
class Replay:
    """Measures per seed."""

    placements: dict[str, list[Mapping[str, float]]]  # Label of a candidate -> its measures.
    orders: dict[str, list[Mapping[str, float]]]  # Order of the queue -> its measures.
    payers: dict[str, list[Mapping[str, float]]]
    """Order of the queue -> average completion time of the jobs of each account or user."""


def orders_of(config: Config, given: Sequence[str]) -> dict[str, OrderRule]:
    """Order -> its rule: Slurm's, the present one, and those ``given``, or `COMPARED`.

    Raises PolicyError.
    """
    present = rule_of(config.of(QueueConfig))
    names = [SLURM, present.label, *(given or COMPARED)]
    return {rule.label: rule for rule in map(present.named, names)}


def present_order(config: Config) -> str:
    """The label of the site's order."""
    return rule_of(config.of(QueueConfig)).label


def candidates_of(config: Config, given: Sequence[str], present: Candidate) -> dict[str, Candidate]:
    """Label -> candidate: packed, the present one, and those ``given``, or those of ``[tune]``.

    Raises RequestError, and PolicyError for unknown names and options.
    """
    wanted = [_parse(text) for text in given]
    if not given:
        wanted = [Candidate(policy) for policy in config.tune.allowed]
        for policy in config.tune.allowed:
            ranges = config.tune.ranges.get(policy, {})
            ends = [(o, end) for o, both in ranges.items() if o != BOUND for end in both]
            wanted += [Candidate(policy, {o: end}) for o, end in ends]
    found = {one.label: one for one in (Candidate(PACKED), present, *wanted)}
    if len(found) == 1:
        raise RequestError(f"nothing to compare {PACKED} with; see tune.allowed, or --candidate")
    for one in found.values():
        _settings(config, SimSettings(), one)  # raises before the history is read
    return found


def _parse(text: str) -> Candidate:
    match = _CANDIDATE.fullmatch(text)
    options = (
        [_OPTION.fullmatch(part) for part in match[2].split(",")] if match and match[2] else []
    )
    if match is None or None in options:
        raise RequestError(f"candidate {text!r}: expected NAME or NAME:OPTION=NUMBER,...")
    pairs = [(option[1], option[2]) for option in options if option is not None]
    return Candidate(match[1], {k: float(v) if "." in v else int(v) for k, v in pairs})


def check_apply(config: Config, candidates: Mapping[str, Candidate], named: Sequence[str]) -> None:
    """Say or raise before the long run what would keep the result from being set."""
    if not config.tune.apply:
        say("tune.apply is false in the configuration: nothing will be set")
        return
    for one in candidates.values():
        wrong = out_of_bounds(config.tune, one)
        if wrong is not None and one.label in named:
            raise RequestError(f"--apply: {wrong}")
    folder = tuned_path(config).parent
    if not os.access(folder, os.W_OK):
        raise RequestError(f"--apply: {folder} cannot be written; run this as SlurmUser or root")


def read_history(config: Config, given: Given, *, placements: bool) -> History:
    """The jobs of the last days, the site, and the measured runs of its GPUs.

    ``placements``: whether placements are compared, which needs measured times.
    ``given``: options of tune; with ``nodes`` the cluster is not the store's, and GPUs run as drawn
    from ``variability``. Raises RequestError if there is too little of it, SourceError.
    """
    days = given["days"]
    options = {"sacct": given["sacct"], "days": days, "order": "priority", "policy": PACKED}
    options |= {name: given[name] for name in ("nodes", "gpus_per_node", "machine")}
    words = [f"--{k.replace('_', '-')}={v}" for k, v in options.items() if v is not None]
    words += [f"--variability={entry}" for entry in given["variability"]]
    words += ["--eta=none"] if given["slowdown"] else []
    inputs = gather(config, simulate.make_context("simulate", words).params)
    say_inputs(inputs, [entry.partition("=")[0] for entry in given["variability"]])
    if given["nodes"] is not None:
        if not inputs.site.truth:
            say("all GPUs count as equal; --variability CLASS=FILE.csv gives them measured times")
        return History(inputs, covered_days(inputs.trace, days), ())
    if not inputs.site.truth and placements:
        raise RequestError(
            "the store has no times of any GPU, so all GPUs count as equal: import times with"
            " 'gpu-aware-profile import' first"
        )
    with open_for_reading(config.store) as store:
        runs = newest_runs(store)
    return History(inputs, covered_days(inputs.trace, days), runs)


def bounded_candidates(history: History, config: Config, *, ends_at: float) -> dict[str, Candidate]:
    """Label -> candidate that waits by choice no longer than any job does with packed.

    One for each allowed policy with a range for ``longest_wait_s``; the range holds it. The wait is
    measured on the history itself, of which each seed is a draw. Raises RequestError if that ends
    later than ``ends_at`` (``time.monotonic``).
    """
    ranges = {name: config.tune.ranges.get(name, {}) for name in config.tune.allowed}
    bounds = {name: ends[BOUND] for name, ends in ranges.items() if BOUND in ends}
    if not bounds:
        return {}
    site = history.inputs.site
    settings = _settings(config, history.inputs.settings[0], Candidate(PACKED))
    trace, _ = with_work(history.inputs.trace, site.cluster, site.truth, settings)
    watch = _Watch([PACKED], len(trace.jobs), ends_at)
    run = Run(trace, site.cluster, site.truth, settings)
    try:
        (measured,) = measures(run_all([run], processes=1, progress=watch.show))
    except _LateError:
        raise RequestError(
            "the time is over before the first seed: give it more with --budget"
        ) from None
    wait_s = measured["longest_wait_s"]
    say(f"longest wait with {PACKED} in the history: {duration(wait_s)}")
    whole_s = _STEP_S * math.ceil(wait_s / _STEP_S)
    found = [
        Candidate(name, {BOUND: min(max(whole_s, low), high)})
        for name, (low, high) in bounds.items()
    ]
    return {one.label: one for one in found}


def replay(
    history: History,
    runs: tuple[Mapping[str, SimSettings], Mapping[str, SimSettings]],
    seeds: int,
    *,
    ends_at: float,
    processes: int | None,
) -> Replay:
    """Measures of the candidates per seed, until ``ends_at`` (``time.monotonic``).

    ``runs``: settings of the placements, and of the orders. Raises RequestError if less than
    ``LEAST_SEEDS`` seeds are ready by then.
    """
    inputs, site = history.inputs, history.inputs.site
    placements, orders = runs
    settings = [*placements.values(), *orders.values()]
    found = Replay(_tables(placements), _tables(orders), _tables(orders))
    longest_s, done = 0.0, 0
    for seed in range(1, seeds + 1):
        began = time.monotonic()
        if began + (longest_s if seed > LEAST_SEEDS else 0.0) > ends_at:
            break
        truth = drawn_runs(site.truth, site.cluster.nodes, history.runs, seed)
        trace, _ = with_work(inputs.trace, site.cluster, truth, settings[0])
        trace = drawn_days(trace, history.days, seed)
        try:
            results = run_all(
                [Run(trace, site.cluster, truth, one) for one in settings],
                processes=processes or max(1, (os.cpu_count() or 1) // 2),
                progress=_Watch([*placements, *orders], len(trace.jobs), ends_at).show,
            )
        except _LateError:
            break
        cut, done = len(placements), seed
        for each, of, part in (
            (found.placements, measures, results[:cut]),
            (found.orders, measures, results[cut:]),
            (found.payers, paid, results[cut:]),
        ):
            for label, measured in zip(each, of(part) if part else (), strict=True):
                each[label].append(measured)
        took_s = time.monotonic() - began
        longest_s = max(longest_s, took_s)
        what = f"seed {seed} of {seeds}: {len(settings)} x {len(trace.jobs)} jobs"
        say(f"{what} in {duration(took_s)}")
    if done < LEAST_SEEDS:
        raise RequestError(
            f"the time is over after {done} of at least {LEAST_SEEDS} seeds: give it more with"
            " --budget or -j, or fewer --days or candidates"
        )
    if done < seeds:
        say(f"the time is over after {done} of {seeds} seeds")
    return found


def _tables(names: Iterable[str]) -> dict[str, list[Mapping[str, float]]]:
    return {name: [] for name in names}


def settings_of(
    history: History,
    config: Config,
    candidates: Mapping[str, Candidate],
    orders: Mapping[str, OrderRule],
    present: Candidate,
) -> tuple[dict[str, SimSettings], dict[str, SimSettings]]:
    """Settings of the placements, and of the orders, which are compared with the present policy.

    The record has the last priority of each job and not what it was made of, so the orders are
    compared on jobs in the order of their submission.
    """
    base = history.inputs.settings[0]
    ordered = replace(_settings(config, base, present), order="fifo") if orders else base
    return (
        {label: _settings(config, base, one) for label, one in candidates.items()},
        {label: ordered.put(RunOrder(rule)) for label, rule in orders.items()},
    )


def bounds_of(
    history: History, config: Config, present: Candidate, bounds: Sequence[float]
) -> dict[str, SimSettings]:
    """Settings of the present policy at default clocks, and with clocks that save energy.

    Raises RequestError if the energy of a job cannot be known.
    """
    if any(job.table is None for job in history.inputs.trace.jobs):
        raise RequestError("the energy of jobs without a performance model is not known")
    base = _settings(config, history.inputs.settings[0], present)
    found = {f"slowdown={bound:g}": with_bound(base, bound) for bound in bounds if bound}
    return {DEFAULT_CLOCKS: with_bound(base, 0.0), **found}


def _settings(config: Config, base: SimSettings, one: Candidate) -> SimSettings:
    own = {**policy_options(config).get(one.policy, {}), **one.options}
    return with_options(replace(base, policy=one.policy), {one.policy: own}, {})


class _Watch(Progress):
    """Progress on a terminal; ends the runs when the time is over."""

    def __init__(self, labels: Sequence[str], jobs: int, ends_at: float) -> None:
        super().__init__(labels, jobs)
        self._ends_at = ends_at

    def show(self, done: Sequence[int]) -> None:
        """Show counts of ended jobs, one per candidate. Raises _LateError."""
        if time.monotonic() > self._ends_at:
            raise _LateError
        if sys.stderr.isatty():
            super().show(done)


def apply(config: Config, best: Candidate, found: Found) -> tuple[bool, str]:
    """Set the policy if ``[tune]`` allows it; (whether it is set, a sentence)."""
    wrong = out_of_bounds(config.tune, best) if config.tune.apply else "tune.apply is false"
    if wrong is not None:
        return False, f"It is not set: {wrong}."
    gain = compare(found[best.label], found[PACKED])
    mean, low, high = (round(100 * share, 3) for share in (gain.gain, gain.low, gain.high))
    tuned = Tuned(
        best.policy,
        best.options,
        set_at=round(time.time()),
        gain_percent=mean,
        low_percent=low,
        high_percent=high,
    )
    write_tuned(config, tuned)
    return True, "It is set; the selector takes it within seconds."


def as_json(found: Found, best: Verdict, reference: str = PACKED) -> dict[str, Any]:
    """Verdict, and `entries_of`."""
    return {
        "seeds": len(found[reference]),
        "best": best.best,
        "pays": best.pays,
        "replaces_present": best.changes,
        "candidates": entries_of(found, reference),
    }


def entries_of(found: Found, reference: str) -> list[dict[str, Any]]:
    """Each candidate against the reference; unknown numbers are null."""
    entries = []
    for label, seeds in found.items():
        one = compare(seeds, found[reference])
        entry = {"candidate": label, **asdict(one), "harms": one.harms}
        entry |= {"changes": _known(one.changes), "seeds": [_known(seed) for seed in seeds]}
        entries.append(entry)
    return entries


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def table_text(found: Found, present: str, reference: str = PACKED) -> str:
    """The candidates, each against the reference."""
    known = {k for seeds in found.values() for seed in seeds for k, v in seed.items() if v == v}
    changes = {k: one.header for k, one in MEASURES.items() if one.header and k in known}
    what = {PACKED: "candidate", DEFAULT_CLOCKS: "clocks"}.get(reference, "order")
    headers = [what, "avg JCT", "longest wait", "gain", "95%", *changes.values()]
    rows = []
    for label, seeds in found.items():
        one = compare(seeds, found[reference])
        name = f"{label} (present)" if label == present else label
        means = (sum(s[key] for s in seeds) / len(seeds) for key in ("jct_s", "longest_wait_s"))
        row = [name, *map(duration, means)]
        if label != reference:
            low, high = percent(one.low), percent(one.high)
            row += [percent(one.gain), f"{low.removesuffix('%')} to {high}"]
            row += [_change(one.changes[key]) for key in changes]
        rows.append([*row, *[""] * (len(headers) - len(row))])
    return table(headers, rows, right=headers[1:])


def _change(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:+.1f}%"
