"""The formats that ``import`` reads, and which of them a file has."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from gpu_aware_profile.imports.formats.dcgm_diag import DcgmDiag
from gpu_aware_profile.imports.formats.nccl_tests import NcclTests
from gpu_aware_profile.imports.formats.nvbandwidth import Nvbandwidth
from gpu_aware_profile.imports.formats.reader import (
    MAX_CHARACTERS,
    Measured,
    Reader,
    ReadOptions,
    Source,
)
from gpu_aware_profile.imports.formats.reframe import ReframeLog, ReframeReport
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import name_of, read_table, read_text


class _CsvFile:
    """Reader of the tables that ``import`` describes."""

    name = "csv"

    def matches(self, source: Source) -> bool:
        """Say whether a file may be CSV: the format of last resort of everything but JSON."""
        return source.content is None

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read the table; its columns are checked later. Raises SourceError."""
        return Measured(read_table(source.name, source.text))


_READERS: tuple[Reader, ...] = (
    *(DcgmDiag(), Nvbandwidth(), NcclTests(), ReframeReport(), ReframeLog()),
    _CsvFile(),
)
"""In the order in which they are asked."""
FORMATS = {reader.name: reader for reader in _READERS}


def read_measured(
    file: Path | str | BinaryIO, options: ReadOptions, format_name: str | None = None
) -> Measured:
    """Read a file. ``format_name``: its format; None: the first one that matches.

    Raises SourceError.
    """
    source = Source(name_of(file), read_text(file))
    reader: Reader | None
    if format_name is None:
        reader = next((reader for reader in _READERS if reader.matches(source)), None)
        if reader is None:
            raise SourceError(f"{source.name}: none of the formats {', '.join(FORMATS)}")
    else:
        reader = FORMATS[format_name]
        if not reader.matches(source):
            raise SourceError(f"{source.name}: not a file of the format {format_name}")
    if reader.name != _CsvFile.name and len(source.text) > MAX_CHARACTERS:
        raise SourceError(f"{source.name}: above {MAX_CHARACTERS >> 20} MiB; give it in parts")
    return reader.read(source, options)
