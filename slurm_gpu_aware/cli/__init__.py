"""The command ``gpu-aware``: options in one module per command, work imported late."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of SIGINT."""
