"""An HTTP proxy in front of a registry; the proxy logs each request, and disturbs answers."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import socket
import socketserver
import threading
import time
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from harness.errors import HarnessError
from harness.http_headers import content_range, length
from harness.limits import REGISTRY_CONNECTIONS, REGISTRY_UPLOAD_MIB, LimitError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator
    from io import BufferedIOBase

    from typing_extensions import Self

    from harness.registry import PullFault, RegistryLog, RegistryRequest

_CHUNK = 1 << 14
#: The most bytes that an answer without a length, such as a list of tags, may have; the proxy reads
#: the whole answer into memory.
_HELD_BYTES = 16 << 20
#: At a limited speed, the proxy sends an answer in this many pieces per second.
_PIECES_PER_S = 10
_CLOSE_S = 10.0
#: Hop-by-hop headers (RFC 9110, 7.6.1), and headers that this proxy writes itself.
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "date", "server", "content-length"}
)
_LENGTH = re.compile(r"[0-9]{1,18}")
_ERRORS = {
    401: "UNAUTHORIZED",
    403: "DENIED",
    404: "MANIFEST_UNKNOWN",
    429: "TOOMANYREQUESTS",
}


class RegistryProxy:
    """Listens on the host's loopback interface in a `with` block.

    At the end of the block, all threads of the proxy end.

    `upstream` opens a connection to the registry. Without `tls`, clients use plain HTTP.
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
        # The thread is a daemon, so that an interrupted run does not wait for it.
        self._thread.daemon = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join(_CLOSE_S)
        self._server.end_connections(_CLOSE_S)
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """Serves each connection in a separate thread."""

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
        self._uploaded = 0
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()

    @override
    def verify_request(self, request: object, client_address: object) -> bool:
        """Return whether to serve a connection.

        The number of connections is limited, since each connection has a thread.
        """
        with self._lock:
            is_one_too_many = len(self._open) >= REGISTRY_CONNECTIONS.value
        if is_one_too_many:
            self.log.refused(str(REGISTRY_CONNECTIONS.error("The registry of the test")))
        return not is_one_too_many

    def accepts_upload(self, count: int) -> bool:
        """Return whether a client may upload `count` bytes; uploads are stored on this host's disk."""
        with self._lock:
            if self._uploaded + count > REGISTRY_UPLOAD_MIB.bytes:
                return False
            self._uploaded += count
            return True

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
        """Print nothing, since a client may close its connection at any time."""

    def end_connections(self, timeout_s: float) -> None:
        """Close all connections; raises HarnessError if the thread of a connection does not end."""
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
    """A fault requires that the proxy closes the connection."""


class _ClientGoneError(Exception):
    """The client closed its connection before the end of its request."""


class _RefusedError(Exception):
    """The proxy can't forward a request.

    The proxy answers with `status`, and closes the connection.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _failed(error: Exception) -> _RefusedError:
    return _RefusedError(502, f"The registry behind this proxy failed: {error}.")


class _Body:
    """A request's body, which the proxy reads in pieces."""

    def __init__(self, file: BufferedIOBase, length: int) -> None:
        self._file = file
        self.left = length

    def read(self, size: int = -1) -> bytes:
        try:
            piece = self._file.read(min(self.left, size if size >= 0 else _CHUNK))
        except OSError as error:
            raise _ClientGoneError from error
        if not piece and self.left:
            raise _ClientGoneError
        self.left -= len(piece)
        return piece

    def discard(self) -> None:
        while self.read(_CHUNK):
            pass


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
            # TLS is not shut down, so that the client can tell that the answer was truncated.
            cast("socket.socket", self.request).close()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing, since RegistryLog has all requests."""

    @override
    def handle_one_request(self) -> None:
        """Serve one request, with any HTTP method."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._requests += 1
        try:
            request, fault = self.server.log.began(
                self._number,
                self.command,
                self.headers.get("Host", ""),
                self.path,
                is_first=self._requests == 1,
            )
        except LimitError:
            # A request that can't be logged is not served.
            self.close_connection = True
            return
        try:
            try:
                self._answer(fault, request)
            except _RefusedError as error:
                self.close_connection = True
                self._refuse(error.status, request, str(error))
            self.wfile.flush()
        except _CutError:
            request.is_cut = self.close_connection = True
        except (OSError, _ClientGoneError):
            # Only an error sets these fields: after a complete answer, the client may already have
            # sent its next request.
            request.is_aborted = self.close_connection = True
            request.ended_s = time.monotonic()

    def _answer(self, fault: PullFault, request: RegistryRequest) -> None:
        body = self._body()
        if fault.delay_s:
            self._pause(fault.delay_s)
        status = fault.status
        if status is None and request.is_blob:
            status = fault.blob_status
        if status is not None:
            body.discard()
            self._refuse(status, request, "The test planned this answer.")
            return
        with contextlib.closing(self.server.upstream()) as upstream:
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in _HOP
            }
            if body.left:
                headers["Content-Length"] = str(body.left)
            try:
                upstream.request(
                    self.command, self.path, body=body if body.left else None, headers=headers
                )
                answer = upstream.getresponse()
            except (ValueError, http.client.InvalidURL) as error:
                raise _RefusedError(400, f"The request can't be forwarded: {error}.") from error
            except (OSError, http.client.HTTPException) as error:
                raise _failed(error) from error
            self._pass_on(answer, fault, request)

    def _body(self) -> _Body:
        """Return the request's body; raises _RefusedError if the body can't be forwarded."""
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if "Transfer-Encoding" in self.headers:
            raise _RefusedError(411, "A request with a body needs a Content-Length.")
        if len(set(lengths)) != 1 or not _LENGTH.fullmatch(lengths[0]):
            raise _RefusedError(400, "The Content-Length is not a number.")
        if not self.server.accepts_upload(int(lengths[0])):
            raise _RefusedError(413, str(REGISTRY_UPLOAD_MIB.error("The registry of the test")))
        return _Body(self.rfile, int(lengths[0]))

    def _pass_on(
        self, answer: http.client.HTTPResponse, fault: PullFault, request: RegistryRequest
    ) -> None:
        count = length(answer.headers)
        pieces: Iterable[bytes]
        if count is None:
            try:
                content = answer.read(_HELD_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                raise _failed(error) from error
            if len(content) > _HELD_BYTES:
                raise _RefusedError(
                    502,
                    "The registry's answer states no Content-Length, and is longer than the proxy can hold.",
                )
            count, pieces = len(content), [content]
        else:
            pieces = _pieces(answer, _piece_bytes(fault))
        self._send_head(
            answer.status,
            [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP],
            count,
            request,
        )
        is_blob = "/blobs/" in self.path and answer.status in {200, 206}
        at = content_range(answer.headers)[0] or 0
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
        if self.command != "HEAD" and request.body_bytes < count:
            # The registry closed its connection; the client must not wait for the rest.
            self.close_connection = True

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
        # These fields are set before any data is sent, since a test may read the log as soon as the
        # client has data.
        request.status, request.ended_s = status, time.monotonic()
        self.end_headers()

    def _pause(self, seconds: float) -> None:
        """Wait for `seconds`; raises ConnectionAbortedError if the proxy is closed during the wait."""
        if self.server.is_ending.wait(seconds):
            raise ConnectionAbortedError("The registry's proxy is being closed.")


def _pieces(answer: http.client.HTTPResponse, size: int) -> Iterator[bytes]:
    """Yield the pieces of an answer's body until the body ends or the registry fails."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while piece := answer.read(size):
            yield piece


def _piece_bytes(fault: PullFault) -> int:
    if fault.bytes_per_s is None:
        return _CHUNK
    return max(1, min(_CHUNK, fault.bytes_per_s // _PIECES_PER_S))
