"""Time of the choice of victims: a full cluster of one-GPU jobs, and jobs that may preempt them.

    python benchmarks/preemption.py [--nodes 2000] [--jobs 50]

Prints the CPU time of one choice per kind of request, and of a round of many such jobs.
"""

import argparse
import statistics
import time
from dataclasses import replace

from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Cpus, PreemptionRights, Request
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.preempt import plan_preemption
from slurm_gpu_aware.planning.stages import plan_stages

WIDTH = 8
WANTED = ((1, 1), (3, 1), (WIDTH, 1), (2 * WIDTH, 2))
"""GPUs and nodes that are asked for."""


def full(nodes: int) -> Cluster:
    """Each GPU is held by a job of its own; they started one after the other."""
    cluster = Cluster.uniform(nodes, WIDTH)
    running = [
        RunningJob(
            str(WIDTH * node + slot),
            ((node, (slot,)),),
            end_s=1e6,
            cpus={node: 1},
            preemptable_by=1.0,
            start_s=float(slot * nodes + node),
        )
        for node in range(nodes)
        for slot in range(WIDTH)
    ]
    for job in running:
        cluster.take(*job.gpus[0], 1)
    return replace(cluster, running=tuple(running))


def asking(number: int, gpus: int, nodes: int) -> Request:
    """A job of a higher tier."""
    return Request(
        f"high{number}",
        gpus,
        min_nodes=nodes,
        max_nodes=nodes,
        preemption=PreemptionRights(tier=5.0),
        cpus=Cpus(gpus),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=50, help="that preempt in one round")
    given = parser.parse_args()
    cluster = full(given.nodes)
    dispatcher = Dispatcher(PlanSettings(policy="pal"))
    print(f"{given.nodes} nodes, {len(cluster.running)} running jobs of one GPU")
    print(f"{'GPUs':>4}{'nodes':>7}{'victims':>9}{'median, s':>11}")
    for gpus, nodes in WANTED:
        times = []
        for number in range(5):
            begun = time.process_time()
            found = plan_preemption(
                asking(number, gpus, nodes), cluster, cluster.running, dispatcher
            )
            times.append(time.process_time() - begun)
        assert found is not None
        print(f"{gpus:>4}{nodes:>7}{len(found.victims):>9}{statistics.median(times):>11.3f}")
    queue = [asking(number, *WANTED[number % len(WANTED)]) for number in range(given.jobs)]
    begun = time.process_time()
    plan = plan_stages(Round(queue, cluster, PlanSettings(), now=0.0), FEATURES)
    took_s = time.process_time() - begun
    print(f"a round of {given.jobs} such jobs: {took_s:.2f} s, {len(plan.assignments)} placed")


if __name__ == "__main__":
    main()
