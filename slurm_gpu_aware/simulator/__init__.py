"""Simulator: the live planner on a virtual clock. Traces in, completion times out."""
