"""The same planning code on a virtual clock: traces in, completion times out.

``trace``, ``sacct``
    Jobs, from CSV and from a site's own accounting.
``settings``, ``orders``
    How the simulated site runs its jobs.
``engine``, ``physics``, ``result``
    The virtual clock, how fast a job really runs, what is left in the end.
"""
