"""CSV files of ours: times per GPU, or per locality level."""

from __future__ import annotations

from gpu_aware_profile.imports.formats.reader import Measured, ReadOptions, Source
from slurm_gpu_aware.text_file import read_table

__all__ = ["CsvFile"]


class CsvFile:
    """Reader of the tables that ``import`` describes."""

    name = "csv"

    def matches(self, source: Source) -> bool:
        """Say whether a file may be CSV: the format of last resort of everything but JSON."""
        return source.content is None

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read the table; its columns are checked later. Raises SourceError."""
        return Measured(read_table(source.name, source.text))
