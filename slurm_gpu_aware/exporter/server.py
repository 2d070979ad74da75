"""Exporter: the page of metrics, made every few seconds, and its HTTP server (GET /metrics)."""

import gzip
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.exporter.registry import METRICS, ExporterState
from slurm_gpu_aware.exporter.render import Renderer
from slurm_gpu_aware.exporter.sources import (
    OLD_S,
    Complaints,
    SlurmWatch,
    WatchFile,
    counters_of,
    has_store,
    open_published,
)
from slurm_gpu_aware.metric import Metric
from slurm_gpu_aware.selector.drift_metrics import Watched
from slurm_gpu_aware.service import ALIVE, notify
from slurm_gpu_aware.store.database import renewed_at

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHARE = 10.0  # Refreshes take at most one part in so many of the time.
_SIGN_S = 60.0  # Between two signs of life in a pause.


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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_AT_ONCE = 8
_CLIENT_S = 10.0  # A client that is silent for longer, or not done after this time, is cut off.
_INDEX = b'<html><body><a href="/metrics">metrics of slurm-gpu-aware</a></body></html>\n'


def parse_address(text: str) -> tuple[str, int]:
    """Address and port of ``127.0.0.1:9836`` or ``[::1]:9836``. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or not 0 <= int(port) < 65_536:
        raise ValueError(f"{quoted(text)} is not ADDRESS:PORT, such as 127.0.0.1:9836")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise ValueError(f"{quoted(host)} is not an IP address; give 127.0.0.1 or [::1]") from None
    if address.version == 6 and bare == host:
        raise ValueError(f"an IPv6 address stands in brackets: [{host}]:{port}")
    return str(address), int(port)


class MetricsServer(ThreadingHTTPServer):
    """Serves the last page. Raises SourceError if it cannot listen there."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        page: Callable[[], Page | None],
        longest_s: float = _CLIENT_S,
    ) -> None:
        self.last_page = page
        self._longest_s = longest_s
        self._since: dict[Any, float] = {}
        self.slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(address, _Handler)
        except OSError as exc:
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            why = f"cannot listen at {host}:{address[1]}: {exc.strerror}"
            raise SourceError(f"{why}; --listen names another address") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client in a thread of its own; beyond the limit it is cut off."""
        if not self.slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._since[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._since.pop(request, None)
            self.slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._since.pop(request, None)
            self.slots.release()

    def service_actions(self) -> None:
        """Cut off clients that are not done in time; the timeout of a socket is per read."""
        now = time.monotonic()
        for request, since in list(self._since.items()):
            if now - since > self._longest_s:
                with suppress(OSError):  # it has just gone
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "gpu-aware"
    sys_version = ""
    timeout = _CLIENT_S

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self._send(HTTPStatus.OK, _INDEX, "text/html; charset=utf-8", with_body)
            return
        if path != "/metrics":
            self._send(HTTPStatus.NOT_FOUND, b"see /metrics\n", "text/plain", with_body)
            return
        page = self.server.last_page()
        if page is None:
            text = b"the first refresh has not ended yet\n"
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, text, "text/plain", with_body)
        elif "gzip" in self.headers.get("Accept-Encoding", ""):
            self._send(HTTPStatus.OK, page.packed, CONTENT_TYPE, with_body, packed=True)
        else:
            self._send(HTTPStatus.OK, page.text, CONTENT_TYPE, with_body)

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, with_body: bool, *, packed: bool = False
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A scrape every few seconds is no news."""
