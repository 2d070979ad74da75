"""Orders of the queue on a site's history: the one to propose, and who pays for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slurm_gpu_aware.cli.output import paragraph, table
from slurm_gpu_aware.features.queue_order.stage import OrderRule
from slurm_gpu_aware.simulator.result import Result, ended_in_all
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.simulator.tuning import Verdict, compare, interval, percent, verdict
from slurm_gpu_aware.time_text import duration

SLURM = "slurm"  # The order that all others are compared with.
COMPARED = ("equal", "backfill", "expected=0.1", "expected=0.3", "expected=1")
"""Orders that are compared unless others are named."""
_LEAST_SHARE = 0.005  # A smaller change of a completion time is none.
Found = Mapping[str, Sequence[Mapping[str, float]]]
"""Order -> per seed measure, or payer, -> value."""


@dataclass(frozen=True)
class Change:
    """How much longer the jobs of one payer take: shares, 0.04 is 4%."""

    mean: float  # Geometric mean over the seeds.
    low: float  # Ends of the 95% interval.
    high: float

    @property
    def pays(self) -> bool:
        """Whether its jobs take longer beyond the uncertainty."""
        return self.low > 0.0 and self.mean > _LEAST_SHARE


def payers_of(jobs: Sequence[TraceJob]) -> list[str]:
    """Who each job belongs to: its account, or its user if the history has one account or none.

    Empty texts: it is not known.
    """
    accounts = [job.account or "" for job in jobs]
    several = len(set(filter(None, accounts))) > 1
    return accounts if several else [job.user or "" for job in jobs]


def paid(results: Sequence[Result]) -> list[dict[str, float]]:
    """Payer -> average completion time in each run, over the jobs that ended in all. Units: s."""
    among = ended_in_all(results)
    payers = np.array(payers_of(results[0].trace.jobs), dtype=np.str_)
    names, codes = np.unique(payers, return_inverse=True)
    counts = np.bincount(codes[among], minlength=len(names))
    sums = [np.bincount(codes[among], r.jct_s(among), len(names)) for r in results]
    return [
        {
            str(name): float(total / count)
            for name, total, count in zip(names, each, counts, strict=True)
            if name and count
        }
        for each in sums
    ]


def changes(payers: Found, order: str) -> dict[str, Change]:
    """Payer -> what an order costs it against Slurm's, the largest mean first.

    Payers that are not in every seed, which have few jobs, are left out.
    """
    ours, theirs = payers[order], payers[SLURM]
    found = {}
    for name in set.intersection(*(set(seed) for seed in theirs)):
        pairs = zip(ours, theirs, strict=True)
        logs = [math.log(max(a[name], 1.0) / max(b[name], 1.0)) for a, b in pairs]
        found[name] = Change(*np.expm1(interval(np.array(logs))).tolist())
    return dict(sorted(found.items(), key=lambda item: (-item[1].mean, item[0])))


def proposal(found: Found, present: str) -> Verdict:
    """The order to propose. ``found``: order -> measures per seed, `SLURM` among them."""
    gains = any(compare(of, found[SLURM]).low > 0 for name, of in found.items() if name != SLURM)
    nothing = "No order is proposed" if gains else "There is nothing to gain by another order"
    return verdict(found, SLURM, present, nothing)


_MOST_PAYERS = 10
_WHICH = {
    "equal": "Among waiting jobs of equal priority the shorter ones start first.",
    "backfill": "The first waiting job keeps its turn; behind it the shorter jobs start first.",
    "expected": "Among waiting jobs of similar priority the shorter ones start first.",
}


def words(rule: OrderRule) -> str:
    """What a site can tell its users of an order; empty: it is Slurm's."""
    if not rule.exchanges:
        return ""
    times, longest = f"{rule.passed_factor:g}", duration(rule.passed_s)
    return (
        f"{_WHICH[rule.order]} How long a job takes is judged by earlier runs of its name, else by"
        f" its time limit. A job is passed for at most {times} times its expected run time, and for"
        f" no more than {longest}."
    )


def config_lines(rule: OrderRule) -> list[str]:
    """The lines of config.toml that set an order."""
    weight = [f"run_time_weight = {rule.run_time_weight:g}"] if rule.order == "expected" else []
    return ["[queue]", f'order = "{rule.order}"', *weight]


def order_text(best: Verdict, found: Found, payers: Found, rules: Mapping[str, OrderRule]) -> str:
    """What is proposed, what equal priorities alone bring, and who pays; below the table."""
    rule, parts = rules[best.best], [paragraph(best.text)]
    if "equal" in found:
        equal = compare(found["equal"], found[SLURM])
        parts.append(paragraph(f"Among jobs of equal priority alone: {percent(equal.gain)}."))
    judged = (
        best.best if best.pays else max(found, key=lambda n: compare(found[n], found[SLURM]).gain)
    )
    if judged != SLURM:
        parts.append(_payers_text(payers, judged))
    if best.changes:
        lines = "\n".join(f"    {line}" for line in config_lines(rule))
        parts.append(f"To set it, in config.toml (tune does not, as users rely on it):\n{lines}")
        parts.append(paragraph(f"Words for users: {words(rule)}"))
    return "\n\n".join(parts)


def _payers_text(payers: Found, judged: str) -> str:
    """Completion times of the accounts (or users) under each order; those that pay most."""
    of = {order: changes(payers, order) for order in payers if order != SLURM}
    worst = of[judged]
    if not worst:
        return paragraph("The history names neither accounts nor users, so who pays is not known.")
    shown = list(worst)[:_MOST_PAYERS]
    rows = [(name, *(f"{100 * each[name].mean:+.1f}%" for each in of.values())) for name in shown]
    paying = [f"{name} ({percent(one.mean)})" for name, one in worst.items() if one.pays]
    who = f"{len(worst)} accounts or users"
    said = (
        f"With {judged} jobs of {len(paying)} of {who} take longer beyond the uncertainty: "
        f"{', '.join(paying[:_MOST_PAYERS])}."
        if paying
        else f"With {judged} jobs of none of {who} take longer beyond the uncertainty."
    )
    headers = ("completion time of", *of)
    return f"{table(headers, rows, right=headers[1:])}\n\n{paragraph(said)}"


def order_values(best: Verdict, payers: Found, rules: Mapping[str, OrderRule]) -> dict[str, Any]:
    """What is proposed and who pays, as plain values."""
    rule = rules[best.best]
    return {
        "proposed": best.best if best.changes else None,
        "config": config_lines(rule) if best.changes else [],
        "words": words(rule) if best.changes else "",
        "payers": {
            order: {
                name: {**asdict(one), "pays": one.pays}
                for name, one in changes(payers, order).items()
            }
            for order in payers
            if order != SLURM
        },
        "summary": best.text,
    }
