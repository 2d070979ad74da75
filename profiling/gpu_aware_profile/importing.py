"""Import of a file of times: stores the good rows, reports the bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_aware_profile.import_rows import KnownGpus, has_levels, read_levels, read_timings
from gpu_aware_profile.store_writer import recompute_scores, stored_outliers, writable_store
from slurm_gpu_aware.cli.output import paragraph, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.penalties import LevelPenalties, LevelTime, level_ratios
from slurm_gpu_aware.model.profile import gpu_names
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.measurements import (
    Run,
    gpus_by_uuid,
    put_level_times,
    put_timings,
    seen_gpus,
    unseen_gpus,
)
from slurm_gpu_aware.text_file import BadRow, Table
from slurm_gpu_aware.variability.outliers import mixed_units, new_outliers, outlier_sentences

__all__ = ["Import"]

BAD_SHOWN = 20
"""Number of bad rows that are reported singly; the others are counted."""
FAR_LEVEL = 50.0
"""A level whose time differs from that of the innermost one by this factor is an outlier."""
_REFUSED = "Nothing was imported; correct the file, or give --accept-outliers if it is as measured"


@dataclass(frozen=True)
class Import:
    """One import. Methods raise StoreError if they store nothing."""

    table: Table
    path: Path
    """The store."""
    config: Config
    taken_at: float
    """Unix time of the measurement."""
    app_class: str | None
    """Class of a file without a column ``class``."""
    skip_bad: bool
    new_gpus: bool
    """Accept rows of GPUs that no sweep has seen."""
    accept_outliers: bool

    def run(self) -> bool:
        """Import the table; return False if bad rows were skipped."""
        levels = has_levels(self.table, self.app_class)
        return not (self._levels() if levels else self._timings())

    def _timings(self) -> list[BadRow]:
        classes = self.config.site.classes
        with writable_store(self.path, self.config) as store, store.write():
            known = KnownGpus(gpus_by_uuid(store), {} if self.new_gpus else seen_gpus(store))
            good, bad = read_timings(self.table, self.app_class, classes, known, self.taken_at)
            self._refuse(bad, some=bool(good))
            self._store(store, good)
            gpus = {(run.node, run.slot) for run in good}
            unseen = sorted(unseen_gpus(store, gpus)) if self.new_gpus else []
        say(f"imported {len(good)} timing{_s(good)} of {len(gpus)} GPUs into {self.path}")
        if unseen:
            say(
                paragraph(
                    "note: place, setup and simulations of the store's cluster omit these GPUs"
                    f" until a sweep has seen them: {gpu_names(unseen)}."
                )
            )
        return bad

    def _store(self, store: Store, runs: Sequence[Run]) -> None:
        """Store times and scores in the transaction of the caller."""
        before = stored_outliers(store)
        put_timings(store, runs)
        sentences = outlier_sentences(new_outliers(before, stored_outliers(store)))
        if sentences and not self.accept_outliers:
            raise StoreError(f"{'; '.join(sentences)}. {_REFUSED}")
        for sentence in sentences:
            say(f"accepted: {sentence}")
        recompute_scores(store, self.config.site.classes)

    def _levels(self) -> list[BadRow]:
        times, bad = read_levels(self.table, self.app_class, self.config.site.classes)
        self._refuse(bad, some=bool(times))
        if not self.accept_outliers:
            _refuse_far(times)
        with writable_store(self.path, self.config) as store:
            put_level_times(store, times, self.taken_at)
        names = list(dict.fromkeys(time.app_class for time in times))
        plural = "" if len(names) == 1 else "es"
        what = f"{len(times)} level times of class{plural} {', '.join(names)}"
        say(f"imported {what} into {self.path}")
        for sentence in _hidden(times, self.config.placement.penalties_with(level_ratios(times))):
            say(sentence)
        return bad

    def _refuse(self, bad: Sequence[BadRow], *, some: bool) -> None:
        """Report the bad rows; raise StoreError if they may not be skipped or no row is good."""
        name = self.table.name
        for row in bad[:BAD_SHOWN]:
            say(f"{name}: line {row.line}: {row.reason}")
        if len(bad) > BAD_SHOWN:
            say(f"{name}: and {len(bad) - BAD_SHOWN} more bad rows")
        if bad and not self.skip_bad:
            raise StoreError(
                f"{len(bad)} bad row{_s(bad)}, nothing was imported; correct the file or give"
                " --skip-bad"
            )
        if not some:
            raise StoreError(f"{name}: no row to import")


def _refuse_far(times: Sequence[LevelTime]) -> None:
    for app_class, ratios in level_ratios(times).items():
        inner = next(iter(ratios))
        for level, ratio in ratios.items():
            if not 1 / FAR_LEVEL <= ratio <= FAR_LEVEL:
                raise StoreError(
                    f"class {app_class} takes {ratio:.3g} times as long at level {level} as at"
                    f" {inner}{mixed_units(ratio)}. {_REFUSED}"
                )


def _hidden(times: Sequence[LevelTime], penalties: LevelPenalties) -> list[str]:
    """A sentence for each measured penalty that placement does not use as measured."""
    sentences = []
    for app_class, ratios in level_ratios(times).items():
        for level, ratio in list(ratios.items())[1:]:  # the first is the reference
            value, source = penalties.of(app_class)[level]
            if source != "measured" and abs(value - ratio) > 5e-5:
                what = f"{ratio:.4g} was measured, {value:.4g} counts ({source})"
                sentences.append(f"class {app_class}, level {level}: {what}")
    return sentences


def _s(things: Sequence[object]) -> str:
    return "" if len(things) == 1 else "s"
