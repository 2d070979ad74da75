"""Store of the shadow: starts of jobs with both sets, and the times in which it looked."""

from typing import Any

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.features.shadow.losses import Sets, ShadowJob, Watch
from slurm_gpu_aware.store.database import Row, Store
from slurm_gpu_aware.store.tables import RecordTable

MOST = 500_000  # Rows that are kept, whatever their age; the oldest go first.
_JOBS = RecordTable("shadow_jobs", ShadowJob, sets=Sets)


def add_job(store: Store, job: ShadowJob) -> None:
    """Store a start; one that is there stays as it is."""
    _JOBS.put(store, [job], "INSERT OR IGNORE")


def set_end(store: Store, key: tuple[str, float], ended_at: float) -> None:
    """Note the end of a job."""
    store.execute(
        "UPDATE shadow_jobs SET ended_at_unix = ? WHERE job_id = ? AND started_at_unix = ?",
        (max(ended_at, key[1]), *key),
    )


def add_wait(store: Store, key: tuple[str, float], waiting_job: str, seconds: float) -> None:
    """Add to the time in which a job waited for a node that this one broke up."""
    store.execute(
        "UPDATE shadow_jobs SET waited_s = waited_s + ?, waiting_job = ?"
        " WHERE job_id = ? AND started_at_unix = ?",
        (seconds, waiting_job, *key),
    )


def begin_watch(store: Store, at: float) -> int:
    """Note that the shadow looks from now on; return the number of the watch."""
    sql = "INSERT INTO shadow_watches (since_at_unix, until_at_unix) VALUES (?, ?)"
    number = store.execute(sql, (at, at)).lastrowid
    return int(number or 0)


def go_on(store: Store, watch: int, at: float) -> None:
    """Note that it still looks."""
    store.execute("UPDATE shadow_watches SET until_at_unix = ? WHERE id = ?", (at, watch))


def last_look(store: Store) -> float | None:
    """When a shadow last looked, Unix s; None: never."""
    (row,) = store.query("SELECT max(until_at_unix) AS at FROM shadow_watches")
    return None if row["at"] is None else float(row["at"])


def open_jobs(store: Store) -> list[ShadowJob]:
    """Jobs of which no end is known, oldest first. Raises StoreError for a damaged row."""
    return _jobs(store, "WHERE ended_at_unix IS NULL", ())


def jobs_since(store: Store, at: float) -> list[ShadowJob]:
    """Starts since a Unix time, oldest first. Raises StoreError for a damaged row."""
    return _jobs(store, "WHERE started_at_unix >= ?", (at,))


def ran_since(store: Store, at: float) -> list[ShadowJob]:
    """Starts whose jobs ran after a Unix time, oldest first. Raises StoreError (damaged row)."""
    return _jobs(store, "WHERE ended_at_unix IS NULL OR ended_at_unix >= ?", (at,))


def watches_since(store: Store, at: float) -> list[Watch]:
    """The times in which a shadow looked, since a Unix time, oldest first."""
    rows = store.query(
        "SELECT since_at_unix, until_at_unix FROM shadow_watches"
        " WHERE until_at_unix >= ? ORDER BY since_at_unix",
        (at,),
    )
    return [Watch(max(at, float(since)), float(until)) for since, until in rows]


def prune(store: Store, before_unix: float) -> None:
    """Delete what is older, and all but the newest `MOST` starts."""
    with store.write():
        store.execute("DELETE FROM shadow_jobs WHERE started_at_unix < ?", (before_unix,))
        store.execute(
            "DELETE FROM shadow_jobs WHERE id <= (SELECT max(id) FROM shadow_jobs) - ?", (MOST,)
        )
        store.execute("DELETE FROM shadow_watches WHERE until_at_unix < ?", (before_unix,))


def _jobs(store: Store, where: str, params: tuple[Any, ...]) -> list[ShadowJob]:
    query = f"SELECT * FROM shadow_jobs {where} ORDER BY started_at_unix, id LIMIT {MOST}"  # noqa: S608
    return list(map(_job, store.query(query, params)))


def _job(row: Row) -> ShadowJob:
    try:
        return _JOBS.record(row)
    except ValueError as exc:
        raise StoreError(f"shadow job {row['job_id']}: {exc}") from exc
