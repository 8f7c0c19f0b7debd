"""Downloads files by HTTP: resumes partial files, retries, and reports progress.

docs/design-decisions.md explains why this module does not use curl or httpx.
"""

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

from harness.http_headers import content_range, length, retry_after, validator
from harness.http_requests import (
    HttpOpener,
    NoDowngrade,
    Pace,
    RefusedUrlError,
    StalledError,
    read_whole,
    why_not_followed,
)
from harness.image import ImageFetchError
from harness.limits import DOWNLOAD_LIST_MIB, DOWNLOAD_MIB, DOWNLOAD_UNKNOWN_MIB
from harness.provisioning.wait import WaitTimeoutError
from harness.visible_text import shortened, visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from email.message import Message
    from pathlib import Path
    from typing import IO

    from harness.limits import Limit
    from harness.provisioning.wait import Clock, Deadline

_CHUNK = 1 << 18
_REASON_BYTES = 200
_NO_RANGE = 416
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_PERMANENT = (socket.gaierror, ssl.SSLCertVerificationError, FileNotFoundError)
_REPORT_PERCENT = 10
_REPORT_S = 10.0
_ORIGIN = ".from.json"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """The limits after which a download without progress switches to the next URL.

    A try ends when fewer than `stall_bytes` arrive within `stall_s`. After `tries` tries in a row
    that ended in this way, or that received less than `stall_bytes`, the next URL is used. If a
    server requests a pause by Retry-After, the download pauses, or uses the next URL if the pause
    would be longer than `longest_pause_s`.
    """

    tries: int = 5
    stall_s: float = 30.0
    stall_bytes: int = 1 << 16
    pause_s: float = 2.0
    longest_pause_s: float = 300.0


class _TransferError(Exception):
    """A try failed. The message is a sentence without the full stop.

    If `is_final`, every later try would fail too. If `is_slow`, the received bytes are not
    regarded as progress. If `is_useless`, the partial file can't become the right file.
    """

    def __init__(
        self,
        sentence: str,
        *,
        is_final: bool = False,
        is_slow: bool = False,
        is_useless: bool = False,
        pause_s: float | None = None,
    ) -> None:
        super().__init__(visible_line(sentence))
        self.is_final = is_final
        self.is_slow = is_slow
        self.is_useless = is_useless
        self.pause_s = pause_s


class Downloader:
    """Downloads from http, https and file URLs.

    As in urllib, the environment variables http_proxy, https_proxy and no_proxy select a proxy.
    """

    def __init__(
        self, *, patience: Patience | None = None, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self._patience = Patience() if patience is None else patience
        self._report = report
        self._opener = HttpOpener(NoDowngrade, others=(urllib.request.FileHandler,))

    def read(self, urls: Sequence[str], *, deadline: Deadline) -> tuple[str, bytes]:
        """Return the first of `urls` that can be downloaded, and its content, which must be small.

        Raises ImageFetchError with the last error of each URL, or WaitTimeoutError.
        """

        def fetch(url: str) -> bytes:
            with (
                self._open(url, {}, deadline) as response,
                _connection_errors(url, self._patience.stall_s),
            ):
                content = read_whole(response, DOWNLOAD_LIST_MIB.bytes)
                if len(content) > DOWNLOAD_LIST_MIB.bytes:
                    raise _beyond(DOWNLOAD_LIST_MIB, url)
                _, expected = _extent(url, response, 0)
                if expected is not None and len(content) < expected:
                    raise _TransferError(
                        f"'{url}' closed the connection after {len(content)} of {expected} bytes"
                    )
                return content

        return self._first(urls, fetch, deadline=deadline)

    def to_file(self, urls: Sequence[str], part: Path, *, deadline: Deadline) -> str:
        """Complete the file `part` from the first of `urls` that has the file, and return that URL.

        The bytes that an earlier call left in `part` are not downloaded again. Only one process
        may use `part` at a time. Raises ImageFetchError, with the last error of each URL, or
        WaitTimeoutError.
        """
        url, _ = self._first(
            urls, lambda url: self._complete(url, part, deadline), deadline=deadline, part=part
        )
        part.with_name(part.name + _ORIGIN).unlink(missing_ok=True)
        return url

    def _first(
        self,
        urls: Sequence[str],
        fetch: Callable[[str], bytes],
        *,
        deadline: Deadline,
        part: Path | None = None,
    ) -> tuple[str, bytes]:
        errors = []
        for url in urls:
            failures, best = 0, _size(part)
            while True:
                try:
                    return url, fetch(url)
                except _TransferError as error:  # noqa: PERF203 - few tries
                    if error.is_useless and part is not None:
                        part.unlink(missing_ok=True)
                    has_grown = not error.is_slow and (
                        _size(part) >= best + self._patience.stall_bytes
                    )
                    best = max(best, _size(part))
                    failures = 1 if has_grown else failures + 1
                    if error.is_final or failures >= self._patience.tries:
                        count = f", {failures} times in a row" if failures > 1 else ""
                        errors.append(f"{error}{count}.")
                        break
                    self._pause(error, failures, deadline)
        raise ImageFetchError(
            "\n".join(
                [
                    f"'{urls[0].rpartition('/')[2]}' could not be downloaded from any of these URLs:",
                    *(f"  {error}" for error in errors),
                    *(
                        ["  The partial file is kept, and the next run resumes it."]
                        if part
                        else []
                    ),
                    "Check the network and the proxy (https_proxy), or name another location with",
                    "--mirror.",
                ]
            )
        )

    def _pause(self, error: _TransferError, failures: int, deadline: Deadline) -> None:
        pause_s = error.pause_s
        if pause_s is None:
            pause_s = min(self._patience.pause_s * 2 ** (failures - 1), 60.0)
        if pause_s >= deadline.remaining_s():
            raise WaitTimeoutError(
                f"The download did not end before its deadline; the last error: {error}."
            )
        self._report(f"{error}; trying again{f' in {pause_s:.0f} s' if pause_s else ''}")
        deadline.clock.sleep(pause_s)

    def _complete(self, url: str, part: Path, deadline: Deadline) -> bytes:
        have = _size(part)
        headers = {} if have == 0 else {"Range": f"bytes={have}-", **_if_range(part, url)}
        try:
            with self._open(url, headers, deadline) as response:
                begin, total = _extent(url, response, have)
                if total is not None and total > DOWNLOAD_MIB.bytes:
                    raise _beyond(DOWNLOAD_MIB, url)
                if have and not begin:
                    self._report(
                        f"'{url}' has changed, or does not support ranges; downloading the whole file"
                    )
                _record_origin(part, url, response.headers)
                with part.open("r+b" if part.exists() else "wb", buffering=0) as sink:
                    sink.truncate(begin)
                    sink.seek(begin)
                    self._drain(url, response, sink, total, deadline)
        except _RangeError as error:
            if error.total != have:
                part.unlink()
                raise _TransferError(
                    f"'{url}' has no bytes after the first {have} (416); the partial file is deleted",
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
        """Copy the response's body. Stop when the body exceeds the announced size."""
        meter = _Meter(sink.tell(), total, deadline.clock)
        most = DOWNLOAD_UNKNOWN_MIB.bytes if total is None else total
        with _connection_errors(url, self._patience.stall_s):
            while chunk := response.read1(max(1, min(_CHUNK, most + 1 - sink.tell()))):
                sink.write(chunk)
                if line := meter.add(len(chunk)):
                    self._report(line)
                if deadline.has_passed():
                    raise WaitTimeoutError(
                        f"The download did not end before its deadline: {meter.line()}."
                    )
                if sink.tell() > most and total is None:
                    raise _beyond(DOWNLOAD_UNKNOWN_MIB, url)
                if sink.tell() > most:
                    raise _TransferError(
                        f"'{url}' sent more than the {total} bytes that it announced",
                        is_final=True,
                        is_useless=True,
                    )
        if total is not None and sink.tell() < total:
            raise _TransferError(
                f"'{url}' closed the connection after {sink.tell()} of {total} bytes"
            )

    @contextlib.contextmanager
    def _open(
        self, url: str, headers: Mapping[str, str], deadline: Deadline
    ) -> Iterator[http.client.HTTPResponse]:
        request = urllib.request.Request(  # noqa: S310 - the catalogue allows http, https and file
            url, headers={"Accept-Encoding": "identity", **headers}
        )
        pace = Pace(
            stall_s=self._patience.stall_s,
            stall_bytes=self._patience.stall_bytes,
            deadline=deadline,
        )
        with contextlib.ExitStack() as holding:
            with _connection_errors(url, self._patience.stall_s):
                try:
                    response = self._opener.open(request, pace)
                except urllib.error.HTTPError as error:
                    # `with error` would fail for a redirect whose body was not read.
                    with contextlib.closing(error):
                        if error.code == _NO_RANGE and "Range" in headers:
                            raise _RangeError(content_range(error.headers)[1]) from error
                        raise self._answered(url, error, deadline) from error
                holding.enter_context(response)
            yield response

    def _answered(
        self, url: str, error: urllib.error.HTTPError, deadline: Deadline
    ) -> _TransferError:
        if (why := why_not_followed(error)) is not None:
            return _TransferError(
                f"'{url}' answered {error.code}, and its redirect is not followed: {why}",
                is_final=True,
            )
        answer = f"'{url}' answered {error.code} {shortened(str(error.reason), _REASON_BYTES)}"
        asked_s = retry_after(error.headers, deadline.clock)
        if asked_s is not None and asked_s > self._patience.longest_pause_s:
            return _TransferError(
                f"{answer}, and asks for a pause of {asked_s:.0f} s", is_final=True
            )
        return _TransferError(answer, is_final=error.code not in _TEMPORARY, pause_s=asked_s)


class _RangeError(Exception):
    """The requested range begins after the file's end. `total` is the file's size."""

    def __init__(self, total: int | None) -> None:
        super().__init__(f"the file ends at {total}")
        self.total = total


@contextlib.contextmanager
def _connection_errors(url: str, stall_s: float) -> Iterator[None]:
    """Raise _TransferError for an error of the connection."""
    try:
        yield
    except RefusedUrlError as error:
        raise _TransferError(str(error), is_final=True) from error
    except StalledError as error:
        raise _TransferError(f"'{url}' {error}", is_slow=True) from error
    except TimeoutError as error:
        raise _TransferError(f"'{url}' sent nothing for {stall_s:g} s") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _TransferError(f"'{url}' sent nothing for {stall_s:g} s") from error
        is_final = url.startswith("file:") or isinstance(error.reason, (*_PERMANENT, str))
        raise _TransferError(
            f"'{url}' could not be reached ({error.reason})", is_final=is_final
        ) from error
    except (ConnectionError, ssl.SSLError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise _TransferError(f"'{url}' closed the connection ({reason})") from error


class _Meter:
    """Renders the progress of a download from time to time."""

    def __init__(self, start: int, total: int | None, clock: Clock) -> None:
        self._start = self._at = start
        self._total = total
        self._clock = clock
        self._since = self._reported_at = clock.monotonic()
        self._reported_percent = self._percent()

    def _percent(self) -> int:
        return 0 if not self._total else 100 * self._at // self._total

    def add(self, count: int) -> str | None:
        """Count received bytes. Return a line to report if the interval has passed, else None."""
        self._at += count
        now = self._clock.monotonic()
        is_due = (
            self._percent() >= self._reported_percent + _REPORT_PERCENT
            or now - self._reported_at >= _REPORT_S
        )
        if not is_due:
            return None
        self._reported_percent, self._reported_at = self._percent(), now
        return self.line()

    def line(self) -> str:
        elapsed = self._clock.monotonic() - self._since
        speed = f", {_mib(self._at - self._start) / elapsed:.1f} MiB/s" if elapsed > 0 else ""
        if self._total is None:
            return f"{_mib(self._at):.1f} MiB downloaded{speed}"
        return f"{self._percent()} % of {_mib(self._total):.1f} MiB downloaded{speed}"


def _mib(count: int) -> float:
    return count / (1 << 20)


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0


def _extent(url: str, response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return the offset of the response's body in the file, and the size of the file."""
    size = length(response.headers)
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0, size
    begin, total = content_range(response.headers)
    if begin != have:
        raise _TransferError(f"'{url}' sent a range that was not requested", is_final=True)
    if total is None and size is not None:
        total = begin + size
    return begin, total


def _beyond(limit: Limit, url: str) -> _TransferError:
    sentence = str(limit.error(f"'{url}'")).removesuffix(".")
    return _TransferError(sentence, is_final=True, is_useless=True)


def _record_origin(part: Path, url: str, headers: Message) -> None:
    """Record the URL and the validator (ETag or date) of the file that is downloaded."""
    origin = part.with_name(part.name + _ORIGIN)
    origin.write_text(json.dumps({"url": url, "validator": validator(headers)}))


def _if_range(part: Path, url: str) -> dict[str, str]:
    """Return the If-Range header, by which the server resumes only an unchanged file."""
    try:
        recorded = json.loads(part.with_name(part.name + _ORIGIN).read_text())
        is_same = recorded["url"] == url and isinstance(recorded["validator"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"If-Range": recorded["validator"]} if is_same else {}
