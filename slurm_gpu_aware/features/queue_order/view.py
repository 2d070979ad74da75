"""Texts and JSON of a proposed order of the queue: who pays, what to set, what to tell users."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slurm_gpu_aware.cli.output import paragraph, table
from slurm_gpu_aware.features.queue_order.proposal import SLURM, Found, changes
from slurm_gpu_aware.features.queue_order.rule import OrderRule
from slurm_gpu_aware.simulator.tuning import Verdict, compare, percent
from slurm_gpu_aware.time_text import duration

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
