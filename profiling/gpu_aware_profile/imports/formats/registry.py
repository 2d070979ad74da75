"""The formats that ``import`` reads, and which of them a file has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from gpu_aware_profile.imports.formats.dcgm_diag import DcgmDiag
from gpu_aware_profile.imports.formats.nccl_tests import NcclTests
from gpu_aware_profile.imports.formats.nvbandwidth import Nvbandwidth
from gpu_aware_profile.imports.formats.reader import (
    COLLECTIVE_COLUMNS,
    MAX_CHARACTERS,
    PAIR_COLUMNS,
    TIMING_COLUMNS,
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
        """Say whether the first line that is no comment has the names of columns."""
        lines = (line.strip() for line in source.text.removeprefix("\ufeff").split("\n"))
        head = next((line for line in lines if line and not line.startswith("#")), "")
        words = [word.strip().strip('"') for word in re.split(r"[,;\t|]", head)]
        return source.content is None and (not head or not _COLUMNS.isdisjoint(words))

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read the table; its columns are checked later. Raises SourceError."""
        head = source.text.lstrip("\ufeff \r\n").split("\n", 1)[0]
        found = next((mark for mark in ";\t|" if mark in head and "," not in head), None)
        if found is not None:
            raise SourceError(f"{source.name}: separated by {found!r}, expected ','")
        return Measured(read_table(source.name, source.text))


_COLUMNS = frozenset({*TIMING_COLUMNS, *PAIR_COLUMNS, *COLLECTIVE_COLUMNS, "class", "level"})
_COLUMNS |= {"application", "gpu_model", "gpus", "time_s"}
_HINTS = {
    "Successfully ran diagnostic": "; run dcgmi diag with -v -j",
    "CPU Affinity": "; it looks like nvidia-smi topo -m, which a sweep reads itself",
}
"""Text of an output that cannot be read -> what helps."""
_PREFIX = re.compile(
    r"[ ]{0,8}(?:(?P<task>[0-9]{1,6}):(?: |$)"
    r"|(?:\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})?[ ]?(?P<rank>\[[^\]\s]{1,100}\])?"
    r"<std(?:out|err|diag)>[ ]?:[ ]?)"
)
"""What ``srun -l`` and ``mpirun`` with ``--tag-output`` or ``--timestamp-output`` write first."""


def without_prefixes(text: str) -> str:
    """The output of each task in turn, without what a launcher wrote before each line.

    A text in which fewer than half of the lines have such a prefix stays as it is.
    """
    lines = text.split("\n")
    matches = [_PREFIX.match(line) for line in lines]
    if 2 * sum(match is not None for match in matches) <= sum(map(bool, map(str.strip, lines))):
        return text
    tasks: dict[str, list[str]] = {}
    for line, match in zip(lines, matches, strict=True):
        task = (match["task"] or match["rank"] or "") if match else ""
        tasks.setdefault(task, []).append(line[match.end() :] if match else line)
    return "\n".join(line for task in tasks.values() for line in task)


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
    source = Source(name_of(file), without_prefixes(read_text(file)))
    reader: Reader | None
    if format_name is None:
        reader = next((reader for reader in _READERS if reader.matches(source)), None)
        if reader is None:
            hint = next((why for mark, why in _HINTS.items() if mark in source.text[:10_000]), "")
            raise SourceError(f"{source.name}: none of the formats {', '.join(FORMATS)}{hint}")
    else:
        reader = FORMATS[format_name]
        if not reader.matches(source):
            raise SourceError(f"{source.name}: not a file of the format {format_name}")
    if reader.name != _CsvFile.name and len(source.text) > MAX_CHARACTERS:
        raise SourceError(f"{source.name}: above {MAX_CHARACTERS >> 20} MiB; give it in parts")
    return reader.read(source, options)
