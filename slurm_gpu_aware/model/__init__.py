"""Values that all packages share: cluster, request, assignment, profile, penalties, phases."""
