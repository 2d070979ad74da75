"""Editor of slurm.conf for ``gpu-aware setup``: settings, node lines, a marked block of ours.

Comments, order and spelling of the site's lines stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.slurm.confblocks import ConfFiles, Entry, entries, pairs_of

__all__ = ["SlurmConf", "edit_settings", "parse_conf", "read_conf", "replace_block"]

BEGIN = "# BEGIN gpu-aware (written by gpu-aware setup; edit above or below)"
END = "# END gpu-aware"

_SETTING = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*=\s*(.*?)\s*\Z")
_RECORDS = frozenset({"nodename", "partitionname", "downnodes", "nodeset", "frontendname"})


@dataclass(frozen=True)
class SlurmConf:
    """The content of a slurm.conf with its includes."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Key in lower case -> value; the last one wins, as in Slurm."""
    nodes: tuple[Mapping[str, str], ...] = ()
    """NodeName lines, keys in lower case; each has the ``NodeName=DEFAULT`` before it merged in."""

    def get(self, key: str) -> str | None:
        """Value of a setting; None if it is not there."""
        return self.settings.get(key.lower())


def read_conf(path: Path) -> SlurmConf:
    """Read a slurm.conf with its ``Include`` files. Raises SourceError if one cannot be read."""
    return _parsed(ConfFiles(path, checked=False).records())


def parse_conf(text: str) -> SlurmConf:
    """Parse the text of a slurm.conf without its includes."""
    return _parsed(entries(text, "", checked=False))


def _parsed(records: Iterable[Entry]) -> SlurmConf:
    settings: dict[str, str] = {}
    nodes: list[Mapping[str, str]] = []
    defaults: dict[str, str] = {}
    for line in (line for record in records for line in record.effective()):
        record = {key.lower(): value.strip('"') for key, value in pairs_of(line)}
        first = next(iter(record), None)
        if first == "nodename":
            if record["nodename"].upper() == "DEFAULT":
                defaults.update({k: v for k, v in record.items() if k != "nodename"})
            else:
                nodes.append({**defaults, **record})
        elif first not in _RECORDS:
            match = _SETTING.match(line)
            if match:
                settings[match[1].lower()] = match[2].strip('"')
    return SlurmConf(settings, tuple(nodes))


def edit_settings(text: str, wanted: Mapping[str, str]) -> str:
    """Set ``wanted`` (key as Slurm spells it -> value) in the text of a slurm.conf.

    A key in the text keeps its place: its last line, which Slurm uses, gets the new value. Other
    keys go into our block at the end. Equal values change nothing.
    """
    lines = text.splitlines()
    missing: dict[str, str] = {}
    for key, value in wanted.items():
        places = [i for i, line in enumerate(lines) if _key(line) == key.lower()]
        if not places:
            missing[key] = value
        elif _value(lines[places[-1]]) != value:
            lines[places[-1]] = f"{key}={value}"
    out = "\n".join(lines) + ("\n" if lines else "")
    if not missing:
        return out
    return replace_block(out, [*_block(lines), *(f"{k}={v}" for k, v in missing.items())])


def replace_block(text: str, body: list[str]) -> str:
    """Write ``body`` into our block, which is at the end of the file if new; empty: remove it."""
    lines = text.splitlines()
    block = [BEGIN, *body, END] if body else []
    if BEGIN in lines and END in lines[lines.index(BEGIN) :]:
        start = lines.index(BEGIN)
        end = lines.index(END, start)
        lines[start : end + 1] = block
    elif block:
        lines += ([""] if lines and lines[-1].strip() else []) + block
    return "\n".join(lines) + ("\n" if lines else "")


def outside_block(text: str) -> list[str]:
    """Lines that are not in our block."""
    lines = text.splitlines()
    inner = len(_block(lines))
    if BEGIN not in lines or END not in lines[lines.index(BEGIN) :]:
        return lines
    start = lines.index(BEGIN)
    return lines[:start] + lines[start + inner + 2 :]


def _block(lines: list[str]) -> list[str]:
    if BEGIN not in lines or END not in lines[lines.index(BEGIN) :]:
        return []
    start = lines.index(BEGIN)
    return lines[start + 1 : lines.index(END, start)]


def _key(line: str) -> str | None:
    match = _SETTING.match(line.split("#", 1)[0])
    return match.group(1).lower() if match else None


def _value(line: str) -> str:
    match = _SETTING.match(line.split("#", 1)[0])
    return match.group(2).strip('"') if match else ""
