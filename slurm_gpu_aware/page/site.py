"""The files of the site: pages as HTML, put into a folder that is ours.

Jinja2 escapes each value, and a page holds neither scripts nor anything from elsewhere, which its
policy (CSP) forbids, too.
"""

import base64
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slurm_gpu_aware.bounds import printable
from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.files import InstanceLock, user_name
from slurm_gpu_aware.page import drawing
from slurm_gpu_aware.page.blocks import USES, Page, Table
from slurm_gpu_aware.time_text import stamp

MARKER = ".gpu-aware-page"  # File that says that a folder is ours; also the lock of the command.
LONGEST = 1_000  # Characters of a value that are shown.
_LONG = 24  # Characters beyond which a cell may wrap.
_FRESH = ".new-"
_PATH = re.compile(r"(?:[a-z]{1,20}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,254}\.html")
_TEMPLATES = Path(__file__).parent / "templates"


class Frame(NamedTuple):
    """What is alike on all pages."""

    site: str  # Name of the cluster.
    sections: Sequence[tuple[str, str]]  # (name, title) of each.
    now: float  # Unix time.
    notes: Sequence[str] = ()  # Sentences at the top of each page.


class Html:
    """Pages as HTML. Raises SourceError if Jinja2 is missing."""

    def __init__(self, frame: Frame) -> None:
        try:
            from jinja2 import Environment, FileSystemLoader, StrictUndefined
        except ImportError:
            raise SourceError(not_installed("jinja2", "page")) from None
        environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_printable,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        style = re.sub(r"\s*\n\s*", "\n", (_TEMPLATES / "style.css").read_text(encoding="utf-8"))
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        environment.filters["short"] = _short
        self._template = environment.get_template("page.html")
        self._values: Mapping[str, Any] = {
            "frame": frame,
            "made": stamp(frame.now),
            "style": style,
            "style_hash": f"sha256-{digest}",
            "drawing": drawing,
            "uses": USES,
            "heads": _heads,
            "cells": _cells,
        }

    def of(self, page: Page) -> str:
        """The HTML of a page."""
        root = "../" * page.path.count("/")
        return self._template.render(self._values, page=page, root=root)


def _printable(value: Any) -> Any:
    """Any value of a page: without what does not print, unless it is HTML of the template."""
    return value if hasattr(value, "__html__") else printable(str(value))


def _short(value: Any) -> str:
    """A value of a cell: not too long."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _heads(table: Table) -> list[tuple[str, str]]:
    """(header, CSS class) of each column."""
    right = set(table.right)
    return [(header, "n" if header in right else "") for header in table.headers]


def _cells(table: Table) -> Iterator[list[tuple[str, str, object, str | None]]]:
    """(header, CSS classes, value, its text or None) of each cell, by rows."""
    heads = _heads(table)
    for row in table.rows:
        cells: list[tuple[str, str, object, str | None]] = []
        for (header, names), value in zip(heads, row, strict=True):
            if value is None or value == "":
                cells.append((header, f"{names} none", value, "-"))
            elif hasattr(value, "kind"):
                cells.append((header, names, value, None))
            else:
                text = _short(value)
                cells.append((header, f"{names} long" if len(text) > _LONG else names, value, text))
        yield cells


def write_site(folder: Path, pages: Iterable[Page], frame: Frame, *, public: bool) -> int:
    """Write the pages; return their number.

    All are made beside the old ones first. Then each takes the place of the old one at once, the
    first page last, and pages that are no longer there go. A reader thus never gets a part of a
    page. A fresh folder is closed to other users than its owner and group unless ``public``; the
    files have the mode and the group of the folder.

    Raises SourceError if the folder is not empty and not ours, belongs to another user or can be
    written by all, is written by another process, or cannot be written.
    """
    html = Html(frame)
    try:
        _make_ours(folder, public)
        with InstanceLock(folder / MARKER, "gpu-aware page"):
            for rest in folder.glob(f"{_FRESH}*"):  # of a process that was killed
                shutil.rmtree(rest)
            fresh = Path(tempfile.mkdtemp(dir=folder, prefix=_FRESH))
            try:
                written = [_write(fresh, page, html) for page in pages]
                _open_as(folder, fresh)
                _take_place(folder, fresh, written)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    except OSError as exc:
        raise SourceError(f"{exc.filename or folder}: cannot be written: {exc.strerror}") from None
    return len(written)


def _make_ours(folder: Path, public: bool) -> None:
    """Make the folder, or see that it is ours."""
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755 if public else 0o750)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        owner = user_name(status.st_uid)
        raise SourceError(f"{folder}: belongs to {owner}; run this as {owner}")
    if status.st_mode & stat.S_IWOTH:
        raise SourceError(f"{folder}: every user may write it; chmod o-w")
    there = {entry.name for entry in os.scandir(folder)}
    if there and MARKER not in there:
        raise SourceError(
            f"{folder}: not empty, and not written by this command (no {MARKER} in it); name an"
            " empty or a new folder"
        )


def _write(fresh: Path, page: Page, html: Html) -> str:
    """Write a page below ``fresh``; return its path."""
    if not _PATH.fullmatch(page.path):
        raise ValueError(f"{page.path!r} is not the path of a page")
    file = fresh / page.path
    file.parent.mkdir(exist_ok=True)
    file.write_text(html.of(page), encoding="utf-8")
    return page.path


def _open_as(folder: Path, fresh: Path) -> None:
    """Give all that is new the mode and the group of the folder."""
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode) & 0o777
    for path in fresh.rglob("*"):
        if path.stat().st_gid != status.st_gid:
            os.chown(path, -1, status.st_gid)
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _take_place(folder: Path, fresh: Path, written: Sequence[str]) -> None:
    """Move the files to their places, and remove those that are no longer there."""
    for inner in sorted(path for path in fresh.iterdir() if path.is_dir()):
        place = folder / inner.name
        if place.is_symlink():
            raise SourceError(f"{place}: a link where a folder of this command should be")
        if not place.exists():
            place.mkdir()
        shutil.copystat(inner, place)
        if place.stat().st_gid != inner.stat().st_gid:
            os.chown(place, -1, inner.stat().st_gid)
    for path in sorted(written, key=lambda path: (path == "index.html", "/" not in path)):
        os.replace(fresh / path, folder / path)
    known = set(written)
    for path in list(_there(folder)):
        if path not in known:
            (folder / path).unlink()


def _there(folder: Path) -> Iterator[str]:
    """Paths of the pages in the folder and in its own folders."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            names = [f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path)]
        else:
            names = [entry.name]
        yield from (name for name in names if _PATH.fullmatch(name))
