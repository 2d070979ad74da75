"""Sweep: the probe on many nodes through Slurm, its progress, and the alarm."""
