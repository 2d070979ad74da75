"""Due dates: the least number of GPUs that meets them, growth, and order of the queue."""
