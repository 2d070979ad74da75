"""Slurm's side: the client's protocol and its libslurm client, records, host lists, history."""
