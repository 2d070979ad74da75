"""SQLite store: what was measured, and what was decided.

``database``
    Opening, migrating, locking, publishing. Everything else goes through its :class:`Store`.
``migrations``
    The schema, as append-only named steps (imported only when a step is pending).
``report``
    The strict grammar of a probe's report.
``merging``
    Probe reports in.
``timings``
    Imported timings in; the newest timing of each GPU and class out.
``levels``
    Imported times per locality level in and out.
``profiles``
    PM scores, link graphs, GPU records out.
``ledger``
    Every decision of the selector and every event of a job.

One host writes, over a local file system. Readers open read-only; users who may not touch the
live file read the published copy.
"""
