"""Centres of the site's classes for ``classify``: from applications, a file, or the store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.features.classes.store import stored_centres
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.text_file import Row, name_of, read_table
from slurm_gpu_aware.variability import scores as classes
from slurm_gpu_aware.variability.scores import Utilisation

_NEEDED = (
    "no centres of the classes are known; give --centres or --applications, or an administrator"
    " stores them once: gpu-aware-profile classify --applications known.csv --save-centres"
)


def fitted_centres(
    file: BinaryIO, config: Config
) -> tuple[dict[str, Utilisation], dict[str, Utilisation]]:
    """(Centres by K-means, the applications of the file). Raises SourceError."""
    known = _named_points(file, "application")
    try:
        return classes.fit_classes(known, config.site.classes), known
    except ValueError as exc:
        raise SourceError(name_of(file)) from exc


def centres_of_file(file: BinaryIO) -> dict[str, Utilisation]:
    """Centres that an earlier run wrote. Raises SourceError."""
    return _named_points(file, "class")


def centres_of_store(path: Path, config: Config) -> dict[str, Utilisation]:
    """The stored centres of the site. Raises SourceError if there are none or they are outdated."""
    try:
        with open_for_reading(replace(config.store, path=path)) as store:
            found = stored_centres(store)
    except StoreError as exc:
        raise SourceError(_NEEDED) from exc
    if not found:
        raise SourceError(_NEEDED)
    check_names(found, config, "the stored centres")
    return {name: Utilisation(*centre) for name, centre in found.items()}


def check_names(centres: Collection[str], config: Config, what: str) -> None:
    """Raise SourceError unless the centres are of the site's classes."""
    if set(centres) != set(config.site.classes):
        raise SourceError(
            f"{what} are of the classes {', '.join(centres)}; the site has"
            f" {', '.join(config.site.classes)}"
        )


def _named_points(file: BinaryIO, kind: str) -> dict[str, Utilisation]:
    """Named points of a CSV with the columns ``kind``,dram,peak_fu; each name once."""
    points = read_table(file)
    points.require(kind, "dram", "peak_fu")
    names: set[str] = set()

    def point(row: Row) -> tuple[str, Utilisation]:
        name = row.text(kind)
        if name in names:
            raise ValueError(f"{kind} {name!r} occurs twice")
        names.add(name)
        return name, Utilisation(row.number("dram"), row.number("peak_fu"))

    return dict(points.parse_all(point))
