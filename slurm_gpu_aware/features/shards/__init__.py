"""Jobs that share a GPU by shards."""
