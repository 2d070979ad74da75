"""Tables of the stochastic scheduler and its baselines: costs, cluster sizes, crowding."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from common import geomean, paragraph, percent, table
from sts_instances import ARRIVALS, CLUSTERS, EPSILON, MOST_JOBS, Setting
from sts_runs import ADAPTIVE, ANEW, MADE, OURS, REVISES, Case, Results, cases_of, reduction

PUBLISHED = ("EDF", "RG", "DP", "avgEDF", "avgRG", "avgDP")
CALM = ("exponential", "poisson low")
"""Arrivals at which the GPUs suffice."""
BASELINES = ("EDF", "RG", "DP", "avgEDF")
RATES = (2.0, 1.0, 0.5, 0.25)


def comparison(size: tuple[int, int], results: Results) -> list[str]:
    """Cost ratios of all schedulers, and what they come to; ``size``: nodes, instances."""
    every = cases_of(size)
    results.run("comparison", [replace(c, scheduler=name) for c in every for name in MADE])
    parts = []
    for cluster in CLUSTERS:
        groups = [cases_of(size, [cluster], [a]) for a in ARRIVALS]
        heads = [
            "scheduler",
            *(f"{a}: total / energy" for a in ARRIVALS),
            *(f"late, {a}" for a in ARRIVALS),
        ]
        parts += [f"{cluster}:", table(heads, [_row(name, groups, results) for name in MADE])]
    parts.append(_comparison_remark(size, results))
    return parts


def _row(name: str, groups: Sequence[Sequence[Case]], results: Results) -> list[str]:
    cells = [
        " / ".join(f"{geomean(results.ratios(g, name, what)):.2f}" for what in ("total", "energy"))
        for g in groups
    ]
    return [name, *cells, *(percent(results.late(g, name)) for g in groups)]


def _comparison_remark(size: tuple[int, int], results: Results) -> str:
    def saved(name: str, cases: Sequence[Case], what: str = "total") -> float:
        return reduction(geomean(results.ratios(cases, name, what)))

    every, few = cases_of(size), cases_of(size, arrivals=["exponential"])
    calm, crowded = cases_of(size, arrivals=CALM), cases_of(size, arrivals=["poisson high"])
    total = {name: saved(name, calm) for name in PUBLISHED}
    lowered = sum(results.known[case].lowered for case in every)
    return paragraph(
        "Total cost saved by STS with exponential and low Poisson arrivals: "
        + ", ".join(f"{percent(share)} against {name}" for name, share in total.items())
        + f"; {percent(float(np.mean(list(total.values()))))} on average (published: 32% to 80%, "
        "40% on average).",
        f"Energy alone, exponential arrivals: {percent(saved('DP', few, 'energy'))} against DP "
        f"(published: 67%) and {percent(saved('avgDP', few, 'energy'))} against avgDP (32%); with "
        "more jobs DP, which makes the sum of completion times least, finds no further GPUs to "
        "give, saves energy, and is late.",
        "EDF chooses the size of a job when it starts, and never again, as its authors' code does: "
        f"STS saves {percent(total['EDF'])} with few jobs, {percent(saved('EDF', crowded))} with "
        f"high Poisson arrivals, {percent(saved('EDF', every))} over all (published: 32%). RG "
        "revises all sizes at each decision, down too, so that STS saves only what early ends are "
        f"worth. EDF that did the same would leave {percent(saved(REVISES, calm))} with few jobs "
        f"and {percent(saved(REVISES, every))} over all.",
        f"STS is late with {percent(results.late(calm))} of these jobs, and with "
        f"{percent(results.late(calm, ANEW))} if all jobs are placed anew.",
        f"With high Poisson arrivals it is late with {percent(results.late(crowded))}, EDF with "
        f"{percent(results.late(crowded, 'EDF'))} and RG with "
        f"{percent(results.late(crowded, 'RG'))}; the total is "
        f"{geomean(results.ratios(crowded, 'EDF', 'total')):.2f} times that of STS for EDF, and "
        f"{geomean(results.ratios(crowded, 'RG', 'total')):.2f} times for RG.",
        "There, more GPUs are wanted for a while than there are. Our STS never takes GPUs from a "
        f"running job (jobs that got fewer, in all runs: {lowered}), so that a job may find none "
        "when its time to grow has come; RG and DP stop and move jobs for free. EDF that does so, "
        f"too, is late with {percent(results.late(crowded, REVISES))} there, and costs "
        f"{geomean(results.ratios(crowded, REVISES, 'total')):.2f} times as much as STS.",
        "EDF that knows the mean of the work left given what is done, and changes sizes both ways, "
        f"is not in the paper: {geomean(results.ratios(calm, ADAPTIVE, 'total')):.2f} times the "
        f"cost of STS with few jobs, {geomean(results.ratios(crowded, ADAPTIVE, 'total')):.2f} "
        f"times with many, late with {percent(results.late(calm, ADAPTIVE))} and "
        f"{percent(results.late(crowded, ADAPTIVE))}.",
    )


def by_nodes(sizes: Sequence[tuple[int, int]], results: Results) -> list[str]:
    """Total cost that STS saves and late jobs, by the number of nodes."""
    rows = []
    for size in sizes:
        every = [replace(c, scheduler=n) for c in cases_of(size) for n in (OURS, *BASELINES)]
        results.run(f"{size[0]} nodes", every)
        for what, arrivals in (("calm", CALM), ("poisson high", ["poisson high"])):
            cases = cases_of(size, arrivals=arrivals)
            late = [percent(results.late(cases, n)) for n in (OURS, "EDF", "RG")]
            saved = [_with_error(results.ratios(cases, n, "total")) for n in BASELINES]
            rows.append([size[0], what, len(cases), *saved, *late])
    heads = ["nodes", "arrivals", "instances", *(f"saved against {n}" for n in BASELINES)]
    heads += ["late, STS", "late, EDF", "late, RG"]
    remark = paragraph(
        "Total cost that STS saves (geometric mean over both clusters, and its standard error); "
        "calm: exponential and low Poisson arrivals."
    )
    return [table(heads, rows), remark]


def _with_error(ratios: Sequence[float]) -> str:
    """Cost saved, with its standard error."""
    mean, logs = reduction(geomean(ratios)), np.log(ratios)
    if len(ratios) < 2:
        return percent(mean)
    error = (1 - mean) * float(logs.std(ddof=1)) / len(ratios) ** 0.5
    return f"{percent(mean)} ± {percent(error)}"


def crowding(size: tuple[int, int], results: Results) -> list[str]:
    """High Poisson arrivals at lower rates: what lateness comes from."""
    names = (OURS, ANEW, "EDF", "RG")
    rows, worse = [], []
    for cluster in CLUSTERS:
        rates = []
        for rate in RATES:
            cases = cases_of(size, [cluster], ["poisson high"], setting=Setting(rate=rate))
            what = f"{cluster}, rate x {rate:g}"
            results.run(what, [replace(c, scheduler=name) for c in cases for name in names])
            edf_ratio = geomean(results.ratios(cases, "EDF", "total"))
            anew = edf_ratio / geomean(results.ratios(cases, ANEW, "total"))
            saved = [percent(reduction(ratio)) for ratio in (edf_ratio, anew)]
            rows.append([cluster, f"{rate:g}", *(percent(results.late(cases, n)) for n in names)])
            rows[-1] += saved
            if results.late(cases, ANEW) > results.late(cases):
                rates.append(f"{rate:g}")
        if rates:
            worse.append(f"{cluster} at a rate of {' and of '.join(rates)}")
    heads = ["cluster", "rate of poisson high times", *(f"late, {name}" for name in names)]
    heads += ["total cost saved against EDF by STS", "by STS, all jobs placed anew"]
    remark = paragraph(
        "Why STS is late: a plan of least cost uses all the time until the due date if the job is "
        "a long one, so that a job that finds no free GPUs at its time to grow is late. In the "
        "published code of the same authors' earlier schedulers each decision frees all nodes and "
        "places all jobs anew by pressure, so that a pressing job stops others. Read so, STS is "
        f"late with more jobs than here only on {' and on '.join(worse) or 'no cluster'}: jobs "
        "that are late already are the most pressing ones; each takes a whole node, which ends it "
        "little sooner and makes the others wait, and they are late in turn. RG has the same order "
        "and the same end. At rate 1, the paper's with at most "
        f"{MOST_JOBS} jobs a node, the jobs, at their fastest, ask for {EPSILON * MOST_JOBS:g} "
        "times the GPUs there are.",
        "Constant sizes, parts of a growth, idle GPUs for all, and all jobs placed anew in the "
        "order of due dates were tried and are not in the program: they cost more energy, or more "
        "jobs were late.",
    )
    return [table(heads, rows), remark]
