"""Inputs of ``gpu-aware simulate`` from its options."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_gpu_aware.cli.cluster_options import stored_cluster
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.cli.run_options import Prepared
from slurm_gpu_aware.cli.simulate import RUN_OPTIONS
from slurm_gpu_aware.config.settings import Config, PlacementConfig
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.placement.policy import SLURM, make_policy, option_names, policy_class
from slurm_gpu_aware.selector.policy_options import policy_options, read_interference
from slurm_gpu_aware.simulator.history import (
    BASELINE,
    with_slots,
    with_work,
    without_unsupported,
)
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.sacct_trace import read_sacct, read_trace
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import (
    SimulatedSite,
    Timings,
    draw_scores,
    read_timings,
    stored_site,
    synthetic_site,
    with_scores,
)
from slurm_gpu_aware.simulator.trace import Trace, poisson_trace
from slurm_gpu_aware.slurm.multifactor import Multifactor, live_site, not_modelled, read_site
from slurm_gpu_aware.slurm.sacct import live_history
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.text_file import read_text

_LIVE_DAYS = 90
Given = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Jobs, site and settings of the runs."""

    trace: Trace
    site: SimulatedSite
    settings: tuple[SimSettings, ...]  # One per policy.
    recorded: Mapping[str, int]  # Key of ``history.KNOWLEDGE`` -> number of recorded jobs.
    source: Trace  # The trace as it was read.

    def runs(self) -> list[Run]:
        """One run per policy."""
        return [Run(self.trace, self.site.cluster, self.site.truth, s) for s in self.settings]


def gather_seeds(config: Config, given: Given) -> list[Inputs]:
    """The inputs of each seed. Raises as :func:`gather`, and if the seeds would be alike."""
    count, drawn = given["seeds"], given["synthetic"] is not None
    if count > 1 and not drawn and not given["variability"]:
        raise RequestError(
            "--seeds draws GPUs of --variability or jobs of --synthetic anew, and neither is given;"
            " for the site's own history: gpu-aware tune"
        )
    first = gather(config, given)
    seeds = range(given["seed"] + 1, given["seed"] + count)
    known = None if drawn else first.source
    return [first, *(gather(config, {**given, "seed": seed}, known) for seed in seeds)]


def gather(config: Config, given: Given, source: Trace | None = None) -> Inputs:
    """Read and check all inputs. Raises RequestError, PolicyError or SourceError.

    ``source``: the trace, if it was read before.
    """
    features = [of_feature(config, given) for of_feature in RUN_OPTIONS]
    names = list(given["policies"] or (BASELINE, config.placement.policy))
    if given["what_if"]:
        # Slurm's own placement, so that errors of the model do not count as gains
        names = [BASELINE, *(n for n in names if n not in (BASELINE, f"{BASELINE}:sticky"))]
    source = source or _trace(config, given)
    trace = _with_sensitivity(config, source)
    profile = _profile(given)
    backfill = given["backfill"]
    classes = (*config.site.classes, *sorted({job.app_class for job in trace.jobs}))
    costs = ((name, entry.restart_s) for name, entry in config.classes.items())
    of_classes = {name: cost_s for name, cost_s in costs if cost_s is not None}
    shares = None if given["fairshare"] is None else _multifactor(given["fairshare"])
    order = "multifactor" if shares else "priority" if given["what_if"] else "fifo"
    site_options, site = policy_options(config), _site(config, given)
    base = SimSettings(
        slurm_options={**policy_class(SLURM).of_traces, **site_options.get(SLURM, {})},
        order=given["order"] or order,
        multifactor=shares,
        round_s=given["round_s"],
        backfill=config.placement.backfill if backfill is None else backfill,
        reservations=config.placement.reservations,
        class_restart_s=of_classes if given["migration_s"] is None else {},
        overrun=given["overrun"],
        sections=config.sections,
        classes=tuple(dict.fromkeys(classes)),
        locality=given["locality_effect"],
        variability=given["variability_effect"],
        communication_share=given["bandwidth_share"],
        interference=profile if given["interference"] else None,
        interference_scope=given["interference_scope"] or "socket",
    )
    offered = {"seed": given["seed"], **({"interference": profile} if profile else {})}
    if given["interference_scope"]:
        offered["interference_scope"] = given["interference_scope"]
    one = Prepared(trace, site.cluster, base)
    for feature in features:
        one = feature.prepared(one)
    trace, _, base = one
    modes = [parse_policy(name, base) for name in names]
    settings = tuple(with_options(mode, site_options, offered) for mode in modes)
    for feature in reversed(features):
        settings = feature.swept(settings)
    if given["nodes"] is None and any(job.recorded_nodes for job in trace.jobs):
        with open_for_reading(config.store) as store:
            trace = with_slots(trace, Ledger(store).gpus_given())
    trace = without_unsupported(trace, site.cluster)
    trace, recorded = with_work(trace, site.cluster, site.truth, base)
    return Inputs(trace, site, settings, recorded, source)


def with_options(
    settings: SimSettings, site_options: Mapping[str, Mapping[str, Any]], offered: Mapping[str, Any]
) -> SimSettings:
    """The run with its policy's options: the site's, and the known ones of those ``offered``."""
    known = option_names(settings.policy)
    usable = {name: value for name, value in offered.items() if name in known}
    of_traces = policy_class(settings.policy).of_traces
    options = {**of_traces, **site_options.get(settings.policy, {}), **usable}
    make_policy(settings.policy, options)  # raises for a bad name or value
    return replace(settings, policy_options=options)


def _profile(given: Given) -> InterferenceProfile | None:
    profile = None
    if given["profile"]:
        profile, bad = read_interference(given["profile"])
        if bad:
            say(f"{given['profile']}: {len(bad)} entries left out, first: {bad[0]}")
    if given["interference"] and profile is None:
        raise RequestError("--interference needs --profile FILE.json with times of pairs of jobs")
    return profile


def _multifactor(source: str) -> Multifactor:
    """Slurm's priorities as a saved output of `COMMAND`, or the live cluster, has them."""
    text = live_site() if source == "live" else read_text(source)
    if counted := not_modelled(text):
        say(f"{source}: {', '.join(counted)}: counts as far as the column priority has it")
    return read_site(text, source)


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
    if config.placement.gpus == "nodes":
        plain = replace(site.cluster, indexed=np.zeros_like(site.cluster.indexed))
        site = replace(site, cluster=plain, label=f"{site.label}, of which Slurm chooses the GPUs")
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
