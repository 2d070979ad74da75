"""Measurement of the locality penalties through Slurm."""
