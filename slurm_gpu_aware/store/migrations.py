"""Migrations: a store of an earlier schema becomes one of the present schema, with all its rows.

A change of the schema is a change of `schema.TABLES`, the next `VERSION`, and a step here. A step
changes tables that are there, mostly with ``transform`` of sqlite-utils, which keeps rows, checks
and references of a table that SQLite cannot alter. What is new, and the triggers that ``transform``
drops, is made from `schema.TABLES` after all steps. `OLDEST` is the first schema that has steps.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store import schema
from slurm_gpu_aware.store.connection import copy_of
from slurm_gpu_aware.store.ownership import kept_path

if TYPE_CHECKING:
    from sqlite_utils import Database

OLDEST = 8
STEPS: Mapping[int, Callable[[Database], None]] = {}
"""Schema -> what makes the next one of it."""


def version_of(connection: sqlite3.Connection, file: Path) -> int:
    """Schema of a file; 0: it is empty. Raises StoreError unless it is a store that we can use."""
    if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
        return 0
    if _pragma(connection, "application_id") != schema.APPLICATION_ID:
        raise StoreError(f"{file}: an SQLite file, but not a store of slurm-gpu-aware")
    version = _pragma(connection, "user_version")
    if version < OLDEST:
        raise StoreError(
            f"{file}: written by an older release of slurm-gpu-aware (schema {version}, this one"
            f" needs {OLDEST} or later); move it away and measure again with 'gpu-aware-profile"
            " sweep'"
        )
    if version > schema.VERSION:
        raise StoreError(
            f"{file}: written by a newer release of slurm-gpu-aware (schema {version}, this one"
            f" knows up to {schema.VERSION}); upgrade this installation"
        )
    return version


def bring_forward(connection: sqlite3.Connection, file: Path) -> None:
    """Give a file the present schema, in one transaction. It is empty, or of an earlier schema.

    Of an earlier one a copy stays beside it (`kept_path`), with its owner and mode. Another process
    that opens the file at once waits, and finds it done. Raises StoreError, also if a step leaves
    a row without the row that it refers to; then the file is unchanged, and there is no copy.
    """
    kept = None
    connection.execute("PRAGMA foreign_keys=off")  # or a replaced table takes other tables' rows
    try:
        connection.execute("BEGIN IMMEDIATE")
        version = version_of(connection, file)
        dangling = _dangling(connection)
        if 0 < version < schema.VERSION:
            kept = _keep_copy(file, version)
            _run_steps(connection, version)
        for statement in _statements(schema.TABLES):
            connection.execute(statement)
        if _dangling(connection) > dangling:
            raise StoreError(f"{file}: schema {version} cannot be brought forward without a loss")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {schema.VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if kept is not None:
            kept.unlink(missing_ok=True)
        raise
    finally:
        connection.execute("PRAGMA foreign_keys=on")


def _run_steps(connection: sqlite3.Connection, version: int) -> None:
    from sqlite_utils import Database  # takes 0.15 s

    db = Database(connection, recursive_triggers=False, execute_plugins=False)
    for before in range(version, schema.VERSION):
        STEPS[before](db)


def _keep_copy(file: Path, version: int) -> Path:
    """Copy the store as it is now to a name that is free. Raises StoreError."""
    names = (kept_path(file, version, number) for number in count(1))
    target = next(name for name in names if not name.exists())
    with copy_of(file, target) as fresh:
        status = file.stat()
        mode = stat.S_IMODE(status.st_mode)
        try:
            os.chown(fresh, status.st_uid, status.st_gid)
        except PermissionError:  # a group that this user is not in: the copy is private
            mode &= ~(stat.S_IRWXG | stat.S_IRWXO)
        fresh.chmod(mode)
        with fresh.open("rb") as stream:
            os.fsync(stream.fileno())
        fresh.rename(target)
    return target


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; ``executescript`` would end the transaction."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""


def _dangling(connection: sqlite3.Connection) -> int:
    """Number of rows that refer to rows that are not there."""
    return sum(1 for _ in connection.execute("PRAGMA foreign_key_check"))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
