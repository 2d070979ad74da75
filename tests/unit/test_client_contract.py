"""The contract of the client of Slurm over the Slurm of the unit tests; live: tests/slurm."""
