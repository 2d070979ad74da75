"""Performance models of the store, read once: lookup by application, else class, and GPU model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.models.performance_model import (
    APPLICATION,
    CLASS,
    PerformanceModel,
    model_from_values,
    own_name,
    unnamed,
)
from slurm_gpu_aware.features.models.store import ModelRow, model_rows
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.text_file import parse_json


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
