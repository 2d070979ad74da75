"""Drift of the stored GPUs, as records, sentences and a table."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu_aware.cli.output import table
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.profile import gpu_names
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import unseen_gpus
from slurm_gpu_aware.store.profiles import measured_pairs
from slurm_gpu_aware.time_text import duration
from slurm_gpu_aware.variability.drift import FEWEST_RUNS, Change, Drift, drift


def stored_drift(store: Store, config: Config, since: float) -> Drift:
    """Drift since a Unix time, of the site's classes and of GPUs that a probe has seen."""
    pairs = [p for p in measured_pairs(store, since) if p.app_class in config.site.classes]
    unseen = unseen_gpus(store, (pair[:2] for pair in pairs))
    seen = (pair for pair in pairs if pair[:2] not in unseen)
    return drift(seen, least=config.profiling.slower_percent / 100.0)


def drift_table(changes: Sequence[Change], now: float) -> str:
    """Table of changes in the given order."""
    headers = ("class", "node", "GPU", "model", "before", "now", "rise", "spread", "runs", "since")
    return table(
        headers,
        [
            (
                *(c.app_class, c.node, c.slot, c.model, f"{c.before:.3f}", f"{c.now:.3f}"),
                *(f"{c.rise:+.1%}", f"{c.threshold:.1%}", c.runs, duration(now - c.before_at)),
            )
            for c in changes
        ],
        right=("GPU", *headers[4:9]),
    )


def drift_sentences(found: Drift) -> list[str]:
    """What the table of slower GPUs cannot say, one sentence without a full stop each."""
    said = [
        f"class {s.app_class}: the median of all {s.gpus} GPUs{f' {s.model}' if s.model else ''}"
        f" moved by {s.ratio - 1.0:+.1%}, which no score shows (a new driver? another benchmark?)"
        for s in found.shifts
    ]
    if found.unconfirmed:
        names = gpu_names(dict.fromkeys((c.node, c.slot) for c in found.unconfirmed))
        said.append(
            f"slower in fewer than {FEWEST_RUNS} runs, so not counted: {names}; measure again with"
            f" {FEWEST_RUNS} runs or more"
        )
    if found.unjudged:
        names = gpu_names(dict.fromkeys((c.node, c.slot) for c in found.unjudged))
        said.append(f"too few GPUs of the model, or too few runs, to judge: {names}")
    return said
