"""Refreshes: the page of metrics is made every few seconds, and scrapes get the last one."""

import gzip
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.exporter.own import ExporterState
from slurm_gpu_aware.exporter.registry import METRICS
from slurm_gpu_aware.exporter.render import Renderer
from slurm_gpu_aware.exporter.sources import (
    OLD_S,
    Complaints,
    SlurmWatch,
    WatchFile,
    counters_of,
    has_store,
    open_published,
    renewed_at,
)
from slurm_gpu_aware.metric import Metric
from slurm_gpu_aware.service import ALIVE, notify
from slurm_gpu_aware.store.watch_metrics import Watched

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHARE = 10.0
"""Refreshes take at most one part in so many of the time."""
_SIGN_S = 60.0
"""Between two signs of life in a pause."""


@dataclass(frozen=True)
class Page:
    """All metrics as text, and the same compressed."""

    text: bytes
    packed: bytes


class Exporter:
    """Makes pages of metrics from the sources."""

    def __init__(
        self,
        config: Config,
        slurm: SlurmWatch,
        interval_s: float,
        metrics: Sequence[Metric[Any]] = METRICS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._slurm, self._clock = config, slurm, clock
        self._interval_s = interval_s
        self._oldest_s = max(OLD_S, 8 * interval_s)
        self._renderer = Renderer(metrics)
        self._watch_file = WatchFile(config.store.path)
        self._complaints = Complaints()
        self._stop = threading.Event()
        self.page: Page | None = None
        """The last page; None: none yet."""

    def refresh(self) -> Page:
        """Read the sources and make the page; takes no longer if Slurm hangs."""
        began, now = time.monotonic(), self._clock()
        with ExitStack() as stack:
            sources: dict[str, Any] = {"config": self._config, "now": now}
            read_at: dict[str, float] = {}
            missing = set[str]()
            counted = partial(counters_of, self._config, now, self._oldest_s)
            if (counters := self._read("counters", counted, missing)) is not None:
                sources["counters"], read_at["counters"] = counters, counters.at
            try:
                store = stack.enter_context(open_published(self._config.store))
                sources["store"], read_at["store"] = store, renewed_at(store.path) or now
                self._complaints.well("store")
            except StoreError as exc:
                if "counters" in missing and not has_store(self._config.store):
                    missing.add("store")
                else:
                    self._complaints.failed("store", exc)
            if (view := self._slurm.last(self._oldest_s)) is not None:
                if "counters" in missing and view.gate is not None and view.gate.start_s is None:
                    view = replace(view, gate=replace(view.gate, used=False))
                sources["slurm"], read_at["slurm"] = view, view.at
            if (watch := self._read("watch", self._watch_file.read, missing)) is not None:
                sources["watch"], read_at["watch"] = Watched(watch, sources.get("store")), watch.at
            body = self._renderer.render(sources)
        state = ExporterState(
            now, time.monotonic() - began, read_at, missing, body.dropped, body.failed
        )
        text = body.text + self._renderer.own(state)
        self.page = Page(text, gzip.compress(text, 1))
        return self.page

    def _read(self, name: str, source: Callable[[], T | None], missing: set[str]) -> T | None:
        """What a source has now; one that this host does not have is ``missing``."""
        try:
            found = source()
        except SourceError as exc:
            self._complaints.failed(name, exc)
            return None
        self._complaints.well(name)
        if found is None:
            missing.add(name)
        return found

    def start(self) -> None:
        """Refresh from a thread, which ends with the process."""
        threading.Thread(target=self._run, name="refresh", daemon=True).start()

    def stop(self) -> None:
        """Refresh no more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.refresh()
            except Exception:
                log.exception("a refresh failed; the next one tries again")
            cost_s = time.monotonic() - began
            until = time.monotonic() + max(self._interval_s - cost_s, _SHARE * cost_s)
            while not self._stop.is_set() and (left_s := until - time.monotonic()) > 0:
                notify(ALIVE)  # a pause may be longer than the watchdog's time
                self._stop.wait(min(left_s, _SIGN_S))
