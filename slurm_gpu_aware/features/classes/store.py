"""Classes of applications: the centres of the site, and what was found for users' jobs."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from slurm_gpu_aware.model.class_history import GivenClass
from slurm_gpu_aware.store.database import CLASS_CENTRES, Store, put_value, value_of
from slurm_gpu_aware.store.tables import RecordTable

_MOST_OF_USER = 1_000  # Saved classes of one user; the oldest go.


class SavedClass(NamedTuple):
    """Class that was found for the jobs of one name of a user."""

    user: str
    name: str  # Job name.
    app_class: str
    saved_at: float  # Unix time.


_SAVED = RecordTable("job_classes", SavedClass)


def put_centres(store: Store, centres: Mapping[str, tuple[float, float]]) -> None:
    """Keep the centres of the site's classes. ``centres``: class -> (DRAM, unit), in percent."""
    put_value(store, CLASS_CENTRES, json.dumps(centres))


def stored_centres(store: Store) -> dict[str, tuple[float, float]]:
    """The centres of :func:`put_centres`, in their order; empty: none are stored."""
    text = value_of(store, CLASS_CENTRES)
    return {} if text is None else {name: (x, y) for name, (x, y) in json.loads(text).items()}


def put_saved_class(store: Store, saved: SavedClass) -> None:
    """Keep a class in place of an earlier one of the same user and name. Raises StoreError."""
    with store.write():
        _SAVED.put(store, [saved], "INSERT OR REPLACE")
        store.execute(
            "DELETE FROM job_classes WHERE user = ?1 AND name IN (SELECT name FROM job_classes"
            " WHERE user = ?1 ORDER BY saved_at_unix DESC, name LIMIT -1 OFFSET ?2)",
            (saved.user, _MOST_OF_USER),
        )


def saved_classes(store: Store) -> list[GivenClass]:
    """All saved classes, oldest first."""
    saved = _SAVED.read(store, "ORDER BY saved_at_unix, user, name")
    return [GivenClass(one.user, one.app_class, one.saved_at, one.name) for one in saved]


def given_classes(store: Store, limit: int) -> list[GivenClass]:
    """Of the newest decisions with a class that the user gave, oldest first."""
    rows = store.query(
        "SELECT user, json_extract(asked, '$.class'), submitted_at_unix,"
        " ifnull(json_extract(asked, '$.name'), ''), ifnull(json_extract(asked, '$.account'), ''),"
        " job_id FROM decisions WHERE json_extract(asked, '$.class_from') = 'given'"
        " ORDER BY id DESC LIMIT ?",
        (limit,),
    )
    return [GivenClass(*row) for row in rows[::-1]]
