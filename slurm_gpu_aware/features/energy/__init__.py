"""Energy that jobs took, in the ledger and in their comments."""
