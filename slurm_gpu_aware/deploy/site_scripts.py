"""Lines by which a site's own scripts run ours: in job_submit.lua, Prolog, Epilog and ResvProlog.

They are printed for the administrator to add, recognised by doctor, and taken out on removal.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from slurm_gpu_aware.deploy.files import FILTER_CODE, OUR_CLI_FILTER, Change
from slurm_gpu_aware.errors import FileFault, SourceError

MAX_BYTES = 1 << 20  # A longer file is no script.
_JOIN = re.compile(
    r"^[ \t]*local loaded, gpu_aware = pcall\(dofile, [^\n]*\)\r?\n"
    r"[ \t]*if loaded then(?:[ \t]+gpu_aware\.join\(\)[ \t]+"
    r"|[ \t\r]*\n(?:[ \t]*(?:gpu_aware\.join\(\)|else|slurm\.log_error\([^\n]*\))[ \t\r]*\n){1,3}"
    r"[ \t]*)end[ \t\r]*(?:\n|\Z)",
    re.MULTILINE,
)
"""As in the guide and in our job_submit.lua; a block with other lines is the site's own."""
_CLI = re.compile(
    r'^[ \t]*pcall\(dofile, "[^"\n]*/gpu_aware_cli_filter\.lua"\)[ \t\r]*(?:\n|\Z)', re.MULTILINE
)
_SCRIPT = r"[\w./-]*/50-gpu-aware(?:-pool)?"
_CALL = re.compile(
    rf'^([ \t]*)(?:\[ ! -x {_SCRIPT} \] \|\| )?{_SCRIPT}(?: "\$[1@]")?(?: \|\| true)?'
    r"([ \t\r]*(?:\n|\Z))",
    re.MULTILINE,
)
_PATTERN = r"[\w.?*!\[\]-]*[?*\]][\w.?*!\[\]-]*"
_OURS = re.compile(r"gpu[_-]aware")
_LUA = re.compile(
    r"""(?P<long>(?:--)?\[=*\[)|--[^\r\n]*|"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?|[A-Za-z_]\w*|[^\s\w]""",
    re.DOTALL,
)
_OPENS, _CLOSES = frozenset(("function", "do", "if", "repeat")), frozenset(("end", "until"))
_AT_ONCE = frozenset(("pcall", "xpcall", "end"))
"""Words before a function in brackets that is called where it stands."""
_STATEMENTS = frozenset(("local", "if", "for", "while", "repeat", "do"))
_HOOKS = frozenset(("slurm_job_submit", "slurm_job_modify"))
_SHELL_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_IS_SHELL = re.compile(r"#![^\n]*[/ ](?:ba|da|k)?sh\b")
_HERE = re.compile(r"""(?<!<)<<-?[ \t]*["'\\]?([A-Za-z_]\w*)""")
_SHELL = re.compile(
    r"""(?P<skip>#[^\n]*|\\\n|&?[<>]+[&|]?)"""
    r"""|(?P<kind>function[ \t]+)?(?P<function>[\w.:-]++)"""
    r"""[ \t]*(?(kind)(?:\([ \t]*\))?|\([ \t]*\))\s*\{(?=\s)"""
    r"""|(?P<never>if[ \t]+false(?=[ \t]*[;\n]))"""
    r"""|(?P<exit>(?:(?<=[^&|\\]\n)|(?<=;))[ \t]*exit(?=[\s;]))"""
    r"""|(?:[^\s'"\\;&|()<>]++|'[^']*+'?|"(?:\\.|\$\([^()]*+\)|[^"\\])*+"?|\\.?)++|[\n;&|()]""",
    re.DOTALL,
)
_ENDS = {"if": "fi", "case": "esac", "do": "done", "{": "}", "(": ")"}
_SAYS = frozenset(("echo", "printf", "logger", ":", "test", "[", "[["))
"""Commands that only name a script."""


LUA_PLACE = "at the end of the file (before a return outside of all functions, if it has one)"
"""Where a site's own Lua script gets our lines."""


def join_lines(slurm_dir: Path) -> tuple[str, str]:
    """The lines of a site's own job_submit.lua that load the filter, `LUA_PLACE`."""
    return (
        f'local loaded, gpu_aware = pcall(dofile, "{slurm_dir / FILTER_CODE}")',
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
    with FileFault(path), path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
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
    folder = re.compile(rf"{re.escape(str(script.parent))}(?:/?(?:\s|\Z)|/({_PATTERN}))")
    code = "\n".join(_run(text) if _IS_SHELL.match(text) else [_code(text, "")])
    patterns = [found[1] or "*" for found in folder.finditer(code)]
    return str(script) in code or any(fnmatchcase(script.name, pattern) for pattern in patterns)


def _run(text: str) -> list[str]:
    """Words of a shell script in commands that may run and do more than print."""
    if text.partition("\n")[0].endswith("\r"):  # no system finds such a shell
        return []
    parts: dict[str | None, list[str]] = {"": []}  # of each function; None: of what never runs
    blocks: list[tuple[str, str | None]] = [("", "")]  # word at the end, function
    starts, command = True, ""
    for found in _SHELL.finditer(_without_here(text)):
        word, (end, function), around = found[0], blocks[-1], blocks[-2:][0][1]
        if found["skip"]:
            continue
        if found["exit"] and (len(blocks) == 1 or around != function):
            blocks[-1] = (end, None)
        elif name := found["function"]:
            blocks.append(("}", None if function is None else name))
            starts = True
        elif found["never"] or (word in _ENDS and (starts or word == "(")):
            blocks.append((_ENDS.get(word, "fi"), None if found["never"] else function))
            starts = word != "case"
        elif word == end and (starts or word == ")"):
            blocks.pop()
            starts = False
        elif starts and word in ("else", "elif"):
            blocks[-1] = (end, around)
        elif word in "\n;&|)" or (starts and word in ("then", "while", "until", "!")):
            starts = True
        else:
            command, starts = word if starts else command, False
            word = word.replace('"', "").replace("'", "")
            part = word.replace("/", " ") if command in _SAYS else word  # may call a function
            parts.setdefault(function, []).append(part)
    if len(blocks) > 1:  # the script, or this reader, is wrong: it cannot be told what runs
        return [_code(text, "")]
    called: list[str | None] = [""]
    run = list[str]()
    while called:
        words = parts.pop(called.pop(), [])
        called += parts.keys() & set(re.findall(r"[\w.:-]+", " ".join(words)))
        run += words
    return run


def _without_here(text: str) -> str:
    """A shell script without its here-documents."""
    lines, kept, ends = text.split("\n"), list[str](), list[str]()
    last = {line.strip(): number for number, line in enumerate(lines)}
    for number, line in enumerate(lines):
        if not ends:
            kept.append(line)
            named = _HERE.findall(_SHELL_COMMENT.sub("", line))
            ends = [end for end in named if last.get(end, 0) > number]
        elif line.lstrip("\t") == ends[0]:
            ends = ends[1:]
    return "\n".join(kept)


def loads_filter(text: str) -> bool:
    """Whether job_submit.lua loads the filter and joins it when slurmctld loads the script."""
    named = "gpu_aware" in _code(text, ".lua")
    return named and not join_fault(text) and bool(_join_calls(_words(text)))


def join_fault(text: str) -> str:
    """Why the join() of a job_submit.lua has no effect, to follow the file's name; empty: it has.

    In a function, join() would wrap the script's functions anew with each call of it.
    """
    words = _words(text) if "gpu_aware" in _code(text, ".lua") else []
    reached, joins = _reached(words), _join_calls(words)
    last = max((i for i in joins if reached[i]), default=None)
    if last is None:
        why = "calls join() inside a function or below a return, so not when slurmctld loads it"
        return why if joins else ""
    local, braces = False, 0
    known = set[str]()  # functions that are read after join(), and so may be wrapped; local names
    for i, word in enumerate(words[last:], last):
        before, after = words[i - 1], words[i + 1 : i + 20]
        listed = word in (",", "function") or before in ("local", ",", "function")
        local = word == "local" or (local and listed)
        braces += (word == "{") - (word == "}")
        if word not in _HOOKS or before in (".", ":"):  # or a field of a table
            continue
        while after[:1] == [","]:  # several are assigned at once
            after = after[2:]
        assigned = before == "function" or (after[:1] == ["="] and after[1:2] != ["="])
        if local or not assigned:
            known.add(word)
        elif word not in known and reached[i - 1] and not braces:
            return f"defines {word} after join(), which replaces what was joined"
    return ""


def loads_cli_filter(text: str) -> bool:
    """Whether cli_filter.lua is or holds our file, or names it in code that runs when loaded."""
    if any(piece.startswith(f"--[[\n{OUR_CLI_FILTER}:") for piece in _lua(text)):
        return True
    words = _words(text)
    return any(
        now and word[0] in "\"'[" and OUR_CLI_FILTER in word
        for word, now in zip(words, _reached(words), strict=True)
    )


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


def _reached(words: Sequence[str]) -> list[bool]:
    """For each word of Lua code: whether it can be reached when the script is loaded."""
    found: list[bool] = []
    blocks: list[bool] = []  # of each open block: whether it does not run now
    closed = 0  # of them
    ended = over = False  # by a return outside of functions and conditions
    for i, word in enumerate(words):
        if word in _CLOSES and blocks:
            closed -= blocks.pop()
        elif word in ("else", "elseif") and blocks:
            closed -= blocks[-1]
            blocks[-1] = False
        over |= ended and not blocks and word in _STATEMENTS
        found.append(not closed and not over)
        if word in _OPENS:
            before = words[i - 2] if i > 1 else ""
            at_once = words[i - 1] == "(" and (before in _AT_ONCE or not before.isidentifier())
            never = word == "if" and words[i + 1 : i + 3] in (["false", "then"], ["nil", "then"])
            blocks.append(never or (word == "function" and not at_once))
            closed += blocks[-1]
        ended |= word == "return" and (not blocks or (len(blocks) == 1 and words[i - 1] == "do"))
    return found


def _words(text: str) -> list[str]:
    """Names, strings and signs of Lua code; ``_G.name`` and ``_G["name"]`` as the name."""
    words: list[str] = []
    for word in _lua(text):
        if word.startswith("--") or word.isspace():
            continue
        words.append("_G" if word == "_ENV" else word)
        if words[-3:-1] == ["_G", "."]:
            words[-3:] = [word]
        elif word == "]" and words[-4:-2] == ["_G", "["]:
            words[-4:] = [words[-2].strip("\"'")]
        elif words[-5:-1] == ["rawset", "(", "_G", ","] and word.strip("\"'") in _HOOKS:
            words[-5:] = [word.strip("\"'"), "="]
    return words


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


def without_ours(path: Path) -> Iterator[Change]:
    """A site's script without the lines that run ours, if it has some.

    Raises SourceError if it runs ours in a form that is not known.
    """
    text = read_script(path)
    if text is None:
        return
    if lines := names_us(text, path.suffix):
        raise SourceError(
            f"{path}: take out line {', '.join(map(str, lines[:8]))}, which runs ours in a form"
            " that setup does not know; then run this again"
        )
    changed = without_lines(text, path.suffix)
    if changed != text:
        yield Change(path, changed)


def without_lines(text: str, suffix: str) -> str:
    """A script of the site without lines that do nothing but load or run ours.

    A line of a shell script in a block may be all of it, and an empty block is an error of syntax.
    """
    if suffix == ".lua":
        return _CLI.sub("", _JOIN.sub("", text))
    return _CALL.sub(lambda found: f"{found[1]}:{found[2]}" if found[1] else "", text)


def names_us(text: str, suffix: str) -> list[int]:
    """Numbers of the lines of code that name us in another form; ``suffix``: of the file."""
    for known in (_JOIN, _CLI) if suffix == ".lua" else (_CALL,):
        text = known.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines = _code(text, suffix).split("\n")
    return [number for number, line in enumerate(lines, 1) if _OURS.search(line)]


def _code(text: str, suffix: str) -> str:
    """The text with its comments blanked, line by line as before."""
    if suffix == ".lua":
        pieces = ("\n" * p.count("\n") if p.startswith("--") else p for p in _lua(text))
        return "".join(pieces)
    return "\n".join(_SHELL_COMMENT.sub("", line) for line in text.split("\n"))
