"""Instances of the stochastic scheduler's experiment: clusters, jobs, arrivals, due dates."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slurm_gpu_aware.features.due_dates.free_gpus import DueNode
from slurm_gpu_aware.features.due_dates.work import WorkDistribution, empirical
from slurm_gpu_aware.features.sizes.speeds import Speeds

EPOCHS = "sts/epochs_to_target.csv"
PRICE = {"K80": 0.90, "M60": 1.14, "A100": 3.6725}
"""Table III, $ per GPU and hour, linear in the number of GPUs."""
SPEED = {"K80": 1.0, "M60": 1.35, "A100": 6.0}
"""Of one GPU, over a K80; not in the paper."""
SHARES = {
    "K80": (24, ((0.25, 1.11), (0.5, 1.05))),
    "M60": (16, ((0.25, 1.11), (0.5, 1.05))),
    "A100": (80, ((0.1, 1.17), (0.15, 1.15))),
}
"""Table IV: memory in GB, and the shares with the most that each can inflate times."""
WIDTH = 8
JOBS_PER_NODE = 10
EPSILON = 0.4
MOST_JOBS = 4
"""Jobs of a node at one time, at most (kappa_max, for each node)."""
EXPONENTIAL_S = 50_000.0
"""Mean time between arrivals, times the number of nodes."""
LATE_COST = (0.0254, 0.0444)
"""$ per s."""
MEMORY_GB = (2.0, 12.0)
"""Memory that a job needs, uniform; not in the paper."""
MOST_EPOCHS = 100
ARRIVALS = ("exponential", "poisson high", "poisson low")
CLUSTERS = {"K80 and M60": ("K80", "M60"), "A100": ("A100",)}


@dataclass(frozen=True)
class Setting:
    """What may differ between experiments; the defaults are the paper's where it gives a value."""

    sharing: str = ""
    """``on``; ``off`` has the same due dates only."""
    memory_gb: tuple[float, float] = MEMORY_GB
    rate: float = 1.0
    """Jobs arrive so many times as often."""
    late_cost: float = 1.0
    """Being late costs so many times as much."""
    due: tuple[float, float] = (1.0, 3.0)
    """Due dates are so many times the least time of a job."""
    due_by_mean: bool = False
    """Least and greatest time are those of the mean work, not of all epochs."""
    idle: float = 0.0
    """Price of the GPUs of its node that a job does not use, as a share of that of the others."""


PAPER = Setting()


@dataclass(frozen=True)
class Network:
    """A kind of job."""

    name: str
    epoch_s: float
    """Of an epoch on one K80; not in the paper."""
    exponent: float
    """Speed on k GPUs is k to this power; not in the paper."""
    cases: tuple[float, ...]
    """Epochs of earlier runs, at most 100."""


@dataclass(frozen=True, eq=False)
class Submitted:
    """A job of an instance. Times in s, costs in $."""

    submit_s: float
    due_s: float
    late_cost: float
    work: WorkDistribution
    speeds: Mapping[str, Speeds]
    epochs: float
    """What it really does."""
    network: str


@dataclass(frozen=True, eq=False)
class Instance:
    """A cluster and its jobs, by time of submission."""

    nodes: Sequence[DueNode]
    jobs: Sequence[Submitted]
    period_s: float
    """Longest time between decisions while a job waits beside free GPUs (H; not in the paper)."""


def paper_networks(better: float = 0.0, epochs: float = 1.0) -> list[Network]:
    """The four networks; their distributions have the shapes that the paper describes.

    ``better``: added to the exponents. ``epochs``: jobs that end early have so many times as many.
    """
    rng = np.random.default_rng(0)
    shapes = {
        "AlexNet": (90.0, 0.35, 4.0, 1.6, 0.35),
        "ResNet": (240.0, 0.6, 2.0, 4.5, 0.0),
        "VGG16": (420.0, 0.45, 2.0, 4.0, 0.0),
        "MobileNetV2": (150.0, 0.5, 5.0, 5.0, 0.0),
    }
    found = []
    for name, (epoch_s, exponent, a, b, atom) in shapes.items():
        cases = np.ceil(epochs * MOST_EPOCHS * rng.beta(a, b, 160))
        cases[: int(atom * len(cases))] = MOST_EPOCHS
        found.append(Network(name, epoch_s, exponent + better, tuple(cases.tolist())))
    return found


def measured_networks(file: Path) -> list[Network]:
    """The same with real spread: epochs until a target that most runs of a model reach.

    Runs that do not reach it do all the epochs. One target per model: the highest that two thirds
    of the runs reach.
    """
    runs: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with file.open(encoding="utf-8", newline="") as lines:
        for row in DictReader(lines):
            reached = min(float(row["target_epoch"] or MOST_EPOCHS), float(MOST_EPOCHS))
            runs[f"{row['dataset']} {row['model']}"][float(row["target_metric"])].append(reached)
    own = paper_networks()
    found = []
    for n, (name, targets) in enumerate(sorted(runs.items())):
        enough = [
            target
            for target, epochs in targets.items()
            if len(epochs) >= 20 and np.mean(np.array(epochs) < MOST_EPOCHS) >= 2 / 3
        ]
        spread = max(enough, key=lambda t: float(np.std(targets[t])), default=None)
        if spread is not None:
            like = own[n % len(own)]
            found.append(Network(name, like.epoch_s, like.exponent, tuple(targets[spread])))
    return found


def instance(
    networks: Sequence[Network],
    models: Sequence[str],
    count: int,
    arrivals: str,
    rng: np.random.Generator,
    setting: Setting = PAPER,
) -> Instance:
    """An instance of ``count`` nodes; the same generator gives the same jobs in each setting."""
    nodes = [DueNode(models[n % len(models)], WIDTH) for n in range(count)]
    jobs = [_job(networks, models, rng, setting) for _ in range(JOBS_PER_NODE * count)]
    least = [min(job.work.mean_left / s.speed[-1] for s in job.speeds.values()) for job in jobs]
    gap_s = EXPONENTIAL_S / count
    if arrivals != "exponential":
        high = EPSILON * count * MOST_JOBS / float(np.mean(least))
        gap_s = 1 / (high if arrivals == "poisson high" else high / 4)
    at = np.cumsum(rng.exponential(gap_s / setting.rate, len(jobs)))
    moved = [
        replace(job, submit_s=float(t), due_s=float(t) + job.due_s)
        for t, job in zip(at, jobs, strict=True)
    ]
    return Instance(nodes, moved, 0.1 * float(np.mean(least)))


def _job(
    networks: Sequence[Network],
    models: Sequence[str],
    rng: np.random.Generator,
    setting: Setting,
) -> Submitted:
    """A job that is submitted at 0."""
    network = networks[int(rng.integers(len(networks)))]
    gpus = np.arange(1.0, WIDTH + 1)
    base = 1 / (network.epoch_s * rng.uniform(0.8, 1.25))
    memory_gb = float(rng.uniform(*setting.memory_gb))
    paid = gpus + setting.idle * (WIDTH - gpus)
    speeds = {
        model: Speeds(
            gpus, base * SPEED[model] * gpus**network.exponent, PRICE[model] / 3600 * paid
        )
        for model in models
    }
    work = empirical(network.cases, MOST_EPOCHS)
    amount = work.mean_left if setting.due_by_mean else MOST_EPOCHS
    least = min(amount / float(s.speed[-1]) for s in speeds.values())
    greatest = max(amount / float(s.speed[0]) for s in speeds.values())
    first, last = (factor * least for factor in setting.due)
    due = rng.uniform(first, min(last, greatest) * (1.2 if setting.sharing else 1.0))
    inflations = {model: rng.random() for model in models}
    if setting.sharing == "on":
        speeds = {m: _shared(s, m, memory_gb, inflations[m]) for m, s in speeds.items()}
    epochs = float(rng.choice(network.cases))
    late = setting.late_cost * float(rng.uniform(*LATE_COST))
    return Submitted(0.0, float(due), late, work, speeds, epochs, network.name)


def _shared(speeds: Speeds, model: str, memory_gb: float, draw: float) -> Speeds:
    """With the share of a GPU that has enough memory for the job, if one has."""
    gpu_gb, table = SHARES[model]
    most = dict(table)
    share = min((one for one in most if memory_gb <= one * gpu_gb), default=None)
    if share is None:
        return speeds
    inflation = 1.01 + draw * (most[share] - 1.01)
    return Speeds(
        np.concatenate(([share], speeds.gpus)),
        np.concatenate(([speeds.speed[0] / inflation], speeds.speed)),
        np.concatenate(([share * speeds.power[0]], speeds.power)),
    )
