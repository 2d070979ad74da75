"""Estimates of run times from earlier runs."""
