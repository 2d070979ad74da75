"""Readers of result files of other programs, for ``import``: one module per format."""
