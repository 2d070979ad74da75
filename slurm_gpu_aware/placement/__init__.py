"""Placement of one job: policies, constraints and the search for sets of GPUs."""
