"""Section on what Slurm's choices cost, which ``gpu-aware report --shadow`` prints, too."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from slurm_gpu_aware.features.shadow.losses import (
    EXAMPLES,
    KINDS,
    Account,
    GpuSet,
    Group,
    Loss,
    Watch,
    account,
)
from slurm_gpu_aware.features.shadow.store import jobs_since, watches_since
from slurm_gpu_aware.page.blocks import Sentences, Table, Words
from slurm_gpu_aware.page.sections import Section, Source
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.time_text import duration, stamp

_DAYS = 30
_DAY_S = 86_400.0
_MOST_NODES = 4
_MOST_REASONS = 6
_KWH_J = 3.6e6
_HEADERS = (
    *("week of", "partition", "jobs", "compared", "no link", "less bandwidth", "nodes broken up"),
    *("waits for them", "slower GPUs", "time lost", "energy lost"),
)
_WORDS = {
    "links": "Links",
    "nodes": "Nodes broken up",
    "slow": "Slow GPUs",
}


@dataclass(frozen=True)
class ShadowFacts:
    """What the section shows."""

    found: Account
    days: int
    watches: Sequence[Watch]  # When the shadow looked, oldest first.


def read_shadow(store: Store, now: float, days: int) -> ShadowFacts:
    """The account of the last days. Raises StoreError."""
    since = now - _DAY_S * days
    watches = watches_since(store, since)
    until = watches[-1].until_at if watches else now
    return ShadowFacts(account(jobs_since(store, since), until, week_of), days, watches)


def shadow_blocks(facts: ShadowFacts) -> list[Words]:
    """Sentences, jobs by week and partition, the largest losses of each kind."""
    found = facts.found
    blocks: list[Words] = [Sentences(_what_was_seen(facts))]
    if found.groups:
        shown = [*found.groups, found.total] if len(found.groups) > 1 else found.groups
        rows = [_cells(group) for group in shown]
        if len(rows) > 1:
            rows[-1] = ("all", *rows[-1][1:])
        for title, columns in (("", range(7)), ("What it cost", (0, 1, 7, 8, 9, 10))):
            headers = [_HEADERS[i] for i in columns]
            cells = [[row[i] for i in columns] for row in rows]
            blocks.append(Table(headers, cells, right=headers[2:], title=title))
        if says := _summary(found):
            blocks.append(Sentences(says))
    for title, losses in _examples(found):
        title += f" (sacct -j {losses[0][0]})"
        blocks.append(Table(("job", "loss"), losses, title=title))
    if found.reasons:
        reasons = [(count, why) for why, count in found.reasons[:_MOST_REASONS]]
        blocks.append(Table(("jobs", "why"), reasons, right=("jobs",), title="Not compared"))
    return blocks


def week_of(unix_s: float) -> str:
    """The Monday of the week of a time, local time."""
    day = datetime.fromtimestamp(unix_s).date()
    return (day - timedelta(days=day.weekday())).isoformat()


def unwatched(watches: Sequence[Watch]) -> float:
    """Time between the first and the last look in which the shadow did not run. Units: s."""
    gap_s, until = 0.0, watches[0].until_at if watches else 0.0
    for watch in watches[1:]:
        gap_s += max(0.0, watch.since_at - until)
        until = max(until, watch.until_at)
    return gap_s


def place(gpus: GpuSet) -> str:
    """``n1:0,1; n2:0,1``."""
    shown = [f"{node}:{','.join(map(str, slots))}" for node, slots in gpus.gpus]
    return "; ".join(shown[:_MOST_NODES]) + ("; ..." if len(shown) > _MOST_NODES else "")


def sentence(loss: Loss, kind: str) -> str:
    """What a job lost, in one short sentence without a full stop."""
    given, ours = place(loss.given), place(loss.ours)
    if kind == "links":
        had = "no direct link on" if loss.unlinked else "less bandwidth on"
        return f"{had} {given} ({_gbps(loss.given)}); {ours} was free ({_gbps(loss.ours)})"
    if kind == "nodes":
        names = loss.job.needless
        broken, waits = ", ".join(names[:2]) + (", ..." if len(names) > 2 else ""), ""
        if loss.job.waited_s:
            waits = f"; job {loss.job.waiting_job} waited {duration(loss.job.waited_s)} for it"
        return f"broke up {broken}; {ours} was free{waits}"
    return f"{loss.slower:.0%} slower on {given} than on {ours}, which was free"


def _gbps(gpus: GpuSet) -> str:
    return f"{gpus.gbps or 0.0:.0f} GB/s"


def _what_was_seen(facts: ShadowFacts) -> list[str]:
    """Sentences on what the report stands on."""
    found, watches = facts.found, facts.watches
    if not watches:
        return [
            f"The shadow has not run in the last {facts.days} days, so nothing is known."
            " Start it: systemctl enable --now gpu-aware-shadow, or gpu-aware selectd --shadow."
        ]
    says = [
        f"Slurm started {found.total.jobs} GPU jobs from {stamp(watches[0].since_at)} to"
        f" {stamp(watches[-1].until_at)}; {len(found.total.losses)} of them are compared with what"
        " we would have given at that moment."
    ]
    if (gap_s := unwatched(watches)) >= 60.0:
        says.append(f"The shadow did not run for {duration(gap_s)} of this time.")
    return says


def _summary(found: Account) -> list[str]:
    """Sentences on all jobs together."""
    total, says = found.total, list[str]()
    if found.nothing_lost:
        says.append("There is nothing to gain: no compared job lost anything on Slurm's GPUs.")
    elif found.nothing_lost is None and total.losses:
        says.append("It is not known whether there is anything to gain.")
    if total.time_s is not None and not found.nothing_lost:
        energy = "" if total.energy_j is None else f" and {total.energy_j / _KWH_J:.1f} kWh"
        says.append(
            f"Predicted: {_signed(total.time_s)} of run time{energy} lost, less what was gained."
        )
    if total.better:
        gained = -sum(one.time_s or 0.0 for one in total.better)
        says.append(
            f"Slurm's GPUs are the faster ones for {len(total.better)} jobs"
            f" ({duration(gained)}): ours keep nodes whole, or links for other jobs."
        )
    if total.spent_j and total.saved_j is not None:
        says.append(
            f"Clocks and power limits within the bound of [energy] would save"
            f" {total.saved_j / _KWH_J:.1f} kWh, {total.saved_j / total.spent_j:.0%} of the energy"
            " of these jobs."
        )
    says += [f"Missing: {what}." for what in found.missing()]
    return says


def _signed(seconds: float) -> str:
    return f"-{duration(-seconds)}" if seconds < 0 else duration(seconds)


def _cells(group: Group) -> tuple[Any, ...]:
    links = group.of("links")
    linked = any(one.given.gbps and one.ours.gbps for one in group.losses)
    scored = any(one.time_s is not None for one in group.losses)
    return (
        group.week,
        group.partition,
        group.jobs,
        len(group.losses),
        group.unlinked if linked else None,
        len(links) if linked else None,
        len(group.of("nodes")),
        duration(group.waited_s),
        len(group.of("slow")) if scored else None,
        None if group.time_s is None else _signed(group.time_s),
        None if group.energy_j is None else f"{group.energy_j / _KWH_J:.1f} kWh",
    )


def _examples(found: Account) -> Iterable[tuple[str, Sequence[tuple[str, str]]]]:
    """(kind in words, (job, sentence) of its largest losses)."""
    for kind in KINDS:
        losses = found.total.of(kind)[:EXAMPLES]
        if losses:
            yield _WORDS[kind], [(one.job.job_id, sentence(one, kind)) for one in losses]


def _read(source: Source) -> ShadowFacts:
    return read_shadow(source.store, source.now, _DAYS)


SECTION = Section("shadow", "Shadow", _read, shadow_blocks)
