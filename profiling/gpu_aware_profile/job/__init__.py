"""Measurement of a user's job: time per iteration, power and energy, by SM clock."""
