"""``gpu-aware-clock``: locks and resets the SM clocks of exactly a job's GPUs, on its node.

Slurm's prolog and epilog run it as root, for sites whose slurmd cannot set clocks (no NVML).

- `program`: the command; `hooks`: what prolog and epilog do; `job`: what Slurm and the node say
- `notes`: what is locked; `accounts`: which job holds each GPU, its energy, and dcgm-exporter's map
  of jobs; `records`: what happened; `clock_conf`, beside the rooms: where they lie
- `driver`: calls with a time limit, through `nvml`

`agent` is a program of its own, ``gpu-aware clockd``: it moves the clocks of running
jobs as the selector orders.

Each job waits for the hooks, so they import no module of Python that takes milliseconds (``re``,
``json``, ``dataclasses``, ``pathlib``, ``contextlib``, ``typing``), and ctypes only to call the
driver.
"""
