"""The exporter's HTTP server: GET /metrics, nothing else."""

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.exporter.refresh import Page

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_AT_ONCE = 8
_CLIENT_S = 10.0
"""A client that is silent for longer, or not done after this time, is cut off."""
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
