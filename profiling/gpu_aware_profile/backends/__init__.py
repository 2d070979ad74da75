"""Timing backends: kernels of ours, programs of the site, those of another package."""
