"""Simulator: the live planner on a virtual clock. Traces in, completion times out.

``trace``, ``sacct_trace``, ``synthetic``, ``timings``, ``simulated_site``: jobs and clusters.
``history``, ``recorded``: a time window of a site's accounting, replayed and as a run.
``engine`` with ``active``, ``cluster_state``, ``rounds``, ``physics``; ``parallel``: the runs.
``result``, ``files``, ``report``, ``pictures``: their numbers, and the report on them.
"""
