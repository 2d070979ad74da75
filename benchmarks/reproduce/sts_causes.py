"""What the saving of the stochastic scheduler rests on: one thing changed at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import geomean, paragraph, percent, table
from sts_comparison import CALM
from sts_instances import CLUSTERS, PAPER, Network, Setting, instance, paper_networks
from sts_runs import FASTEST, NETWORKS, REVISES, Results, cases_of, reduction

from slurm_gpu_aware.features.due_dates.work import best_constant, optimum

BETTER, WORSE = 0.3, -0.2
"""Added to the exponents of the speeds."""
NAMES = ("EDF", REVISES, FASTEST, "RG", "DP", "avgEDF")
PUBLISHED = 0.32
"""Least total cost saved, against EDF and RG too."""
ALONE = 50
"""Nodes of the instances whose jobs are looked at alone."""


@dataclass(frozen=True)
class _Cause:
    """What is changed for our scheduler, and for the others."""

    networks: tuple[Network, ...] = NETWORKS
    setting: Setting = PAPER
    theirs: Setting | None = None
    """None: as ours."""


def causes(measured: Sequence[Network]) -> Mapping[str, _Cause]:
    """What might differ from the paper; ``measured``: networks with measured epochs."""
    unshared, shared = Setting(sharing="off"), Setting(sharing="on")
    return {
        "as above": _Cause(),
        f"speeds: exponents greater by {BETTER}": _Cause(tuple(paper_networks(BETTER))),
        f"speeds: exponents smaller by {-WORSE}": _Cause(tuple(paper_networks(WORSE))),
        "epochs: early ends twice as early": _Cause(tuple(paper_networks(epochs=0.5))),
        "epochs: as measured by Zeus": _Cause(tuple(measured)),
        "due dates: from the mean work": _Cause(setting=Setting(due_by_mean=True)),
        "due dates: 1 to 1.5 of the least time": _Cause(setting=Setting(due=(1.0, 1.5))),
        "due dates: 2 to 3 of the least time": _Cause(setting=Setting(due=(2.0, 3.0))),
        "being late: a tenth of the cost": _Cause(setting=Setting(late_cost=0.1)),
        "being late: ten times the cost": _Cause(setting=Setting(late_cost=10.0)),
        "idle GPUs of its node: 30% of the price": _Cause(setting=Setting(idle=0.3)),
        "a quarter of the jobs at a time": _Cause(setting=Setting(rate=0.25)),
        "twice the jobs at a time": _Cause(setting=Setting(rate=2.0)),
        "STS alone shares GPUs": _Cause(setting=shared, theirs=unshared),
    }


def what_it_rests_on(
    size: tuple[int, int], results: Results, measured: Sequence[Network]
) -> list[str]:
    """Total cost saved if one thing is changed; ``size``: nodes, instances of each kind."""
    rows, saved = [], {}
    for what, cause in causes(measured).items():
        ours = cases_of(size, CLUSTERS, CALM, cause.networks, cause.setting)
        theirs = cause.setting if cause.theirs is None else cause.theirs
        others = {n: [replace(c, scheduler=n, setting=theirs) for c in ours] for n in NAMES}
        results.run(what, [*ours, *(case for cases in others.values() for case in cases)])
        saved[what] = {
            name: reduction(
                geomean(
                    results.known[other].total / results.known[own].total
                    for other, own in zip(cases, ours, strict=True)
                )
            )
            for name, cases in others.items()
        }
        late = [results.late(ours), results.late(others["EDF"], "EDF")]
        rows.append([what, *map(percent, [*saved[what].values(), *late])])
    heads = ["changed", *(f"saved against {name}" for name in NAMES), "late, STS", "late, EDF"]
    return [table(heads, rows), _remark(saved)]


def _remark(saved: Mapping[str, Mapping[str, float]]) -> str:
    base = saved["as above"]
    reach = [what for what, by in saved.items() if min(by["EDF"], by["RG"]) >= PUBLISHED]
    mean, most = alone()
    return paragraph(
        f"Changes that reach the paper's {PUBLISHED:.0%} against EDF and RG: "
        f"{'; '.join(reach) or 'none'}.",
        "EDF gives a job the cheapest size that is in time whatever the work, when it starts, and "
        f"never another one: {percent(base['EDF'])}. If it chose all sizes anew at each decision, "
        "as RG does, only early ends would be worth anything: "
        f"{percent(base[REVISES])}; it is {percent(base[FASTEST])} if EDF always takes the fastest "
        "size.",
        "What early ends can be worth follows from speeds, epochs and due dates: on an empty "
        f"cluster a job's plan saves {percent(mean)} of the cost of its "
        f"best constant size on average, and {percent(most)} in the tenth of the jobs that gain "
        "most.",
        "The better jobs scale, the less a GPU too many costs, and the less there is to save. Of "
        "the runs that Zeus measured most end within few epochs and some never reach their target: "
        "STS starts these on few GPUs, and those that do not end have to grow to most of a node "
        "shortly before they are due. Where one does not find it free, being late costs more than "
        "the energy that many jobs save.",
    )


def alone() -> tuple[float, float]:
    """Expected cost that the plan of a job alone saves over its best constant size.

    (of all jobs together, of the tenth with the greatest share each).
    """
    costs = []
    for models in CLUSTERS.values():
        made = instance(NETWORKS, models, ALONE, "exponential", np.random.default_rng(0))
        for job in made.jobs:
            left = job.due_s - job.submit_s
            costs.append(
                [
                    min(best(job.work, speeds, left).cost for speeds in job.speeds.values())
                    for best in (optimum, best_constant)
                ]
            )
    plan, constant = np.array(costs).T
    shares = np.sort(1 - plan / constant)
    return float(1 - plan.sum() / constant.sum()), float(shares[-len(shares) // 10 :].mean())
