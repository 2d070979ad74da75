"""Measures GPUs: identity, links, clocks and timings of a node, for a whole cluster.

``timing``
    Timing backends: who measures how long a GPU takes for a class.
``node``
    One node's probe: NVML and a timing backend in, a report out.
``sweep``
    The probe on every GPU node, run by Slurm.
``cli``
    ``gpu-aware-profile``.
"""
