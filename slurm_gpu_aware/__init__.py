"""Variability-, topology- and energy-aware placement of GPU jobs for a stock Slurm.

The core is pure; it knows neither Slurm nor a database nor a clock: ``model`` (values),
``variability``, ``topology``, ``energy``, ``placement`` (one policy per module) and
``planning`` (one round).

Adapters: ``slurm`` (client and records), ``gate`` (life of a GPU job), ``admission`` (Slurm's
state to the core's values), ``store`` (SQLite). Programs: ``selector`` (the daemon), ``simulator``
(the same round on a virtual clock), ``clocks`` (compute nodes), ``deploy``, ``cli``.
"""

__version__ = "0.1.0"
