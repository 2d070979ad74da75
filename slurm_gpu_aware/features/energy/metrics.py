"""Metrics of the energy that jobs took."""

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu_aware.features.energy.accounts import KINDS, energy_rows
from slurm_gpu_aware.metric import Fact, Metric, Sample
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ledger import Ledger

_DAY_S, _KWH_J = 86_400.0, 3.6e6
_MOST = 5_000
Rows = Sequence[Mapping[str, Any]]


def _read(store: Store, now: float) -> Rows:
    """Rows of `energy_rows` by class, of the jobs that ended within a day."""
    ledger = Ledger(store)
    decisions = ledger.ended_decisions(now - _DAY_S, _MOST)
    first = min((decision.submitted_at for decision in decisions), default=now)
    events = ledger.events_since(KINDS, first)
    return [row for row in energy_rows(decisions, events) if row["by"] == "class"]


def _samples(rows: Rows, key: str, unit: float = 1.0) -> list[Sample]:
    return [Sample((str(row["name"]),), unit * row[key]) for row in rows]


DAY = Fact("energy of a day", ("store", "now"), _read, lambda store, now: int(now // 60))

METRICS = tuple(
    Metric(f"gpu_aware_day_{name}", text, "gauge", DAY, samples, ("class",))
    for name, text, samples in (
        (
            "energy_joules",
            "Energy of the placed jobs that ended in the last 24 hours and whose energy is known"
            f" (the newest {_MOST}), by class.",
            lambda rows: _samples(rows, "kwh", _KWH_J),
        ),
        (
            "saved_joules",
            "Energy that clocks saved in these jobs, by the performance models.",
            lambda rows: _samples(rows, "saved_kwh", _KWH_J),
        ),
        (
            "ended_jobs",
            "Placed jobs that ended in the last 24 hours, by class; absent if no energy is known.",
            lambda rows: _samples(rows, "jobs"),
        ),
        (
            "energy_known_jobs",
            "Those whose energy is known completely.",
            lambda rows: _samples(rows, "measured"),
        ),
    )
)
