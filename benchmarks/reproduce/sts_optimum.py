"""Optimum of one decision as an integer programme (STS, problem P1), for tiny instances.

The paper's P1 has products of the choice of a node and of a number of GPUs. With one binary
variable for each job, node and size they are linear; a further one per job lets it wait. Sizes are
constant, as for jobs that may not be moved: then the scheduler decides by the same costs.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np
from common import paragraph, percent, table
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from sts_instances import instance, paper_networks

from slurm_gpu_aware.features.due_dates.free_gpus import DueNode
from slurm_gpu_aware.features.due_dates.sts import DueJob, decide
from slurm_gpu_aware.features.due_dates.work import best_constant
from slurm_gpu_aware.features.sizes.speeds import Speeds

LATE_FACTOR = 2.0
EXACT_NODES, EXACT_WIDTH = 4, 4


def cost_of_size(job: DueJob, model: str, gpus: float, now: float) -> float:
    """Expected energy and the cost of being late with all the work."""
    speeds = job.speeds[model]
    k = int(np.searchsorted(speeds.gpus, gpus))
    longest = (job.work.most - job.work.done) * float(speeds.unit_time[k])
    late = max(now + longest - job.due, 0.0)
    return job.work.mean_left * float(speeds.unit_cost[k]) + job.late_cost * late


def cost_of_waiting(job: DueJob, models: set[str], now: float, period: float) -> float:
    """Of the best size after a period; being late counts more."""
    plans = [
        best_constant(job.work, speeds, job.due - now - period)
        for model, speeds in job.speeds.items()
        if model in models
    ]
    return min(plan.cost + LATE_FACTOR * job.late_cost * plan.late for plan in plans)


def least_cost(
    jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
) -> float:
    """Cost of the best decision for jobs of which none runs, by HiGHS."""
    models = {node.model for node in nodes}
    costs, job_of, node_of, gpus_of = [], [], [], []
    for j, job in enumerate(jobs):
        costs.append(cost_of_waiting(job, models, now, period))
        job_of.append(j)
        node_of.append(0)
        gpus_of.append(0.0)
        for n, node in enumerate(nodes):
            for gpus in job.speeds[node.model].gpus.tolist() if node.model in job.speeds else ():
                if gpus <= node.gpus:
                    costs.append(cost_of_size(job, node.model, gpus, now))
                    job_of.append(j)
                    node_of.append(n)
                    gpus_of.append(gpus)
    columns = np.arange(len(costs))
    once = coo_array((np.ones(len(costs)), (job_of, columns)), (len(jobs), len(costs)))
    room = coo_array((gpus_of, (node_of, columns)), (len(nodes), len(costs)))
    found = milp(
        np.array(costs),
        integrality=np.ones(len(costs)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(once.tocsr(), 1, 1),
            LinearConstraint(room.tocsr(), 0, [node.gpus for node in nodes]),
        ],
        options={"mip_rel_gap": 1e-9},
    )
    if not found.success:
        raise RuntimeError(f"HiGHS found no optimum: {found.message}")
    return float(found.fun)


def heuristic_cost(
    jobs: Sequence[DueJob], nodes: Sequence[DueNode], now: float, period: float
) -> float:
    """Cost of the scheduler's decision, by the same measure."""
    decision = decide(jobs, nodes, now, period, LATE_FACTOR)
    models = {node.model for node in nodes}
    by_name = {job.job_id: job for job in jobs}
    placed = sum(
        cost_of_size(by_name[name], nodes[one.share.node].model, one.share.gpus, now)
        for name, one in decision.jobs.items()
    )
    return placed + sum(
        cost_of_waiting(by_name[name], models, now, period) for name in decision.waiting
    )


def distance(count: int) -> list[str]:
    """Distance of the heuristic from the optimum of one decision."""
    rows, worst = [], 0.0
    for per_node in (2, 3, 4):
        gaps, started = [], time.perf_counter()
        for seed in range(count):
            rng = np.random.default_rng(seed)
            made = instance(paper_networks(), ("K80", "M60"), EXACT_NODES, "poisson low", rng)
            nodes = [DueNode(node.model, EXACT_WIDTH) for node in made.nodes]
            jobs = [
                DueJob(
                    str(n),
                    2 * (job.due_s - job.submit_s),
                    job.late_cost,
                    job.work,
                    {m: _narrow(s) for m, s in job.speeds.items()},
                    movable=False,
                )
                for n, job in enumerate(made.jobs[: per_node * EXACT_NODES])
            ]
            least = least_cost(jobs, nodes, 0.0, made.period_s)
            gaps.append(heuristic_cost(jobs, nodes, 0.0, made.period_s) / least - 1)
        took = (time.perf_counter() - started) / count
        worst = max(worst, *gaps)
        shares = [percent(float(f(gaps))) for f in (np.mean, np.median, np.max)]
        optimal = percent(float(np.mean(np.array(gaps) < 1e-6)))
        rows.append([per_node * EXACT_NODES, *shares, optimal])
        print(f"exact, {per_node} jobs per node: {took:.2f} s each", file=sys.stderr, flush=True)
    heads = ["jobs", "mean distance", "median", "greatest", "optimal"]
    remark = paragraph(
        f"One decision, {EXACT_NODES} nodes of {EXACT_WIDTH} GPUs, {count} instances each: "
        "cost of the heuristic's decision over the least, which HiGHS finds on P1 after "
        f"linearisation. Sizes are constant here. No decision is more than {percent(worst)} above "
        "the optimum."
    )
    return [table(heads, rows), remark]


def _narrow(speeds: Speeds) -> Speeds:
    """The sizes of a node of the exact instances."""
    n = EXACT_WIDTH
    return Speeds(speeds.gpus[:n], speeds.speed[:n], speeds.power[:n])
