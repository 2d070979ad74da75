"""Measurement of links: pairs of GPUs, all-reduces, fits, topology."""
