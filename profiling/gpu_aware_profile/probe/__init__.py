"""Probe of one node: identity, runs with telemetry, clocks."""
