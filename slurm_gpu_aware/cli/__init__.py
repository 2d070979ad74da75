"""The command ``gpu-aware``: options, and the text of the answers."""
