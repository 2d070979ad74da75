"""Links inside a machine: hardware graphs, communication patterns and their matching."""
