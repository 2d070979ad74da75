"""Job hints and their parser: ``--comment=class=A,bw=high``, or ``run 7 gpu:class=A``.

``docs/comment.md`` describes the grammar. ``etc/lua/gpu_aware_comment.lua`` parses it inside
slurmctld by the same declarations (`hint`); both parsers must give the same result and the same
sentence for every comment. The grammar is one of bytes: everything outside printable ASCII is "not
valid". The keys of the core stand here, those of features in their folders (`features.hints`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.model.facets import Facet
from slurm_gpu_aware.model.hint import Hint, HintValue, T_co

AUTO = "auto"
"""The class by the user's earlier jobs."""
OFF = "off"
"""Slurm places the job."""
CLASS: Hint[str] = Hint("class", (AUTO,), listed="classes")
BANDWIDTH: Hint[str] = Hint("bw", ("high", "low"))
PATTERN: Hint[str] = Hint("pattern", ("ring", "tree", "ring+tree", "all-to-all", "none"))
"""Communication pattern."""
PLACE: Hint[str] = Hint("place", (OFF,), listed="policies", switch="place_off")
"""A policy that the site allows."""

# Blanks as C and Lua have them, of a text of bytes
_MARK = re.compile(rf"(?:\A|(?<=[ \t\n\v\f\r])){rules.COMMENT_MARK}")


@dataclass(frozen=True)
class JobHints:
    """Hints of a comment with our keys."""

    values: Mapping[str, HintValue] = field(default_factory=dict)
    """Key -> value; the site's default applies where there is none."""

    def get(self, hint: Hint[T_co]) -> T_co | None:
        """The value of a key; None: it is not given."""
        found: T_co | None = self.values.get(hint.key)  # type: ignore[assignment]
        return found

    def filled(self, other: JobHints) -> JobHints:
        """These hints, and those of ``other`` where there are none; ``class=auto`` is none."""
        mine = dict(self.values)
        if self.get(CLASS) == AUTO:
            del mine[CLASS.key]
        return JobHints({**other.values, **mine})

    def carried(self, hints: Iterable[Hint[HintValue]]) -> JobHints:
        """Those of the keys that requests hold for stages."""
        given = [hint.key for hint in hints if hint.carried and hint.key in self.values]
        return JobHints({key: self.values[key] for key in given})


NO_HINTS = JobHints()
"""Those of a job that says nothing."""
HINTED: Facet[JobHints] = Facet("hints", NO_HINTS, JobHints)
"""Of a request: those for stages (`Hint.carried`)."""


def parse_comment(
    text: str | None, hints: Sequence[Hint[HintValue]], lists: Mapping[str, Sequence[str]]
) -> JobHints | None:
    """Hints of a comment as Slurm shows it; None: it has none.

    ``hints``: the keys, in the order in which values are checked. ``lists``: those of the site that
    `Hint.listed` names.

    A comment has hints if all of it, or all after its last ``gpu:``, is ``key=value`` with keys of
    ours. Raises RequestError if a value is then not valid or a key is given twice; the sentence
    names the valid values.
    """
    raw = _bytes(text or "")
    if len(raw) > rules.MAX_TEXT:
        return None
    marks = [m.end() for m in _MARK.finditer(raw)]
    entries = [_split(item) for item in raw[marks[-1] if marks else 0 :].split(",")]
    keys = {hint.key for hint in hints}
    if any(value is None or key not in keys for key, value in entries):
        return None
    found: dict[str, str] = {}
    for key, value in entries:
        if key in found:
            raise _wrong("twice", key)
        found[key] = value or ""
    values: dict[str, HintValue] = {}
    for hint in hints:
        if (given := found.get(hint.key)) is None:
            continue
        if (read := hint.read(given, lists)) is None:
            raise _wrong("not_valid", hint.key, _shown(given), hint.valid(lists))
        values[hint.key] = read
    return JobHints(values)


def _bytes(text: str) -> str:
    """One character per byte, so that lengths and results equal those of C and Lua strings."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "replace")
    return raw.decode("latin-1")


def _split(item: str) -> tuple[str, str | None]:
    """(key, value) of an entry, without blanks around them; value None without ``=``."""
    key, equals, value = item.partition("=")
    return key.strip(" \t"), value.strip(" \t") if equals else None


def _shown(text: str) -> str:
    """A user's text for a sentence: printable ASCII, shortened."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text[: rules.MAX_SHOWN])
    return plain + "..." if len(text) > rules.MAX_SHOWN else plain


def _wrong(sentence: str, *words: str) -> RequestError:
    return RequestError(rules.SENTENCES[sentence] % words)
