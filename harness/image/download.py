"""Fetches files by HTTP: goes on where it stopped, and tells how far it is."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.image import ImageFetchError
from harness.image.headers import content_range, length, retry_after, validator
from harness.provisioning.wait import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from email.message import Message
    from http.client import HTTPMessage
    from pathlib import Path
    from typing import IO

    from harness.provisioning.wait import Clock, Deadline

_CHUNK = 1 << 18
_SMALL_BYTES = 4 << 20
_NO_RANGE = 416
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_HOPELESS = (socket.gaierror, ssl.SSLCertVerificationError, FileNotFoundError)
_TOLD_PERCENT = 10
_TOLD_S = 10.0
_FROM = ".from.json"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a download goes on that gets nowhere.

    A try ends when fewer than `stall_bytes` come within `stall_s`; a place is given up after
    `tries` that brought nothing. A server may ask for a pause, by Retry-After, of up to
    `longest_pause_s`.
    """

    tries: int = 5
    stall_s: float = 30.0
    stall_bytes: int = 1 << 16
    pause_s: float = 2.0
    longest_pause_s: float = 300.0


class _TroubleError(Exception):
    """A try that failed: a sentence without its full stop, and whether another may do better."""

    def __init__(
        self, sentence: str, *, is_final: bool = False, pause_s: float | None = None
    ) -> None:
        super().__init__(sentence)
        self.is_final = is_final
        self.pause_s = pause_s


class NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows no redirection from https to http: for some images the connection alone vouches."""

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
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            fp.close()
            raise _TroubleError(
                f"'{req.full_url}' leads to '{newurl}', which is no https", is_final=True
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Downloader:
    """Fetches by http, https and file, through the proxies that the environment names.

    The variables are those of urllib: http_proxy, https_proxy, no_proxy.
    """

    def __init__(
        self, *, patience: Patience | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._patience = Patience() if patience is None else patience
        self._tell = tell
        self._opener = urllib.request.build_opener(NoDowngrade)

    def read(self, urls: Sequence[str], *, deadline: Deadline) -> tuple[str, bytes]:
        """Return the first of `urls` that can be had, and its content, of a few MiB at most.

        Raises ImageFetchError, with the last trouble of each, or WaitTimeoutError.
        """

        def fetch(url: str) -> bytes:
            with self._open(url, {}, deadline) as response:
                content: bytes = response.read(_SMALL_BYTES)
                expected = length(response.headers)
                if expected is not None and len(content) < min(expected, _SMALL_BYTES):
                    raise _TroubleError(
                        f"'{url}' closed the connection after {len(content)} of {expected} bytes"
                    )
                return content

        return self._first(urls, fetch, deadline=deadline)

    def to_file(self, urls: Sequence[str], part: Path, *, deadline: Deadline) -> str:
        """Complete the file `part` from the first of `urls` that serves it, and return that one.

        What an earlier call left there is gone on with. Only one process may do so at a time.
        Raises ImageFetchError, with the last trouble of each url, or WaitTimeoutError.
        """
        url, _ = self._first(
            urls, lambda url: self._complete(url, part, deadline), deadline=deadline, part=part
        )
        part.with_name(part.name + _FROM).unlink(missing_ok=True)
        return url

    def _first(
        self,
        urls: Sequence[str],
        fetch: Callable[[str], bytes],
        *,
        deadline: Deadline,
        part: Path | None = None,
    ) -> tuple[str, bytes]:
        troubles = []
        for url in urls:
            fruitless = 0
            while True:
                before = _size(part)
                try:
                    return url, fetch(url)
                except _TroubleError as trouble:
                    fruitless = 1 if _size(part) > before else fruitless + 1
                    if trouble.is_final or fruitless >= self._patience.tries:
                        often = f", {fruitless} times in a row" if fruitless > 1 else ""
                        troubles.append(f"{trouble}{often}.")
                        break
                    self._pause(trouble, fruitless, deadline)
        raise ImageFetchError(
            "\n".join(
                [
                    f"'{urls[0].rpartition('/')[2]}' could not be fetched; every place was tried:",
                    *(f"  {trouble}" for trouble in troubles),
                    *(["  What came is kept, and the next try goes on with it."] if part else []),
                    "See whether this host has a network or needs a proxy (https_proxy),",
                    "or name another place with --mirror.",
                ]
            )
        )

    def _pause(self, trouble: _TroubleError, fruitless: int, deadline: Deadline) -> None:
        pause_s = trouble.pause_s
        if pause_s is None:
            pause_s = min(self._patience.pause_s * 2 ** (fruitless - 1), 60.0)
        if pause_s >= deadline.remaining_s():
            raise WaitTimeoutError(f"The time for the download is over; last seen: {trouble}.")
        self._tell(f"{trouble}; trying again{f' in {pause_s:.0f} s' if pause_s else ''}")
        deadline.clock.sleep(pause_s)

    def _complete(self, url: str, part: Path, deadline: Deadline) -> bytes:
        have = _size(part)
        headers = {} if have == 0 else {"Range": f"bytes={have}-", **_if_range(part, url)}
        try:
            with self._open(url, headers, deadline) as response:
                begin, total = _extent(url, response, have)
                if have and not begin:
                    self._tell(f"'{url}' has another file by now, or sends files only whole")
                _note_origin(part, url, response.headers)
                with part.open("r+b" if part.exists() else "wb", buffering=0) as sink:
                    sink.truncate(begin)
                    sink.seek(begin)
                    self._drain(url, response, sink, total, deadline)
        except _RangeError as error:
            if error.total != have:
                part.unlink()
                raise _TroubleError(
                    f"'{url}' has nothing beyond the {have} bytes that are here (416), which are "
                    "dropped",
                    pause_s=0.0,
                ) from error
        return b""

    def _drain(
        self,
        url: str,
        response: http.client.HTTPResponse,
        sink: IO[bytes],
        total: int | None,
        deadline: Deadline,
    ) -> None:
        """Copy the response's body until its end, or until it comes too slowly."""
        meter = _Meter(sink.tell(), total, deadline.clock)
        window_from, window = deadline.clock.monotonic(), 0
        with _naming_connection(url, self._patience.stall_s):
            while chunk := response.read1(_CHUNK):
                sink.write(chunk)
                window += len(chunk)
                if line := meter.add(len(chunk)):
                    self._tell(line)
                if deadline.has_passed():
                    raise WaitTimeoutError(f"The time for the download is over: {meter.line()}.")
                at = deadline.clock.monotonic()
                if at - window_from >= self._patience.stall_s:
                    if window < self._patience.stall_bytes:
                        raise _TroubleError(
                            f"'{url}' sent fewer than {self._patience.stall_bytes} bytes within "
                            f"{self._patience.stall_s:g} s"
                        )
                    window_from, window = at, 0
        if total is not None and sink.tell() < total:
            raise _TroubleError(
                f"'{url}' closed the connection after {sink.tell()} of {total} bytes"
            )

    @contextlib.contextmanager
    def _open(
        self, url: str, headers: Mapping[str, str], deadline: Deadline
    ) -> Iterator[http.client.HTTPResponse]:
        request = urllib.request.Request(  # noqa: S310 - schemes are those of the catalogue
            url, headers={"Accept-Encoding": "identity", **headers}
        )
        patience_s = max(0.1, deadline.cap(self._patience.stall_s))
        with contextlib.ExitStack() as holding:
            with _naming_connection(url, self._patience.stall_s):
                try:
                    response = self._opener.open(request, timeout=patience_s)
                except urllib.error.HTTPError as error:
                    with error:
                        raise self._answered(url, error, deadline) from error
                holding.enter_context(response)
            yield response

    def _answered(self, url: str, error: urllib.error.HTTPError, deadline: Deadline) -> Exception:
        if error.code == _NO_RANGE:
            return _RangeError(content_range(error.headers)[1])
        said = f"'{url}' answered {error.code} {error.reason}"
        asked_s = retry_after(error.headers, deadline.clock)
        if asked_s is not None and asked_s > self._patience.longest_pause_s:
            return _TroubleError(f"{said}, and asks to wait {asked_s:.0f} s", is_final=True)
        return _TroubleError(said, is_final=error.code not in _TEMPORARY, pause_s=asked_s)


class _RangeError(Exception):
    """The server has nothing where the download wants to go on; `total` is what it has."""

    def __init__(self, total: int | None) -> None:
        super().__init__(f"the file ends at {total}")
        self.total = total


@contextlib.contextmanager
def _naming_connection(url: str, stall_s: float) -> Iterator[None]:
    """Turn what goes wrong on a connection into the trouble that it is."""
    try:
        yield
    except TimeoutError as error:
        raise _TroubleError(f"'{url}' sent nothing for {stall_s:g} s") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _TroubleError(f"'{url}' sent nothing for {stall_s:g} s") from error
        is_final = isinstance(error.reason, (*_HOPELESS, str))
        raise _TroubleError(
            f"'{url}' could not be reached ({error.reason})", is_final=is_final
        ) from error
    except (ConnectionError, ssl.SSLError, http.client.HTTPException) as error:
        said = str(error) or type(error).__name__
        raise _TroubleError(f"'{url}' broke the connection ({said})") from error


class _Meter:
    """Says how far a download is, every so often."""

    def __init__(self, begun_at: int, total: int | None, clock: Clock) -> None:
        self._begun_at = self._at = begun_at
        self._total = total
        self._clock = clock
        self._since = self._told_at = clock.monotonic()
        self._told_percent = self._percent()

    def _percent(self) -> int:
        return 0 if not self._total else 100 * self._at // self._total

    def add(self, count: int) -> str | None:
        """Count bytes; return a line when it is time for one."""
        self._at += count
        now = self._clock.monotonic()
        is_due = (
            self._percent() >= self._told_percent + _TOLD_PERCENT or now - self._told_at >= _TOLD_S
        )
        if not is_due:
            return None
        self._told_percent, self._told_at = self._percent(), now
        return self.line()

    def line(self) -> str:
        elapsed = self._clock.monotonic() - self._since
        speed = f", {_mib(self._at - self._begun_at) / elapsed:.1f} MiB/s" if elapsed > 0 else ""
        if self._total is None:
            return f"{_mib(self._at):.1f} MiB have come{speed}"
        return f"{self._percent()} % of {_mib(self._total):.1f} MiB have come{speed}"


def _mib(count: int) -> float:
    return count / (1 << 20)


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0


def _extent(url: str, response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return where in the file the body belongs, and how long the file is."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0, length(response.headers)
    begin, total = content_range(response.headers)
    if begin != have:
        raise _TroubleError(f"'{url}' sent another part than it was asked for", is_final=True)
    return begin, total


def _note_origin(part: Path, url: str, headers: Message) -> None:
    """Note by what the server tells this file from later ones."""
    origin = part.with_name(part.name + _FROM)
    origin.write_text(json.dumps({"url": url, "validator": validator(headers)}))


def _if_range(part: Path, url: str) -> dict[str, str]:
    """Return the condition on which the server may go on; another place knows another one."""
    try:
        told = json.loads(part.with_name(part.name + _FROM).read_text())
        is_same = told["url"] == url and isinstance(told["validator"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"If-Range": told["validator"]} if is_same else {}
