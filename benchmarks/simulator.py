"""Speed of the simulator: Sia-Philly with five policies, EASY, and a large cluster.

python benchmarks/simulator.py [--policy eft] [--jobs 100000] [--gpus 10000] [--processes 2]

The targets: five policies on a Sia-Philly trace in less than 10 s on 2 cores; 100,000 jobs on
10,000 GPUs in less than 400 s. Run times are known. The time of the first is wall-clock time: leave
the machine alone; of the others it is CPU time.
"""

import argparse
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slurm_gpu_aware.features.estimates.simulated import RunEstimates
from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.parallel import Run, run_all
from slurm_gpu_aware.simulator.settings import SimSettings, parse_policy
from slurm_gpu_aware.simulator.simulated_site import SimulatedSite, bin_all, synthetic_site
from slurm_gpu_aware.simulator.trace import Trace, poisson_trace, read_csv

FIVE = ("packed", "packed:non-sticky", "pm-first:non-sticky", "pal:non-sticky", "eft")
ROOT = Path(__file__).resolve().parents[1]
TARGETS = (10.0, 400.0)
LOAD = 0.9


def scored(nodes: int, *, same_indices: bool) -> tuple[Cluster, dict[str, FloatArray]]:
    """Nodes of four GPUs with log-normal scores, 5% wide, and the planner's view of them."""
    site: SimulatedSite = synthetic_site(nodes, 4, same_indices=same_indices)
    rng = np.random.default_rng(0)
    truth = {c: rng.lognormal(0, 0.05, (nodes, 4)) for c in "ABC"}
    cluster = Cluster.uniform(
        nodes, 4, scores=bin_all(truth, site.cluster.exists), same_indices=same_indices
    )
    return cluster, truth


def sia_trace() -> tuple[Trace, str]:
    """The measured trace if it is available, else one of the same shape."""
    given = os.environ.get("GPU_AWARE_SHARED")
    data = Path(given) if given else ROOT.parent / "shared" / "data"
    file = data / "traces" / "sia-philly" / "pal" / "workload-1.csv"
    if file.exists():
        return read_csv(file, class_column="class_paper"), "Sia-Philly 1"
    return poisson_trace(160, 32.0, seed=1), "synthetic, as Sia-Philly"


def five_policies(processes: int) -> float:
    """Seconds for five policies on 64 GPUs, rounds of 300 s."""
    cluster, truth = scored(16, same_indices=False)
    trace, name = sia_trace()
    base = SimSettings(round_s=300.0).put(RunEstimates("exact"))
    runs = [Run(trace, cluster, truth, parse_policy(p, base)) for p in FIVE]
    started = time.perf_counter()
    results = run_all(runs, timer=time.perf_counter, processes=processes)
    took = time.perf_counter() - started
    assert all(r.done.all() for r in results)
    print(f"{name}, {len(FIVE)} policies, {processes} processes: {took:.1f} s")
    return took


def busy(jobs: int, gpus: int) -> Trace:
    """A trace that asks for a share ``LOAD`` of a cluster at slowdown 1."""
    sample = poisson_trace(jobs, 1.0, seed=1)  # the same jobs, at other times
    work_s = sum(job.gpus * job.duration_s for job in sample.jobs) / jobs
    return poisson_trace(jobs, LOAD * gpus / work_s * 3600, seed=1)


def backfill(policies: Sequence[str], jobs: int = 8000, gpus: int = 2000) -> None:
    """CPU time with EASY as a multiple of the time without: long queues, planned at each event."""
    cluster, truth = scored(gpus // 4, same_indices=True)
    trace = busy(jobs, gpus)
    for policy in policies:
        spent = []
        for easy in (False, True):
            settings = SimSettings(policy=policy, backfill=easy).put(RunEstimates("exact"))
            started = time.process_time()
            simulate(trace, cluster, settings, truth=truth)
            spent.append(time.process_time() - started)
        fifo_s, easy_s = spent
        print(
            f"{jobs} jobs on {gpus} GPUs, {policy}: EASY {easy_s:.1f} s, without {fifo_s:.1f} s: "
            f"{easy_s / fifo_s:.1f} times as long"
        )


def large(policy: str, jobs: int, gpus: int) -> float:
    """CPU seconds for a policy on a large, busy cluster, planning at every arrival and end."""
    cluster, truth = scored(gpus // 4, same_indices=True)
    trace = busy(jobs, gpus)
    began = time.process_time()
    started, last = time.perf_counter(), [0, 0.0]

    def progress(ended: int) -> None:
        last[0] += ended
        now = time.perf_counter() - started
        if now - last[1] > 20:
            last[1] = now
            print(f"  {last[0]} of {jobs} jobs after {now:.0f} s", flush=True)

    result = simulate(
        trace,
        cluster,
        SimSettings(policy=policy).put(RunEstimates("exact")),
        truth=truth,
        timer=time.perf_counter,
        progress=progress,
    )
    took = time.process_time() - began
    own = result.summary()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{jobs} jobs on {gpus} GPUs, {policy}: {took:.0f} s CPU, {own['jobs']} ended, utilisation "
        f"{own['utilization']:.2f}, rounds {len(result.placement_ms)}, "
        f"median {own['placement_ms']['median']:.2f} ms, max {own['placement_ms']['max']:.1f} ms, "
        f"peak memory {peak:.0f} MB"
    )
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="eft", help="for the large cluster")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    few_s = five_policies(options.processes)
    backfill(("packed", options.policy))
    took = few_s, large(options.policy, options.jobs, options.gpus)
    for what, seconds, target in zip(("five policies", "large"), took, TARGETS, strict=True):
        print(f"{what}: {seconds / target:.2f} of the target of {target:g} s")


if __name__ == "__main__":
    main()
