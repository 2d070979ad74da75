"""Steps of the guide: the annotated blocks of README.md and docs/admin.md, in their order.

A comment before a fenced block says what an admin does with it:

    <!-- on: controller -->                                          typed there, as root
    <!-- on: controller and each GPU node -->                        typed on each of them
    <!-- into: /etc/slurm/job_submit.lua, before the last return --> written into a file
    <!-- into: /etc/slurm-gpu-aware/config.toml -->                  appended to it

A block without such a comment is no step.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILES", "GuideError", "Step", "insert", "read_guide", "steps_of"]

FILES = ("README.md", "docs/admin.md")
PLACES: dict[str, tuple[str, ...]] = {
    "controller": ("controller",),
    "each GPU node": ("GPU nodes",),
    "controller and each GPU node": ("controller", "GPU nodes"),
    "each host": ("controller", "GPU nodes", "other hosts"),
}
LANGUAGES = {"on": ("sh",), "into": ("sh", "lua", "toml", "text")}
_COMMENT = re.compile(r"<!-- *(\w+)(?::| |$)(.*?)-->")
_INTO = re.compile(r"(/[\w./-]+)(?:, (after the first line|before the last return))?\Z")
_KNOWN = frozenset(("example", "output", "end"))
"""Comments with another purpose (docs/generate.py)."""


class GuideError(AssertionError):
    """An annotation that cannot be read."""


@dataclass(frozen=True)
class Step:
    """One block: typed on hosts, or written into a file of the controller."""

    where: str
    """File and line of the annotation, such as ``docs/admin.md:40``."""
    text: str
    places: tuple[str, ...] = ()
    """Kinds of hosts: controller, GPU nodes, other hosts."""
    path: str = ""
    """The file that the text goes into; empty: the text is commands."""
    at: str = ""
    """Where in the file: after the first line, or before the last return; empty: at the end."""


def read_guide(root: Path) -> list[Step]:
    """Return all steps of the guide.

    Raises
    ------
    GuideError
        An annotation is unknown or not followed by a block, or a file has no step.
    """
    steps = []
    for name in FILES:
        found = list(steps_of(name, (root / name).read_text(encoding="utf-8")))
        if not found:
            raise GuideError(f"{name} has no annotated block")
        steps += found
    return steps


def steps_of(name: str, text: str) -> Iterator[Step]:
    """Steps of one file (see `read_guide`)."""
    lines = text.splitlines()
    fenced = False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            fenced = not fenced
        if fenced or not line.startswith("<!--"):
            continue
        where = f"{name}:{number + 1}"
        match = _COMMENT.fullmatch(line.strip())
        if match is not None and match[1] in _KNOWN:
            continue
        if match is None or match[1] not in LANGUAGES:
            raise GuideError(f"{where}: unknown annotation: {line}")
        block = _block(where, lines[number + 1 :], LANGUAGES[match[1]])
        value = match[2].strip()
        if match[1] == "on":
            if value not in PLACES:
                raise GuideError(f"{where}: unknown hosts: {value}")
            yield Step(where, block, places=PLACES[value])
        else:
            into = _INTO.fullmatch(value)
            if into is None:
                raise GuideError(f"{where}: unknown place in a file: {value}")
            yield Step(where, block, path=into[1], at=into[2] or "")


def _block(where: str, lines: list[str], languages: tuple[str, ...]) -> str:
    if lines[:1] == [""]:
        lines = lines[1:]
    if not lines or lines[0] not in [f"```{language}" for language in languages]:
        raise GuideError(f"{where}: no block of {' or '.join(languages)} follows")
    end = lines.index("```", 1) if "```" in lines[1:] else 0
    if end < 2:
        raise GuideError(f"{where}: the block is empty or has no end")
    return "\n".join(lines[1:end]) + "\n"


def insert(old: str, step: Step) -> str:
    """Text of a file with the step's lines in it.

    Raises
    ------
    GuideError
        The file has no line that they go before.
    """
    if not step.at:
        return old + step.text
    lines = old.splitlines(keepends=True)
    if step.at == "after the first line":
        return "".join([*lines[:1], step.text, *lines[1:]])
    fitting = [i for i, line in enumerate(lines) if re.match(r"\s*return\b", line)]
    if not fitting:
        raise GuideError(f"{step.where}: {step.path} has no line with return")
    return "".join([*lines[: fitting[-1]], step.text, *lines[fitting[-1] :]])
