"""Interface to Slurm: client, libslurm, records, host lists, history."""
