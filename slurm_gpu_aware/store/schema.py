"""Schema of the store, as a new store has it; `migrations` brings an earlier one to it.

All tables are STRICT: otherwise SQLite silently stores a NumPy integer as a BLOB and NaN as NULL.
Filters and joins use columns; JSON holds lists and raw records only.
"""

from __future__ import annotations

APPLICATION_ID = 0x47505541
"""Marks an SQLite file as a store of ours ("GPUA")."""
VERSION = 8
"""Version of the schema, raised with every change of it, together with a step of `migrations`."""

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
  samples INTEGER, spread REAL, sm_mhz REAL, memory_mhz REAL, power_w REAL,
  energy_j REAL,                -- of one iteration
  temperature_c REAL,
  throttle TEXT NOT NULL,       -- reasons, separated by blanks
  PRIMARY KEY (node, slot, class, taken_at_unix, neighbours, clock_mhz, run),
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
  run INTEGER NOT NULL,         -- several values of one moment are counted from 0
  time_s REAL CHECK (time_s > 0),    -- NULL: not measured
  power_w REAL CHECK (power_w > 0),  -- of all GPUs together
  source TEXT NOT NULL,         -- 'import' or 'job'
  PRIMARY KEY (application, gpu_model, taken_at_unix, gpus, nodes, batch_size, clock_mhz, run)
) STRICT;

CREATE TABLE IF NOT EXISTS models (
  kind TEXT NOT NULL,           -- 'application' or 'class'
  name TEXT NOT NULL, gpu_model TEXT NOT NULL,
  fitted_at_unix REAL NOT NULL,
  content TEXT NOT NULL,        -- JSON of energy.performance_model
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
"""
"""Script that makes all tables, indexes and triggers that are not there."""
