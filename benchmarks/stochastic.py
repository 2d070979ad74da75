"""Time of one decision of the stochastic scheduler; the target is 0.5 s for 400 jobs on 800 GPUs.

Run ``python benchmarks/stochastic.py``. Each decision is for other times and work done, so that
none of it can be cached. The paper reports less than 5 s at this size.
"""

import statistics
import time
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.features.due_dates.free_gpus import DueNode
from slurm_gpu_aware.features.due_dates.sts import Decision, DueJob, decide
from slurm_gpu_aware.features.due_dates.work import WorkDistribution, empirical
from slurm_gpu_aware.features.sizes.speeds import Speeds

MODELS = {"K80": (1.0, 0.90), "M60": (1.4, 1.14), "A100": (5.0, 3.67)}
"""Speed and cost per hour of one GPU."""
TARGET_S = 0.5
HISTORY = 60
"""Earlier runs from which the distribution of a job's work comes."""


def history(rng: np.random.Generator) -> WorkDistribution:
    """Epochs of earlier runs, at most 100."""
    return empirical((120 * rng.beta(2, 3, HISTORY)).tolist(), 100)


def speeds(rng: np.random.Generator) -> dict[str, Speeds]:
    """On 1 to 8 GPUs of each model."""
    gpus, exponent = np.arange(1.0, 9), rng.uniform(0.6, 0.95)
    base = rng.uniform(2, 20)
    return {
        model: Speeds(gpus, base * speed * gpus**exponent, price * gpus)
        for model, (speed, price) in MODELS.items()
    }


def later(jobs: list[DueJob], before: Decision, hours: float, rng: np.random.Generator) -> None:
    """Let the jobs run for some time; a tenth of those that run end and others take their place."""
    for n, job in enumerate(jobs):
        given = before.jobs.get(job.job_id)
        if given is None:
            continue
        done = job.work.done + 0.05 * (job.work.most - job.work.done) * rng.random()
        jobs[n] = replace(job, held=given.share, work=job.work.given(done))
        if rng.random() < 0.1:
            jobs[n] = new_job(f"{job.job_id}+", hours, rng)


def new_job(name: str, now: float, rng: np.random.Generator) -> DueJob:
    """A job that is submitted now; it is due after 1 to 3 times its least time."""
    work, by_model = history(rng), speeds(rng)
    least = work.most / max(s.speed[-1] for s in by_model.values())
    return DueJob(name, now + least * rng.uniform(1, 3), 100.0, work, by_model)


def measure(node_count: int, job_count: int, rounds: int = 9) -> tuple[list[float], Decision]:
    """(times of the decisions, the last decision)."""
    rng = np.random.default_rng(1)
    names = list(MODELS)
    nodes = [DueNode(names[n % len(names)], 8) for n in range(node_count)]
    jobs = [new_job(str(n), 0.0, rng) for n in range(job_count)]
    spent = []
    for n in range(rounds):
        start = time.perf_counter()
        decision = decide(jobs, nodes, n / 10, 0.1)
        spent.append(time.perf_counter() - start)
        later(jobs, decision, n / 10, rng)
    return spent, decision


def main() -> None:
    print("nodes x 8 GPUs  jobs  waiting  first, s  median, s (least)  median of 0.5 s (least)")
    for nodes, jobs in ((10, 40), (30, 120), (100, 400), (100, 1000)):
        spent, decision = measure(nodes, jobs)
        median_s, least_s = statistics.median(spent), min(spent)
        print(
            f"{nodes:14} {jobs:5} {len(decision.waiting):8} {spent[0]:9.3f} "
            f"{median_s:10.3f} ({least_s:.3f}) {median_s / TARGET_S:16.2f} "
            f"({least_s / TARGET_S:.2f})"
        )


if __name__ == "__main__":
    main()
