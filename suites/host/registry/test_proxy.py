"""The proxy in front of a small HTTP server: refusals, cut connections, limits and delays."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import shutil
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.limits import LimitError
from harness.registry import PullFault, RegistryLog
from harness.registry.certificate import Certificate
from harness.registry.proxy import RegistryProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOB = bytes(range(256)) * 400
TAG = "/v2/gpu/manifests/580.1"
LAYER = "/v2/gpu/blobs/sha256:1234"
MISSING = "/v2/gpu/manifests/0.0"


class _SmallRegistry(http.server.BaseHTTPRequestHandler):
    """A registry with one tag and one blob; it supports range requests for the blob."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(404 if self.path == MISSING else 200, b"")

    def do_GET(self) -> None:
        start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        if start != "0":
            whole = f"bytes {start}-{len(BLOB) - 1}/{len(BLOB)}"
            self._answer(206, BLOB[int(start) :], {"Content-Range": whole})
            return
        self._answer(200, BLOB)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self._answer(202, self.rfile.read(length)[::-1], {"Location": "/v2/upload"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_request(self, code: object = None, size: object = None) -> None:
        """Print nothing."""


class _SmallServer(http.server.ThreadingHTTPServer):
    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Print no errors: the proxy closes a connection when no client waits for its answer."""


@pytest.fixture
def upstream_port() -> Iterator[int]:
    server = _SmallServer(("127.0.0.1", 0), _SmallRegistry)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def log() -> RegistryLog:
    return RegistryLog()


@pytest.fixture
def proxy(upstream_port: int, log: RegistryLog) -> Iterator[RegistryProxy]:
    opened: list[http.client.HTTPConnection] = []

    def upstream() -> http.client.HTTPConnection:
        opened.append(http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=10))
        return opened[-1]

    with RegistryProxy(upstream, log) as started:
        yield started
    assert [each.sock for each in opened] == [None] * len(opened), "All are closed."


@contextlib.contextmanager
def client(proxy: RegistryProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    with contextlib.closing(connection):
        yield connection


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, **headers: str
) -> tuple[int, bytes]:
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_proxy_returns_upstream_answers_unchanged_and_logs_the_requests(
    proxy: RegistryProxy, log: RegistryLog
) -> None:
    with client(proxy) as connection:
        assert ask(connection, "HEAD", TAG) == (200, b"")
        assert ask(connection, "GET", LAYER) == (200, BLOB)
        assert ask(connection, "HEAD", MISSING)[0] == 404

    first, second, third = log.requests
    assert [first.method, first.path, first.status] == ["HEAD", TAG, 200]
    assert (second.body_bytes, second.is_cut, second.is_aborted) == (len(BLOB), False, False)
    assert third.status == 404
    assert {each.connection for each in log.requests} == {1}
    assert first.started_s <= first.ended_s <= second.started_s
    assert log.connections == 1


def test_upload_reaches_the_registry_with_its_body(proxy: RegistryProxy) -> None:
    with client(proxy) as connection:
        connection.request("POST", "/v2/gpu/blobs/uploads/", body=b"abc")
        answer = connection.getresponse()

        assert (answer.status, answer.getheader("Location")) == (202, "/v2/upload")
        assert answer.read() == b"cba"


def test_refusal_of_the_next_pull_applies_to_all_requests_of_one_connection(
    proxy: RegistryProxy, log: RegistryLog
) -> None:
    """Containerd repeats a request after a 429 over the same connection, within the same pull."""
    log.disturb_next(PullFault(status=429))

    with client(proxy) as connection:
        assert [ask(connection, "HEAD", TAG)[0] for _ in range(2)] == [429, 429]
        # The proxy does not read the body of a refused request as another request.
        connection.request("POST", "/v2/gpu/blobs/uploads/", body=b"GET / HTTP/1.1\r\n\r\n")
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (429, True)
        assert ask(connection, "GET", LAYER)[0] == 429
    with client(proxy) as connection:
        assert ask(connection, "HEAD", TAG)[0] == 200

    first, second = log.pulls
    assert [each.status for each in first.requests] == [429] * 4
    assert [each.status for each in second.requests] == [200]
    assert first.ended_s <= second.started_s


def test_missing_blob_is_reported_although_the_manifest_exists(
    proxy: RegistryProxy, log: RegistryLog
) -> None:
    log.disturb_all(PullFault(blob_status=404))

    with client(proxy) as connection:
        assert ask(connection, "HEAD", TAG)[0] == 200
        assert ask(connection, "GET", LAYER)[0] == 404


def test_401_answer_has_a_www_authenticate_header_and_an_error_body(
    proxy: RegistryProxy, log: RegistryLog
) -> None:
    log.disturb_all(PullFault(status=401))

    with client(proxy) as connection:
        connection.request("GET", TAG)
        answer = connection.getresponse()

        assert answer.status == 401
        assert answer.getheader("WWW-Authenticate") == 'Basic realm="registry"'
        assert b"UNAUTHORIZED" in answer.read()


def test_download_of_a_blob_is_cut_at_the_given_byte_even_after_a_range_request(
    proxy: RegistryProxy, log: RegistryLog
) -> None:
    log.disturb_all(PullFault(cut_after_bytes=50_000))

    with client(proxy) as connection, pytest.raises(http.client.IncompleteRead) as partial:
        ask(connection, "GET", LAYER)
    assert partial.value.partial == BLOB[:50_000]
    with client(proxy) as connection, pytest.raises(http.client.IncompleteRead) as nothing:
        ask(connection, "GET", LAYER, Range="bytes=50000-")
    assert nothing.value.partial == b""
    with client(proxy) as connection:
        assert ask(connection, "GET", TAG) == (200, BLOB)
        log.disturb_all(PullFault(cut_after_bytes=len(BLOB)))
        assert ask(connection, "GET", LAYER) == (200, BLOB)

    assert [each.is_cut for each in log.requests] == [True, True, False, False]
    assert [each.body_bytes for each in log.requests] == [50_000, 0, len(BLOB), len(BLOB)]


def test_speed_limit_slows_the_download_of_a_blob(proxy: RegistryProxy, log: RegistryLog) -> None:
    log.disturb_all(PullFault(bytes_per_s=len(BLOB) * 2))

    with client(proxy) as connection:
        assert ask(connection, "GET", LAYER) == (200, BLOB)

    (request,) = log.requests
    assert request.ended_s - request.started_s >= 0.4


@pytest.mark.parametrize("status", [None, 503])
def test_proxy_delays_the_answer_by_the_given_time(
    proxy: RegistryProxy, log: RegistryLog, status: int | None
) -> None:
    log.disturb_all(PullFault(delay_s=0.3, status=status))

    with client(proxy) as connection:
        assert ask(connection, "HEAD", TAG)[0] == (status or 200)

    (request,) = log.requests
    assert request.ended_s - request.started_s >= 0.3


def test_request_of_a_client_that_gives_up_is_logged_as_aborted(
    proxy: RegistryProxy, log: RegistryLog
) -> None:
    log.disturb_all(PullFault(bytes_per_s=len(BLOB)))

    with client(proxy) as connection:
        connection.request("GET", LAYER)
        connection.getresponse().read(10)

    ends = time.monotonic() + 10
    (request,) = log.requests
    while not request.is_aborted and time.monotonic() < ends:
        threading.Event().wait(0.02)
        (request,) = log.requests
    assert request.is_aborted
    assert request.body_bytes < len(BLOB)


@pytest.mark.parametrize("error", [ConnectionRefusedError(), http.client.BadStatusLine("SSH")])
def test_answer_is_502_if_the_registry_is_down(log: RegistryLog, error: Exception) -> None:
    class Upstream(http.client.HTTPConnection):
        @override
        def connect(self) -> None:
            raise error

    with RegistryProxy(lambda: Upstream("registry"), log) as proxy, client(proxy) as connection:
        assert ask(connection, "GET", TAG)[0] == 502


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        (b"Content-Length: 9", b"part", (200, b"part")),
        (b"Transfer-Encoding: chunked", b"4\r\npart\r\n", (502, None)),
        (b"Transfer-Encoding: chunked", b"size\r\n", (502, None)),
    ],
)
def test_answer_ends_if_the_registry_closes_its_connection(
    log: RegistryLog, head: bytes, body: bytes, expected: tuple[int, bytes | None]
) -> None:
    def upstream() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("registry")
        connection.sock, theirs = socket.socketpair()
        opened.enter_context(theirs)
        theirs.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body)
        theirs.shutdown(socket.SHUT_WR)
        return connection

    with (
        contextlib.ExitStack() as opened,
        RegistryProxy(upstream, log) as proxy,
        client(proxy) as connection,
    ):
        connection.request("GET", LAYER)
        answer = connection.getresponse()
        try:
            found: bytes | None = answer.read()
        except http.client.IncompleteRead as error:
            found = error.partial

    assert answer.status == expected[0]
    assert expected[1] in {None, found}


def test_registry_that_fails_within_an_answer_is_not_logged_as_a_client_that_gave_up(
    log: RegistryLog,
) -> None:
    class Failing(http.client.HTTPResponse):
        @override
        def read(self, amt: int | None = None) -> bytes:
            raise ConnectionResetError("The registry was killed.")

    class Upstream(http.client.HTTPConnection):
        response_class = Failing

        @override
        def connect(self) -> None:
            self.sock, theirs = socket.socketpair()
            opened.enter_context(theirs)
            theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")

    with (
        contextlib.ExitStack() as opened,
        RegistryProxy(lambda: Upstream("registry"), log) as proxy,
        client(proxy) as connection,
    ):
        connection.request("GET", LAYER)
        with pytest.raises(http.client.IncompleteRead):
            connection.getresponse().read()

    assert [each.is_aborted for each in log.requests] == [False]


def test_client_that_gives_up_an_upload_is_logged_as_aborted(
    proxy: RegistryProxy, log: RegistryLog
) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        connection.sendall(b"PUT /v2/a HTTP/1.1\r\nContent-Length: 9\r\n\r\npart")
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1 << 16)

    assert answer == b""
    assert [(each.status, each.is_aborted) for each in log.requests] == [(None, True)]


def test_closing_the_proxy_ends_its_connections_and_threads(
    upstream_port: int, log: RegistryLog
) -> None:
    """This includes connections in a slow or delayed answer."""

    def upstream() -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=10)

    with contextlib.ExitStack() as stack:
        with RegistryProxy(upstream, log) as proxy:
            log.disturb_all(PullFault(delay_s=60))
            late = stack.enter_context(client(proxy))
            late.request("GET", LAYER)
            while not log.requests:
                threading.Event().wait(0.01)
            log.disturb_all(PullFault(bytes_per_s=1000))
            connection = stack.enter_context(client(proxy))
            connection.request("GET", LAYER)
            answer = connection.getresponse()
            answer.read(10)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            late.getresponse()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
        with client(proxy) as again, pytest.raises(ConnectionRefusedError):
            again.request("GET", TAG)

    assert not proxy._thread.is_alive()
    assert proxy._server._open == {}


def test_only_a_client_that_trusts_the_certificate_gets_an_answer(
    upstream_port: int, log: RegistryLog, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("There is no openssl on this host.")
    made = Certificate.generate(tmp_path / "tls", ["first.test", "registry.test"])
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700

    def upstream() -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=10)

    with RegistryProxy(upstream, log, tls=made.server_context()) as proxy:
        trusting = ssl.create_default_context(cadata=made.pem.decode())
        with contextlib.closing(_TlsClient(proxy.port, trusting)) as connection:
            assert ask(connection, "GET", LAYER) == (200, BLOB)
        with (
            contextlib.closing(_TlsClient(proxy.port, ssl.create_default_context())) as connection,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            connection.request("GET", LAYER)

    assert [each.status for each in log.requests] == [200]
    (refusal,) = log.refusals
    assert "TLS handshake failed" in refusal


def raw(proxy: RegistryProxy, request: bytes) -> bytes:
    """Send raw bytes as a request, like a hostile guest, and return the whole answer."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
        return answer


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"POST /v2/a HTTP/1.1\r\nContent-Length: -1\r\n", b"400"),
        (b"POST /v2/a HTTP/1.1\r\nContent-Length: \xb2\r\n", b"400"),
        (b"POST /v2/a HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n", b"400"),
        (b"POST /v2/a HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n", b"400"),
        (b"POST /v2/a HTTP/1.1\r\nContent-Length: 99999999999999\r\n", b"413"),
        (b"PATCH /v2/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b"411"),
        (b"GET /v2/\xe9 HTTP/1.1\r\n", b"400"),
        (b"GET /v2/\x1b[2J HTTP/1.1\r\n", b"400"),
        (b"GET /v2/a HTTP/1.1\r\nX: a\x0bb\r\n\tc\x00\r\n", b"200"),
    ],
)
def test_proxy_answers_a_malformed_request_once_and_ignores_its_body(
    proxy: RegistryProxy, log: RegistryLog, lines: bytes, status: bytes
) -> None:
    body = b"" if status == b"200" else b"POST /v2/b HTTP/1.1\r\n\r\n"

    answer = raw(proxy, lines + b"\r\n" + body)

    # The proxy does not answer the data after a refused request, since the data may be its body.
    assert (answer.split()[1], answer.count(b"HTTP/1.1")) == (status, 1)

    assert [each.status for each in log.requests] == [int(status)]


def test_upload_is_forwarded_before_the_whole_body_has_arrived(log: RegistryLog) -> None:
    """A guest that announces gigabytes does not use memory of the proxy."""
    arrived = threading.Event()

    class Upstream(http.client.HTTPConnection):
        @override
        def connect(self) -> None:
            self.sock, self.other = socket.socketpair()

        @override
        def send(self, data: object) -> None:
            if isinstance(data, bytes) and data.startswith(b"x"):
                arrived.set()
                raise ConnectionResetError("enough")

    with (
        RegistryProxy(lambda: Upstream("registry"), log) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection,
    ):
        connection.sendall(b"PUT /v2/a HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        connection.sendall(b"x" * 100_000)
        assert arrived.wait(10)
        assert b" 502 " in connection.recv(1 << 16)


def test_upload_beyond_the_limit_is_refused(
    proxy: RegistryProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry behind the proxy stores uploads on the host's disk."""
    monkeypatch.setenv("HARNESS_LIMIT_REGISTRY_UPLOAD_MIB", "1")
    head = b"POST /v2/a HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    large, small = (head % size + bytes(size) for size in (400_000, 1000))

    answers = [raw(proxy, each) for each in (large, large, head % 400_000, small)]

    assert [answer.split()[1] for answer in answers] == [b"202", b"202", b"413", b"202"]
    assert b"HARNESS_LIMIT_REGISTRY_UPLOAD_MIB" in answers[2]


def test_proxy_answers_no_more_requests_than_the_limit(
    proxy: RegistryProxy, log: RegistryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_REGISTRY_REQUESTS", "3")
    one = b"HEAD /v2/" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: \x1b]0;owned\r\n\r\n"

    answers = raw(proxy, one * 5).count(b"HTTP/1.1 200")

    assert answers == 3
    with pytest.raises(LimitError, match="HARNESS_LIMIT_REGISTRY_REQUESTS"):
        _ = log.requests
    said = log.render()
    assert "left out because of the limit 'registry-requests': 1 more" in said
    assert len(said) < 5000
    assert "\x1b" not in said


def test_proxy_refuses_connections_above_the_limit(
    proxy: RegistryProxy, log: RegistryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_REGISTRY_CONNECTIONS", "2")

    with contextlib.ExitStack() as stack:
        for _ in range(2):
            assert ask(stack.enter_context(client(proxy)), "HEAD", TAG)[0] == 200
        with pytest.raises(OSError, match=r"."), client(proxy) as third:
            ask(third, "HEAD", TAG)

    assert any("registry-connections" in reason for reason in log.refusals)


class _TlsClient(http.client.HTTPConnection):
    """Connects to the loopback, and checks the certificate for the name `registry.test`."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", port, timeout=10)
        self._context = context

    @override
    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname="registry.test")
