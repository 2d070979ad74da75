"""Adapters to Slurm: its grammars, its commands, its gate. They know the model, decide nothing."""
