"""Text that launchers put before each line of an output: found, taken off, tasks told apart."""

from __future__ import annotations

import re

from gpu_aware_profile.imports.formats.reader import MAX_CHARACTERS, Source
from slurm_gpu_aware.errors import SourceError

_PREFIX = (
    r"(?:(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d [\d:]{8}(?: \d{4})?"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]{0,16}\]? ?)?"
    r"(?P<task>(?:\[[^\]\n]{1,128}\]){1,2}|[ ]{0,8}[\w.-]{1,252}(?= {0,8}[:|]))?"
    r"(?:<std(?:out|err)>)?(?: {0,8}[:|])? ?"
)
"""Of ``srun -l`` (``3: ``), ``mpirun --tag-output`` (``[1,3]<stdout>:``, Open MPI 5: with the job)
and ``--timestamp-output``, Hydra's ``-prepend-rank`` (``[3] ``), pdsh
(``n1: ``), containers (``n1 | ``), ``ts`` (``Nov 28 10:00:00 ``)."""
_LINE = re.compile(_PREFIX)
_FIRST = re.compile(
    rf"^(?P<prefix>{_PREFIX})"
    r"(?:[ \t]*(?:\{\s*$|\{\"|nvbandwidth Version:"
    r"|# (?:nccl-tests version|Collective test starting|nThread) )"
    r"|(?:\x1b\[4m)?[ \t]+(?:\x1b\[4m)?GPU0[ \t])",
    re.MULTILINE,
)
"""How the outputs of the programs begin that a launcher starts."""


def outputs(source: Source) -> list[Source]:
    """The output of each task without the prefixes of its lines; as it is if there are none.

    Raises SourceError if a file with prefixes is too large.
    """
    first = _FIRST.search(source.text, 0, 1 << 20)
    if first is None or not first["prefix"].strip():
        return [source]
    if len(source.text) > MAX_CHARACTERS:
        raise SourceError(f"{source.name}: above {MAX_CHARACTERS >> 20} MiB; give it in parts")
    lines: dict[str, list[str]] = {}
    for line in source.text.split("\n"):
        if match := _LINE.match(line):
            lines.setdefault((match["task"] or "").strip(), []).append(line[match.end() :])
    texts = ("\n".join(own) for own in lines.values())
    return [Source(source.name, text) for text in texts if _FIRST.search(text)]
