"""Import of files of times: stores the good rows, reports the bad ones."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpu_aware_profile.imports.formats.reader import Measured
from gpu_aware_profile.imports.formats.topology_matrix import BACKEND as MATRIX
from gpu_aware_profile.imports.import_rows import (
    Given,
    Kind,
    bandwidth_sentences,
    far_collectives,
    far_pairs,
    fastest_pairs,
    kind_of,
    largest_collectives,
    read_collectives,
    read_levels,
    read_pairs,
    read_samples,
    read_timings,
)
from gpu_aware_profile.imports.known_gpus import KnownGpus, add_nodes, known_gpus
from gpu_aware_profile.store_writer import recompute_scores, stored_outliers, writable_store
from slurm_gpu_aware.cli.output import paragraph, say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.features.models.store import put_samples
from slurm_gpu_aware.model.penalties import LevelPenalties, LevelTime, level_ratios
from slurm_gpu_aware.model.profile import gpu_names
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ingest import add_matrix, check_uuids, ingest_report
from slurm_gpu_aware.store.measurements import (
    Run,
    pci_addresses,
    put_bandwidths,
    put_collectives,
    put_level_times,
    put_timings,
    unseen_gpus,
)
from slurm_gpu_aware.store.report import ProbeReport
from slurm_gpu_aware.text_file import BadRow, Table
from slurm_gpu_aware.time_text import counted
from slurm_gpu_aware.variability.drift import (
    RATE_UNITS,
    TIME_UNITS,
    Outlier,
    mixed_units,
    new_outliers,
    outlier_sentences,
)

T = TypeVar("T")

BAD_SHOWN = 20  # Number of bad rows of a file that are reported singly; the others are counted.
FAR_LEVEL = 50.0
"""A level whose time differs from that of the innermost one by this factor is an outlier."""
_REFUSED = "Nothing was imported; correct the file, or give --accept-outliers if it is as measured"


@dataclass(frozen=True)
class Import:
    """One import of one or more files. Methods raise StoreError if they store nothing."""

    files: Sequence[Measured]
    path: Path  # The store.
    config: Config
    given: Given
    skip_bad: bool
    new_gpus: bool  # Accept rows of GPUs and, of bandwidths, nodes that no sweep has seen.
    accept_outliers: bool

    def run(self) -> bool:
        """Import the files in one transaction; return False if bad rows were skipped."""
        for file in self.files:
            if file.left_out:
                counts = Counter(file.left_out).most_common()
                what = ", ".join(f"{name} ({count})" for name, count in counts)
                say(
                    f"{file.table.name}: left out {counted(len(file.left_out), 'measurement')} for"
                    f" which the store has no place: {what}"
                )
        reports = [file.report for file in self.files if file.report is not None]
        if reports:
            return self._reports(reports)
        kinds = {(kind_of(file.table, self.given.app_class), file.rate) for file in self.files}
        if len(kinds) > 1:
            raise SourceError(
                "the files differ in what they measure or in its unit; import them apart"
            )
        ((kind, rate),) = kinds
        if kind is Kind.TIMES:
            return not self._timings(rate)
        if kind is Kind.LEVEL_TIMES:
            return not self._levels()
        if kind is Kind.SAMPLES:
            return not self._samples()
        if kind is Kind.PAIRS:
            how = (read_pairs, fastest_pairs, far_pairs, put_bandwidths)
            return not self._bandwidths(("pair of GPUs", "pairs of GPUs"), *how)
        of = (read_collectives, largest_collectives, far_collectives, put_collectives)
        return not self._bandwidths(("collective", "collectives"), *of)

    def _reports(self, reports: Sequence[ProbeReport]) -> bool:
        if self.given.app_class is not None:
            raise SourceError("a report or matrix of a node is of no class; leave --class out")
        if len(reports) < len(self.files):
            raise SourceError("import reports and matrices of nodes apart from other files")
        with writable_store(self.path, self.config) as store, store.write():
            before = stored_outliers(store)
            for report in reports:
                self._report(store, report)
            for report in reports:
                check_uuids(store, report.node)
            new = new_outliers(before, stored_outliers(store))
            self._refuse_far(outlier_sentences(new, TIME_UNITS))
            recompute_scores(store, self.config.site.classes)
        say(f"imported reports of {counted(len(reports), 'node')} into {self.path}")
        return True

    def _report(self, store: Store, report: ProbeReport) -> None:
        """Store the report of a probe, or the matrix of a node that no sweep has seen."""
        if report.backend != MATRIX:
            ingest_report(store, report)
            return
        if not self.new_gpus and report.node not in pci_addresses(store):
            raise StoreError(f"no sweep has seen {report.node}; give --new-nodes to add it")
        add_matrix(store, report, self._taken_at)
        say(_as_counted(report.node, len(report.gpus)))

    def _timings(self, rate: str | None) -> int:
        with writable_store(self.path, self.config) as store, store.write():
            known = known_gpus(store, new=self.new_gpus)
            good, bad = self._rows(lambda table: read_timings(table, self.given, known))
            self._store(store, good, rate)
            gpus = {(run.node, run.slot) for run in good}
            unseen = sorted(unseen_gpus(store, gpus)) if self.new_gpus else []
        times = f"{counted(len(good), 'timing')} of {counted(len(gpus), 'GPU')}"
        say(f"imported {times} into {self.path}")
        if rate is not None:
            say(f"note: the values were rates in {rate}; stored are times, 1000 / rate")
        if unseen:
            say(
                paragraph(
                    "note: place, setup and simulations of the store's cluster omit these GPUs"
                    f" until a sweep has seen them: {gpu_names(unseen)}."
                )
            )
        return bad

    def _store(self, store: Store, runs: Sequence[Run], rate: str | None) -> None:
        """Store times and scores in the transaction of the caller."""
        before = stored_outliers(store)
        put_timings(store, runs)
        new = new_outliers(before, stored_outliers(store))
        self._refuse_far(outlier_sentences(new, TIME_UNITS if rate is None else RATE_UNITS))
        recompute_scores(store, self.config.site.classes)

    def _refuse_far(self, sentences: Sequence[str]) -> None:
        """Raise StoreError for outliers, unless they are accepted."""
        if sentences and not self.accept_outliers:
            raise StoreError(f"{'; '.join(sentences)}. {_REFUSED}")
        for sentence in sentences:
            say(f"accepted: {sentence}")

    def _bandwidths(
        self,
        what: tuple[str, str],
        read: Callable[[Table, Given, KnownGpus], tuple[list[T], list[BadRow]]],
        best: Callable[[list[T]], list[T]],
        far: Callable[[Store], list[Outlier]],
        put: Callable[..., None],
    ) -> int:
        """Store bandwidths. ``what``: of one thing, and of several."""
        with writable_store(self.path, self.config) as store, store.write():
            known = self._known(store)
            good, bad = self._rows(lambda table: read(table, self.given, known))
            good = best(good)
            before = far(store)
            put(store, good, source="import")
            self._refuse_far(bandwidth_sentences(new_outliers(before, far(store))))
        say(f"imported bandwidths of {counted(len(good), *what)} into {self.path}")
        return bad

    def _known(self, store: Store) -> KnownGpus:
        """The GPUs that bandwidths may name; with ``new_gpus`` also those of unknown nodes."""
        tables = [file.table for file in self.files]
        added = add_nodes(store, tables, self._taken_at) if self.new_gpus else {}
        for node, count in added.items():
            say(_as_counted(node, count))
        known = known_gpus(store, new=False)
        return replace(known, counted={**known.counted, **added})

    def _samples(self) -> int:
        good, bad = self._rows(lambda table: read_samples(table, self.given))
        with writable_store(self.path, self.config) as store:
            put_samples(store, good, source="import")
        names = sorted({sample.name for sample in good})
        what = f"{counted(len(good), 'sample')} of {counted(len(names), 'application')}"
        say(f"imported {what} into {self.path}; 'gpu-aware models fit' uses them")
        return bad

    def _levels(self) -> int:
        times, bad = self._rows(lambda table: read_levels(table, self.given))
        if not self.accept_outliers:
            _refuse_far_levels(times)
        with writable_store(self.path, self.config) as store:
            put_level_times(store, times, self._taken_at)
        names = list(dict.fromkeys(time.app_class for time in times))
        plural = "" if len(names) == 1 else "es"
        what = f"{len(times)} level times of class{plural} {', '.join(names)}"
        say(f"imported {what} into {self.path}")
        for sentence in _hidden(times, self.config.placement.penalties_with(level_ratios(times))):
            say(sentence)
        return bad

    @property
    def _taken_at(self) -> float:
        return self.given.now if self.given.taken_at is None else self.given.taken_at

    def _rows(self, read: Callable[[Table], tuple[list[T], list[BadRow]]]) -> tuple[list[T], int]:
        """The good rows of all files, and the number of bad ones, which are reported.

        Raises StoreError if bad rows may not be skipped or no row is good.
        """
        good: list[T] = []
        count = 0
        for file in self.files:
            rows, bad = read(file.table)
            good += rows
            count += len(bad)
            _report_bad(file.table.name, bad)
        if count and not self.skip_bad:
            raise StoreError(
                f"{count} bad row{'s' * (count != 1)}, nothing was imported; correct the file or"
                " give --skip-bad"
            )
        if not good and not any(file.left_out for file in self.files):
            raise StoreError(f"{self.files[0].table.name}: no row to import")
        return good, count


def _as_counted(node: str, count: int) -> str:
    gpus = f"GPUs 0 to {count - 1} of {node} are those" if count > 1 else f"GPU 0 of {node} is that"
    return f"note: until a sweep, {gpus} of the file in the order of the PCI addresses"


def _report_bad(name: str, bad: Sequence[BadRow]) -> None:
    for row in bad[:BAD_SHOWN]:
        say(f"{name}: {row.unit} {row.line}: {row.reason}")
    if len(bad) > BAD_SHOWN:
        say(f"{name}: and {len(bad) - BAD_SHOWN} more bad rows")


def _refuse_far_levels(times: Sequence[LevelTime]) -> None:
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
