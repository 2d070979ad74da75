"""Interface to Slurm: client protocol and libslurm client, records, host lists, history."""
