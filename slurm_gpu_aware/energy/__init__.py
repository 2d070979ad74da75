"""Performance models: time, power and energy of an iteration against GPU count and clock."""
