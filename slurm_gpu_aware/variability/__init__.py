"""PM scores, bins and application classes from measured times."""
