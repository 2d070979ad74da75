"""Time of placement, and its growth with the cluster.

Run ``python benchmarks/placement.py [PART ...]``; without names all parts run. Each part is one
function in ``PARTS`` that prints its own table; where a target of issue 3 is missed, its profile.

Measured are warm, steady-state decisions. Between two decisions one job changes (the last one ends,
others start elsewhere), so no cache holds the decision itself; values that depend on scores alone
(bins, masks per bin) are cached. Times are medians over
repetitions in this process, with the least in brackets where other load may disturb; ratios are
against the target or another time of the same run.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from placement_mapa import mapa_matching
from placement_profile import show_profile
from placement_topo import topology_aware

from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.features.queue_order.declared import ORDERS
from slurm_gpu_aware.features.queue_order.stage import RULE, OrderRule
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Cpus, Request
from slurm_gpu_aware.model.size_table import TABLE, TABLES, SizeTable
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.stages import plan_stages

BINS = np.array([0.89, 0.94, 1.06, 2.55])
SHARES = [0.3, 0.4, 0.28, 0.02]


def cluster_of(nodes: int, width: int, busy: float = 0.9, seed: int = 1) -> Cluster:
    """A cluster with binned scores and a share of busy GPUs."""
    rng = np.random.default_rng(seed)
    scores = {c: rng.choice(BINS, (nodes, width), p=SHARES) for c in ("A", "B", "C")}
    cluster = Cluster.uniform(nodes, width, scores=scores, cpus_per_node=64)
    cluster.free[:] = rng.random((nodes, width)) >= busy
    return cluster


def median_s(
    action: Callable[[int], object],
    repetitions: int,
    timer: Callable[[], float] = time.perf_counter,
) -> float:
    """Median time of ``action(i)`` over ``repetitions``, after one call to warm up."""
    action(0)
    spent = []
    for i in range(1, repetitions + 1):
        start = timer()
        action(i)
        spent.append(timer() - start)
    return statistics.median(spent)


def decisions(
    cluster: Cluster, policy: str, request: Request, repetitions: int
) -> tuple[float, float]:
    """Median and least time, s, of one decision on a cluster that changes by one job in between.

    After each decision its GPUs are taken and those of the last one given back.
    """
    chooser = make_policy(policy)
    held: list[tuple[int, tuple[int, ...]]] = []
    spent = []
    for _ in range(repetitions + 3):
        start = time.perf_counter()
        found = chooser.place(request, cluster)
        spent.append(time.perf_counter() - start)
        for node, slots in held:
            cluster.give_back(node, slots)
        held = []
        if found is not None:
            held = list(zip(found.nodes, found.slots, strict=True))
            for node, slots in held:
                cluster.take(node, slots)
    return statistics.median(spent[3:]), min(spent[3:])


def one_decision() -> None:
    """PAL, one decision, from 64 to a million GPUs; targets of 256, 27,648 and 1,000,000 GPUs."""
    print("one decision, ms (median, 90% of GPUs busy)")
    kinds = {
        "1 GPU": Request("1", 1, app_class="A"),
        "half a node": None,
        "2 nodes, same slots": None,
    }
    names = ("pal", "pm-first", "packed")
    print(
        f"{'GPUs':>9} {'nodes':>7}  {'job':<20}"
        + f"{'pal (least)':>18}{'pm-first':>10}{'packed':>10}"
    )
    targets = {(64, 4): 0.2, (4608, 6): 2.0, (125_000, 8): 50.0}
    for nodes, width in ((16, 4), (64, 4), (512, 8), (4608, 6), (16_000, 8), (125_000, 8)):
        worst: dict[str, float] = {}
        asked: dict[str, Request] = {}
        for kind, fixed in kinds.items():
            half = max(1, width // 2)
            if kind == "half a node":
                request = Request("1", half, app_class="A")
            elif kind.startswith("2 nodes"):
                request = Request("1", 2 * half, gpus_per_node=half, min_nodes=2, app_class="A")
            else:
                request = fixed or Request("1", 1)
            asked[kind] = request
            row = []
            for name in names:
                cluster = cluster_of(nodes, width, busy=0.6 if width == 4 else 0.9)
                times = decisions(cluster, name, request, 200 if nodes < 5000 else 15)
                row.append(1e3 * times[0])
                if name == "pal":
                    median_ms, least_ms = (1e3 * t for t in times)
                    worst[kind] = median_ms
                    row.append(least_ms)
            cells = f"{row[0]:>10.3f} ({row[1]:.3f})" + "".join(f"{v:>10.3f}" for v in row[2:])
            print(f"{nodes * width:>9,} {nodes:>7,}  {kind:<20}{cells}")
        target = targets.get((nodes, width))
        if target is not None:
            told = ", ".join(f"{kind} {ms / target:.2f}" for kind, ms in worst.items())
            print(f"{'':>9} PAL as a share of the target of {target} ms: {told}")
            for kind in (kind for kind, ms in worst.items() if ms > target):
                print(f"{'':>9} over target: {kind}")
                repetitions = 200 if nodes < 5000 else 5
                cluster = cluster_of(nodes, width, busy=0.6 if width == 4 else 0.9)
                show_profile(partial(decisions, cluster, "pal", asked[kind], repetitions))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process up to a million GPUs: {peak:.0f} MB (target < 1000)")


def waiting() -> None:
    """EFT, one decision of the planner, which weighs now against later; 256 and 27,648 GPUs."""
    print("one decision with a wait weighed, eft, ms (median)")
    rules = PlanSettings(policy="eft")
    for (nodes, width), target in (((64, 4), 0.5), ((4608, 6), 5.0)):
        cluster = cluster_of(nodes, width, busy=0.9)
        cluster.free[cluster.scores["A"] < 1.0] = False  # better GPUs become free later
        running = holders(cluster)
        half = width // 2
        kinds = {
            "1 GPU": Request("1", 1, app_class="A", time_limit_s=1e5),
            "half a node": Request("1", half, app_class="A", time_limit_s=1e5),
            "2 nodes, same slots": Request(
                "1", 2 * half, gpus_per_node=half, min_nodes=2, app_class="A", time_limit_s=1e5
            ),
        }
        for kind, request in kinds.items():

            def decide(_: int) -> None:
                snapshot = replace(cluster.copy(), running=running)  # noqa: B023
                dispatcher = Dispatcher(rules, None, 0.0, snapshot.running)
                dispatcher.place(request, snapshot)  # noqa: B023

            ms = 1e3 * median_s(decide, 50)
            print(f"{nodes * width:>9,} {kind:<20}{ms:>8.2f}: {ms / target:.2f} of the target")


def holders(cluster: Cluster) -> tuple[RunningJob, ...]:
    """A job on each node that holds all its busy GPUs; their ends are a second apart."""
    return tuple(
        RunningJob(f"r{n}", ((n, tuple(np.flatnonzero(~cluster.free[n]).tolist())),), 3600.0 + n)
        for n in range(cluster.shape[0])
        if not cluster.free[n].all()
    )


def full_round() -> None:
    """A round of 1,000 queued jobs on 27,648 GPUs, idle and with a blocked head."""
    print("a round of 1,000 queued jobs on 4,608 x 6 GPUs, s (target 1.5)")
    rng = np.random.default_rng(7)
    sizes = rng.choice([1, 2, 3, 6, 12, 24], 1000, p=[0.4, 0.2, 0.15, 0.15, 0.07, 0.03])
    queue = [
        Request(
            str(i),
            int(gpus),
            app_class="ABC"[i % 3],
            cpus=Cpus(int(gpus) * 4),
            submit_s=float(i),
            time_limit_s=float(rng.integers(600, 86_400)),
        )
        for i, gpus in enumerate(sizes)
    ]
    head = Request("head", 6 * 4600, gpus_per_node=6, submit_s=-1.0)
    for title, busy, jobs in (
        ("all fit, classes mixed", 0.5, queue),
        ("90% busy, head needs 4,600 nodes", 0.9, [head, *queue]),
        ("nothing free", 1.0, queue),
    ):
        cluster = cluster_of(4608, 6, busy)
        cluster = replace(cluster, running=holders(cluster))
        for policy in ("pal", "eft"):
            settings = PlanSettings(policy=policy)
            planned = partial(plan_stages, Round(jobs, cluster, settings, 0.0), FEATURES)
            start = time.perf_counter()
            plan = planned()
            first = time.perf_counter() - start
            again = median_s(lambda _: planned(), 3)  # noqa: B023
            each = 1e3 * again / len(jobs)
            print(
                f"  {policy}, {title:<34} {again:6.3f} (first {first:.3f}), {each:.2f} ms per job, "
                f"{len(plan.assignments)} started: {again / 1.5:.2f} of the target"
            )
            if again > 1.5:
                show_profile(planned)


def due_jobs(count: int, models: tuple[str, ...], rng: np.random.Generator) -> list[Request]:
    """Jobs of 1 to 8 GPUs with due dates and 3 to 20 earlier runs, half of them movable.

    Each may get GPUs of all ``models``, at 1, 2, ... times the speed.
    """
    gpus, tables = np.array([1, 2, 4, 8]), []
    for scaling in rng.uniform(0.6, 0.95, 50):
        time_s = gpus[:, None] ** -scaling
        powers = 300.0 * gpus[:, None]
        tables.append(
            {
                model: SizeTable(gpus, np.array([1000]), time_s / (1 + n), powers * (1 + n / 2))
                for n, model in enumerate(models)
            }
        )
    found = []
    for n in range(count):
        by_model = tables[rng.integers(len(tables))]
        runs = 3600 * rng.lognormal(1.0, 0.5, rng.integers(3, 21))
        due = DueDate(
            float(runs.max() * rng.uniform(0.2, 2.0)),
            tuple((1, run_s) for run_s in runs.tolist()),
            nodes=("n0",) * len(runs),
            restart_s=60.0 if n % 2 else None,
        )
        job = Request(str(n), 1, sizes=(1, 2, 4, 8), submit_s=float(n), time_limit_s=1e5)
        job = job.put(DUE_DATE, due).put(TABLE, by_model[models[0]])
        found.append(job.put(TABLES, by_model) if len(models) > 1 else job)
    return found


def ordered_round() -> None:
    """A round of 1,000 jobs on 27,648 GPUs, by due dates together and in each order."""
    print("a round of 1,000 jobs on 3,456 x 8 GPUs, packed, s of CPU time (target 0.7)")
    rng = np.random.default_rng(3)
    plain = [
        Request(str(n), int(rng.choice([1, 2, 4, 8])), submit_s=-rng.exponential(1e4))
        for n in range(1000)
    ]
    plain = [replace(r, time_limit_s=float(rng.integers(600, 86_400))) for r in plain]
    together = PlanSettings(policy="packed", due_order="together")
    cases = [("due dates together", due_jobs(1000, ("V100",), rng), together, OrderRule())]
    two = due_jobs(1000, ("V100", "A100"), rng)
    cases.append(("the same, two GPU models", two, together, OrderRule()))
    packed = PlanSettings(policy="packed")
    cases += [(f"order {name}", plain, packed, OrderRule(name)) for name in ORDERS]
    for title, jobs, settings, rule in cases:
        for busy in (0.5, 0.95):
            cluster = cluster_of(3456, 8, busy)
            model = tuple("VA"[n % 2] + "100" for n in range(3456))
            cluster = replace(cluster, running=holders(cluster), model=model)
            one = Round(jobs, cluster, settings, 0.0).put(RULE, rule)
            again = median_s(lambda _: plan_stages(one, FEATURES), 3, time.process_time)  # noqa: B023
            started = len(plan_stages(one, FEATURES).assignments)
            print(
                f"  {title:<26} {busy:.0%} busy, {started:>4} started: {again:6.3f}, "
                f"{again / 0.7:.2f} of the target"
            )


PARTS: dict[str, Callable[[], None]] = {
    "decision": one_decision,
    "waiting": waiting,
    "round": full_round,
    "orders": ordered_round,
    "mapa": mapa_matching,
    "topo-aware": topology_aware,
}


def main(names: list[str]) -> int:
    """Run the named parts, or all."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for name in names or PARTS:
        PARTS[name]()
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
