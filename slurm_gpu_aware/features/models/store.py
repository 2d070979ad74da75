"""Performance models and the samples that they are fitted to: in and out, and which counts."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models.performance_model import (
    APPLICATION,
    CLASS,
    NamedSample,
    PerformanceModel,
    PerformanceSample,
    model_from_values,
    own_name,
    owner_of,
    unnamed,
)
from slurm_gpu_aware.model.profile import IDLE, LimitRange
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.tables import RecordTable
from slurm_gpu_aware.text_file import parse_json

MAX_APPLICATIONS = 1000  # Pairs of application and GPU model with samples.
MAX_OF_USER = 20
"""Of them, those of one user's own names (`own_name`), so that no user takes all of them."""
MAX_SAMPLES = 2000  # Samples that are kept of each pair; the oldest ones go first.


class ModelRow(NamedTuple):
    """One performance model as it is stored."""

    kind: str  # ``application`` or ``class``.
    name: str
    gpu_model: str
    fitted_at: float  # Unix time.
    content: str  # JSON of `models.performance_model`.


_MODELS = RecordTable("models", ModelRow)


class GpuKind(NamedTuple):
    """What the probes say of all GPUs of a model."""

    clocks_mhz: tuple[int, ...] = ()
    """SM clocks that all of them support, ascending; empty: not known."""
    max_mhz: int | None = None
    per_node: int = 8  # GPUs of the largest node.
    limits_w: LimitRange = LimitRange()


def put_samples(store: Store, samples: Sequence[NamedSample], *, source: str) -> None:
    """Store samples of applications in place of those of the same conditions and moment.

    Raises SourceError, and stores nothing, if by new ones more than ``MAX_APPLICATIONS``, or
    ``MAX_OF_USER`` of one user, would have samples.
    """
    keys = [
        (s.name, s.gpu_model, s.taken_at, *s.sample[:4], round(s.sample.limit_w)) for s in samples
    ]
    runs: Counter[tuple[object, ...]] = Counter()
    rows = []
    for one, key in zip(samples, keys, strict=True):
        time_s = None if math.isnan(one.sample.time_s) else one.sample.time_s
        rows.append((*key, runs[key], time_s, one.sample.power_w, source, one.app_class))
        runs[key] += 1
    with store.write():
        pairs = {*application_pairs(store)}
        if new := {key[:2] for key in keys} - pairs:  # those that an earlier release let in go on
            # Before anything is written: a caller's transaction may go on after the error.
            _check_number(pairs | new, {owner_of(name) for name, _ in new})
        store.executemany(
            "DELETE FROM model_samples WHERE application = ? AND gpu_model = ?"
            " AND taken_at_unix = ? AND gpus = ? AND nodes = ? AND batch_size = ?"
            " AND clock_mhz = ? AND limit_w = ?",
            sorted(set(keys)),
        )
        store.executemany(
            "INSERT INTO model_samples (application, gpu_model, taken_at_unix, gpus, nodes,"
            " batch_size, clock_mhz, limit_w, run, time_s, power_w, source, class)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        store.executemany(
            "DELETE FROM model_samples WHERE rowid IN (SELECT rowid FROM model_samples"
            " WHERE application = ? AND gpu_model = ? ORDER BY taken_at_unix DESC, run DESC"
            " LIMIT -1 OFFSET ?)",
            [(*pair, MAX_SAMPLES) for pair in sorted({key[:2] for key in keys})],
        )


def _check_number(pairs: Set[tuple[str, str]], owners: Set[str]) -> None:
    """Raises SourceError if there are too many pairs, of all or of one of these users."""
    number = Counter(owner_of(name) for name, _ in pairs)
    bounds = [(owner, number[owner], MAX_OF_USER) for owner in sorted(owners) if owner]
    for who, found, most in (*bounds, ("all users", len(pairs), MAX_APPLICATIONS)):
        if found > most:
            raise SourceError(
                f"{found} pairs of application and GPU model of {who} would have samples, and at"
                f" most {most} may"
            )


def application_samples(store: Store, application: str | None = None) -> list[NamedSample]:
    """Samples of one application, or of all, by application, GPU model, time and conditions."""
    rows = store.query(
        "SELECT application, gpu_model, taken_at_unix, gpus, nodes, batch_size, clock_mhz, time_s,"
        " power_w, limit_w, class FROM model_samples WHERE application = ifnull(?, application)"
        " ORDER BY 1, 2, 3, 4, 5, 6, 7, limit_w, run",
        (application,),
    )
    return [
        NamedSample(
            row[0],
            row[1],
            row[2],
            PerformanceSample(*row[3:10])._replace(time_s=math.nan if row[7] is None else row[7]),
            row[10],
        )
        for row in rows
    ]


def application_pairs(store: Store) -> list[tuple[str, str]]:
    """(application, GPU model) of all samples."""
    rows = store.query("SELECT DISTINCT application, gpu_model FROM model_samples")
    return [(row[0], row[1]) for row in rows]


def class_samples(store: Store) -> list[NamedSample]:
    """The newest runs of each GPU, class, locked clock and power limit, of one GPU's iteration."""
    rows = store.query(
        "SELECT class, ifnull(model, ''), taken_at_unix, clock_mhz, value_ms / 1000,"  # noqa: S608
        " ifnull(power_w, energy_j / value_ms * 1000), limit_w FROM"
        " (SELECT *, max(taken_at_unix)"
        "  OVER (PARTITION BY node, slot, class, clock_mhz, limit_w) AS newest FROM timings"
        f"  WHERE clock_mhz > 0 AND neighbours = '{IDLE}') JOIN gpus USING (node, slot)"
        " WHERE taken_at_unix = newest ORDER BY class, 2, clock_mhz, limit_w, node, slot, run"
    )
    return [
        NamedSample(
            *(row[0], row[1], row[2]),
            PerformanceSample(1, 1, 1.0, float(row[3]), row[4], row[5], float(row[6])),
        )
        for row in rows
    ]


def gpu_kinds(store: Store) -> dict[str, GpuKind]:
    """GPU model -> what its GPUs have in common, of all GPUs that a probe has read."""
    kinds: dict[str, GpuKind] = {}
    limits: dict[str, list[tuple[float | None, float | None]]] = {}
    for row in store.query(
        "SELECT ifnull(model, ''), clocks_mhz, max(max_clock_mhz), count(*),"
        " json_group_array(json_array(min_limit_w, power_limit_w)) FROM gpus"
        " WHERE clocks_mhz IS NOT NULL GROUP BY 1, node, clocks_mhz"
    ):
        model, clocks, highest, count, limits_w = row
        known = kinds.get(model, GpuKind(tuple(sorted(json.loads(clocks))), per_node=0))
        limits.setdefault(model, []).extend(json.loads(limits_w))
        kinds[model] = GpuKind(
            tuple(sorted(set(known.clocks_mhz).intersection(json.loads(clocks)))),
            max((mhz for mhz in (known.max_mhz, highest) if mhz), default=None),
            max(known.per_node, count),
            LimitRange.of(limits[model]),
        )
    return kinds


def put_models(store: Store, models: Sequence[ModelRow]) -> None:
    """Replace all models in one transaction."""
    with store.write():
        store.execute("DELETE FROM models")
        _MODELS.put(store, models)


def put_model(store: Store, model: ModelRow) -> None:
    """Replace one model."""
    _MODELS.put(store, [model], "INSERT OR REPLACE")


def model_rows(store: Store) -> list[ModelRow]:
    """All models, by kind, name and GPU model."""
    return _MODELS.read(store, "ORDER BY kind, name, gpu_model")


@dataclass(frozen=True)
class PerformanceModels:
    """Models of a site."""

    rows: Mapping[tuple[str, str, str], tuple[ModelRow, PerformanceModel]]
    """(kind, name, GPU model) -> row and model."""
    most_error: float
    """Models with a larger error for measurements that their fit has not seen are not used."""
    unreadable: tuple[str, ...] = ()  # A sentence for each row that is no model.

    def too_wrong(self, application: str, gpu_model: str, user: str) -> PerformanceModel | None:
        """The model of an application that is there and not used; None: there is none."""
        found = (
            self._row(APPLICATION, n, gpu_model) for n in (own_name(user, application), application)
        )
        model = next((one for one in found if one is not None), None)
        return None if model is None or self.uses(model) else model

    def uses(self, model: PerformanceModel) -> bool:
        """Whether a model is good enough."""
        return model.quality.worst <= self.most_error

    def of(
        self, application: str | None, app_class: str, gpu_model: str, user: str = ""
    ) -> PerformanceModel | None:
        """The model of an application on a GPU model, else that of the class; None: neither.

        What ``user`` has measured precedes what the site knows under the same name, or of jobs that
        name no application. A model that is too wrong is as if it were not there.
        """
        found = self._used(application, app_class, gpu_model, user)
        return None if found is None else found[1]

    def fitted_at(
        self, application: str | None, app_class: str, gpu_model: str, user: str
    ) -> float:
        """When the model of `of` was fitted, Unix time; inf: there is none."""
        found = self._used(application, app_class, gpu_model, user)
        return math.inf if found is None else found[0].fitted_at

    def _used(
        self, application: str | None, app_class: str, gpu_model: str, user: str
    ) -> tuple[ModelRow, PerformanceModel] | None:
        named = application or unnamed(app_class)
        keys = [(APPLICATION, own_name(user, named)), (APPLICATION, named), (CLASS, app_class)]
        found = (self.rows.get((*key, gpu_model)) for key in keys)
        return next((one for one in found if one is not None and self.uses(one[1])), None)

    def _row(self, kind: str, name: str, gpu_model: str) -> PerformanceModel | None:
        found = self.rows.get((kind, name, gpu_model))
        return None if found is None else found[1]

    def __iter__(self) -> Iterator[tuple[ModelRow, PerformanceModel]]:
        return iter(self.rows.values())


def read_models(store: Store, most_error: float) -> PerformanceModels:
    """All models of the store; a row that is not valid is left out. Raises StoreError.

    ``most_error``: see `PerformanceModels`.
    """
    rows: dict[tuple[str, str, str], tuple[ModelRow, PerformanceModel]] = {}
    unreadable = []
    for row in model_rows(store):
        try:
            model = model_from_values(parse_json(row.content, "content"))
        except (SourceError, ValueError) as exc:
            unreadable.append(
                f"the model of {row.kind} {row.name} on {row.gpu_model} is not valid ({exc});"
                " 'gpu-aware models fit' writes it anew"
            )
        else:
            rows[row[:3]] = (row, model)
    return PerformanceModels(rows, most_error, tuple(unreadable))
