"""Drift, scores and positions of the GPUs, as tables, a page and pictures."""
