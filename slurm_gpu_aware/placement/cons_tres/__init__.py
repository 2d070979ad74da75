"""What Slurm's select/cons_tres gives a job: nodes, cores and GPUs, as its source decides."""
