"""Import of files that other programs wrote."""
