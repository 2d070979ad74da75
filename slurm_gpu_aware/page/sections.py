"""Sections of the pages: how a part of the program adds what it knows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.model.profile import GpuScore
from slurm_gpu_aware.page.blocks import Block, Page
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode, SlurmSwitch
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.profiles import score_rows

F = TypeVar("F")
_WRONG = (
    SourceError,
    StoreError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What a damaged or foreign record in the store may cause."""


@dataclass(frozen=True)
class Source:
    """What sections read."""

    config: Config
    store: Store  # Open, read-only.
    now: float  # Unix time.
    public: bool = False  # Users and names of jobs are left out.
    nodes: Sequence[SlurmNode] | None = None  # None: Slurm does not answer.
    jobs: Sequence[SlurmJob] = ()
    switches: Sequence[SlurmSwitch] = ()
    explained: Mapping[str, str] = field(default_factory=dict)
    """Job -> path of the page that explains it."""

    @cached_property
    def scores(self) -> list[GpuScore]:
        """All scores, by class, then best first. Raises StoreError."""
        return score_rows(self.store)


def _no_pages(facts: object) -> Iterable[Page]:
    return ()


@dataclass(frozen=True)
class Section(Generic[F]):
    """A part of the site with a page of its own.

    ``read`` collects its facts, a value; ``blocks`` and ``details`` are pure functions of them.
    """

    name: str  # Its page is ``NAME.html``; letters only.
    title: str
    read: Callable[[Source], F]  # May raise SourceError, StoreError; the others go on without it.
    blocks: Callable[[F], Sequence[Block]]  # What its page shows.
    details: Callable[[F], Iterable[Page]] = _no_pages
    """Further pages; they lie in one folder each."""


def built(sections: Iterable[Section[Any]], source: Source) -> tuple[list[Page], list[str]]:
    """The pages of all sections, and a sentence for each section that cannot be shown."""
    pages, notes = [], []
    for section in sections:
        try:
            facts = section.read(source)
            blocks, details = section.blocks(facts), list(section.details(facts))
        except _WRONG as exc:
            text = f"The section '{section.title}' cannot be shown: {exc or type(exc).__name__}."
            notes.append(text)
            blocks, details = [], []
        path = f"{section.name}.html"
        pages += [Page(path, section.title, blocks, section.name), *details]
    return pages, notes
