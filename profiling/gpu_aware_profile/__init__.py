"""Measurement of GPUs: identity, links, clocks and timings of the nodes of a cluster."""
