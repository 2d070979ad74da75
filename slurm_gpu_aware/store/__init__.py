"""SQLite store: what was measured, and what was decided.

``database``
    Opening, migrating, locking, publishing. Everything else goes through its :class:`Store`.
``migrations``
    The schema, as append-only named steps (imported only when a step is pending).
``report``
    The strict grammar of a probe's report.
``ingest``
    Probe reports in.
``timings``
    Imported timings in; the newest runs of each GPU and class out.
``levels``
    Imported times per locality level in and out.
``profiles``
    The whole profile out; scores in and out.
``inventory``
    Which GPUs a probe has seen; removal of GPUs.
``snapshots``
    Recorded rounds, to be planned again.
``ledger``
    Every decision of the selector and every event of a job.

Rows go in and out; the store computes no score. One host writes, on a local file system. Readers
open read-only; users without access to the live file read the published copy.
"""
