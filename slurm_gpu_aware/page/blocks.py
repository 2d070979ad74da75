"""Blocks of a text or a page: what it shows, without how. Every text in them is plain, not HTML.

A block is shown on the terminal by `cli.output.block_text`, on a page by ``templates/page.html``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

FREE, BUSY, DRAINED, UNKNOWN = "free", "busy", "drained", "unknown"
"""Use of a GPU. A GPU of a node that takes no jobs is drained, unless a job still has it."""
USES = (FREE, BUSY, DRAINED, UNKNOWN)


@dataclass(frozen=True)
class Link:
    """A cell that leads to another page; ``href``: its path from the first page."""

    kind: ClassVar[str] = "link"
    text: object
    href: str

    def __str__(self) -> str:
        return str(self.text)


class Mark(NamedTuple):
    """A GPU in a row of GPUs."""

    slot: int
    use: str  # One of `USES`.
    slow: bool
    ill: bool

    @property
    def health(self) -> str:
        """``ill``, ``slow``, or empty."""
        return "ill" if self.ill else "slow" if self.slow else ""

    @property
    def words(self) -> str:
        """``3 busy, slow``."""
        return ", ".join(filter(None, (f"{self.slot} {self.use}", self.health)))


@dataclass(frozen=True)
class Marks:
    """A cell: the GPUs of a node as a row of small boxes."""

    kind: ClassVar[str] = "marks"
    gpus: Sequence[Mark]

    def __str__(self) -> str:
        return "; ".join(gpu.words for gpu in self.gpus)


@dataclass(frozen=True)
class Shares:
    """A cell: a bar of parts of a whole. ``parts``: (one of `USES`, number)."""

    kind: ClassVar[str] = "shares"
    parts: Sequence[tuple[str, int]]

    def __str__(self) -> str:
        return ", ".join(f"{number} {name}" for name, number in self.parts if number)

    @property
    def bars(self) -> list[tuple[str, float, float]]:
        """(use, start, width) of each part of a bar of width 100."""
        total = sum(number for _, number in self.parts) or 1
        found, start = [], 0.0
        for name, number in self.parts:
            width = 100.0 * number / total
            if number:
                found.append((name, start, width))
            start += width
        return found


@dataclass(frozen=True)
class Sentences:
    """Paragraphs; ``note``: of less weight."""

    kind: ClassVar[str] = "sentences"
    lines: Sequence[str]
    title: str = ""
    note: bool = False


@dataclass(frozen=True)
class Pairs:
    """Names and values."""

    kind: ClassVar[str] = "pairs"
    entries: Sequence[tuple[str, object]]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells; None and "" are shown as ``-``.

    ``right``: headers of columns of numbers. ``more``: a line below, such as on rows left out.
    """

    kind: ClassVar[str] = "table"
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Iterable[str] = ()
    title: str = ""
    more: str = ""


@dataclass(frozen=True)
class Circle:
    """A GPU of a drawing, around a point."""

    x: float
    y: float
    name: str
    value: str
    mark: Mark


class Wires(NamedTuple):
    """The links of a kind, in a drawing."""

    path: str  # As in SVG.
    width: float
    dashes: str  # As in SVG; empty: solid.
    words: str  # Of the legend.


@dataclass(frozen=True)
class Drawing:
    """A node: circles and lines in a square of `drawing.SIDE` units.

    ``hub``: what the lines end at in the middle; empty: nothing. ``again``: the same node as in the
    first drawing of the page, with the same lines.
    """

    kind: ClassVar[str] = "drawing"
    title: str
    radius: float
    circles: Sequence[Circle]
    wires: Sequence[Wires] = ()
    hub: str = ""
    again: bool = False


class Tick(NamedTuple):
    """A tick of an axis."""

    at: float
    text: str


class Series(NamedTuple):
    """A line of a chart, whose letter stands at its end."""

    letter: str
    name: object  # Cell of the legend.
    points: str  # As in SVG.
    end: tuple[float, float]  # Where the letter stands.
    style: int  # Number of its dashes and its colour.


@dataclass(frozen=True)
class Chart:
    """Lines over time, in units of `drawing.CHART`. ``band``: a filled range behind them."""

    kind: ClassVar[str] = "chart"
    title: str
    about: str
    series: Sequence[Series]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    band: str = ""
    band_name: str = ""


@dataclass(frozen=True)
class Side:
    """Blocks beside each other where the screen is wide."""

    kind: ClassVar[str] = "side"
    blocks: Sequence[Drawing | Chart]
    title: str = ""


@dataclass(frozen=True)
class Key:
    """The legend of boxes and circles of GPUs."""

    kind: ClassVar[str] = "key"


Block = Sentences | Pairs | Table | Drawing | Chart | Side | Key
Words = Sentences | Pairs | Table  # Blocks that a terminal shows, too.


@dataclass(frozen=True)
class Page:
    """A file of the site; ``path``: from its folder, with at most one folder in it."""

    path: str
    title: str
    blocks: Sequence[Block]
    section: str = ""  # Name of the section that it belongs to.
    above: Sequence[Link] = field(default=())  # The pages above it.
