"""Random jobs with any curves, and oracles of PowerFlow's allocator."""

import heapq
import math
from itertools import product

import numpy as np
from hypothesis import strategies as st

from slurm_gpu_aware.features.power.menu import SizingJob
from slurm_gpu_aware.model.size_table import SizeTable

GPUS = (1, 2, 4)
CLOCKS = (800, 1000, 1200, 1400)
BAD = (math.nan, 0.0, -1.0, math.inf)


@st.composite
def tables(draw):
    """Tables of any curves: sensible, flat, falling, rising, with values that are no numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["model", "model", "random", "flat", "steps"]))
    table = model_table(rng) if kind == "model" else random_table(rng)
    time_s, power_w = table.time_s.copy(), table.power_w.copy()
    if kind == "flat":
        time_s[:], power_w[:] = 1.0, 100.0
    if kind == "steps":
        time_s, power_w = np.round(time_s), np.round(power_w, -2)
    if draw(st.booleans()):
        holes = rng.random(time_s.shape) < 0.3
        time_s[holes] = rng.choice(BAD, int(holes.sum()))
        power_w[rng.random(time_s.shape) < 0.1] = rng.choice(BAD)
    return SizeTable(np.array(GPUS), np.array(CLOCKS), time_s, power_w)


def model_table(rng: np.random.Generator) -> SizeTable:
    """A curve as of a training job: a part that clocks do not change, and synchronisation."""
    n, f = np.array(GPUS)[:, None], np.array(CLOCKS)[None, :]
    memory, sync = rng.uniform(0, 0.7), rng.uniform(0, 0.4)
    time_s = (memory + (1 - memory) * CLOCKS[-1] / f) / n + sync * np.log2(n)
    volts = np.maximum(0.8, f / CLOCKS[-1])
    each_w = 60 + rng.uniform(120, 240) * volts**2 * f / CLOCKS[-1]
    power_w = n * each_w * (1 - 0.1 * np.log2(n))
    return SizeTable(np.array(GPUS), np.array(CLOCKS), rng.uniform(0.5, 2) * time_s, power_w)


def random_table(rng: np.random.Generator) -> SizeTable:
    """A curve as of no job."""
    shape = (len(GPUS), len(CLOCKS))
    time_s, power_w = rng.uniform(0.2, 3.0, shape), rng.uniform(20, 500, shape)
    return SizeTable(np.array(GPUS), np.array(CLOCKS), time_s, power_w)


@st.composite
def sizing_jobs(draw, most=6):
    """Jobs of all kinds: moldable, fixed, running, with fixed clocks, without a table."""
    shared = draw(st.lists(tables(), min_size=1, max_size=3))
    jobs = []
    for number in range(draw(st.integers(0, most))):
        sizes = draw(st.sampled_from([(1,), (2,), (1, 2), (1, 2, 4), (2, 4), (1, 3), (4, 8)]))
        clocks = draw(st.sampled_from([None, None, None, (), (1000,), (1100,), (800, 1200)]))
        jobs.append(
            SizingJob(
                str(number),
                sizes,
                draw(st.sampled_from([100.0, 300.0, 650.5])),
                draw(st.sampled_from([*shared, None])),
                clocks,
                draw(st.sampled_from([0.0, 1.0, 3.5, 1e6])),
                draw(st.integers(0, 3)),
                draw(st.integers(0, 3)) == 0,
            )
        )
    return jobs


def configurations(job: SizingJob) -> list[tuple[int, float, float]]:
    """(GPUs, power, time of the work left) of all sizes and clocks of a job with a full table."""
    return [
        (size, float(job.table.power_w[row, c]), job.work * float(job.table.time_s[row, c]))
        for size in job.sizes
        for row in [job.table.row(size)]
        for c in range(len(job.table.clocks_mhz))
    ]


def optimum_s(jobs: list[SizingJob], gpus: int, limit_w: float, idle_w: float) -> float:
    """Least sum of times of the work left, by trying all sizes and clocks of all jobs."""
    best = math.inf
    for chosen in product(*map(configurations, jobs)):
        used = sum(size for size, _, _ in chosen)
        power_w = sum(w for _, w, _ in chosen) + (gpus - used) * idle_w
        if used <= gpus and power_w <= limit_w + 1e-6:
            best = min(best, sum(s for _, _, s in chosen))
    return best


def with_heaps(jobs: list[SizingJob], gpus: int, limit_w: float) -> dict[str, int]:
    """Algorithm 1's GPU loop with a heap, for jobs of one clock: GPUs of each job.

    Only sizes count that are faster than all smaller ones. A job's step is to the one of best
    return among all larger ones: to that with the least power, if some draw no more than now.
    Without enough GPUs for it, it is to the largest size that fits.
    """

    def at(job, size):
        row, column = job.table.row(size), job.table.column(job.clocks_mhz[0])
        return float(job.table.time_s[row, column]), float(job.table.power_w[row, column])

    def faster(job):
        times = [at(job, size)[0] for size in job.sizes]
        return [size for n, size in enumerate(job.sizes) if times[n] == min(times[: n + 1])]

    def step(job):
        now_s, now_w = at(job, held[job.job_id])
        jumps = [
            (job.work * (now_s - at(job, size)[0]), at(job, size)[1] - now_w, size)
            for size in faster(job)
            if size > held[job.job_id]
        ]
        if jumps and (free := min(jumps, key=lambda jump: jump[1]))[1] <= 0:
            return (2, free[0]), free[2]
        return max((((1, gain / cost), size) for gain, cost, size in jumps), default=None)

    held = dict.fromkeys((job.job_id for job in jobs), 0)
    power_w, used = 0.0, 0
    for job in sorted(jobs, key=lambda job: math.prod(at(job, job.sizes[0]))):
        more_w = at(job, job.sizes[0])[1]
        if used + job.sizes[0] > gpus:
            continue
        if power_w + more_w > limit_w:
            return held
        held[job.job_id], power_w, used = job.sizes[0], power_w + more_w, used + job.sizes[0]
    heap = []

    def push(job):
        if best := step(job):
            (tier, value), size = best
            heapq.heappush(heap, (-tier, -value, job.job_id, size))

    by_id = {job.job_id: job for job in jobs}
    for job_id, size in held.items():
        if size:
            push(by_id[job_id])
    while heap:
        _, _, job_id, size = heapq.heappop(heap)
        job, now = by_id[job_id], held[job_id]
        size = max(n for n in faster(job) if n <= min(size, now + gpus - used))
        if size == now:
            continue
        more_w = at(job, size)[1] - at(job, now)[1]
        if power_w + more_w > limit_w:
            break
        used, power_w, held[job_id] = used + size - now, power_w + more_w, size
        push(job)
    return held
