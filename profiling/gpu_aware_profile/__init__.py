"""Measurement of GPUs: identity, links, clocks and timings of the nodes of a cluster.

``timing``
    Timing backends: they measure how long a GPU takes for a class.
``node``
    One node's probe: NVML and a timing backend in, a report out.
``sweep``
    The probe on every GPU node, run by Slurm.
``cli``
    ``gpu-aware-profile``.
"""
