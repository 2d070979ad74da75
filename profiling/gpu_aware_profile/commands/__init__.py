"""Commands of ``gpu-aware-profile``: options and text only."""
