"""Servers of cloud images that send too much, send too slowly, lie about sizes, or redirect."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING

import pytest

from harness.image import ImageFetchError
from harness.image.cloud.download import Downloader, Patience
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline, WaitTimeoutError
from suites.unit.image.imageserver import Handler, ImageServer, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FILE = "x.img"
CONTENT = bytes(range(250)) * 40
QUICK = Patience(tries=2, stall_s=0.4, stall_bytes=1000, pause_s=0.01)
OK = b"HTTP/1.1 200 OK\r\n"
PIECE = bytes(1 << 16)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with serving({FILE: CONTENT}) as images:
        yield images


class Download:
    """A download of a file or of a list, and the messages that it reported."""

    def __init__(self, server: ImageServer, folder: Path) -> None:
        self.server = server
        self.part = folder / "x.part"
        self.said: list[str] = []
        self.downloader = Downloader(patience=QUICK, report=self.said.append)

    def fail_always(self, fault: Callable[[Handler], None]) -> None:
        self.server.fail_with(FILE, *[fault] * 20)

    def fail(self, *more: str, within_s: float = 60.0) -> str:
        with pytest.raises(ImageFetchError) as failure:
            self.downloader.to_file(
                [self.server.url(FILE), *more], self.part, deadline=Deadline.after(within_s)
            )
        return str(failure.value)

    def fail_to_read(self) -> str:
        with pytest.raises(ImageFetchError) as failure:
            self.downloader.read([self.server.url(FILE)], deadline=Deadline.after(60.0))
        return str(failure.value)


@pytest.fixture
def download(server: ImageServer, tmp_path: Path) -> Download:
    return Download(server, tmp_path)


def flood(head: bytes, piece: bytes = PIECE) -> Callable[[Handler], None]:
    def fault(handler: Handler) -> None:
        handler.wfile.write(head)
        for _ in range(10_000):
            handler.wfile.write(piece)

    return fault


def sending(raw: bytes) -> Callable[[Handler], None]:
    def fault(handler: Handler) -> None:
        handler.wfile.write(raw)

    return fault


def trickle(handler: Handler) -> None:
    """Send a byte every 20 ms, from the offset that the client requests."""
    begin = int(handler.headers.get("Range", "bytes=0-")[6:-1])
    handler.send_response(206 if begin else 200)
    handler.send_header("Content-Length", str(99_999 - begin))
    handler.send_header("Content-Range", f"bytes {begin}-99998/99999")
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        threading.Event().wait(0.02)


def one_byte(handler: Handler) -> None:
    """Send a byte from the offset that the client requests, and close the connection."""
    begin = int(handler.headers.get("Range", "bytes=0-")[6:-1])
    handler.send_response(206 if begin else 200)
    handler.send_header("Content-Range", f"bytes {begin}-99998/99999")
    handler.send_header("Content-Length", str(99_999 - begin))
    handler.end_headers()
    handler.wfile.write(b"x")
    handler.close_connection = True


@pytest.mark.parametrize("length", [b"", b"Content-Length: \xb2\r\n", b"Transfer-Encoding: x\r\n"])
def test_body_without_a_length_ends_at_the_limit(
    download: Download, monkeypatch: pytest.MonkeyPatch, length: bytes
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_DOWNLOAD_UNKNOWN_MIB", "2")
    download.fail_always(flood(OK + length + b"\r\n"))

    said = download.fail()

    assert "more than 2 MiB, which is the limit 'download-unknown-mib'" in said
    assert not download.part.exists()
    assert len(download.server.requests) == 1, "Another try gives the same."


@pytest.mark.parametrize("interim", [b"102 Processing", b"103 Early Hints"])
def test_interim_answers_are_skipped(download: Download, interim: bytes) -> None:
    head = b"HTTP/1.1 " + interim + b"\r\nLink: </x>\r\n\r\n"
    body = b"Content-Length: %d\r\n\r\n" % len(CONTENT) + CONTENT
    download.server.fail_with(FILE, sending(head + head + OK + body))

    urls = [download.server.url(FILE)]
    download.downloader.to_file(urls, download.part, deadline=Deadline.after(60.0))

    assert download.part.read_bytes() == CONTENT


@pytest.mark.parametrize("interim", [b"100 Continue", b"103 Early Hints"])
def test_endless_interim_answers_end_the_request(download: Download, interim: bytes) -> None:
    download.fail_always(flood(b"", piece=b"HTTP/1.1 " + interim + b"\r\n\r\n"))

    assert "more than 100 interim responses" in download.fail()


@pytest.fixture
def silent_port(server: ImageServer) -> Iterator[int]:
    """Return the server's port, which never accepts a connection at another address."""
    port = urllib.parse.urlsplit(server.url(FILE)).port
    assert port is not None
    with contextlib.ExitStack() as opened:
        silent = opened.enter_context(socket.socket())
        silent.bind(("127.0.0.2", port))
        silent.listen(0)
        for _ in range(3):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", port))
        yield port


@pytest.mark.parametrize("has_live_one", [True, False])
def test_dead_address_of_a_host_delays_a_download_only_a_little(
    download: Download, silent_port: int, monkeypatch: pytest.MonkeyPatch, *, has_live_one: bool
) -> None:
    """IPv6 may be dead on a host whose IPv4 works."""
    resolve = socket.getaddrinfo
    addresses = ["127.0.0.2"] * 30 + ["127.0.0.1"] * has_live_one
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda _host, *rest, **more: [resolve(each, *rest, **more)[0] for each in addresses],
    )
    monkeypatch.setattr("harness.http_requests._CONNECT_S", 0.02)
    begun = time.monotonic()

    with contextlib.nullcontext() if has_live_one else pytest.raises(ImageFetchError):
        download.downloader.to_file(
            [f"http://images.test:{silent_port}/images/{FILE}"],
            download.part,
            deadline=Deadline.after(60.0),
        )

    assert time.monotonic() - begun < 20 * QUICK.stall_s
    assert download.part.exists() == has_live_one


def test_next_location_is_tried_after_an_endless_download(
    download: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_DOWNLOAD_UNKNOWN_MIB", "1")
    download.fail_always(flood(OK + b"\r\n"))
    with serving({FILE: CONTENT}) as mirror:
        urls = [download.server.url(FILE), mirror.url(FILE)]

        download.downloader.to_file(urls, download.part, deadline=Deadline.after(60.0))

    assert download.part.read_bytes() == CONTENT


def test_file_of_a_size_beyond_the_limit_is_not_downloaded(download: Download) -> None:
    download.fail_always(flood(OK + b"Content-Length: 99999999999999\r\n\r\n"))

    assert "HARNESS_LIMIT_DOWNLOAD_MIB" in download.fail()
    assert not download.part.exists()


@pytest.mark.parametrize(
    ("extent", "why"),
    [
        ("bytes 100-199/200", "sent more than the 200 bytes that it announced"),
        ("bytes 99-199/200", "sent a range that was not requested"),
        ("bytes 100-199/99999999999999999999", "sent a range that was not requested"),
        ("bytes 100-199/999999999999999999", "HARNESS_LIMIT_DOWNLOAD_MIB"),
        ("bytes 100-199/*", "HARNESS_LIMIT_DOWNLOAD_UNKNOWN_MIB"),
    ],
)
def test_response_with_a_wrong_content_range_is_refused(
    download: Download, monkeypatch: pytest.MonkeyPatch, extent: str, why: str
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_DOWNLOAD_UNKNOWN_MIB", "2")
    download.part.write_bytes(CONTENT[:100])
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: {extent}\r\n\r\n"
    download.fail_always(flood(head.encode()))

    assert why in download.fail()


def test_too_slow_download_ends_even_if_it_can_be_resumed(download: Download) -> None:
    download.fail_always(trickle)
    begun = time.monotonic()

    said = download.fail()

    assert "sent fewer than 1000 bytes within 0.4 s, 2 times in a row" in said
    assert time.monotonic() - begun < 20


def test_download_ends_if_each_try_gets_only_one_byte(download: Download) -> None:
    download.fail_always(one_byte)

    assert "closed the connection after 2 of 99999 bytes, 2 times in a row" in download.fail()


@pytest.mark.parametrize("extent", [b"", b"Content-Range: bytes */0\r\n"])
@pytest.mark.parametrize("name", ["fail", "fail_to_read"])
def test_error_416_without_a_requested_range_is_reported(
    download: Download, name: str, extent: bytes
) -> None:
    head = b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n"
    download.fail_always(sending(head + extent + b"\r\n"))

    assert "answered 416 Range Not Satisfiable" in getattr(download, name)()


@pytest.mark.parametrize(
    ("extent", "why"),
    [
        (b"", "sent a range that was not requested"),
        (b"Content-Range: bytes 9-12/13\r\n", "sent a range that was not requested"),
        (b"Content-Range: bytes 0-3/13\r\n", "closed the connection after 4 of 13 bytes"),
    ],
)
def test_incomplete_list_of_digests_is_refused(
    download: Download, extent: bytes, why: str
) -> None:
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n"
    download.fail_always(sending(head + extent + b"\r\npart"))

    assert why in download.fail_to_read()


def test_too_slow_headers_end_the_download(download: Download) -> None:
    def fault(handler: Handler) -> None:
        for _ in range(1000):
            handler.wfile.write(b"X")
            handler.wfile.flush()
            threading.Event().wait(0.02)

    download.fail_always(fault)

    assert "sent fewer than 1000 bytes within 0.4 s, 2 times in a row" in download.fail()


def test_endless_trailers_end_at_the_deadline(download: Download) -> None:
    head = OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
    download.fail_always(flood(head, b"X: y\r\n" * 10_000))

    with pytest.raises(WaitTimeoutError):
        download.downloader.to_file(
            [download.server.url(FILE)], download.part, deadline=Deadline.after(0.5)
        )


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("file:///etc/passwd", "is not a URL of http or https"),
        ("ftp://127.0.0.1:1/x", "is not a URL of http or https"),
        ("http://[::1", "is not a URL (Invalid IPv6 URL)"),
        ("http://127.0.0.1:99999/x", "is not a URL (Port out of range 0-65535)"),
        ("//", "leads to '//' once more"),
    ],
)
def test_invalid_redirect_is_reported_in_a_sentence(
    download: Download, target: str, why: str
) -> None:
    head = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\n\r\n"
    download.fail_always(sending(head.encode()))

    said = download.fail()

    assert "answered 302, and its redirect is not followed: " in said
    assert why in said
    assert not download.part.exists()


def test_terminal_escapes_of_a_status_line_are_shown_as_text(download: Download) -> None:
    line = b"HTTP/1.1 503 \x1b]0;owned\x07" + b"x" * 60_000 + b"\r\n\r\n"
    download.fail_always(sending(line))

    said = download.fail()

    assert r"answered 503 \x1b]0;owned\x07xxx" in said
    for text in (said, *download.said):
        assert "\x1b" not in text
        assert len(text) < 1000


def test_list_beyond_the_limit_is_refused(download: Download) -> None:
    download.fail_always(flood(OK + b"\r\n"))

    assert "HARNESS_LIMIT_DOWNLOAD_LIST_MIB" in download.fail_to_read()


def test_list_is_requested_again_after_a_broken_connection(download: Download) -> None:
    def reset(handler: Handler) -> None:
        handler.wfile.write(OK + b"Content-Length: 1000\r\n\r\nhalf")
        handler.wfile.flush()
        threading.Event().wait(0.05)
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        handler.close_connection = True

    download.fail_always(reset)

    said = download.fail_to_read()

    assert "closed the connection" in said
    assert "2 times in a row" in said


def test_too_slow_download_of_a_list_ends(download: Download) -> None:
    download.fail_always(trickle)

    assert "sent fewer than 1000 bytes within 0.4 s, 2 times" in download.fail_to_read()


def test_request_imports_no_further_module() -> None:
    # Such a module can't be loaded if the process has no memory or file descriptor left.
    program = (
        "import sys, urllib.error, urllib.request\n"
        "from harness.http_requests import HttpOpener, Pace\n"
        "from harness.provisioning.wait import Deadline\n"
        "pace = Pace(stall_s=1.0, stall_bytes=1, deadline=Deadline.after(5.0))\n"
        "sys.meta_path.clear()\n"
        "try:\n"
        "    HttpOpener().open(urllib.request.Request('http://127.0.0.1:1/'), pace)\n"
        "except urllib.error.URLError as error:\n"
        "    print(error.reason)\n"
    )

    result = LocalRunner().run([sys.executable, "-c", program], timeout_s=60.0)

    assert "Connection refused" in result.check("The request").stdout
