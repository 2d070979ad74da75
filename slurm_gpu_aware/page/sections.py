"""Sections of the pages: how a part of the program adds what it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.page.blocks import Block, Page
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode, SlurmSwitch
from slurm_gpu_aware.store.database import Store

F = TypeVar("F")


@dataclass(frozen=True)
class Source:
    """What sections read."""

    config: Config
    store: Store
    """Open, read-only."""
    now: float
    """Unix time."""
    public: bool = False
    """Users and names of jobs are left out."""
    nodes: Sequence[SlurmNode] | None = None
    """None: Slurm does not answer."""
    jobs: Sequence[SlurmJob] = ()
    switches: Sequence[SlurmSwitch] = ()
    explained: Mapping[str, str] = field(default_factory=dict)
    """Job -> path of the page that explains it."""


def _no_pages(facts: object) -> Iterable[Page]:
    return ()


@dataclass(frozen=True)
class Section(Generic[F]):
    """A part of the site with a page of its own.

    ``read`` collects its facts, a value; ``blocks`` and ``details`` are pure functions of them.
    """

    name: str
    """Its page is ``NAME.html``; letters only."""
    title: str
    read: Callable[[Source], F]
    """May raise SourceError, StoreError; the others go on without it."""
    blocks: Callable[[F], Sequence[Block]]
    """What its page shows."""
    details: Callable[[F], Iterable[Page]] = _no_pages
    """Further pages; they lie in one folder each."""
