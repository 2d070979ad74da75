"""A GPU job's life in Slurm: its phases, request forms, licence gate, holding pool, release."""
