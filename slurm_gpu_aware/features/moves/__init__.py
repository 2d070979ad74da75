"""Moves: running jobs with checkpoints are requeued to better GPUs."""
