"""``gpu-aware page``: a site of static pages."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from slurm_gpu_aware.cli.options import Context, pass_context
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.errors import SourceError

if TYPE_CHECKING:
    from slurm_gpu_aware.page.sections import Section, Source
    from slurm_gpu_aware.selector.job_answers import Answers

T = TypeVar("T")


@click.command("page")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--public", is_flag=True, help="Leave out users, and names and comments of jobs.")
@pass_context
def command(context: Context, folder: Path, public: bool) -> None:
    """Write pages on the fleet, the queue, drift, power and shadow into a folder.

    The pages need no server and nothing from elsewhere: open DIR/index.html, or let a web server
    serve DIR. They are a picture of the moment; a timer renews them. DIR is new, empty, or was
    written by this command, which removes pages that it no longer writes.

    They show users and names of jobs, for administrators: a new DIR is closed to other users unless
    --public. Needs Jinja2 (the extra 'page').

    \b
    Examples:
      gpu-aware page /var/www/gpus
      gpu-aware page --public /var/www/html/gpus
    """
    from slurm_gpu_aware.cli.page_jobs import jobs_section
    from slurm_gpu_aware.features.power.page import POWER
    from slurm_gpu_aware.features.shadow.page import SHADOW
    from slurm_gpu_aware.page.drift import DRIFT
    from slurm_gpu_aware.page.fleet import FLEET
    from slurm_gpu_aware.page.sections import built
    from slurm_gpu_aware.page.site import Frame, write_site
    from slurm_gpu_aware.selector.job_answers import Answers, open_reader

    config, now = context.config(), time.time()
    with without_collection(), open_reader(config) as reader:
        known = Answers(reader, config)
        jobs, paths = jobs_section(known, public)
        sections: list[Section[Any]] = [FLEET, jobs, DRIFT, POWER, SHADOW]
        source, site = _source(known, now, public, paths)
        with _progress(sections, "reading") as each:
            pages, notes = built(each, source)
        if note := reader.note():
            notes.append(note)
        if error := known.slurm.error:
            notes.append(f"Slurm does not answer: {error}.")
    frame = Frame(site, [(one.name, one.title) for one in sections], now, notes)
    with without_collection(), _progress(pages, "writing") as every:
        count = write_site(folder, every, frame, public=public)
    for note in notes:
        say(note)
    say(f"wrote {folder / 'index.html'} and {count - 1} more pages")


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for garbage among live records, which would take a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _progress(work: Sequence[T], label: str) -> AbstractContextManager[Iterable[T]]:
    """The same values, with a bar on a terminal."""
    hidden = not sys.stderr.isatty()
    return click.progressbar(work, label=label, file=sys.stderr, hidden=hidden)


def _source(
    known: Answers, now: float, public: bool, paths: Mapping[str, str]
) -> tuple[Source, str]:
    """What the sections read, and the name of the site."""
    from slurm_gpu_aware.page.sections import Source
    from slurm_gpu_aware.slurm.client import open_client

    jobs, switches, site = known.slurm.jobs, [], "GPUs"
    if jobs is not None:
        with suppress(SourceError):
            client = open_client(known.config.selector.command_timeout_s)
            site = client.config().cluster or site
            switches = client.topology()
    source = Source(
        known.config,
        known.reader.store,
        now,
        public,
        known.nodes,
        [live.job for live in (jobs or {}).values()],
        switches,
        paths,
    )
    return source, site
