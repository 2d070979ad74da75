"""Waits by choice: a job waits for a set that frees up later and ends it sooner."""
