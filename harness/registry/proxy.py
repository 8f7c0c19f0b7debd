"""An HTTP proxy in front of a registry, which logs each request and disturbs answers as planned."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import socketserver
import threading
import time
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from harness.errors import HarnessError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Self

    from harness.registry import PullFault, RegistryLog, RegistryRequest

_CHUNK = 1 << 14
#: With a limit, parts of a second's bytes: each is an answer's next piece.
_PIECES_PER_S = 10
_UPSTREAM_S = 60.0
_CLOSE_S = 10.0
#: Headers of one hop (RFC 9110, 7.6.1), and those that this proxy writes itself.
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "date", "server", "content-length"}
)
_ERRORS = {
    401: "UNAUTHORIZED",
    403: "DENIED",
    404: "MANIFEST_UNKNOWN",
    429: "TOOMANYREQUESTS",
}


class RegistryProxy:
    """Listens on the host's loopback until its `with` block ends, and its threads with it.

    `upstream` opens a connection to the registry; without `tls` clients speak plain HTTP.
    """

    def __init__(
        self,
        upstream: Callable[[], http.client.HTTPConnection],
        log: RegistryLog,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = _Server(upstream, log, tls)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="registry-proxy",
        )
        # An interrupted run does not wait for it.
        self._thread.daemon = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join(_CLOSE_S)
        self._server.end_connections(_CLOSE_S)
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """Serves each connection in a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        upstream: Callable[[], http.client.HTTPConnection],
        log: RegistryLog,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.log = log
        self.tls = tls
        self.is_ending = threading.Event()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()

    @override
    def process_request_thread(self, request: object, client_address: object) -> None:
        sock = cast("socket.socket", request)
        with self._lock:
            self._open[sock] = threading.current_thread()
        try:
            super().process_request_thread(sock, client_address)
        finally:
            with self._lock:
                del self._open[sock]

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may end a connection at any time; nothing is printed."""

    def end_connections(self, timeout_s: float) -> None:
        """End all connections and their threads; raises HarnessError where one does not end."""
        self.is_ending.set()
        with self._lock:
            left = dict(self._open)
        for sock in left:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        ends = time.monotonic() + timeout_s
        for thread in left.values():
            thread.join(max(0.0, ends - time.monotonic()))
            if thread.is_alive():
                raise HarnessError(
                    f"A connection to the registry's proxy did not end within {timeout_s:.0f} s."
                )


class _CutError(Exception):
    """A fault asks for the end of the connection."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    server: _Server

    @override
    def setup(self) -> None:
        self._number = self.server.log.connected()
        self._requests = 0
        if self.server.tls is not None:
            sock = cast("socket.socket", self.request)
            try:
                self.request = self.server.tls.wrap_socket(sock, server_side=True)
            except OSError as error:
                self.server.log.refused(f"the TLS handshake failed: {error}")
                raise
        super().setup()

    @override
    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        if self.server.tls is not None:
            # Not by TLS's own end: a connection that is cut has none.
            cast("socket.socket", self.request).close()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: requests are in the log."""

    @override
    def handle_one_request(self) -> None:
        """Serve a request of any method."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._requests += 1
        request, fault = self.server.log.began(
            self._number,
            self.command,
            self.headers.get("Host", ""),
            self.path,
            is_first=self._requests == 1,
        )
        try:
            self._answer(fault, request)
            self.wfile.flush()
        except _CutError:
            request.is_cut = self.close_connection = True
        except OSError:
            # Only here: a client that has all of an answer may have begun its next request.
            request.is_aborted = self.close_connection = True
            request.ended_s = time.monotonic()

    def _answer(self, fault: PullFault, request: RegistryRequest) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault.delay_s:
            self._pause(fault.delay_s)
        if fault.status is not None:
            self._refuse(fault.status, request, "The test asked for this answer.")
            return
        with contextlib.closing(self.server.upstream()) as upstream:
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in _HOP
            }
            try:
                upstream.request(self.command, self.path, body=body or None, headers=headers)
                answer = upstream.getresponse()
            except OSError as error:
                self._refuse(502, request, f"The registry behind this proxy failed: {error}.")
                return
            self._pass_on(answer, fault, request)

    def _pass_on(
        self, answer: http.client.HTTPResponse, fault: PullFault, request: RegistryRequest
    ) -> None:
        length = answer.getheader("Content-Length")
        pieces: Iterable[bytes]
        if length is None:
            content = answer.read()
            length, pieces = str(len(content)), [content]
        else:
            pieces = iter(lambda: answer.read(_piece_bytes(fault)), b"")
        self._send_head(
            answer.status,
            [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP],
            int(length),
            request,
        )
        is_blob = "/blobs/" in self.path and answer.status in {200, 206}
        # A range 'bytes 100-199/200' begins at 100.
        at = int((answer.getheader("Content-Range") or "bytes 0-").split()[1].split("-")[0])
        for piece in pieces if self.command != "HEAD" else ():
            chunk, is_last = piece, False
            if is_blob and fault.cut_after_bytes is not None:
                allowed = max(0, fault.cut_after_bytes - at - request.body_bytes)
                chunk, is_last = piece[:allowed], allowed < len(piece)
            request.body_bytes += len(chunk)
            request.ended_s = time.monotonic()
            self.wfile.write(chunk)
            if is_last:
                self.wfile.flush()
                raise _CutError
            if is_blob and fault.bytes_per_s is not None:
                self._pause(len(chunk) / fault.bytes_per_s)

    def _refuse(self, status: int, request: RegistryRequest, message: str) -> None:
        code = _ERRORS.get(status, "UNKNOWN")
        content = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        headers = [("Content-Type", "application/json")]
        if status == 401:
            headers.append(("WWW-Authenticate", 'Basic realm="registry"'))
        self._send_head(status, headers, len(content), request)
        if self.command != "HEAD":
            request.body_bytes += len(content)
            self.wfile.write(content)

    def _send_head(
        self,
        status: int,
        headers: Iterable[tuple[str, str]],
        length: int,
        request: RegistryRequest,
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        # Before the client can see it, who may then read the log.
        request.status, request.ended_s = status, time.monotonic()
        self.end_headers()

    def _pause(self, seconds: float) -> None:
        """Wait; raises an OSError where the proxy ends meanwhile."""
        if self.server.is_ending.wait(seconds):
            raise ConnectionAbortedError("The proxy ends.")


def _piece_bytes(fault: PullFault) -> int:
    if fault.bytes_per_s is None:
        return _CHUNK
    return max(1, min(_CHUNK, fault.bytes_per_s // _PIECES_PER_S))
