"""Order of the queue: shorter jobs first, within bounds that the site sets."""
