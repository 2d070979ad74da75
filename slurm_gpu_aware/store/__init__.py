"""SQLite store: what was measured, and what was decided.

Rows go in and out; the store computes no score. One host writes, on a local file system. Readers
open read-only; users without access to the live file read the published copy.
"""
