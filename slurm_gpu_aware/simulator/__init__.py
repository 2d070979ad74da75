"""Simulator: the live planner on a virtual clock. Traces in, completion times out.

``trace``, ``sacct_trace``, ``synthetic``
    Jobs from CSV, from a site's accounting, with Poisson arrivals.
``history``, ``recorded``
    A time window of a site's accounting: background jobs, the work of its jobs, the record as a
    run.
``simulated_site``, ``timings``
    The cluster in two views, the planner's and the true one; scores drawn from measured times.
``settings``
    Policy, order of the queue, rounds, and what slows jobs.
``engine``; ``active``, ``clock``, ``cluster_state``, ``background_jobs``, ``rounds``; ``physics``
    The run; its jobs, events, GPUs and rounds; the pace of a job.
``result``, ``files``, ``report``, ``pictures``
    Numbers of a run, folders of results, and the report on them.
``parallel``, ``replay``
    Several runs in parallel; recorded rounds of the live selector planned again.
"""
