"""Lines by which a site's own scripts run ours: in job_submit.lua, Prolog, Epilog and ResvProlog.

They are printed for the administrator to add, recognised by doctor, and taken out on removal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from slurm_gpu_aware.deploy.files import OUR_CLI_FILTER
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
_LUA = re.compile(
    r"""(?P<long>(?:--)?\[=*\[)|--[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|[^\s\w]""",
    re.DOTALL,
)
_OPENS, _CLOSES = frozenset(("function", "do", "if", "repeat")), frozenset(("end", "until"))
_AT_ONCE = frozenset(("pcall", "xpcall", "end"))
"""Words before a function in brackets that is called where it stands."""
_HOOKS = frozenset(("slurm_job_submit", "slurm_job_modify"))
_SHELL_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")


LUA_PLACE = "at the end of the file (before a return outside of all functions, if it has one)"
"""Where a site's own Lua script gets our lines."""


def join_lines(slurm_dir: Path) -> tuple[str, str]:
    """The lines of a site's own job_submit.lua that load the filter, `LUA_PLACE`."""
    return (
        f'local loaded, gpu_aware = pcall(dofile, "{slurm_dir / "gpu_aware.lua"}")',
        "if loaded then gpu_aware.join() end",
    )


def hook_line(script: Path) -> str:
    """The line of a site's own script that runs ours, after its first line.

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
    """Whether job_submit.lua loads the filter and joins it when slurmctld loads the script."""
    return "gpu_aware" in _code(text, ".lua") and True in _joins(text) and not join_fault(text)


def loads_cli_filter(text: str) -> bool:
    """Whether cli_filter.lua is or holds our file, or names it in code that runs when loaded."""
    if any(piece.startswith(f"--[[\n{OUR_CLI_FILTER}:") for piece in _lua(text)):
        return True
    words = list(_words(text))
    named = (i for i, word in enumerate(words) if word[0] in "\"'[" and OUR_CLI_FILTER in word)
    return True in _at_load(words, set(named))


def join_fault(text: str) -> str:
    """Why the join() of a job_submit.lua has no effect, to follow the file's name; empty: it has.

    In a function, join() would wrap the script's functions anew with each call of it.
    """
    if "gpu_aware" not in _code(text, ".lua"):
        return ""
    at_load = _joins(text)
    if at_load and True not in at_load:
        return "calls join() inside a function, so not when slurmctld loads the script"
    words = list(_words(text))
    calls, joined = _join_calls(words), False
    known = set[str]()  # functions that are read after join(), and so may be wrapped
    for i, word in enumerate(words):
        joined |= i in calls
        if not joined or word not in _HOOKS:
            continue
        before, after = words[i - 1 : i], words[i + 1 : i + 3]
        defined = before == ["function"] or (after[:1] == ["="] and after != ["=", "="])
        if defined and word not in known:
            return f"defines {word} after join(), which replaces what was joined"
        known.add(word)
    return ""


def _joins(text: str) -> list[bool]:
    """For each call of our join() in Lua code: whether it runs when the script is loaded."""
    words = list(_words(text))
    return _at_load(words, _join_calls(words))


def _join_calls(words: Sequence[str]) -> set[int]:
    """Places of ``.join()``; a site's own function of this name takes arguments."""
    return {
        i
        for i, word in enumerate(words)
        if word == "join"
        and words[i - 1 : i] == ["."]
        and words[i + 1 : i + 3] == ["(", ")"]
        and words[max(0, i - 3) : i - 2] != ["function"]
    }


def _at_load(words: Sequence[str], places: Set[int]) -> list[bool]:
    """For each place in Lua code: whether it is reached when the script is loaded."""
    found: list[bool] = []
    blocks: list[bool] = []  # of each open block: whether it is a function that runs later
    for i, word in enumerate(words):
        if word in _OPENS:
            before = words[i - 2] if i > 1 else ""
            at_once = words[i - 1] == "(" and (before in _AT_ONCE or not before.isidentifier())
            blocks.append(word == "function" and not at_once)
        elif word in _CLOSES and blocks:
            blocks.pop()
        elif i in places:
            found.append(not any(blocks))
    return found


def _words(text: str) -> Iterator[str]:
    """Names, strings and signs of Lua code."""
    return (word for word in _lua(text) if not word.startswith("--") and not word.isspace())


def _lua(text: str) -> Iterator[str]:
    """Lua code in pieces that make up the text: comments, strings, names, signs, the rest."""
    at = 0
    while at < len(text):
        found = _LUA.match(text, at)
        end = found.end() if found is not None else at + 1
        if found is not None and found["long"]:
            close = text.find(found["long"].lstrip("-").replace("[", "]"), end)
            end = len(text) if close < 0 else close + len(found["long"].lstrip("-"))
        yield text[at:end]
        at = end


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
    if suffix == ".lua":
        pieces = ("\n" * p.count("\n") if p.startswith("--") else p for p in _lua(text))
        return "".join(pieces)
    return "\n".join(_SHELL_COMMENT.sub("", line) for line in text.split("\n"))
