"""The selector daemon: rounds, placing, start monitor, heartbeat, ledger."""
