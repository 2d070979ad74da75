"""Translation of Slurm's state to the planner's values; jobs that are unsupported, and why."""
