"""Classes of applications from counters of their utilisation."""
