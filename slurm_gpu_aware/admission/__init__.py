"""From Slurm's state to the planner's values, and what is unsupported and why."""
