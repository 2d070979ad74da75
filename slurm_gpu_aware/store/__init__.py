"""SQLite store of measurements and decisions.

``database``
    Opening, migrating, locking, publishing. All other modules use its :class:`Store`.
``migrations``
    The schema, as append-only named steps (imported only if a step is pending).
``report``
    The strict grammar of a probe report.
``ingest``
    Probe reports in.
``timings``
    Imported timings in; the newest runs of each GPU and class out.
``levels``
    Imported times per locality level in and out.
``profiles``
    The whole profile out; scores in and out.
``inventory``
    GPUs that a probe has seen; removal of GPUs.
``snapshots``
    Recorded rounds, for replay.
``ledger``
    Every decision of the selector and every event of a job.

The store computes no score. One host writes, on a local file system. Users without access to the
live file read the published copy.
"""
