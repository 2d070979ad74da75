"""Schema of a new store, and migrations: a store of an earlier schema keeps all its rows.

All tables are STRICT: otherwise SQLite silently stores a NumPy integer as a BLOB and NaN as NULL.
Filters and joins use columns; JSON holds lists and raw records only.

A change of the schema is a change of `TABLES`, the next `VERSION`, and a step in `STEPS`. A step
changes tables that are there, mostly with ``transform`` of sqlite-utils, which keeps rows, checks
and references of a table that SQLite cannot alter. What is new, and the triggers that ``transform``
drops, is made from `TABLES` after all steps. `OLDEST` is the first schema that has steps.
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
from slurm_gpu_aware.store.files import copy_of, kept_path

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x47505541  # Marks an SQLite file as a store of ours ("GPUA").
VERSION = 13  # Version of the schema, raised with every change of it, together with a step.

TABLES = """
CREATE TABLE IF NOT EXISTS settings (
  key TEXT PRIMARY KEY, value TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS nodes (
  node TEXT PRIMARY KEY,
  taken_at_unix REAL NOT NULL,  -- of the newest measurement, probed or imported
  probed_at_unix REAL,          -- of the newest report; NULL: only imported
  driver TEXT, cuda TEXT        -- versions that the newest report names
) STRICT;

CREATE TABLE IF NOT EXISTS gpus (
  node TEXT NOT NULL REFERENCES nodes(node) ON DELETE CASCADE,
  slot INTEGER NOT NULL,        -- Slurm's IDX
  uuid TEXT, name TEXT, model TEXT, pci TEXT, numa INTEGER, cpus TEXT,
  memory_mb INTEGER,
  clocks_mhz TEXT,              -- JSON list, descending; NULL: only imported
  max_clock_mhz INTEGER, default_clock_mhz INTEGER,
  power_limit_w REAL, temperature_c REAL,
  ecc_corrected INTEGER, ecc_uncorrected INTEGER,
  nvlink_version TEXT, nvlinks INTEGER, nvswitch_links INTEGER,
  min_limit_w REAL,             -- the lowest power limit that can be set
  power_profiles TEXT, requested_profiles TEXT, -- words; NULL: it has none
  PRIMARY KEY (node, slot)
) STRICT;
CREATE INDEX IF NOT EXISTS gpus_uuid ON gpus(uuid);

CREATE TABLE IF NOT EXISTS links (
  node TEXT NOT NULL REFERENCES nodes(node) ON DELETE CASCADE,
  a INTEGER NOT NULL, b INTEGER NOT NULL CHECK (a < b),
  link_class TEXT NOT NULL, gbps REAL NOT NULL,
  PRIMARY KEY (node, a, b)
) STRICT;

CREATE TABLE IF NOT EXISTS nics (
  node TEXT NOT NULL REFERENCES nodes(node) ON DELETE CASCADE,
  name TEXT NOT NULL, pci TEXT NOT NULL, numa INTEGER,
  gpus TEXT NOT NULL,           -- JSON: slot -> class of the path
  nics TEXT NOT NULL,           -- JSON: name -> class of the path
  PRIMARY KEY (node, name)
) STRICT;

CREATE TABLE IF NOT EXISTS bandwidths (
  node TEXT NOT NULL, a INTEGER NOT NULL, b INTEGER NOT NULL CHECK (a < b),
  taken_at_unix REAL NOT NULL,
  ab_gbps REAL, ba_gbps REAL,   -- from a to b, from b to a
  both_gbps REAL,               -- sum of both directions at once
  latency_us REAL,
  source TEXT NOT NULL,         -- backend of the probe, or 'import'
  PRIMARY KEY (node, a, b, taken_at_unix),
  FOREIGN KEY (node, a) REFERENCES gpus(node, slot) ON DELETE CASCADE,
  FOREIGN KEY (node, b) REFERENCES gpus(node, slot) ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS bandwidths_b ON bandwidths(node, b);

CREATE TABLE IF NOT EXISTS collectives (
  node TEXT NOT NULL REFERENCES nodes(node) ON DELETE CASCADE,
  gpus TEXT NOT NULL,           -- JSON list of slots, ascending
  operation TEXT NOT NULL,      -- in the words of nccl-tests, all_reduce
  taken_at_unix REAL NOT NULL,
  gbps REAL NOT NULL CHECK (gbps > 0),  -- bus bandwidth
  size_bytes INTEGER,           -- of the message
  source TEXT NOT NULL,
  PRIMARY KEY (node, gpus, operation, taken_at_unix)
) STRICT;
CREATE TRIGGER IF NOT EXISTS collectives_of_gpu AFTER DELETE ON gpus BEGIN
  DELETE FROM collectives WHERE node = old.node
    AND EXISTS (SELECT 1 FROM json_each(collectives.gpus) WHERE value = old.slot);
END;

CREATE TABLE IF NOT EXISTS timings (
  node TEXT NOT NULL, slot INTEGER NOT NULL, class TEXT NOT NULL,
  taken_at_unix REAL NOT NULL,
  run INTEGER NOT NULL,         -- several values of one moment are counted from 0
  value_ms REAL NOT NULL CHECK (value_ms BETWEEN 1e-6 AND 1e12),
  source TEXT NOT NULL,         -- backend of the probe, or 'import'
  neighbours TEXT NOT NULL,     -- 'idle' or 'loaded'
  clock_mhz INTEGER NOT NULL,   -- locked SM clock; 0: not locked
  limit_w INTEGER NOT NULL,     -- power limit that was set; 0: the site's own
  samples INTEGER, spread REAL, sm_mhz REAL, memory_mhz REAL, power_w REAL,
  energy_j REAL,                -- of one iteration
  temperature_c REAL,
  throttle TEXT NOT NULL,       -- reasons, separated by blanks
  PRIMARY KEY (node, slot, class, taken_at_unix, neighbours, clock_mhz, limit_w, run),
  FOREIGN KEY (node, slot) REFERENCES gpus(node, slot) ON DELETE CASCADE
) STRICT;

CREATE TABLE IF NOT EXISTS level_times (
  class TEXT NOT NULL,
  model TEXT NOT NULL,          -- GPU model; '': the site has one
  level TEXT NOT NULL,
  run INTEGER NOT NULL,         -- several values of one level are counted from 0
  value_ms REAL NOT NULL CHECK (value_ms BETWEEN 1e-6 AND 1e12),
  taken_at_unix REAL NOT NULL,
  PRIMARY KEY (class, model, level, run)
) STRICT;

CREATE TABLE IF NOT EXISTS probe_errors (
  id INTEGER PRIMARY KEY,
  node TEXT NOT NULL REFERENCES nodes(node) ON DELETE CASCADE,
  slot INTEGER, call TEXT NOT NULL, error TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS probe_errors_node ON probe_errors(node);

CREATE TABLE IF NOT EXISTS scores (
  node TEXT NOT NULL, slot INTEGER NOT NULL, class TEXT NOT NULL,
  value_ms REAL NOT NULL,       -- what the score was computed from
  raw REAL NOT NULL, binned REAL NOT NULL, bin INTEGER NOT NULL,
  outlier INTEGER NOT NULL,     -- 0 no, 1 binned among outliers, 2 keeps its own score
  taken_at_unix REAL NOT NULL,
  PRIMARY KEY (node, slot, class),
  FOREIGN KEY (node, slot) REFERENCES gpus(node, slot) ON DELETE CASCADE
) STRICT;

CREATE TABLE IF NOT EXISTS alarms (  -- slow GPUs that were reported and have not recovered
  node TEXT NOT NULL, slot INTEGER NOT NULL, class TEXT NOT NULL,
  before REAL NOT NULL,         -- PM score before the GPU became slow
  now REAL NOT NULL,            -- PM score in the report
  PRIMARY KEY (node, slot, class),
  FOREIGN KEY (node, slot) REFERENCES gpus(node, slot) ON DELETE CASCADE
) STRICT;

CREATE TABLE IF NOT EXISTS job_classes (
  user TEXT NOT NULL, name TEXT NOT NULL,  -- of the job
  class TEXT NOT NULL, saved_at_unix REAL NOT NULL,
  PRIMARY KEY (user, name)
) STRICT;

CREATE TABLE IF NOT EXISTS model_samples (
  application TEXT NOT NULL, gpu_model TEXT NOT NULL,
  class TEXT NOT NULL,          -- of the application; '': not known
  taken_at_unix REAL NOT NULL,
  gpus INTEGER NOT NULL, nodes INTEGER NOT NULL,
  batch_size REAL NOT NULL,     -- samples of each GPU in one iteration
  clock_mhz REAL NOT NULL,      -- SM clock; 0: not locked
  limit_w INTEGER NOT NULL,     -- power limit that was set; 0: the site's own
  run INTEGER NOT NULL,         -- several values of one moment are counted from 0
  time_s REAL CHECK (time_s > 0),    -- NULL: not measured
  power_w REAL CHECK (power_w > 0),  -- of all GPUs together
  source TEXT NOT NULL,         -- 'import' or 'job'
  PRIMARY KEY (
    application, gpu_model, taken_at_unix, gpus, nodes, batch_size, clock_mhz, limit_w, run)
) STRICT;

CREATE TABLE IF NOT EXISTS models (
  kind TEXT NOT NULL,           -- 'application' or 'class'
  name TEXT NOT NULL, gpu_model TEXT NOT NULL,
  fitted_at_unix REAL NOT NULL,
  content TEXT NOT NULL,        -- JSON of models.performance_model
  PRIMARY KEY (kind, name, gpu_model)
) STRICT;

CREATE TABLE IF NOT EXISTS decisions (
  id INTEGER PRIMARY KEY,
  job_id TEXT NOT NULL, user TEXT NOT NULL,
  submitted_at_unix REAL NOT NULL, decided_at_unix REAL NOT NULL,
  policy TEXT NOT NULL,
  nodes TEXT NOT NULL,          -- JSON list
  slots TEXT NOT NULL,          -- JSON list of Slurm's IDX per node
  score REAL NOT NULL, level TEXT NOT NULL, slowdown REAL NOT NULL,
  clock_mhz INTEGER, exact INTEGER NOT NULL, took_ms REAL NOT NULL,
  state TEXT NOT NULL, restarts INTEGER NOT NULL,
  asked TEXT NOT NULL, victims TEXT NOT NULL, why TEXT NOT NULL,  -- JSON
  outcome_at_unix REAL, outcome TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS decisions_job ON decisions(job_id);
CREATE INDEX IF NOT EXISTS decisions_time ON decisions(decided_at_unix);

CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY,
  job_id TEXT NOT NULL, kind TEXT NOT NULL, at_unix REAL NOT NULL, detail TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS events_job ON events(job_id);
CREATE INDEX IF NOT EXISTS events_time ON events(at_unix);

CREATE TABLE IF NOT EXISTS rounds (
  id INTEGER PRIMARY KEY,
  started_at_unix REAL NOT NULL, took_ms REAL NOT NULL, trigger TEXT NOT NULL,
  queued INTEGER NOT NULL, placed INTEGER NOT NULL, waiting INTEGER NOT NULL,
  limit_w REAL, planned_w REAL, measured_w REAL,  -- power of all GPUs; NULL: no limit, not measured
  detail TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS rounds_time ON rounds(started_at_unix);

CREATE TABLE IF NOT EXISTS snapshots (
  id INTEGER PRIMARY KEY,
  at_unix REAL NOT NULL,
  content BLOB NOT NULL         -- JSON of planning.record, zlib
) STRICT;

CREATE TABLE IF NOT EXISTS shadow_jobs (  -- starts of jobs beside plain Slurm
  id INTEGER PRIMARY KEY,
  job_id TEXT NOT NULL, user TEXT NOT NULL, partition TEXT NOT NULL, class TEXT NOT NULL,
  started_at_unix REAL NOT NULL,
  sets TEXT NOT NULL,           -- JSON of shadow.losses.Sets
  reason TEXT NOT NULL,         -- why it is not compared; '': it is
  power_w REAL,                 -- of its GPUs; NULL: not known
  saves REAL,                   -- share that clocks would save; NULL: not known
  ended_at_unix REAL,           -- NULL: it runs
  waited_s REAL NOT NULL,       -- a job waited so long for a node that this one broke up
  waiting_job TEXT NOT NULL,
  UNIQUE (job_id, started_at_unix)
) STRICT;
CREATE INDEX IF NOT EXISTS shadow_jobs_time ON shadow_jobs(started_at_unix);
CREATE INDEX IF NOT EXISTS shadow_jobs_open ON shadow_jobs(id) WHERE ended_at_unix IS NULL;
CREATE INDEX IF NOT EXISTS shadow_jobs_end ON shadow_jobs(ended_at_unix);

CREATE TABLE IF NOT EXISTS shadow_watches (  -- times in which the shadow looked
  id INTEGER PRIMARY KEY,
  since_at_unix REAL NOT NULL, until_at_unix REAL NOT NULL
) STRICT;
"""
"""Script that makes all tables, indexes and triggers that are not there."""


OLDEST = 8


def _add_limits(db: Database) -> None:
    """Times are known by their power limit, too; of starts what clocks would save."""
    _add_limit(db, "timings")
    if db.table("shadow_jobs").exists():
        db.execute("ALTER TABLE shadow_jobs ADD COLUMN saves REAL")


def _add_limit(db: Database, name: str) -> None:
    """Rows are known by a power limit, too."""
    db.execute(f"ALTER TABLE {name} ADD COLUMN limit_w INTEGER NOT NULL DEFAULT 0")
    table = db.table(name)
    keys = [key for key in table.pks if key != "run"]
    table.transform(pk=(*keys, "limit_w", "run"), defaults={"limit_w": None})


def _add_profiles(db: Database) -> None:
    for name in ("power_profiles", "requested_profiles"):
        db.execute(f"ALTER TABLE gpus ADD COLUMN {name} TEXT")


STEPS: Mapping[int, Callable[[Database], object]] = {
    8: lambda db: None,  # new tables only
    9: _add_limits,
    10: lambda db: _add_limit(db, "model_samples"),
    11: lambda db: db.execute("ALTER TABLE gpus ADD COLUMN min_limit_w REAL"),
    12: _add_profiles,
}
"""Schema -> what makes the next one of it."""


def version_of(connection: sqlite3.Connection, file: Path) -> int:
    """Schema of a file; 0: it is empty. Raises StoreError unless it is a store that we can use."""
    if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
        return 0
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreError(f"{file}: an SQLite file, but not a store of slurm-gpu-aware")
    version = _pragma(connection, "user_version")
    if version < OLDEST:
        raise StoreError(
            f"{file}: written by an older release of slurm-gpu-aware (schema {version}, this one"
            f" needs {OLDEST} or later); move it away and measure again with 'gpu-aware-profile"
            " sweep'"
        )
    if version > VERSION:
        raise StoreError(
            f"{file}: written by a newer release of slurm-gpu-aware (schema {version}, this one"
            f" knows up to {VERSION}); upgrade this installation"
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
        if 0 < version < VERSION:
            kept = _keep_copy(file, version)
            _run_steps(connection, version)
        for statement in _statements(TABLES):
            connection.execute(statement)
        if _dangling(connection) > dangling:
            raise StoreError(f"{file}: schema {version} cannot be brought forward without a loss")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
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
    for before in range(version, VERSION):
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
