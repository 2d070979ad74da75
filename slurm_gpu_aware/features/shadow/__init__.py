"""Shadow: what Slurm gives its jobs beside what we would have given, without changing anything."""
