"""Features: what a site may add to the placement of jobs, each in one folder."""
