"""Input of PowerFlow's reproduction: measured size tables of applications on A100, and traces.

No data vary GPU count, batch size and clock together, and none measure power against GPU count. So
the tables are put together:

- T(n) at the default clock is measured (ElasticFlow's data, a fixed global batch).
- The part of T(n) that computes is a + b x batch / n, fitted to the times of one GPU at two or
  three batch sizes; the rest is synchronisation.
- Computing takes as much longer at a lower clock, and draws as much power, as stages of large
  models did (Perseus' data: 2 models x 2 passes; each application gets one of the four series).
- Assumed: synchronisation takes the same time at all clocks, and draws ``SYNC`` of the power of
  computing, with at least what idle GPUs draw.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_gpu_aware.features.models.fitting import fit_model
from slurm_gpu_aware.features.models.least_squares import prior_of
from slurm_gpu_aware.features.models.performance_model import PerformanceSample
from slurm_gpu_aware.features.models.tables import size_table
from slurm_gpu_aware.model.arrays import FloatArray, IntArray
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.simulator.trace import Trace, TraceJob, read_csv

TIMES, CLOCKS = "throughput/elasticflow.csv", "dvfs/dl_stage_frequency.csv"
JOBS = "traces/philly/philly.csv"
NEEDED = (TIMES, CLOCKS, JOBS)
NODES, WIDTH = 4, 8
IDLE_W = 60.0
"""Of an A100 without a job; assumed."""
SYNC = 0.5
SIZES = (1, 2, 4, 8, 16, 32)
SAMPLED_SIZES, SAMPLED_CLOCKS, NOISE = (1, 2, 4, 8, 16), 4, 0.03
"""What models are fitted to: 20 samples with log-normal noise of 3%."""
GPU = "A100"
CLOCK_STEP = 3
"""Every so many clocks of the series are used: steps of 45 MHz."""


@dataclass(frozen=True)
class Application:
    """One of the paper's models, and what stands for it."""

    name: str
    """In ElasticFlow's data."""
    batch: int
    """Global batch size."""
    series: tuple[str, str]
    """Model and pass of the series of clocks."""
    app_class: str


APPLICATIONS: Mapping[str, Application] = {
    "ResNet18": Application("resnet50", 256, ("bloom-176b", "backward"), "A"),
    "VGG16": Application("vgg16", 256, ("gpt3-175b", "backward"), "A"),
    "Inception": Application("inception3", 128, ("bloom-176b", "forward"), "A"),
    "GPT2": Application("gpt2", 256, ("gpt3-175b", "forward"), "B"),
    "DeepSpeech2": Application("deepspeech2", 64, ("bloom-176b", "backward"), "B"),
}
"""Model of the paper -> data; ResNet18 was not measured, ResNet50 stands for it."""


def oracle(data: Path, *, sync: float = SYNC) -> dict[str, SizeTable]:
    """Application -> its measured size table."""
    times, clocks = _times(data / TIMES), _clocks(data / CLOCKS)
    return {
        name: _table(application, times[application.name], clocks[application.series], sync)
        for name, application in APPLICATIONS.items()
    }


def most_w(tables: Mapping[str, SizeTable]) -> float:
    """The highest power of a GPU in the tables: the data have no power limit."""
    return max(float((t.power_w / t.gpus[:, None]).max()) for t in tables.values())


def _times(file: Path) -> dict[str, dict[int, dict[int, float]]]:
    """Model -> global batch -> GPUs -> seconds of an iteration."""
    found: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    with file.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["gpu_type"] == GPU:
                batch, gpus = int(row["global_batch"]), int(row["gpus"])
                found[row["model"]][batch][gpus] = float(row["step_time_s"])
    return found


def _clocks(file: Path) -> dict[tuple[str, str], tuple[IntArray, FloatArray, FloatArray]]:
    """(model, pass) -> clocks in MHz, time / that at the highest clock, power in W."""
    rows: dict[tuple[str, str], list[tuple[int, float, float]]] = defaultdict(list)
    with file.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["gpu"].startswith(GPU) and row["independent"] == "1":
                time, energy = float(row["time_s"]), float(row["energy_j"])
                at = int(row["core_mhz"]), time, energy / time
                rows[row["model"], row["pass"]].append(at)
    found = {}
    for key, values in rows.items():
        mhz, time_s, power = map(np.array, zip(*sorted(values), strict=True))
        every = slice(None, None, -CLOCK_STEP)  # the highest one among them
        kept = np.arange(len(mhz))[every][::-1]
        found[key] = (mhz[kept], (time_s / time_s[-1])[kept], power[kept])
    return found


def _table(
    application: Application,
    times: Mapping[int, Mapping[int, float]],
    clocks: tuple[IntArray, FloatArray, FloatArray],
    sync: float,
) -> SizeTable:
    mhz, slower, watts = clocks
    gpus = np.array(sorted(times[application.batch]))
    total = np.array([times[application.batch][int(n)] for n in gpus])
    batches = sorted(times)
    slope, start = np.polyfit(batches, [times[b][1] for b in batches], 1)
    computes = np.minimum(total, max(start, 0.0) + max(slope, 0.0) * application.batch / gpus)
    waits = total - computes
    compute_s = computes[:, None] * slower
    time_s = compute_s + waits[:, None]
    sync_w = np.maximum(sync * watts, IDLE_W)
    power_w = gpus[:, None] * (compute_s * watts + waits[:, None] * sync_w) / time_s
    source = f"{application.name}, global batch {application.batch}"
    return SizeTable(gpus, mhz, time_s, power_w, source)


@dataclass(frozen=True)
class Load:
    """Jobs drawn from Philly's, with uniform arrivals."""

    demand: float
    """GPU time that the jobs ask for / GPU time of the cluster while they arrive."""
    jobs: int = 200
    longest_s: float = 12 * 3600.0
    shortest_s: float = 60.0


def trace(data: Path, tables: Mapping[str, SizeTable], load: Load, seed: int) -> Trace:
    """Jobs with sizes and run times of Philly, an application each, elastic in powers of two."""
    pool = [
        job
        for job in read_csv(data / JOBS).jobs
        if load.shortest_s <= job.duration_s <= load.longest_s and job.gpus in SIZES
    ]
    rng = np.random.default_rng(seed)
    drawn = [pool[i] for i in rng.choice(len(pool), load.jobs, replace=False)]
    names = rng.choice(sorted(tables), load.jobs).tolist()
    work = sum(job.gpus * job.duration_s for job in drawn)
    at = np.sort(rng.uniform(0.0, work / (load.demand * NODES * WIDTH), load.jobs)).tolist()
    jobs = (
        TraceJob(
            str(number),
            submit_s,
            job.gpus,
            job.duration_s,
            APPLICATIONS[name].app_class,
            name,
            sizes=SIZES,
            elastic=True,
            table=tables[name],
        )
        for number, (submit_s, job, name) in enumerate(zip(at, drawn, names, strict=True))
    )
    return Trace.of(f"Philly, seed {seed}", jobs)


def fitted(tables: Mapping[str, SizeTable], seed: int) -> dict[str, SizeTable]:
    """Size tables of models that are fitted to a few noisy samples of the measured ones."""
    rng = np.random.default_rng([seed, 1])
    return {name: _fit(name, table, rng) for name, table in tables.items()}


def _fit(name: str, table: SizeTable, rng: np.random.Generator) -> SizeTable:
    mhz, batch = table.clocks_mhz, APPLICATIONS[name].batch
    samples = []
    for gpus in SAMPLED_SIZES:
        for column in np.linspace(0, len(mhz) - 1, SAMPLED_CLOCKS).astype(int).tolist():
            row = table.row(gpus)
            time_s, power_w = table.time_s[row, column], table.power_w[row, column]
            noise_t, noise_p = np.exp(rng.normal(0.0, NOISE, 2))
            nodes = -(-gpus // WIDTH)
            at = (gpus, nodes, batch / gpus, float(mhz[column]))
            samples.append(PerformanceSample(*at, time_s * noise_t, power_w * noise_p))
    prior = prior_of(APPLICATIONS[name].app_class, "A100")
    model = fit_model(samples, prior, float(mhz[-1]), name=name, gpu_model="A100")
    return size_table(model, SIZES, mhz.tolist(), WIDTH, batch)


def error(known: Mapping[str, SizeTable], true: Mapping[str, SizeTable], what: str) -> float:
    """Mean absolute relative error of ``time_s`` or ``power_w`` over all sizes and clocks."""
    ratios = []
    for name, table in known.items():
        rows = [true[name].row(int(gpus)) for gpus in table.gpus]
        ratios.append(getattr(table, what) / getattr(true[name], what)[rows])
    return float(np.nanmean(np.abs(np.concatenate([r.ravel() for r in ratios]) - 1.0)))
