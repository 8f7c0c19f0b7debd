"""HTTP requests that a server can neither redirect away from HTTP(S) nor delay for ever.

Each read of a response, including the status line and headers, must reach a minimum rate and end
before a deadline. Redirects are followed only to http and https, and never from https to http.
"""

from __future__ import annotations

import contextlib

# `socket` would import this codec at the first connection, when there may be no memory left.
import encodings.idna  # noqa: F401
import functools
import http.client
import io
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from harness.provisioning.wait import WaitTimeoutError

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from typing import IO

    from typing_extensions import Buffer

    from harness.provisioning.wait import Deadline

_PORTS = {"http": 80, "https": 443}
#: The status codes of interim responses, except 100: 102 Processing, and 103 Early Hints.
_INTERIM = frozenset({102, 103})
#: How many interim responses a server may send before the final response.
_MOST_INTERIM = 100
#: The time limit for connecting to one address of a host that has more addresses.
_CONNECT_S = 5.0
#: The characters of a URL on the wire (RFC 3986); urllib would drop other characters or send them.
_URL = re.compile(r"[!-~]{1,8192}")
#: The user and the password in the URL of a server or a proxy.
_PASSWORD = re.compile(r"(?<![^/'\s])[^/'\s]*@")


class RefusedUrlError(ValueError):
    """The harness refuses to request a URL; the message is a clause, without a full stop."""


class StalledError(TimeoutError):
    """A server sends or receives too slowly; the message is a clause whose subject is the server."""


def origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of a URL, the parts to which credentials are bound.

    Raises RefusedUrlError if the URL is neither http nor https, lacks a host, or has a wrong port.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise RefusedUrlError(f"'{url}' is not a URL ({error})") from error
    if parts.scheme not in _PORTS:
        raise RefusedUrlError(f"'{url}' is not a URL of http or https")
    if not parts.hostname or "@" in parts.netloc or not _URL.fullmatch(url) or port == 0:
        raise RefusedUrlError(f"'{url}' is not the URL of a host")
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def joined(base: str, reference: str) -> str:
    """Return the absolute URL of `reference`, a URL in a response from the URL `base`.

    Raises RefusedUrlError in the same cases as `origin`, and if `base` is https and `reference` is
    http.
    """
    try:
        url = urllib.parse.urljoin(base, reference)
    except ValueError as error:
        raise RefusedUrlError(f"'{reference}' is not a URL ({error})") from error
    if origin(url)[0] == "http" and base.startswith("https:"):
        raise RefusedUrlError(f"'{url}' is not https, but '{base}' is")
    return url


class Pace:
    """Ends an exchange at a deadline, or if fewer than `stall_bytes` are transferred within `stall_s`.

    For `stall_s`, only the time of waiting for the server counts.
    """

    def __init__(self, *, stall_s: float, stall_bytes: int, deadline: Deadline) -> None:
        self._stall_s = stall_s
        self._stall_bytes = stall_bytes
        self._deadline = deadline
        self._waited_s = 0.0
        self._moved = 0

    @property
    def seconds(self) -> float:
        """Return the time limit of the next wait for the server.

        Raises WaitTimeoutError after the deadline.
        """
        left_s = self._deadline.cap(self._stall_s - self._waited_s)
        if self._deadline.has_passed():
            raise WaitTimeoutError("The exchange with a server did not end before its deadline.")
        # With a timeout of 0, a socket would not wait at all.
        return max(left_s, 0.001)

    def now(self) -> float:
        return self._deadline.clock.monotonic()

    def count(self, moved: int, since: float) -> None:
        """Count the bytes transferred during one wait; raises StalledError if the exchange is too slow."""
        self._waited_s += self.now() - since
        self._moved += moved
        if self._moved >= self._stall_bytes:
            self._waited_s, self._moved = 0.0, 0
        elif self._waited_s >= self._stall_s:
            raise self.stalled()

    def stalled(self) -> StalledError:
        if not self._moved:
            return StalledError(f"sent nothing for {self._stall_s:g} s")
        return StalledError(
            f"sent fewer than {self._stall_bytes} bytes within {self._stall_s:g} s"
        )


class PacedFile(io.RawIOBase):
    """A file to upload; a read raises StalledError if the server receives the file too slowly."""

    def __init__(self, file: IO[bytes], pace: Pace) -> None:
        self._file = file
        self._pace = pace
        self._since: float | None = None
        self._last = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def read(self, size: int = -1) -> bytes:
        # The time since the last block was spent on sending that block.
        if self._since is not None:
            self._pace.count(self._last, self._since)
        _ = self._pace.seconds
        block = self._file.read(size)
        self._last, self._since = len(block), self._pace.now()
        return block


class _PacedSocket(io.RawIOBase):
    """The receiving side of a socket; a `Pace` limits how long each read waits."""

    def __init__(self, sock: socket.socket, pace: Pace) -> None:
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._pace = pace

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Buffer, /) -> int | None:
        self._socket.settimeout(self._pace.seconds)
        since = self._pace.now()
        try:
            count = self._raw.readinto(buffer)
        except TimeoutError as error:
            _ = self._pace.seconds
            raise self._pace.stalled() from error
        except ConnectionError:
            raise
        except OSError as error:
            # Callers could mistake an OSError for an error of the disk to which they write the body.
            raise ConnectionError(str(error)) from error
        if count:
            self._pace.count(count, since)
        return count

    @override
    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    _statuses = 0

    def __init__(self, sock: socket.socket, *words: object, pace: Pace, **more: object) -> None:
        super().__init__(sock, *words, **more)  # type: ignore[arg-type]
        self.fp.close()
        self.fp = io.BufferedReader(_PacedSocket(sock, pace))

    @override
    def begin(self) -> None:
        super().begin()
        # http.client skips only the interim response 100. A response 101 would end HTTP.
        while self.status in _INTERIM:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()

    def _read_status(self) -> tuple[str, int, str]:
        """Read a status line; limit the number of interim responses, which http.client does not limit."""
        self._statuses += 1
        if self._statuses > _MOST_INTERIM + 1:
            raise http.client.HTTPException(f"it sent more than {_MOST_INTERIM} interim responses")
        status: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
        return status


class _HttpConnection(http.client.HTTPConnection):
    """A connection on which a server may answer with an error before it has received the whole request."""

    _lost: OSError | None = None

    @override
    def endheaders(self, message_body: Any = None, *, encode_chunked: bool = False) -> None:
        if self.sock is None:
            self.connect()
        try:
            super().endheaders(message_body, encode_chunked=encode_chunked)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError) as error:
            self._lost = error

    @override
    def getresponse(self) -> http.client.HTTPResponse:
        answer = super().getresponse()
        if self._lost is not None and answer.status < http.HTTPStatus.BAD_REQUEST:
            raise self._lost
        return answer


class _HttpsConnection(_HttpConnection, http.client.HTTPSConnection): ...


def _paced(
    kind: type[_HttpConnection], pace: Pace, host: str, **more: object
) -> http.client.HTTPConnection:
    connection = kind(host, **more)  # type: ignore[arg-type]
    connection.response_class = functools.partial(_PacedResponse, pace=pace)  # type: ignore[assignment]
    connection._create_connection = functools.partial(_connected, pace)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
    return connection


def _connected(
    pace: Pace, address: tuple[str, int], timeout: float, _source: object
) -> socket.socket:
    """Connect to a host's addresses in turn until one accepts, and return the connected socket.

    `socket.create_connection` would wait up to `timeout` for each address, even beyond the deadline
    of `pace`.
    """
    *others, last = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    for one in others:
        with contextlib.suppress(OSError):
            return _connected_to(one, min(_CONNECT_S, pace.seconds), timeout)
    return _connected_to(last, pace.seconds, timeout)


def _connected_to(found: tuple[Any, ...], within_s: float, timeout: float) -> socket.socket:
    family, kind, protocol, _, place = found
    with contextlib.ExitStack() as unless_connected:
        sock = unless_connected.enter_context(socket.socket(family, kind, protocol))
        sock.settimeout(within_s)
        sock.connect(place)
        sock.settimeout(timeout)
        unless_connected.pop_all()
    return sock


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    @override
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        made = functools.partial(_paced, _HttpConnection, self._pace)
        return self.do_open(made, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, pace: Pace, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._pace = pace
        self._tls = context

    @override
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        made = functools.partial(_paced, _HttpsConnection, self._pace)
        return self.do_open(made, req, context=self._tls)


class NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https, but no redirect from https to http.

    A redirect that is not followed raises HTTPError; `why_not_followed` returns the reason.
    """

    @override
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            joined(req.full_url, newurl)
        except RefusedUrlError:
            return None
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and req.get_method() == "HEAD":
            # Before Python 3.13, urllib would request the whole body by GET.
            made.method = "HEAD"
        return made

    @override
    def http_error_302(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
    ) -> IO[bytes] | None:
        # urllib itself would read the whole body, and raise ValueError for a bad URL.
        fp.close()
        try:
            followed: IO[bytes] | None = super().http_error_302(req, fp, code, msg, headers)
        except RefusedUrlError:
            raise
        except ValueError:
            return None
        return followed

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def why_not_followed(error: urllib.error.HTTPError) -> str | None:
    """Return a clause that says why a redirect was not followed, or None if there was no redirect."""
    target = error.headers.get("Location") or error.headers.get("URI")
    if not 300 <= error.code < 400 or target is None:
        return None
    try:
        joined(error.url, target)
    except RefusedUrlError as refused:
        return str(refused)
    return f"it leads to '{target}' once more, or the redirected request sends data"


class HttpOpener:
    """Opens URLs through the proxies that the environment names; `redirects` handles redirects."""

    def __init__(
        self,
        redirects: type[NoDowngrade] = NoDowngrade,
        *,
        others: tuple[type[urllib.request.BaseHandler], ...] = (),
    ) -> None:
        self._redirects = redirects
        self._others = others

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def open(self, request: urllib.request.Request, pace: Pace) -> http.client.HTTPResponse:
        """Return the response to a request.

        Raises HTTPError for an error status, RefusedUrlError for a URL that can't be requested,
        WaitTimeoutError at the request's deadline, and URLError, HTTPException or OSError if the
        connection fails.
        """
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.UnknownHandler(),
            _HttpHandler(pace),
            _HttpsHandler(pace, self._tls),
            urllib.request.HTTPDefaultErrorHandler(),
            self._redirects(),
            urllib.request.HTTPErrorProcessor(),
            *(other() for other in self._others),
        ):
            opener.add_handler(handler)
        try:
            answer: http.client.HTTPResponse = opener.open(request, timeout=pace.seconds)
        except (ValueError, OverflowError, http.client.InvalidURL) as error:
            # InvalidURL may also be about the URL of a proxy.
            if isinstance(error, RefusedUrlError):
                raise
            said = f"'{request.full_url}' can't be requested ({error})"
            raise RefusedUrlError(_PASSWORD.sub("…@", said)) from error
        return answer


def read_whole(answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
    """Return the body of a response, or the first `most_bytes` + 1 bytes of a longer body."""
    body = bytearray()
    while len(body) <= most_bytes and (
        chunk := answer.read1(min(1 << 18, most_bytes + 1 - len(body)))
    ):
        body += chunk
    return bytes(body)
