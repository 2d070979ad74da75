"""Sizing: how many GPUs a job gets, and at which clock."""
