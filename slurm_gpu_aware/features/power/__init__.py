"""Power limit of the site, clocks of jobs, and GPUs that moldable jobs grow to under it."""
