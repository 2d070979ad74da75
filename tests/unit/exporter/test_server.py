"""The HTTP server on a real socket: what it serves, and clients that want to harm it."""

import gzip
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from idle_clock import Stopwatch

from slurm_gpu_aware.cli.operation import LISTEN
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.exporter.server import MetricsServer, Page, parse_address

PAGE = Page(b"gpu_aware_x 1.0\n", gzip.compress(b"gpu_aware_x 1.0\n"))


@contextmanager
def serving(page: Page | None = PAGE, **more: float) -> Iterator[MetricsServer]:
    with MetricsServer(("127.0.0.1", 0), lambda: page, **more) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with serving() as made:
        yield made


def get_page(
    server: MetricsServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_only_loopback_is_the_default() -> None:
    assert parse_address(LISTEN)[0] == "127.0.0.1"


def test_it_serves_the_last_page_as_it_is_and_compressed(server: MetricsServer) -> None:
    assert get_page(server, "/metrics") == (200, PAGE.text)
    packed = get_page(server, "/metrics", **{"Accept-Encoding": "gzip"})
    assert (packed[0], gzip.decompress(packed[1])) == (200, PAGE.text)
    assert get_page(server, "/metrics", "HEAD") == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/metrics/../../etc/passwd", 404),
        ("POST", "/metrics", 501),
        ("DELETE", "/metrics", 501),
        ("GET", "/" + "a" * 70_000, 414),
    ],
)
def test_nothing_else_is_served(server: MetricsServer, method: str, path: str, status: int) -> None:
    assert get_page(server, path, method)[0] == status


def test_before_the_first_refresh_it_says_so() -> None:
    with serving(None) as made:
        assert get_page(made, "/metrics")[0] == 503


def until_served(server: MetricsServer, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Ask again until the page comes; ``meanwhile``: before each time."""
    watch = Stopwatch()
    while True:
        meanwhile()
        try:
            assert get_page(server, "/metrics") == (200, PAGE.text)
            return
        except (http.client.HTTPException, OSError):
            assert watch.idle_s < 60
            time.sleep(0.1)


def test_clients_that_hold_their_connections_keep_no_thread_beyond_the_limit(
    server: MetricsServer,
) -> None:
    before = threading.active_count()
    held = [socket.create_connection(server.server_address[:2]) for _ in range(40)]
    try:
        time.sleep(0.5)
        assert threading.active_count() - before <= 8
    finally:
        for one in held:
            one.close()
    until_served(server)


def test_clients_that_send_a_byte_now_and_then_are_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slurm_gpu_aware.exporter.server._Handler.timeout", 600.0)  # of a read
    with serving(longest_s=1.0) as made:
        held = [socket.create_connection(made.server_address[:2]) for _ in range(8)]

        def send() -> None:
            for one in held:
                with suppress(OSError):
                    one.send(b"A")

        try:
            until_served(made, send)
        finally:
            for one in held:
                one.close()


def test_a_request_that_is_no_http_stops_nothing(server: MetricsServer) -> None:
    with socket.create_connection(server.server_address[:2]) as client:
        client.sendall(b"\x16\x03\x01\0\xff" * 100 + b"\r\n\r\n")
        client.recv(1000)
    assert get_page(server, "/metrics")[0] == 200


def test_a_port_that_is_taken_is_a_sentence(server: MetricsServer) -> None:
    port = server.server_address[1]
    with pytest.raises(SourceError, match=f"cannot listen at 127.0.0.1:{port}: Address already"):
        MetricsServer(("127.0.0.1", port), lambda: PAGE)


@pytest.mark.parametrize(
    "text",
    ["", "9836", ":9836", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "::1:9836",
     "host:9836", "127.0.0.1:-1", "127.0.0.1:９"],
)  # fmt: skip
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_address(text)


def test_addresses_of_both_families() -> None:
    assert parse_address("[::1]:9836") == ("::1", 9836)
    assert parse_address("0.0.0.0:1") == ("0.0.0.0", 1)
