"""Slurm's own parser of slurm.conf (src/common/parse_config.c), function by function, in Python.

A second reader that shares no line with ours: tests compare the two.
"""

import re
from collections.abc import Callable

ARRAYS = ("prolog", "epilog", "nodename")
"""S_P_ARRAY of slurm_conf_options, as far as the tests use them."""
_PAIR = re.compile(
    rb"^[ \t\n\v\f\r]*([A-Za-z0-9_.]+)[ \t\n\v\f\r]*([-*+/]?)=[ \t\n\v\f\r]*"
    rb'(("([^"]*)")|([^ \t\n\v\f\r]+))([ \t\n\v\f\r]|$(?!\n))'
)
_SPACE = b" \t\n\v\f\r"


class FatalError(Exception):
    """slurmctld would end: ``fatal: Unable to process configuration file``."""


def read(name: str, file: Callable[[str], bytes]) -> dict[str, list[str]]:
    """Key in lower case -> values, of the keys in `ARRAYS` all, of others the last.

    A NodeName record is one value with all its pairs: ``nodename=a gres=gpu:1``.
    """
    table: dict[str, list[str]] = {}
    _parse_file(name, file, table, 0)
    return table


def _parse_file(
    name: str, file: Callable[[str], bytes], table: dict[str, list[str]], depth: int
) -> None:
    if depth > 10:
        raise FatalError("endless")
    lines = _fgets(file(name))
    while lines:
        line = _next_line(lines)
        if not line:
            continue
        if line[:7].lower() == b"include" and line[7:8].isspace():
            words = line[7:].split()
            if len(words) != 1 or b"*" in words[0]:
                raise FatalError(line)
            included = words[0].decode()
            if "%c" in included:
                if "clustername" not in table:
                    raise FatalError(line)
                included = included.replace("%c", table["clustername"][0].lower())
            _parse_file(included, file, table, depth + 1)
            continue
        rest = _next_key(line, table)
        if rest.strip(_SPACE):
            raise FatalError(rest)


def _fgets(data: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def _next_line(lines: list[bytes]) -> bytes:
    buffer = b""
    while lines:
        read = _strip_comments(lines.pop(0))
        new = _strip_continuation(read)
        buffer += new
        if len(new) == len(read):
            break
    return _strip_escapes(buffer)


def _strip_comments(line: bytes) -> bytes:
    escapes = 0
    for at, byte in enumerate(line):
        if byte == ord("#") and escapes % 2 == 0:
            return line[:at]
        escapes = escapes + 1 if byte == ord("\\") else 0
    return line


def _strip_continuation(line: bytes) -> bytes:
    marks, at = 0, len(line) - 1
    while at >= 0:
        if line[at] == ord("\\"):
            marks += 1
        elif not (line[at] in _SPACE and marks == 0):
            break
        at -= 1
    return line[: at + marks] if marks % 2 else line


def _strip_escapes(line: bytes) -> bytes:
    out, at = bytearray(), 0
    while at < len(line):
        if line[at] == ord("\\"):
            at += 1
        out += line[at : at + 1]
        at += 1
    return bytes(out)


def _next_key(line: bytes, table: dict[str, list[str]]) -> bytes:
    match = _PAIR.match(line)
    if match is None:
        return line
    key, value, rest = _pair(match, line)
    if key == "nodename":
        record = [f"nodename={value}"]
        while match := _PAIR.match(rest):
            name, of, rest = _pair(match, rest)
            record.append(f"{name}={of}")
        value = " ".join(record)
    table[key] = [*table.get(key, []), value] if key in ARRAYS else [value]
    return rest


def _pair(match: re.Match[bytes], line: bytes) -> tuple[str, str, bytes]:
    value = match[5] if match[5] is not None else match[6]
    return match[1].decode().lower(), value.decode(errors="surrogateescape"), line[match.end(3) :]
