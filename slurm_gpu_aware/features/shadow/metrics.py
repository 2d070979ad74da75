"""Metrics of what Slurm's choices cost, as the shadow sees it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_gpu_aware.features.shadow.losses import KINDS, Group, account
from slurm_gpu_aware.features.shadow.store import last_look, ran_since, watches_since
from slurm_gpu_aware.metric import Fact, Metric, Sample
from slurm_gpu_aware.store.database import Store

_DAY_S = 86_400.0
_READ_S = 300.0


class Day(NamedTuple):
    """The last 24 hours by partition; no groups: the shadow has not looked in them."""

    started: Sequence[Group] = ()  # Jobs that started then.
    ran: Sequence[Group] = ()
    """All that ran then, also those that started before; of each run what lies in the day."""


def _read(store: Store, now: float) -> Day:
    since = now - _DAY_S
    watches = watches_since(store, since)
    if not watches:
        return Day()
    jobs, until = ran_since(store, since), watches[-1].until_at
    started = (job for job in jobs if job.started_at >= since)
    return Day(
        account(started, until, lambda started_at: "").groups,
        account(jobs, until, lambda started_at: "", since).groups,
    )


def _by_partition(
    value: Callable[[Group], float | None],
    of: Callable[[Day], Sequence[Group]] = lambda day: day.started,
) -> Callable[[Day], list[Sample]]:
    def samples(day: Day) -> list[Sample]:
        known = ((group.partition, value(group)) for group in of(day))
        return [Sample((name,), float(number)) for name, number in known if number is not None]

    return samples


def _by_kind(day: Day) -> list[Sample]:
    return [
        Sample((group.partition, kind), float(len(group.of(kind))))
        for group in day.started
        for kind in KINDS
    ]


LOSSES = Fact(
    "losses of a day",
    ("store", "now"),
    _read,
    lambda store, now: (last_look(store), now // _READ_S),
)

METRICS = (
    Metric(
        "gpu_aware_day_shadow_lost_jobs",
        "Jobs started in the last 24 hours that lost by Slurm's choice of GPUs; kind: links (fewer"
        " or slower), nodes (broken up) or slow (GPUs). Absent: the shadow has not looked.",
        "gauge",
        LOSSES,
        _by_kind,
        ("partition", "kind"),
    ),
    *(
        Metric(f"gpu_aware_day_shadow_{name}", text, "gauge", LOSSES, samples, ("partition",))
        for name, text, samples in (
            (
                "started_jobs",
                "GPU jobs that Slurm started in the last 24 hours, as the shadow saw them.",
                _by_partition(lambda group: group.jobs),
            ),
            (
                "compared_jobs",
                "Those that are compared with what we would have given.",
                _by_partition(lambda group: len(group.losses)),
            ),
            (
                "waited_seconds",
                "Time in which jobs waited for whole nodes that jobs started in the last 24 hours"
                " broke up without need.",
                _by_partition(lambda group: group.waited_s),
            ),
            (
                "lost_seconds",
                "Predicted run time that jobs lost in the last 24 hours, less what they gained, of"
                " all that ran then. Absent: unknown.",
                _by_partition(lambda group: group.time_s, lambda day: day.ran),
            ),
            (
                "lost_joules",
                "Predicted energy of that time. Absent: not known of any job.",
                _by_partition(lambda group: group.energy_j, lambda day: day.ran),
            ),
        )
    ),
)
