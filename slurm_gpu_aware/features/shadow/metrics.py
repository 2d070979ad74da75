"""Metrics of what Slurm's choices cost, as the shadow sees it."""

from collections.abc import Callable, Sequence

from slurm_gpu_aware.features.shadow.losses import KINDS, Group, account
from slurm_gpu_aware.features.shadow.store import jobs_since, last_look, watches_since
from slurm_gpu_aware.metric import Fact, Metric, Sample
from slurm_gpu_aware.store.database import Store

_DAY_S = 86_400.0
_READ_S = 300.0


def _read(store: Store, now: float) -> Sequence[Group]:
    """The jobs of a day by partition; none if the shadow has not looked in it."""
    watches = watches_since(store, now - _DAY_S)
    if not watches:
        return ()
    jobs = jobs_since(store, now - _DAY_S)
    return account(jobs, watches[-1].until_at, lambda started_at: "").groups


def _by_partition(
    value: Callable[[Group], float | None],
) -> Callable[[Sequence[Group]], list[Sample]]:
    def samples(groups: Sequence[Group]) -> list[Sample]:
        known = ((group.partition, value(group)) for group in groups)
        return [Sample((name,), float(number)) for name, number in known if number is not None]

    return samples


def _by_kind(groups: Sequence[Group]) -> list[Sample]:
    return [
        Sample((group.partition, kind), float(len(group.of(kind))))
        for group in groups
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
        "Jobs of the last 24 hours that lost by Slurm's choice of GPUs; kind: links (fewer or"
        " slower), nodes (broken up) or slow (GPUs). Absent: the shadow has not looked.",
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
                "Predicted run time that these jobs lost, less what they gained. Absent: unknown.",
                _by_partition(lambda group: group.time_s),
            ),
            (
                "lost_joules",
                "Predicted energy of that time. Absent: not known of any job.",
                _by_partition(lambda group: group.energy_j),
            ),
        )
    ),
)
