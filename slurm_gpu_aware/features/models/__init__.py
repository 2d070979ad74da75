"""Performance models: time and power of a training step by GPU count and clock."""
