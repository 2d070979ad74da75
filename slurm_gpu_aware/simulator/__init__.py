"""The same planning code on a virtual clock: traces in, completion times out.

``trace``, ``sacct``
    Jobs, from CSV and from a site's own accounting.
``sources``, ``topo_jobs``, ``mapa_jobs``, ``alibaba``, ``synthetic``
    Other files of jobs, told apart by what they start with; Poisson arrivals.
``clusters``, ``timings``
    The cluster in two views, the planner's and the true one; GPUs drawn from measured times.
``settings``, ``orders``
    How the simulated site runs its jobs.
``engine``; ``active``, ``clock``, ``state``, ``rounds``; ``physics``, ``interference``,
``postponing``; ``result``
    The run; a job and how far it is, what happens next, who runs where, who is planned; how fast
    a job really runs, when a postponed one is due; what is left in the end.
``parallel``, ``files``, ``recorded``
    Several runs side by side, folders of results, and what Slurm did in the form of a run.
"""
