"""Timing backends: fake GPUs, kernels of ours, programs of the site."""
