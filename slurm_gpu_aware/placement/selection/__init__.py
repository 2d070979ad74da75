"""Selection among the sets of a cell, by scores or by links."""
