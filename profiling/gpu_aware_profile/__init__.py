"""Measurement of GPUs: identity, links, clocks and timings of the nodes of a cluster.

``timing``
    Timing backends: the iteration time of a GPU for a class.
``node``
    Probe of one node: NVML and a timing backend in, a report out.
``sweep``
    The probe on every GPU node, run by Slurm.
``cli``
    ``gpu-aware-profile``.
"""
