"""STS in the simulator: placement of its own or by `eft`, beside the planner's live rounds."""

import math
import sys
import time
from dataclasses import replace

import numpy as np
from common import paragraph, percent, table
from sts_baselines import edf, longest
from sts_instances import MOST_EPOCHS, PRICE, WIDTH, Instance, instance, paper_networks
from sts_simulation import simulate as experiment
from sts_simulation import sts

from slurm_gpu_aware.features.due_dates.declared import EPOCHS, DueDatesConfig
from slurm_gpu_aware.features.due_dates.simulated import due_numbers
from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.job_hints import NO_HINTS, JobHints
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import bin_all
from slurm_gpu_aware.simulator.trace import Trace, TraceJob

MODEL = "A100"
CLASS = "B"
SPREAD = 0.05
"""Standard deviation of the times of GPUs of one model."""
WATTS = 400.0
"""Of a GPU in use; energy is told as a ratio."""
RESTART_S = 30.0
MODES = {
    "packed:no-due": "rounds as live, due dates ignored",
    "packed": "rounds as live, sizes by due dates",
    "packed:moves": "the same, jobs grow while they run",
    "packed together": "rounds as live, all jobs together",
    "packed:moves together": "the same, jobs grow while they run",
    "packed:sts": "STS, fullest node first",
    "eft:sts": "STS, placed by eft",
    "packed:sts-preempt": "STS, all jobs placed anew",
}


WORLDS = {
    "limit 1.5 times, GPUs differ": (False, SPREAD, RESTART_S),
    "epochs stated, GPUs differ": (True, SPREAD, RESTART_S),
    "epochs stated, GPUs alike": (True, 0.0, RESTART_S),
    "epochs stated, GPUs alike, restarts of 3 s": (True, 0.0, 3.0),
}
"""(Whether jobs state their epochs, as of `SPREAD`, time of a restart)."""
LIVE = ("packed", "packed:moves", "packed:moves together")


def placements(size: tuple[int, int]) -> list[str]:
    """Due dates met and energy of each mode; ``size``: nodes, instances of each kind."""
    started = time.perf_counter()
    rows = []
    for arrivals in ("poisson high", "poisson low"):
        found: dict[str, list[FloatArray]] = {mode: [] for mode in MODES}
        for seed in range(size[1]):
            rng = np.random.default_rng([seed, size[0], len(arrivals)])
            made = instance(paper_networks(), (MODEL,), size[0], arrivals, rng)
            trace = _trace(made)
            scores = {CLASS: rng.normal(1.0, SPREAD, (size[0], WIDTH)).clip(0.8, 1.3)}
            for mode in MODES:
                found[mode].append(_run(trace, scores, mode))
        ignored = np.array(found["packed:no-due"])
        for mode, what in MODES.items():
            each = np.array(found[mode])
            met, late_h, energy = each.mean(axis=0) / [1.0, 1.0, ignored[:, 2].mean()]
            row = [percent(met), _difference(each[:, 0] - ignored[:, 0])]
            rows.append([arrivals, f"`{mode}`", what, *row, f"{late_h:.2f}", f"{energy:.2f}"])
    print(f"placements: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    heads = ["arrivals", "mode", "what it is", "due dates met", "more than ignored, points"]
    heads += ["late in all, h", "energy of jobs"]
    remark = paragraph(
        f"{size[0]} nodes of 8 {MODEL}, {size[1]} instances each, GPUs whose times differ by "
        f"{percent(SPREAD)} (standard deviation), jobs with `move=ok`, {RESTART_S:g} s for a "
        "restart, which the paper has for free; energy over that of `packed:no-due`; differences "
        "with their standard errors. The first "
        "runs of a network have no earlier ones, and the limit of a job is 1.5 times the time of "
        "all epochs on one GPU. Live rounds give a job GPUs that no waiting job can use only as "
        "far as its due date needs them; with `no-due`, all of them. Jobs start with what is free "
        "and leave other waiting jobs their least sizes; only the last of the queue waits for what "
        "its due date needs. So with few jobs sizes by due dates save energy and have about as "
        "many of these met as `no-due`; with many there is nothing to save, and more due dates are "
        "met only where jobs grow while they run. Together, jobs wait for what costs them least, "
        "which with many jobs makes others need more GPUs. `eft` places STS's sizes on faster "
        "GPUs, which saves energy in the same time."
    )
    return [table(heads, rows), remark, *_beside_edf(size)]


def _beside_edf(size: tuple[int, int]) -> list[str]:
    """Live rounds beside EDF and STS in their own experiment, by what they know and pay."""
    made, own = _calm(size)
    rows = [
        [name, *[f"{percent(met)}, {kwh / own['EDF'][1]:.2f}"] * len(WORLDS)]
        for name, (met, kwh) in own.items()
    ]
    for mode in LIVE:
        cells = []
        for world in WORLDS:
            met, kwh = in_world(made, mode, world)
            cells.append(f"{percent(met)}, {kwh / own['EDF'][1]:.2f}")
        rows.append([f"`{mode}`", *cells])
    remark = paragraph(
        "Due dates met, and energy over that of EDF in its own experiment; poisson low, "
        f"{size[0]} nodes, {len(made)} instances. There EDF and STS know that no job has more than "
        f"{MOST_EPOCHS} epochs, GPUs are alike and restarts free. With `epochs=` (an epoch in "
        "whole seconds, rounded up) live rounds know the most epochs, too. Restarts of 3 s are to "
        "these jobs, of minutes to two hours, what 30 s are to jobs ten times as long."
    )
    return [table(["scheduler", *WORLDS], rows), remark]


def _calm(size: tuple[int, int]) -> tuple[list[Instance], dict[str, FloatArray]]:
    """(Instances with few jobs, scheduler -> mean due dates met and kWh in its own experiment)."""
    found: dict[str, list[tuple[float, float]]] = {"EDF": [], "STS": []}
    made = []
    for seed in range((size[1] + 1) // 2):
        rng = np.random.default_rng([seed, size[0], len("poisson low")])
        made.append(instance(paper_networks(), (MODEL,), size[0], "poisson low", rng))
        for name, one in (("EDF", edf(longest, keeps=True)), ("STS", sts(keeps=True))):
            outcome = experiment(made[-1], one)
            kwh = outcome.energy / PRICE[MODEL] * WATTS / 1000
            found[name].append((1 - outcome.late, kwh))
    return made, {name: np.mean(each, axis=0) for name, each in found.items()}


def in_world(made: list[Instance], mode: str, world: str) -> FloatArray:
    """Mean due dates met and kWh of a mode, in one of `WORLDS`."""
    stated, spread, restart_s = WORLDS[world]
    found = []
    for seed, one in enumerate(made):
        rng = np.random.default_rng([seed, len(one.nodes)])
        scores = {CLASS: rng.normal(1.0, spread, (len(one.nodes), WIDTH)).clip(0.8, 1.3)}
        met, _, kwh = _run(_trace(one, stated=stated), scores, mode, restart_s)
        found.append((met, kwh))
    return np.asarray(np.mean(found, axis=0))


def _difference(shares: FloatArray) -> str:
    """Mean of some differences in percentage points, with its standard error."""
    points = 100 * shares
    if len(points) < 2 or not points.any():
        return f"{points.mean():.1f}"
    return f"{points.mean():+.1f} ± {points.std(ddof=1) / len(points) ** 0.5:.1f}"


def _trace(made: Instance, *, stated: bool = False) -> Trace:
    """``stated``: the jobs say how many epochs they have at most."""
    jobs = []
    for n, job in enumerate(made.jobs):
        speeds = job.speeds[MODEL]
        gpus = speeds.gpus.astype(np.int64)
        sizes = SizeTable(
            gpus, np.array([1410]), speeds.unit_time[:, None], (WATTS * speeds.gpus)[:, None]
        )
        seconds = job.epochs * float(speeds.unit_time[0])
        epoch_s = math.ceil(speeds.unit_time[0])
        jobs.append(
            TraceJob(
                str(n),
                job.submit_s,
                1,
                max(seconds, 1.0),
                CLASS,
                time_limit_s=1.5 * MOST_EPOCHS * float(speeds.unit_time[0]),
                deadline_s=job.due_s,
                user="user",
                name=job.network,
                sizes=tuple(gpus.tolist()),
                elastic=True,
                hints=JobHints({EPOCHS.key: (MOST_EPOCHS, epoch_s)}) if stated else NO_HINTS,
                table=sizes,
            )
        )
    return Trace.of("sts", jobs)


def _run(
    trace: Trace, scores: dict[str, np.ndarray], mode: str, restart_s: float = RESTART_S
) -> np.ndarray:
    """(share of due dates met, hours late, energy of all jobs in kWh)."""
    nodes = len(scores[CLASS])
    cluster = Cluster.uniform([f"n{i}" for i in range(nodes)], WIDTH, same_indices=False)
    cluster = replace(cluster, scores=bin_all(scores, cluster.exists))
    policy, _, order = mode.partition(" ")
    base = SimSettings(migration_s=restart_s, locality=False).put(RunPower(50.0, WATTS))
    moves = MovesConfig(per_hour=1000, per_round=100)
    due_dates = DueDatesConfig(order or DueDatesConfig.order)
    settings = parse_policy(policy, base.put(moves, due_dates))
    result = simulate(trace, cluster, settings, truth=scores)
    due = due_numbers(result)
    assert result.energy is not None
    return np.array([due["due_met"], due["late_h"], result.energy.job_kwh.sum()])
