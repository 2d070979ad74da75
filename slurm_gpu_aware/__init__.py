"""Variability-, topology- and energy-aware placement of GPU jobs for a stock Slurm.

The core is pure and knows neither Slurm nor a database nor a clock:

``cluster``, ``request``, ``assignment``
    What there is, what a job asks for, what it gets and why.
``variability``, ``topology``
    From timings to PM scores and bins; link graphs and how good a match is.
``placement``
    Which GPUs: one policy per module behind one protocol.
``planning``
    One round: order, guarantee, backfill, placement.

Adapters stand beside it: ``store`` (SQLite), ``slurm`` (commands, comment grammar, gate).
On top: ``service`` (the selector daemon), ``simulator`` (the same round on a virtual clock),
``clocks`` (prolog and epilog of the compute nodes), ``cli`` (``gpu-aware``).
"""

__version__ = "0.1.0"
