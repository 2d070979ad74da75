"""Lines by which a site's own scripts run ours: in job_submit.lua, Prolog, Epilog and ResvProlog.

They are printed for the administrator to add, recognised by doctor, and taken out on removal.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from slurm_gpu_aware.errors import SourceError

MAX_BYTES = 1 << 20
"""A longer file is no script."""
_JOIN = re.compile(
    r"^[ \t]*local loaded, gpu_aware = pcall\(dofile, [^\n]*\)\n"
    r"[ \t]*if loaded then(?:[ \t]+gpu_aware\.join\(\)[ \t]+end[ \t]*|\n.*?^end)(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
_CLI = re.compile(
    r'^[ \t]*pcall\(dofile, "[^"\n]*/gpu_aware_cli_filter\.lua"\)[ \t]*(?:\n|\Z)', re.MULTILINE
)
_SCRIPT = r"[\w./-]*/50-gpu-aware(?:-pool)?"
_CALL = re.compile(
    rf'^[ \t]*(?:\[ ! -x {_SCRIPT} \] \|\| )?{_SCRIPT}(?: "\$[1@]")?(?: \|\| true)?[ \t]*(?:\n|\Z)',
    re.MULTILINE,
)
_OURS = re.compile(r"gpu[_-]aware")
_COMMENTS = {".lua": re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)}
_LUA = re.compile(
    r"--\[(?P<c>=*)\[.*?\](?P=c)\]|--[^\n]*|\[(?P<s>=*)\[.*?\](?P=s)\]"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(?P<word>[A-Za-z_]\w*)(?P<call>\s*\()?",
    re.DOTALL,
)
"""Comments and strings of Lua, and words outside of them."""
_OPENS = ("function", "do", "if", "repeat")
"""Words that begin a block; ``while`` and ``for`` have a ``do``."""
_SHELL_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")


AT_THE_END = "at its end (before a return outside of all functions, if it has one)"
"""Where a line of ours belongs in a site's Lua script."""


def join_lines(slurm_dir: Path) -> tuple[str, str]:
    """The lines of a site's own job_submit.lua that load the filter (`AT_THE_END`)."""
    return (
        f'local loaded, gpu_aware = pcall(dofile, "{slurm_dir / "gpu_aware.lua"}")',
        "if loaded then gpu_aware.join() end",
    )


def hook_line(script: Path) -> str:
    """The line of a site's own script that runs ours, before its last ``exit``.

    Where our script is missing the site's own goes on: Slurm drains a node if it fails.
    """
    argument = ' "$1"' if script.name.endswith("-pool") else ""  # the name of the reservation
    return f"[ ! -x {script} ] || {script}{argument}"


def read_script(path: Path) -> str | None:
    """Text of a site's script; None: there is none, or it is too long for a script.

    Raises SourceError if it cannot be read.
    """
    if not path.is_file():
        return None
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read: {exc.strerror}") from None
    return data.decode("utf-8", "surrogateescape") if len(data) <= MAX_BYTES else None


def scripts_of(value: str) -> list[Path]:
    """Scripts of this host that a value of Prolog names, which may be a pattern."""
    return [Path(file) for file in sorted(glob(value))]


def runs(value: str, script: Path) -> bool:
    """Whether a value of Prolog runs our script: as one of its pattern, or by a call in another."""
    in_folder = value.count("/") == str(script).count("/") and fnmatchcase(str(script), value)
    others = (read_script(path) or "" for path in scripts_of(value) if path != script)
    return value != str(script) and (in_folder or any(calls(text, script) for text in others))


def calls(text: str, script: Path) -> bool:
    """Whether a site's script runs ours: by its path, or all scripts of its folder."""
    folder = re.compile(rf"{re.escape(str(script.parent))}/?(?:\*|\s|\Z)")
    code = _code(text, "")
    return str(script) in code or folder.search(code) is not None


def loads_filter(text: str) -> bool:
    """Whether job_submit.lua loads the filter and joins it when Slurm reads the script."""
    return "gpu_aware" in _code(text, ".lua") and False in _joins(text)


def joins_too_late(text: str) -> bool:
    """Whether job_submit.lua joins the filter inside a function only: at each of its calls."""
    return "gpu_aware" in _code(text, ".lua") and set(_joins(text)) == {True}


def _joins(text: str) -> list[bool]:
    """Of each call of ``join`` in Lua, whether it stands inside a function."""
    blocks: list[str] = []
    found = []
    for match in _LUA.finditer(text):
        word = match["word"]
        if word in _OPENS:
            blocks.append(word)
        elif word in ("end", "until") and blocks:
            blocks.pop()
        elif word is not None and match["call"] and word == "join":
            found.append("function" in blocks)
    return found


def without_join(text: str) -> str:
    """job_submit.lua or cli_filter.lua without the lines that load ours."""
    return _CLI.sub("", _JOIN.sub("", text))


def without_calls(text: str) -> str:
    """A site's shell script without lines that do nothing but run one of ours."""
    return _CALL.sub("", text)


def names_us(text: str, suffix: str) -> list[int]:
    """Numbers of the lines of code that name us in another form; ``suffix``: of the file."""
    for known in (_JOIN, _CLI) if suffix == ".lua" else (_CALL,):
        text = known.sub(_blank, text)
    lines = _code(text, suffix).split("\n")
    return [number for number, line in enumerate(lines, 1) if _OURS.search(line)]


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _code(text: str, suffix: str) -> str:
    """The text with its comments blanked, line by line as before."""
    comment = _COMMENTS.get(suffix)
    if comment is None:
        return "\n".join(_SHELL_COMMENT.sub("", line) for line in text.split("\n"))
    return comment.sub(_blank, text)
