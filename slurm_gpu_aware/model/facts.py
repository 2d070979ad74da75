"""Facts: what policies, the planner and features say of an assignment, and words for them.

A fact is a frozen record under a key of its own. The ledger and ``--json`` hold its values; its
words are made when a user reads them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from slurm_gpu_aware import records

_KINDS: dict[str, type["Fact"]] = {}
"""Key -> type, of the modules that are loaded."""


class Fact(Struct, frozen=True, omit_defaults=True):
    """What one policy or feature says. Its fields are plain values and records of them."""

    key: ClassVar[str]  # In the ledger and in ``--json``; no two types have the same.
    line: ClassVar[str] = "why"  # Line of ``explain`` that has its words.
    waits: ClassVar[str] = ""
    """Sentence of ``explain`` on a waiting job, with ``{}`` for its words; empty: none."""

    told: ClassVar[bool] = False
    """Whether its words tell all of its values; so do those with a line of their own."""

    def __init_subclass__(cls) -> None:
        cls.told |= cls.line != Fact.line
        if "key" in vars(cls):
            _KINDS[cls.key] = cls

    def words(self) -> str:
        """A short sentence for the user, without a full stop; empty: it needs none."""
        return ""

    def short(self) -> str:
        """A word in front of the short text that squeue shows of the job; empty: it needs none."""
        return ""

    @classmethod
    def said(cls, values: object) -> str:
        """The words of plain values of this fact; empty: they are none."""
        return "".join(one.words() for one in Facts.read({cls.key: values}))


class Summary(Fact, frozen=True):
    """The account of an earlier release, which put all into one sentence."""

    key, told = "summary", True

    text: str

    def words(self) -> str:
        return self.text


F = TypeVar("F", bound=Fact)


class Facts(tuple[Fact, ...]):
    """The facts of one assignment, at most one of each type, in the order of their words."""

    __slots__ = ()

    @classmethod
    def read(cls, why: Mapping[str, Any]) -> "Facts":
        """The facts of plain values; without those of modules that are not loaded, and of values
        that have no words, such as a date of no calendar.

        Earlier releases had bare values in the place of facts with one field, and a `Summary`. The
        ledger has None in the place of an infinite number.
        """
        found = []
        for key, value in why.items():
            if (kind := _KINDS.get(key)) is None:
                continue
            named = value if isinstance(value, Mapping) else {kind.__struct_fields__[0]: value}
            told = {name: one for name, one in named.items() if one is not None}
            try:
                fact = records.read(told, kind)
                fact.words()
            except (ValueError, ArithmeticError, OSError):  # of another release, or damaged
                continue
            found.append(fact)
        return cls(found)

    def plain(self) -> dict[str, Any]:
        """Key -> values of each, for the ledger and ``--json``."""
        return {one.key: records.plain(one) for one in self}

    def of(self, kind: type[F]) -> F | None:
        """The fact of a type; None: there is none."""
        return next((one for one in self if isinstance(one, kind)), None)

    def also(self, *more: Fact) -> "Facts":
        """These and more, each in the place of one of its type."""
        kinds = set(map(type, more))
        return Facts((*(one for one in self if type(one) not in kinds), *more))

    def lines(self) -> dict[str, str]:
        """Line of ``explain`` -> its words."""
        found: dict[str, str] = {}
        said = self.of(Summary)
        for one in self:
            told = said is None or one is said or one.line != Summary.line
            if told and (words := one.words()):
                found[one.line] = f"{found[one.line]}; {words}" if one.line in found else words
        return found

    def waiting(self) -> list[str]:
        """Sentences on a job that waits."""
        return [one.waits.format(words) for one in self if one.waits and (words := one.words())]

    def short(self, text: str) -> str:
        """The short text that squeue shows of the job, with their words in front."""
        return ",".join((*filter(None, (one.short() for one in self)), text))

    @property
    def text(self) -> str:
        """The reasons for the choice, as one sentence without a full stop."""
        return self.lines().get(Fact.line, "")


NO_FACTS = Facts()
