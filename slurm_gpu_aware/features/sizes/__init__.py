"""Moldable jobs: their range of GPU counts, and requests of another size."""
