"""Life of a GPU job in Slurm: phases, request forms, licence gate, holding pool, release."""
